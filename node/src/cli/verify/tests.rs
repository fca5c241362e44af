//! A real node writes a channel; every byte of its files is then bent once.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tieline_proto::api::{NewMember, Request};
use tieline_proto::entry::{MemberKind, Policy};
use tieline_proto::id::Seq;
use tokio_util::sync::CancellationToken;

use super::super::client::{Client, Dial, Said};
use super::super::out::Out;
use super::super::{Context, Global};
use super::*;
use crate::config::{Flags, Places, load};

/// A data folder with a channel `lobby` in which a turn ended, and no node on it.
struct Written {
    dir: tempfile::TempDir,
}

impl Written {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        let flags = Flags {
            data: Some(data.clone()),
            api: Some("127.0.0.1:0".to_owned()),
            listen: vec!["/ip4/127.0.0.1/tcp/0".to_owned()],
            no_mdns: true,
            name: Some("desk".to_owned()),
            ..Flags::default()
        };
        let places = Places { data: data.clone(), config: None, host: "desk".to_owned() };
        let config = load(&flags, &|_| None, &places).unwrap().config;
        let stop = CancellationToken::new();
        let node = tokio::spawn(crate::node::run(config, stop.clone()));
        let dial = Dial::new(true, &data, &|_| None);
        while !dial.is_up().await {
            assert!(!node.is_finished(), "the node ended: {:?}", node.await);
            tokio::task::yield_now().await;
        }
        write_channel(&mut dial.connect().await.unwrap()).await;
        stop.cancel();
        node.await.unwrap().unwrap();
        Self { dir }
    }

    fn context(&self) -> Context {
        let global = Global { data: Some(self.dir.path().join("data")), json: true, log: None, log_level: None };
        let places = Places { data: PathBuf::new(), config: None, host: String::new() };
        Context { global, places, out: Out::new(true) }
    }

    fn folder(&self) -> Folder {
        Folder::open(&self.dir.path().join("data")).unwrap().unwrap()
    }

    async fn export(&self, file: &Path) -> Result<export::Exported, ApiError> {
        exported(&self.context(), "lobby", file).await
    }

    async fn report(&self, what: &Path, pinned: Option<OrgId>) -> Result<Report, ApiError> {
        let folder = Folder::open(&self.dir.path().join("data"))?;
        let mut source = Source::find(what, folder.as_ref())?;
        let own = folder.as_ref().and_then(Folder::own_org);
        judge(&self.context(), &mut source, pinned, own).await
    }
}

async fn write_channel(client: &mut Client) {
    let channel = || "lobby".to_owned();
    client.call(Request::ChannelCreate { name: channel(), client: None }).await.unwrap();
    let member = NewMember {
        handle: "bot".to_owned(),
        kind: MemberKind::Agent,
        harness: Some("scripted".to_owned()),
        on: None,
        cwd: None,
        model: None,
        policy: Some(Policy::ReadOnly),
    };
    client.call(Request::MemberAdd { channel: channel(), member, client: None }).await.unwrap();
    let post = Request::Post {
        channel: channel(),
        text: "@bot script:text(an answer)".to_owned(),
        reply_to: None,
        attachments: Vec::new(),
        client: None,
    };
    client.call(post).await.unwrap();
    let follow = Request::Subscribe { channel: channel(), since: Seq(0), events: false, once: false };
    client.open(follow).await.unwrap();
    loop {
        if let Said::Frame(_, frame) = client.next().await.unwrap() {
            let frame: Value = serde_json::from_str(frame.get()).unwrap();
            if frame["kind"] == "turn-finished" {
                return;
            }
        }
    }
}

#[tokio::test]
async fn a_sound_channel_is_good_in_its_folder_and_as_a_file() {
    let written = Written::new().await;
    let folder = written.report(Path::new("lobby"), None).await.unwrap();
    assert!(folder.ok && folder.entries > 4, "{folder:?}");
    assert_eq!((folder.trusted, folder.name.as_str(), folder.first_bad), (Trust::Pinned, "lobby", None));

    let file = written.dir.path().join("lobby.tieline");
    let exported = written.export(&file).await.unwrap();
    assert_eq!((exported.entries, exported.head), (folder.entries, folder.head));
    let again = written.export(&file).await.unwrap_err();
    assert_eq!(again.code, Code::Conflict);

    let elsewhere = async |pinned: Option<OrgId>| {
        let mut source = Source::find(&file, None).unwrap();
        judge(&written.context(), &mut source, pinned, None).await.unwrap()
    };
    let loose = elsewhere(None).await;
    assert_eq!((loose.ok, loose.trusted, loose.entries), (true, Trust::SelfConsistent, folder.entries));
    assert_eq!(elsewhere(Some(folder.org)).await.trusted, Trust::Pinned);
    let other = elsewhere(Some(OrgId([9; 16]))).await;
    assert!(!other.ok && other.first_bad.is_none() && other.trusted == Trust::SelfConsistent, "{other:?}");
}

