//! The command line as a whole: help, and the way to a node that restarts.

use clap::CommandFactory;
use tieline_proto::api::Request;
use tieline_proto::id::Seq;

use super::client::Dial;
use super::follow::{Follow, FrameHead, What};
use super::*;
use crate::http::tests::bed::Bed;

/// All help texts, one after the other: what a reviewer of a change to the command line wants to see.
#[test]
fn help_is_as_it_was_agreed() {
    fn collect(command: &clap::Command, path: &str, out: &mut String) {
        let path = format!("{path} {}", command.get_name()).trim().to_owned();
        out.push_str(&format!("━━ {path}\n{}\n", command.clone().term_width(100).render_help()));
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
            collect(sub, &path, out);
        }
    }
    let mut root = Cli::command();
    root.build();
    let mut help = String::new();
    collect(&root, "", &mut help);
    insta::assert_snapshot!("help", help);
}

#[test]
fn arguments_are_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn flags_stand_anywhere() {
    let cli = Cli::try_parse_from(["tieline", "channel", "--json", "list", "--data", "/d"]).unwrap();
    assert!(cli.global.json);
    assert_eq!(cli.global.data, Some(PathBuf::from("/d")));
    let cli = Cli::try_parse_from(["tieline", "harness", "add", "cat", "--json", "--", "cat", "--json"]).unwrap();
    match cli.command {
        Command::Harness(harness::HarnessCommand::Add { command, .. }) => assert_eq!(command, ["cat", "--json"]),
        other => panic!("{other:?}"),
    }
}

#[test]
fn contract_lines_are_understood() {
    for line in [
        "up --api 127.0.0.1:0 --listen /ip4/127.0.0.1/tcp/0 --listen /ip4/127.0.0.1/udp/0/quic-v1 --no-mdns --lan --ready-file /r",
        "up --bootstrap /ip4/127.0.0.1/tcp/1 --relay /ip4/127.0.0.1/tcp/2",
        "stop",
        "status --json",
        "config show",
        "logs --follow",
        "harness add gpu -- train --fast",
        "harness list",
        "harness remove gpu",
        "completions bash",
        "man",
        "pair --role observer --channel a --channel b --json",
        "join - --name lab --resident --harness scripted,gpu --cwd /work --cwd /data",
        "device list",
        "org show --json",
        "channel create lobby",
        "channel list",
        "channel show lobby",
        "channel verify lobby --org 00",
        "channel export lobby file",
        "channel archive lobby",
        "member add lobby gpu --harness codex --on lab --cwd /work --model o4 --policy ask",
        "member list lobby",
        "member rename lobby gpu gpu2",
        "member pause lobby gpu",
        "member resume lobby gpu",
        "member interrupt lobby gpu",
        "member kill lobby gpu",
        "member revive lobby gpu",
        "member remove lobby gpu",
        "member configure lobby gpu --model o5",
        "post lobby hi --id c-1 --attach f --attach g --reply-to 3 --wait --timeout 5",
        "post lobby -",
        "tail lobby --since 4 --once --events",
        "tail lobby --follow",
        "inbox",
        "inbox lobby",
        "answer lobby 4 --choose allow --text fine",
        "hold list lobby",
        "hold release lobby 4",
        "hold drop lobby 4",
    ] {
        let words = std::iter::once("tieline").chain(line.split(' '));
        Cli::try_parse_from(words).unwrap_or_else(|error| panic!("{line}\n{error}"));
    }
    for line in
        ["tail lobby --once --follow", "post lobby hi --timeout 5", "member configure lobby gpu", "join x --resident"]
    {
        let words = std::iter::once("tieline").chain(line.split(' '));
        assert!(Cli::try_parse_from(words).is_err(), "{line}");
    }
}

fn dial(bed: &Bed) -> Dial {
    Dial::new(true, bed.dir.path(), &|_| None)
}

#[tokio::test]
async fn without_a_node_the_command_to_start_one_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let error = Dial::new(true, dir.path(), &|_| None).connect().await.unwrap_err();
    assert_eq!(error.code, Code::NotRunning);
    assert_eq!(error.hint, format!("tieline up --data {}", dir.path().display()));
    assert_eq!(Dial::new(false, dir.path(), &|_| None).connect().await.unwrap_err().hint, "tieline up");
}

#[tokio::test]
async fn inside_a_turn_the_agents_own_socket_and_token_are_used() {
    let bed = Bed::open().await;
    let socket = bed.doors.socket.to_str().unwrap().to_owned();
    let env = move |name: &str| match name {
        "TIELINE_SOCKET" => Some(socket.clone()),
        "TIELINE_TOKEN" => Some(crate::http::tests::bed::AGENT.to_owned()),
        _ => None,
    };
    let nowhere = PathBuf::from("/nowhere");
    let mut client = Dial::new(false, &nowhere, &env).connect().await.unwrap();
    client.call(Request::Status {}).await.unwrap();
    assert_eq!(bed.node.calls.lock().unwrap()[0].0, crate::http::tests::bed::agent());
    assert!(Dial::new(true, &nowhere, &env).connect().await.is_err(), "--data names another node");
}

#[tokio::test]
async fn answers_and_errors_come_back_as_they_were_given() {
    let bed = Bed::open().await;
    let mut client = dial(&bed).connect().await.unwrap();
    assert_eq!(client.call(Request::ChannelList {}).await.unwrap(), serde_json::json!([]));
    let error = client.call(Request::ChannelShow { channel: "nowhere".to_owned() }).await.unwrap_err();
    assert_eq!((error.code, error.hint.as_str()), (Code::NotFound, "tieline channel list"));
}

#[tokio::test]
async fn a_follower_goes_on_where_it_was_when_the_node_comes_back() {
    let mut bed = Bed::open().await;
    bed.node.append("before", 3);
    let what = What { channel: "c".to_owned(), since: Seq(0), events: false, once: false };
    let mut follow = Follow::start(&dial(&bed), what).await.unwrap();
    let mut seqs = Vec::new();
    while seqs.len() < 3 {
        if let FrameHead::Entry { seq, .. } = follow.next(|_| {}).await.unwrap().unwrap().head {
            seqs.push(seq.0);
        }
    }
    bed = bed.reopen().await;
    bed.node.append("after", 3);
    let notes = std::cell::Cell::new(0);
    while seqs.len() < 6 {
        if let FrameHead::Entry { seq, .. } = follow.next(|_| notes.set(notes.get() + 1)).await.unwrap().unwrap().head {
            seqs.push(seq.0);
        }
    }
    assert_eq!(seqs, [1, 2, 3, 4, 5, 6]);
    assert_eq!(notes.get(), 2, "gone, and back");
}

#[tokio::test]
async fn a_look_ends_and_does_not_wait_for_a_node() {
    let bed = Bed::open().await;
    bed.node.append("x", 2);
    let what = What { channel: "c".to_owned(), since: Seq(1), events: false, once: true };
    let mut follow = Follow::start(&dial(&bed), what).await.unwrap();
    let mut heads = Vec::new();
    while let Some(frame) = follow.next(|_| {}).await.unwrap() {
        heads.push(frame.head);
    }
    assert!(
        matches!(heads.as_slice(), [FrameHead::Entry { seq: Seq(2), .. }, FrameHead::Synced { seq: Seq(2) }]),
        "{heads:?}"
    );
}
