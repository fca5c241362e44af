//! Start and stop: from a data folder to a running loop and back.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rand_chacha::ChaCha20Rng;
use rand_core::{Rng, SeedableRng};
use serde::de::IgnoredAny;
use serde_json::json;
use tieline_proto::channel::{Home, RunProgress, State};
use tieline_proto::crypto::link_key::LinkKey;
use tieline_proto::entry::{Entry, NewEntry};
use tieline_proto::id::{ChannelId, Handle, Lamport, MessageId, NodeId, Seq};
use tieline_proto::log::{Head, Homes, Line, LogId, Term};
use tieline_proto::org::{ChannelTerm, Org};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::attempts::open_resident;
use super::channel::Channel;
use super::folder::{OpenedOrg, check_keys, device_keys, found, link_key_path, open_org, transport_key};
use super::membership::Membership;
use super::outlet::{LOCAL_WAITING_MAX, Outlet};
use super::ports::start_net;
use super::snapshot::{self, Unread};
use super::tokens::AgentTokens;
use super::turns::Turns;
use super::{Node, Sources, pairing};
use crate::config::{Config, LogFormat};
use crate::consent::Consent;
use crate::data_dir::{DataDir, DirError};
use crate::handle::NodeHandle;
use crate::harness::registry::RegistryError;
use crate::harness::{Host, HostConfig, Registry};
use crate::http::{Backend, Doors, Limits, Metrics};
use crate::keys::{self, KeyFileError};
use crate::net::{Net, NetError};
use crate::store::{
    Command, Commit, Core, Index, JournalAppend, JournalId, Keep, Layout, OpenError, OpenLog, OpenedLog, Reader,
    RealDisk, Resume, Writer, index, recover,
};

/// Runner news that wait for the loop.
const NEWS_WAITING_MAX: usize = 256;

/// Results of side tasks that wait for the loop.
const DONE_WAITING_MAX: usize = 256;

/// How long a start waits for its addresses.
const LISTEN_WAIT: Duration = Duration::from_secs(2);

/// How often it looks.
const LISTEN_LOOK: Duration = Duration::from_millis(2);

/// How long the loop may take to finish what is on its way to disk when it stops.
const DRAIN_WAIT: Duration = Duration::from_secs(5);

/// Entries between two lines of progress while the index is made anew.
const INDEX_PROGRESS: u64 = 100_000;

/// Look-ups added to the index at once.
const INDEX_BATCH: usize = 4096;