#[tokio::test]
async fn what_is_not_there_is_said() {
    let written = Written::new().await;
    for what in ["nowhere", "/no/such/file"] {
        let error = written.report(Path::new(what), None).await.unwrap_err();
        assert_eq!(error.code, Code::NotFound, "{what}");
        assert!(error.message.contains(what) && !error.hint.is_empty(), "{error:?}");
    }
    let file = written.dir.path().join("other");
    fs::write(&file, "something else\n").unwrap();
    assert_eq!(written.report(&file, None).await.unwrap_err().code, Code::Invalid);
}

/// No byte can be changed, and no line dropped, without being found.
#[tokio::test]
async fn any_bent_byte_of_an_export_is_found() {
    let written = Written::new().await;
    let file = written.dir.path().join("lobby.tieline");
    written.export(&file).await.unwrap();
    let sound = fs::read(&file).unwrap();
    let bent = written.dir.path().join("bent");
    let verdict = async |bytes: &[u8]| {
        fs::write(&bent, bytes).unwrap();
        match Source::find(&bent, None) {
            // The org's own chain is bad, or it is no export any more.
            Err(_) => false,
            Ok(mut source) => judge(&written.context(), &mut source, None, None).await.is_ok_and(|report| report.ok),
        }
    };
    assert!(verdict(&sound).await);
    // A prime step meets every kind of place: chain, log, marks, journals, line ends.
    for at in (0..sound.len()).step_by(61) {
        let mut bytes = sound.clone();
        bytes[at] ^= 1;
        assert!(
            !verdict(&bytes).await,
            "byte {at} of {}: {:?}",
            sound.len(),
            String::from_utf8_lossy(&sound[at.saturating_sub(40)..at + 1])
        );
    }
    let lines: Vec<&[u8]> = sound.split_inclusive(|byte| *byte == b'\n').collect();
    for dropped in 0..lines.len() {
        let bytes: Vec<u8> = lines
            .iter()
            .enumerate()
            .filter(|(at, _)| *at != dropped)
            .flat_map(|(_, line)| line.iter().copied())
            .collect();
        assert!(!verdict(&bytes).await, "line {dropped}: {}", String::from_utf8_lossy(lines[dropped]));
    }
    assert!(!verdict(&sound[..sound.len() - 5]).await, "cut short");
}

#[tokio::test]
async fn a_bent_byte_in_the_folder_names_its_seq() {
    let written = Written::new().await;
    let channel = written.folder().channel_here("lobby").unwrap();
    let folder = written.folder();
    let log = source::segments(&folder.layout().log(tieline_proto::log::LogId::Channel(channel))).unwrap().remove(0);
    let sound = fs::read(&log).unwrap();
    let text = String::from_utf8(sound.clone()).unwrap();
    let at = text.find("script:text").unwrap();
    let line = text[..at].rfind("{\"seq\":").unwrap();
    let seq: u64 = text[line + 7..].split(',').next().unwrap().parse().unwrap();

    let mut bytes = sound.clone();
    bytes[at] ^= 1;
    fs::write(&log, &bytes).unwrap();
    let report = written.report(Path::new("lobby"), None).await.unwrap();
    assert_eq!((report.ok, report.first_bad, report.entries), (false, Some(Seq(seq)), seq - 1));
    let refused = written.export(&written.dir.path().join("x")).await.unwrap_err();
    assert_eq!(refused.code, Code::ReadOnly);
    assert!(refused.message.contains(&format!("seq {seq}")), "{refused:?}");
    assert!(!written.dir.path().join("x").exists(), "whole or not at all");

    fs::write(&log, &sound).unwrap();
    let runs = folder.layout().channel(channel).join("runs");
    let journal = fs::read_dir(runs).unwrap().next().unwrap().unwrap().path();
    let bent = fs::read_to_string(&journal).unwrap().replacen("answer", "answes", 1);
    fs::write(&journal, bent).unwrap();
    let report = written.report(Path::new("lobby"), None).await.unwrap();
    assert!(!report.ok && report.reason.as_deref().is_some_and(|reason| reason.contains("journal")), "{report:?}");
    fs::remove_file(&journal).unwrap();
    assert!(!written.report(Path::new("lobby"), None).await.unwrap().ok, "a journal that is gone");
}
