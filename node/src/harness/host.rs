//! The host: starts turns, and keeps each member's program running between them where the program allows it.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::time::Duration;

use tieline_proto::event::{Event, Outcome};
use tieline_proto::id::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, interval, timeout};
use tokio_util::sync::CancellationToken;

use super::registry::{Adapter, Registry, Resolved};
use super::session::{Ran, Session};
use super::turn::{TurnIo, failed, interrupted};
use super::{SessionKey, Turn, TurnSpec, env, exec, keeper, scripted};

/// Programs that run at once on this box. An agent program takes 0.2 to 1 GiB; more turns wait for one to end.
pub const PROCESSES_MAX: usize = 64;

/// A program that had no turn for this long is ended; the next turn resumes its session in a new one.
pub const IDLE_MAX: Duration = Duration::from_secs(10 * 60);

/// How often idle programs are looked for.
const IDLE_CHECK: Duration = Duration::from_secs(30);

/// How long turns may take to stop when the node stops. Beyond it their programs are ended with them.
const STOP_WAIT: Duration = Duration::from_secs(5);

/// Names the witness file of the scripted harness.
const WITNESS_VARIABLE: &str = "TIELINE_SCRIPTED_WITNESS";

/// How many programs a box runs, and for how long without work.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Limits {
    /// Programs at once, at least one.
    pub processes: usize,
    /// How long one is kept after its last turn.
    pub idle: Duration,
    /// How often that is looked at.
    pub idle_check: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { processes: PROCESSES_MAX, idle: IDLE_MAX, idle_check: IDLE_CHECK }
    }
}

/// What a host needs to know of its box.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// A binary that calls [`keeper::run_if_asked`] first: the node's own.
    pub keeper: PathBuf,
    /// What every program's environment starts from.
    pub env: BTreeMap<String, String>,
    /// Where the scripted harness proves its turns. Tests only.
    pub witness: Option<PathBuf>,
    /// How many programs run, and for how long.
    pub limits: Limits,
}

impl HostConfig {
    /// This process as the node: its binary, the short list of its environment, and what the owner passes on.
    ///
    /// # Errors
    /// When the own binary can't be found.
    pub fn of_this_node(env_pass: &[String]) -> io::Result<Self> {
        Ok(Self {
            keeper: keeper::own_binary()?,
            env: env::base(std::env::vars_os(), env_pass),
            witness: std::env::var_os(WITNESS_VARIABLE).map(PathBuf::from),
            limits: Limits::default(),
        })
    }
}

/// What adapters know of the box.
#[derive(Debug)]
pub(super) struct Setting {
    /// [`HostConfig::keeper`].
    pub keeper: PathBuf,
    /// [`HostConfig::witness`].
    pub witness: Option<PathBuf>,
    env: BTreeMap<String, String>,
}

impl Setting {
    /// The whole environment of a turn's program.
    pub(super) fn env(&self, spec: &TurnSpec) -> BTreeMap<String, String> {
        let mut env = self.env.clone();
        env.extend(spec.env.clone());
        env
    }
}

/// Runs turns. Clones share one host; the last one dropped ends all programs.
#[derive(Clone, Debug)]
pub struct Host(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    setting: Setting,
    limits: Limits,
    registry: RwLock<Arc<Registry>>,
    slots: Mutex<BTreeMap<SessionKey, Arc<Slot>>>,
    permits: Arc<Semaphore>,
    /// Turns that wait for a permit: programs are not kept while there are any.
    waiting: AtomicUsize,
    stopping: CancellationToken,
}

/// One member's place.
#[derive(Debug)]
struct Slot {
    /// Held while a turn runs.
    session: tokio::sync::Mutex<Option<Session>>,
    /// Ends the turn that runs, and its program with it.
    kill: Mutex<CancellationToken>,
    used: Mutex<Instant>,
}

impl Host {
    /// A host without programs.
    #[must_use]
    pub fn new(config: HostConfig, registry: Registry) -> Self {
        Self(Arc::new(Inner {
            setting: Setting { keeper: config.keeper, witness: config.witness, env: config.env },
            limits: config.limits,
            registry: RwLock::new(Arc::new(registry)),
            slots: Mutex::default(),
            permits: Arc::new(Semaphore::new(config.limits.processes.max(1))),
            waiting: AtomicUsize::new(0),
            stopping: CancellationToken::new(),
        }))
    }