/// Why a node did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The data folder.
    #[error(transparent)]
    Data(#[from] DirError),
    /// A key file.
    #[error(transparent)]
    Key(#[from] KeyFileError),
    /// A log.
    #[error(transparent)]
    Log(#[from] crate::store::OpenError),
    /// The harnesses of this box.
    #[error(transparent)]
    Harness(#[from] RegistryError),
    /// The network.
    #[error(transparent)]
    Net(#[from] NetError),
    /// A door.
    #[error(transparent)]
    Door(#[from] crate::http::DoorError),
    /// The org's chain.
    #[error("the org's chain is damaged in its first entries, or cannot be read: {path}: {why}", path = .path.display())]
    Chain {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The disk.
    #[error("{what}: {error}")]
    Io {
        /// What was being done.
        what: String,
        /// What the system says.
        error: std::io::Error,
    },
    /// Anything that is not sound.
    #[error("{0}")]
    Unsound(String),
}

pub(super) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> StartError {
    let what = what.into();
    move |error| StartError::Io { what, error }
}

pub(super) fn unsound(error: &dyn std::fmt::Display) -> StartError {
    StartError::Unsound(error.to_string())
}

/// The wall clock in Unix milliseconds.
#[must_use]
pub fn wall_clock() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// A generator seeded by the operating system.
pub(super) fn os_rng() -> Result<ChaCha20Rng, StartError> {
    let mut seed = [0; 32];
    getrandom::fill(&mut seed).map_err(|error| unsound(&error))?;
    Ok(ChaCha20Rng::from_seed(seed))
}

/// Harnesses of this box.
pub(super) fn registry(config: &Config) -> Result<Registry, RegistryError> {
    let commands = config.harness.iter().map(|(name, harness)| (name.clone(), harness.command.clone()));
    Registry::load(&config.data, commands.collect())
}

/// Who seals a channel's log, by the org's chain.
fn homes(org: &Org, channel: ChannelId) -> Homes {
    Homes::terms(org.terms(&channel).iter().map(|term| Term {
        epoch: term.epoch,
        home: term.home,
        start: term.start,
        prev: term.prev,
    }))
}

/// Folds entries as they are read.
#[derive(Default)]
struct Folding {
    state: Option<State>,
    fault: Option<String>,
}

impl Folding {
    fn add(&mut self, entry: Entry) {
        if self.fault.is_some() {
            return;
        }
        let Entry { seq, epoch, lamport, prev: _, org, ts, by, auth, body } = entry;
        let entry = NewEntry { seq, epoch, lamport, org, ts, by, auth, body };
        let applied = match &mut self.state {
            None => State::begin(&entry).map(|state| self.state = Some(state)),
            Some(state) => state.apply(&entry),
        };
        self.fault = applied.err().map(|error| error.to_string());
    }

    /// Goes on from a snapshot.
    const fn resume(state: State) -> Self {
        Self { state: Some(state), fault: None }
    }

    fn into_home(self, layout: &Layout, me: NodeId) -> Result<Home, String> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        let state = self.state.ok_or_else(|| "the log is empty".to_owned())?;
        let runs = runs(layout, &state)?;
        Ok(Home::new(state, me, runs))
    }
}

/// What channels are opened from.
struct OnDisk<'a> {
    layout: &'a Layout,
    index: &'a Index,
    org: &'a Org,
    me: NodeId,
}

impl OnDisk<'_> {
    /// Opens a channel's log and takes up its fold: from a snapshot where there is one, else from the first entry.
    fn open_channel(
        &self,
        id: ChannelId,
        term: &ChannelTerm,
        notes: &mut Vec<String>,
        unread: &mut Vec<Unread>,
    ) -> Result<(OpenedLog, Channel), StartError> {
        let name = &term.name;
        let (opened, folding, from) = match snapshot::find(self.index, id, term) {
            None => self.read(id, term, None)?,
            Some(snapshot) => match self.read(id, term, Some(snapshot)) {
                // The log is another one than it was: restored, or damaged. Where, only reading all of it tells.
                Err(OpenError::Stale { seq }) => {
                    tracing::warn!(channel = %name, %seq, "the log is not what it was: it is read from its beginning");
                    self.read(id, term, None)?
                }
                read => read?,
            },
        };
        if let Some(repair) = &opened.repair {
            let note = format!(
                "{name}: {} bytes behind entry {} were never sealed and were cut ({})",
                repair.bytes, repair.after, repair.why
            );
            tracing::warn!("{note}");
            notes.push(note);
        }
        let head = opened.head;
        if head.seq == Seq(0) {
            tracing::warn!(channel = %name, "a channel that was being made when the node stopped has no entry");
            notes.push(format!("{name}: its first entry was never saved; make it again"));
        }
        let home = match &opened.broken {
            Some(bad) => Err(format!("its log is damaged: {bad}")),
            None => folding.into_home(self.layout, self.me),
        };
        let channel = match home {
            Ok(home) => {
                let kept = match (from, opened.resume()) {
                    (None, Some(at)) => snapshot::first(self.index, &home, &at),
                    (from, _) => from.map_or(Seq(0), |from| from.seq),
                };
                unread.extend(from.map(|from| Unread::new(id, homes(self.org, id), from)));
                Channel::new(home, head, kept)
            }
            Err(reason) => {
                tracing::error!(channel = %name, reason, "the channel is read-only");
                notes.push(format!("{name}: read-only: {reason}"));
                Channel::broken(id, head, reason)
            }
        };
        Ok((opened, channel))
    }

    /// Checks and folds a log from a snapshot on, and adds to the index what it lacks of it. Gives where it began too.
    fn read(
        &self,
        id: ChannelId,
        term: &ChannelTerm,
        from: Option<(Resume, State)>,
    ) -> Result<(OpenedLog, Folding, Option<Head>), OpenError> {
        let log = LogId::Channel(id);
        let (from, state) = from.unzip();
        let began = from.as_ref().map(|resume| resume.at.head);
        let mut folding = state.map_or_else(Folding::default, Folding::resume);
        let homes = homes(self.org, id);
        let open = OpenLog { disk: &RealDisk, layout: self.layout, log, keep: Keep::Home, homes, from, known: None };
        // The index is written behind: what it lacks of the log is added now.
        // A log that is read from its beginning is indexed whole: it may have been restored beneath its index.
        let reaches = began.and_then(|_| self.index.reaches(log)).map_or(Seq(0), |checkpoint| checkpoint.head.seq);
        let mut items = Vec::new();
        let mut behind = 0_u64;
        let opened = open.open(&mut |entry, _| {
            if entry.seq > reaches {
                index::items(entry.seq, entry.by, &entry.auth, &entry.body, &mut items);
                behind += 1;
                if behind.is_multiple_of(INDEX_PROGRESS) {
                    tracing::info!(channel = %term.name, entries = behind, "the index is being made anew");
                }
            }
            folding.add(entry);
        })?;
        if let Some(checkpoint) = opened.checkpoint().filter(|_| !items.is_empty()) {
            for items in items.chunks(INDEX_BATCH) {
                self.index.add(log, items, &checkpoint);
            }
        }
        Ok((opened, folding, began))
    }
}

/// The journals of a channel's open turns.
fn runs(layout: &Layout, state: &State) -> Result<BTreeMap<MessageId, RunProgress>, String> {
    let mut runs = BTreeMap::new();
    for (run, turn) in &state.turns {
        let id = JournalId::Run { channel: state.id, message: *run, attempt: turn.attempt };
        let mut progress = RunProgress::new(turn.attempt);
        if layout.journal(id).exists() {
            let mut bad = None;
            let recovered = recover::<IgnoredAny>(&RealDisk, layout, id, &mut |line| {
                let mut line = line.to_vec();
                line.push(b'\n');
                if let Err(error) = progress.absorb(&line) {
                    bad.get_or_insert(error);
                }
            });
            recovered.map_err(|error| format!("{id}: {error}"))?;
            if let Some(error) = bad {
                return Err(format!("{id}: {error}"));
            }
            progress.all_synced();
        }
        runs.insert(*run, progress);
    }
    Ok(runs)
}

/// Folds a channel's log anew from what is sealed and synced. `kept` is the place of the last snapshot.
pub(super) fn refold(reader: &Reader, id: ChannelId, me: NodeId, kept: Seq) -> Result<(Home, Head), String> {
    let log = LogId::Channel(id);
    let head = reader.head(log).ok_or_else(|| "the log is not open".to_owned())?;
    let snapshot = snapshot::kept(reader.index(), id, kept).filter(|state| state.seq <= head.seq);
    let mut folding = snapshot.map_or_else(Folding::default, Folding::resume);
    let next = folding.state.as_ref().map_or(Seq(1), |state| state.seq.next());
    let mut cursor = reader.lines(log, next);
    while let Some(chunk) = cursor.read(1 << 20).map_err(|error| error.to_string())? {
        for line in chunk.lines() {
            if let Ok(Line::Entry(entry)) = Line::parse(line) {
                folding.add(entry);
            }
        }
    }
    folding.into_home(reader.layout(), me).map(|home| (home, head))
}

/// The handle of the person whose box this is.
fn person() -> Handle {
    let user = std::env::var("USER").or_else(|_| std::env::var("LOGNAME")).unwrap_or_default();
    let clean: String = user
        .to_lowercase()
        .chars()
        .map(|c| if c.is_ascii_lowercase() || c.is_ascii_digit() { c } else { '-' })
        .take(31)
        .collect();
    let clean = clean.trim_matches('-');
    Handle::new(clean).or_else(|_| Handle::new("owner")).unwrap_or_else(|_| unreachable!("a valid handle"))
}

/// Runs a node until it is told to stop. `stop` is cancelled by a signal; the node cancels it itself when asked.
///
/// # Errors
/// When it cannot start.
pub async fn run(config: Config, stop: CancellationToken) -> Result<(), StartError> {
    let dir = DataDir::open(&config.data)?;
    crate::logging::start_file(&config.data).map_err(io("opening the log file"))?;
    loop {
        let life = stop.child_token();
        let Some(adoption) = Box::pin(live(&config, life)).await? else { break };
        if stop.is_cancelled() {
            break;
        }
        let layout = Layout::new(&config.data);
        let keys = device_keys(&config.data)?;
        super::offline::adopt(&layout, &keys, &adoption.joined, adoption.residency.as_ref())
            .map_err(|error| unsound(&error))?;
    }
    drop(dir);
    Ok(())
}

/// One life of a node: until it stops, or begins anew in an org that it was enrolled in.
async fn live(config: &Config, stop: CancellationToken) -> Result<Option<pairing::Adoption>, StartError> {
    let started = Instant::now();
    let layout = Layout::new(&config.data);
    check_keys(&config.data)?;
    let keys = Arc::new(device_keys(&config.data)?);
    let me = keys.device();
    let opened = match open_org(&layout, me)? {
        Some(opened) => opened,
        None => found(&config.name, &layout, &keys)?,
    };
    let (org_note, org_broken) = (opened.note(), opened.broken());
    let OpenedOrg { org, log: org_log } = opened;
    let mut config = config.clone();
    if let Some(device) = org.device(&me).filter(|_| !config.name_chosen) {
        config.name.clone_from(&device.name);
    }
    let config = &config;
    let link_key = keys::read(&link_key_path(&config.data))?
        .ok_or_else(|| unsound(&"the link key is missing: restore keys/link, or pair this box again"))?;
    let link_key = LinkKey::from_secret_bytes(&link_key).map_err(|error| unsound(&error))?;

    // The disk.
    let (index, found) = Index::open(&layout.index());
    match found {
        index::Found::Intact => {}
        index::Found::New => tracing::info!("there is no index: it is rebuilt from the logs"),
        index::Found::Damaged(why) => tracing::warn!(why, "the index was damaged and is rebuilt from the logs"),
    }
    let mut channels = BTreeMap::new();
    let mut logs = Vec::new();
    let mut lamport = Lamport(0);
    let mut notes = Vec::new();
    if let Some(note) = org_note {
        tracing::warn!("{note}");
        notes.push(note);
    }
    let mut unread = Vec::new();
    let disk = OnDisk { layout: &layout, index: &index, org: &org, me };
    for (id, term) in org.channels().filter(|(_, term)| term.home == me) {
        let (log, channel) = disk.open_channel(id, term, &mut notes, &mut unread)?;
        if let Some(home) = &channel.home {
            lamport = lamport.max(home.state().lamport);
        }
        logs.push(log);
        channels.insert(id, channel);
    }
    let (resident, attempts, attempts_len, first) = open_resident(&layout)?;
    let core = Core::new(Arc::new(RealDisk), layout.clone(), keys.signing().clone(), index.clone());
    let reader = core.reader();
    let (writer, reports) = Writer::spawn(core).map_err(io("starting the writer"))?;
    let org_head = org_log.head;
    for log in std::iter::once(org_log).chain(logs) {
        writer.send(Command::Add(Box::new(log))).await;
    }
    let mut length = attempts_len;
    if !first.is_empty() {
        let append = JournalAppend { id: attempts, at: 0, bytes: first.clone(), sync: true };
        writer.send(Command::Commit(Commit { token: 0, journals: vec![append], ..Commit::default() })).await;
        length = first.len() as u64;
    }

    // Who and where.
    let membership = Membership::new(me, (org, org_head, org_broken), vec![link_key], person(), &config.data);
    let (org_view, org_seen) = watch::channel(Arc::new(membership.view()));
    let mut rng = os_rng()?;
    let mut net_seed = [0; 32];
    rng.fill_bytes(&mut net_seed);
    let keypair = transport_key(&config.data)?;
    let (net, net_events) = start_net(config, &keypair, &keys, net_seed, &org_seen, &mut notes)?;
    net.want(membership.wants());

    // Turns and doors.
    let host_config = HostConfig::of_this_node(&config.env_pass).map_err(io("finding this program"))?;
    let host = Host::new(host_config, registry(config)?);
    let consent = Consent::load(&config.data, me).map_err(|error| unsound(&error))?;
    let (news, news_received) = mpsc::channel(NEWS_WAITING_MAX);
    let (done, done_received) = mpsc::channel(DONE_WAITING_MAX);
    let (local, local_received) = mpsc::channel(LOCAL_WAITING_MAX);
    let (handle, calls) = NodeHandle::new();
    let agent_tokens = AgentTokens::default();
    snapshot::check_unread(unread, reader.clone(), done.clone(), stop.clone());
    let backend = Backend {
        node: handle.clone(),
        tokens: Arc::new(agent_tokens.clone()),
        metrics: Arc::new(Gauges { net: net.clone(), reader: reader.clone() }),
    };
    let doors = Doors::open(&config.data, config.api, Limits::default(), backend).await?;
    if doors.moved {
        let note = format!("port {} is busy: the page and API are at http://{}", config.api.addr.port(), doors.addr);
        tracing::warn!("{note}");
        notes.push(note);
    }
    let api = format!("http://{}", doors.addr);
    let outlet = Outlet { me, net: net.clone(), local };
    let turns = Turns::new(resident, (attempts, length), host.clone(), consent, news, &config.data);
    let pairing = pairing::Pairing::default();
    let mut node = Node {
        me,
        keys,
        membership,
        org_view,
        channels,
        lamport,
        rng,
        started,
        wall: Arc::new(wall_clock),
        writer,
        reader,
        next_token: 1,
        backlog: VecDeque::new(),
        tokens: BTreeMap::new(),
        net,
        outlet,
        peers: BTreeMap::new(),
        addrs: Vec::new(),
        api,
        notes,
        turns,
        agent_tokens,
        handle,
        done,
        next_ticket: 0,
        waiting: BTreeMap::new(),
        parked: Vec::new(),
        next_call: 1,
        forwarded: BTreeMap::new(),
        fed: BTreeMap::new(),
        pairing,
        staged: super::blobs::Staged::default(),
        work: VecDeque::new(),
        reopen_at: None,
        stopped: BTreeSet::new(),
        stop,
        data: config.data.clone(),
        config: config.clone(),
    };
    let mut sources =
        Sources { calls, net: net_events, reports, local: local_received, news: news_received, done: done_received };
    for id in node.channels.keys().copied().collect::<Vec<_>>() {
        node.sweep_staged(id);
        node.greet(id);
    }
    node.resident(tieline_proto::turn::Input::LinkUp(me));
    // The ready file names the addresses, and the transport binds them in its own time.
    let deadline = Instant::now() + LISTEN_WAIT;
    while node.net.listening().is_empty() && Instant::now() < deadline {
        tokio::time::sleep(LISTEN_LOOK).await;
    }
    node.learn_listening();
    if let Err(error) = node.write_ready() {
        // Who waits for the file would wait for ever.
        node.close(sources).await;
        return Err(io(format!("writing the ready file {}", ready_path(config)))(error));
    }
    node.greet_person();
    tracing::info!(
        node = %me.short(), name = node.config.name, api = node.api, ms = started.elapsed().as_millis() as u64, "up"
    );
    let driven = node.drive(&mut sources).await;
    node.close(sources).await;
    drop(doors);
    driven?;
    Ok(node.pairing.joined.take())
}

fn ready_path(config: &Config) -> String {
    config.ready_file.as_deref().map_or_else(String::new, |path| path.display().to_string())
}

/// What `/metrics` shows.
struct Gauges {
    net: Net,
    reader: Reader,
}

impl Metrics for Gauges {
    fn write(&self, text: &mut String) {
        use std::fmt::Write as _;
        let up = self.net.links().iter().filter(|link| link.state == crate::net::LinkState::Up).count();
        let _ = writeln!(text, "# TYPE tieline_links_up gauge\ntieline_links_up {up}");
        let _ = writeln!(text, "# TYPE tieline_log_entries gauge");
        for log in self.reader.logs() {
            let seq = self.reader.head(log).map_or(0, |head| head.seq.0);
            let _ = writeln!(text, "tieline_log_entries{{log=\"{log}\"}} {seq}");
        }
    }
}

impl Node {
    /// Tells a person what to type next; programs read the ready file.
    fn greet_person(&self) {
        use std::io::Write as _;
        if self.config.log != LogFormat::Human || self.config.json {
            return;
        }
        let name = self.membership.org().and_then(|org| org.channels().next()).map(|(_, term)| term.name.as_str());
        let next = match name {
            // The first thing a person types is answered, with no agent installed and no second box.
            None => [
                "channel create lobby",
                "member add lobby echo --harness scripted",
                "post lobby \"@echo hello\" --wait",
            ]
            .map(str::to_owned)
            .to_vec(),
            Some(name) => vec![format!("tail {name} --follow"), "status".to_owned()],
        };
        let mut text =
            format!("{} is up. The page and the API: {}\n\nNext, in another terminal:\n", self.config.name, self.api);
        for args in next.iter().map(String::as_str).chain(["pair"]) {
            text.push_str(&format!("  {}\n", self.config.command(args)));
        }
        // Nobody may read it; the node runs all the same.
        let _ = std::io::stdout().lock().write_all(text.as_bytes());
    }

    /// Says that the node answers, to whoever waits for it.
    fn write_ready(&self) -> std::io::Result<()> {
        let Some(path) = &self.config.ready_file else { return Ok(()) };
        let ready = json!({
            "api": self.api,
            "node": self.me,
            "peer_id": self.net.peer_id().to_string(),
            "addrs": self.addrs,
            "pid": std::process::id(),
            "version": env!("CARGO_PKG_VERSION"),
        });
        keys::write(path, ready.to_string().as_bytes())
    }

    /// Ends what runs, finishes what is on its way to disk, and closes everything.
    async fn close(&mut self, mut sources: Sources) {
        if let Some(path) = &self.config.ready_file {
            let _ = std::fs::remove_file(path);
        }
        self.abandon_turns();
        self.turns.host.shutdown().await;
        let deadline = Instant::now() + DRAIN_WAIT;
        while !self.tokens.is_empty() {
            match tokio::time::timeout_at(deadline, sources.reports.recv()).await {
                Ok(Some(report)) => {
                    self.report(report);
                    self.work_off();
                    self.drain_backlog();
                }
                _ => break,
            }
        }
        self.drain_backlog();
        self.snapshot_all().await;
        self.net.shutdown().await;
        self.membership.close().await;
        tracing::info!("stopped");
    }
}