    /// Uses another list of harnesses for the turns that start from now on.
    pub fn reload(&self, registry: Registry) {
        *self.0.registry.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(registry);
    }

    /// The list of harnesses in use.
    #[must_use]
    pub fn registry(&self) -> Arc<Registry> {
        Arc::clone(&self.0.registry.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// What every program's environment starts from.
    #[must_use]
    pub fn env(&self) -> &BTreeMap<String, String> {
        &self.0.setting.env
    }

    /// Starts a turn. It never fails: what goes wrong is the turn's outcome.
    ///
    /// The member's program is used again when it still runs and fits: the same session, folder and environment. A
    /// changed model or policy reaches it before the turn does, by word or by a new program. Turns of one member run
    /// one after the other. Must be called within a tokio runtime.
    #[must_use]
    pub fn start(&self, harness: &Handle, spec: TurnSpec) -> Turn {
        let (io, turn) = TurnIo::new(self.0.stopping.clone());
        let slot = self.0.slot((spec.id.channel, spec.member), &self.0);
        tokio::spawn(Inner::run(Arc::clone(&self.0), slot, harness.clone(), spec, io));
        turn
    }

    /// Ends a member's program, and its turn as interrupted when one runs. Returns when the program is gone.
    pub async fn kill(&self, key: SessionKey) {
        let Some(slot) = lock(&self.0.slots).get(&key).cloned() else { return };
        std::mem::take(&mut *lock(&slot.kill)).cancel();
        let session = slot.session.lock().await.take();
        if let Some(session) = session {
            session.close().await;
        }
    }

    /// Interrupts all turns, then ends all programs. Returns when they are gone, within some seconds.
    pub async fn shutdown(&self) {
        self.0.stopping.cancel();
        let slots: Vec<Arc<Slot>> = lock(&self.0.slots).values().cloned().collect();
        let ends = slots.iter().map(|slot| async {
            let session = match timeout(STOP_WAIT, slot.session.lock()).await {
                Ok(mut session) => session.take(),
                Err(_) => {
                    std::mem::take(&mut *lock(&slot.kill)).cancel();
                    slot.session.lock().await.take()
                }
            };
            if let Some(session) = session {
                session.close().await;
            }
        });
        futures::future::join_all(ends).await;
    }

    /// Programs that run now.
    #[must_use]
    pub fn processes(&self) -> usize {
        self.0.limits.processes.max(1) - self.0.permits.available_permits()
    }
}

impl Inner {
    fn slot(&self, key: SessionKey, this: &Arc<Self>) -> Arc<Slot> {
        let mut slots = lock(&self.slots);
        if slots.is_empty() {
            // One watch for all slots; it ends with them.
            tokio::spawn(Self::end_idle(Arc::downgrade(this), self.limits));
        }
        Arc::clone(slots.entry(key).or_insert_with(|| {
            Arc::new(Slot {
                session: tokio::sync::Mutex::default(),
                kill: Mutex::default(),
                used: Mutex::new(Instant::now()),
            })
        }))
    }

    async fn run(inner: Arc<Self>, slot: Arc<Slot>, harness: Handle, spec: TurnSpec, mut io: TurnIo) {
        let kill = lock(&slot.kill).clone();
        let mut kept = tokio::select! {
            biased;
            () = kill.cancelled() => return io.finish(interrupted()).await,
            () = io.interrupted() => return io.finish(interrupted()).await,
            kept = slot.session.lock() => kept,
        };
        // Whatever becomes of the turn below, a session whose turn did not end as it should is not used again.
        let mut session = kept.take();
        let outcome = tokio::select! {
            biased;
            () = kill.cancelled() => {
                if let Some(session) = session.take() {
                    session.close().await;
                }
                interrupted()
            }
            outcome = inner.turn(&harness, &spec, &mut session, &mut io) => outcome,
        };
        if let Some(mut session) = session.take() {
            if session.is_alive() && inner.waiting.load(Ordering::Relaxed) == 0 {
                *kept = Some(session);
            } else {
                tokio::spawn(session.close());
            }
        }
        *lock(&slot.used) = Instant::now();
        // The next turn of this member may start before the end of this one is taken.
        drop(kept);
        // A turn that began to wait just before found this program at work.
        if inner.waiting.load(Ordering::SeqCst) > 0 {
            inner.end_longest_idle();
        }
        io.finish(outcome).await;
    }

    async fn turn(&self, harness: &Handle, spec: &TurnSpec, session: &mut Option<Session>, io: &mut TurnIo) -> Outcome {
        if self.stopping.is_cancelled() {
            return interrupted();
        }
        let env = self.setting.env(spec);
        let registry = Arc::clone(&self.registry.read().unwrap_or_else(PoisonError::into_inner));
        let found = match registry.resolve(harness, &env) {
            Ok(found) => found,
            Err(problem) => return failed(problem),
        };
        if !spec.cwd.is_dir() {
            return failed(format!("the folder {} is not there", spec.cwd.display()));
        }
        match found.adapter {
            Adapter::Scripted => scripted::run(&self.setting, spec, io).await,
            Adapter::Exec => match self.permit(io).await {
                Some(permit) => exec::run((found.program, found.args), &self.setting, spec, permit, io).await,
                None => interrupted(),
            },
            Adapter::ClaudeCode | Adapter::Codex => self.converse(&found, spec, session, io).await,
        }
    }

    /// Runs a turn in the member's session, in a new program when the old one doesn't fit.
    async fn converse(
        &self,
        found: &Resolved,
        spec: &TurnSpec,
        kept: &mut Option<Session>,
        io: &mut TurnIo,
    ) -> Outcome {
        if let Some(mut old) = kept.take() {
            if old.fits(found, spec, &self.setting) {
                if let Ran::Done(outcome) = kept.insert(old).run(spec, io).await {
                    return outcome;
                }
            } else {
                // Two programs must not write one session's history.
                old.close().await;
            }
        }
        match self.begin(found, spec, kept, io).await {
            Ran::Done(outcome) => outcome,
            Ran::Lost => {
                if let Some(old) = kept.take() {
                    old.close().await;
                }
                let lost = spec.session.as_deref().unwrap_or_default();
                let text = format!("the earlier session {lost} is not on this box any more; this is a new one");
                io.emit(Event::Notice { text }).await;
                let spec = TurnSpec { session: None, again: false, ..spec.clone() };
                match self.begin(found, &spec, kept, io).await {
                    Ran::Done(outcome) => outcome,
                    Ran::Lost => failed("the program can't start a session"),
                }
            }
        }
    }

    /// Runs a turn in a new program.
    async fn begin(&self, found: &Resolved, spec: &TurnSpec, kept: &mut Option<Session>, io: &mut TurnIo) -> Ran {
        let Some(permit) = self.permit(io).await else { return Ran::Done(interrupted()) };
        match Session::start(found, spec, &self.setting, permit) {
            Ok(session) => kept.insert(session).run(spec, io).await,
            Err(error) => Ran::Done(failed(format!("can't run {}: {error}", found.program.display()))),
        }
    }

    /// Room for one more program; `None` when the turn was interrupted meanwhile.
    async fn permit(&self, io: &mut TurnIo) -> Option<OwnedSemaphorePermit> {
        if let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() {
            return Some(permit);
        }
        let _counted = Waiting::new(&self.waiting);
        self.end_longest_idle();
        tokio::select! {
            biased;
            () = io.interrupted() => None,
            permit = Arc::clone(&self.permits).acquire_owned() => permit.ok(),
        }
    }

    fn end_longest_idle(&self) {
        let mut slots: Vec<Arc<Slot>> = lock(&self.slots).values().cloned().collect();
        slots.sort_by_key(|slot| *lock(&slot.used));
        for slot in slots {
            if let Ok(mut kept) = slot.session.try_lock()
                && let Some(session) = kept.take()
            {
                tokio::spawn(session.close());
                return;
            }
        }
    }

    /// Ends programs that had no turn for long, and forgets members without a program.
    async fn end_idle(inner: Weak<Self>, limits: Limits) {
        let mut ticks = interval(limits.idle_check);
        loop {
            ticks.tick().await;
            let Some(inner) = inner.upgrade() else { return };
            let mut ended = Vec::new();
            let mut slots = lock(&inner.slots);
            slots.retain(|_, slot| {
                // A turn that has the slot but not yet its lock holds a second reference.
                if Arc::strong_count(slot) > 1 || lock(&slot.used).elapsed() < limits.idle {
                    return true;
                }
                let Ok(mut kept) = slot.session.try_lock() else { return true };
                ended.extend(kept.take());
                false
            });
            let empty = slots.is_empty();
            drop(slots);
            for session in ended {
                tokio::spawn(session.close());
            }
            if empty {
                return;
            }
        }
    }
}

/// Counts a turn that waits for room, also when it is dropped while it does.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
