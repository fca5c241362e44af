//! The keeper: a small process between the node and every agent program.
//!
//! Agent programs start other programs, some of them detached, and the node may be killed at any moment. So the node
//! never starts a program directly: it starts its own binary as a *keeper*, which starts the program and then only
//! waits. When the program ends, when the node asks for it (SIGTERM), or when the node is gone however that happened,
//! the keeper ends everything that the program left behind, and then itself, with the program's exit status.
//!
//! On Linux the keeper is its descendants' reaper, so that it also finds what detached itself, and the program dies
//! with it. Elsewhere it ends the program's process group.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, getpid, getppid, kill_process, kill_process_group};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep, sleep_until};

/// First argument that makes the `tieline` binary a keeper. Hidden from help: only the node gives it.
pub const KEEPER_ARG: &str = "__child";

/// First argument of the short stage between the keeper and the program.
const STAGE_ARG: &str = "__exec";

/// How long a program may clean up after SIGTERM before it and all it started are killed.
pub const GRACE: Duration = Duration::from_secs(3);

/// Times that what is left behind is looked for and killed; a program that starts others faster than that wins.
const SWEEPS_MAX: usize = 200;

/// Pause between two sweeps: the time a killed process takes to be gone.
const SWEEP_PAUSE: Duration = Duration::from_millis(10);

/// Exit status when the program could not be started, as shells have it.
const CANNOT_RUN: u8 = 127;

/// Added to a signal's number when it ended the program, as shells have it.
const SIGNAL_BASE: i32 = 128;

/// Runs this process as a keeper if its arguments say so. `main` calls it before anything else.
#[must_use]
pub fn run_if_asked() -> Option<ExitCode> {
    let mut args = std::env::args_os().skip(1);
    let stage = args.next()?;
    if stage != KEEPER_ARG && stage != STAGE_ARG {
        return None;
    }
    let parent: Option<i32> = args.next().and_then(|pid| pid.to_str()?.parse().ok());
    let (Some(parent), Some(program)) = (parent.and_then(Pid::from_raw), args.next()) else {
        return Some(ExitCode::from(2));
    };
    let args: Vec<OsString> = args.collect();
    let done = if stage == STAGE_ARG {
        become_program(parent, &program, &args)
    } else {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .and_then(|runtime| runtime.block_on(keep(parent, &program, &args)))
    };
    Some(done.unwrap_or_else(|error| {
        eprintln!("can't run {}: {error}", program.display());
        ExitCode::from(CANNOT_RUN)
    }))
}

/// Binds this process's life to the keeper's and becomes the program.
fn become_program(keeper: Pid, program: &OsString, args: &[OsString]) -> io::Result<ExitCode> {
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // The keeper may have died before the line above took effect.
    if getppid() != Some(keeper) {
        return Ok(ExitCode::from(CANNOT_RUN));
    }
    Err(Command::new(program).args(args).exec())
}

async fn keep(node: Pid, program: &OsString, args: &[OsString]) -> io::Result<ExitCode> {
    #[cfg(target_os = "linux")]
    {
        rustix::thread::set_name(c"tieline-keeper")?;
        rustix::process::set_child_subreaper(Some(getpid()))?;
    }
    // Before the program starts, so that no signal of the node meets the default action.
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let (mut hangup, mut child) = (signal(SignalKind::hangup())?, signal(SignalKind::child())?);
    let mut node_gone = std::pin::pin!(gone(node));

    let own = own_binary()?;
    let pid = getpid().as_raw_nonzero().to_string();
    let started = Command::new(own).arg(STAGE_ARG).arg(pid).arg(program).args(args).process_group(0).spawn()?;
    let program = Pid::from_child(&started);
    // Waited for below, together with everything else that becomes a child of this process.
    drop(started);

    let mut children = Children { program, status: None };
    let mut deadline: Option<Instant> = None;
    loop {
        let some_left = children.reap();
        if children.status.is_some() || !some_left {
            break;
        }
        let end = tokio::select! {
            _ = child.recv() => false,
            _ = interrupt.recv() => {
                signal_group(program, Signal::INT);
                false
            }
            _ = terminate.recv() => true,
            _ = hangup.recv() => true,
            () = &mut node_gone, if deadline.is_none() => true,
            () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => break,
        };
        if end && deadline.is_none() {
            signal_group(program, Signal::TERM);
            deadline = Some(Instant::now() + GRACE);
        }
    }
    children.sweep().await;
    let status = children.status;
    let code = status.and_then(|status| {
        status.exit_status().or_else(|| status.terminating_signal().map(|signal| SIGNAL_BASE + signal))
    });
    Ok(code.and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
}

/// This binary. On Linux by the link that also works after an upgrade has replaced the file.
pub(super) fn own_binary() -> io::Result<std::path::PathBuf> {
    if cfg!(target_os = "linux") { Ok("/proc/self/exe".into()) } else { std::env::current_exe() }
}

/// Waits until the node is gone.
async fn gone(node: Pid) {
    #[cfg(target_os = "linux")]
    if let Ok(fd) = rustix::process::pidfd_open(node, rustix::process::PidfdFlags::empty())
        && getppid() == Some(node)
    {
        let (tell, told) = tokio::sync::oneshot::channel();
        // A thread, because tokio has no safe way to wait for a descriptor of this kind.
        std::thread::spawn(move || {
            let mut wait = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
            while rustix::event::poll(&mut wait, None) == Err(rustix::io::Errno::INTR) {}
            tell.send(())
        });
        if told.await.is_ok() {
            return;
        }
    }
    // No such notice here: a process whose parent is gone gets another one.
    while getppid() == Some(node) {
        sleep(Duration::from_millis(500)).await;
    }
}

fn signal_group(program: Pid, signal: Signal) {
    // It fails only when nothing of the group is left.
    let _gone = kill_process_group(program, signal);
}

/// The program and all that became a child of this process when its own parent ended.
struct Children {
    program: Pid,
    /// How the program ended.
    status: Option<WaitStatus>,
}

impl Children {
    /// Takes note of all children that have ended. False when none is left.
    fn reap(&mut self) -> bool {
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == self.program => self.status = Some(status),
                Ok(Some(_)) => {}
                Ok(None) => return true,
                Err(_) => return false,
            }
        }
    }

    /// Kills what the program left behind, and itself if it is there, until nothing is.
    async fn sweep(&mut self) {
        for _ in 0..SWEEPS_MAX {
            signal_group(self.program, Signal::KILL);
            // "No child" says that nothing is left: orphans become children of this process.
            if !self.reap() {
                return;
            }
            kill_descendants(getpid());
            sleep(SWEEP_PAUSE).await;
        }
    }
}

/// Kills all that descend from `ancestor`, but not itself.
pub(super) fn kill_descendants(ancestor: Pid) {
    let mut known = vec![ancestor];
    let mut rest = parents();
    loop {
        let (found, others): (Vec<_>, Vec<_>) = rest.into_iter().partition(|(_, parent)| known.contains(parent));
        if found.is_empty() {
            return;
        }
        for (pid, _) in found {
            let _gone = kill_process(pid, Signal::KILL);
            known.push(pid);
        }
        rest = others;
    }
}

/// Processes between this one and what it started in the end; a longer row is taken for one that hides.
const DEPTH_MAX: usize = 256;

/// Whether a process descends from this one. The node starts nothing but agents' programs. False where there is no
/// `/proc` to tell.
pub(crate) fn is_beneath_us(pid: i32) -> bool {
    let parent = |pid: Pid| {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
        Some(parent_of(&stat))
    };
    let us = getpid();
    if parent(us).is_none() {
        return false;
    }
    // Somebody in the row may end while we look: then those below it have another parent by now. Who is gone itself
    // can't say where it came from.
    'again: for _ in 0..3 {
        let mut at = Pid::from_raw(pid);
        for _ in 0..DEPTH_MAX {
            let Some(here) = at.filter(|here| *here != us || Pid::from_raw(pid) != Some(us)) else { return false };
            if here == us {
                return true;
            }
            match parent(here) {
                Some(above) => at = above,
                None => continue 'again,
            }
        }
        return true;
    }
    true
}

/// Every process of this box with its parent; empty where there is no `/proc`.
fn parents() -> Vec<(Pid, Pid)> {
    let Ok(folder) = std::fs::read_dir("/proc") else { return Vec::new() };
    folder
        .filter_map(|entry| {
            let name = entry.ok()?.file_name();
            let pid = Pid::from_raw(name.to_str()?.parse().ok()?)?;
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
            Some((pid, parent_of(&stat)?))
        })
        .collect()
}

/// The parent in a line of `/proc/PID/stat`: the second field after the name, which may hold anything but ends with
/// the last `)`.
fn parent_of(stat: &str) -> Option<Pid> {
    let (_, fields) = stat.rsplit_once(')')?;
    Pid::from_raw(fields.split_ascii_whitespace().nth(1)?.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn what_we_started_is_beneath_us_and_nothing_else() {
        let raw = |pid: u32| i32::try_from(pid).expect("a pid");
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 60 & echo $!; wait"]).stdout(std::process::Stdio::piped()).process_group(0);
        let mut child = command.spawn().expect("started");
        let mut line = String::new();
        let mut stdout = io::BufReader::new(child.stdout.take().expect("piped"));
        io::BufRead::read_line(&mut stdout, &mut line).expect("a line");
        let grandchild = line.trim().parse().expect("a pid");
        assert!(is_beneath_us(raw(child.id())) && is_beneath_us(grandchild));
        assert!(!is_beneath_us(raw(std::process::id())), "we are not beneath ourselves");
        assert!(!is_beneath_us(1) && !is_beneath_us(0));
        assert!(getppid().is_none_or(|parent| !is_beneath_us(parent.as_raw_nonzero().get())));
        signal_group(Pid::from_child(&child), Signal::KILL);
        child.wait().expect("gone");
        assert!(is_beneath_us(raw(child.id())), "who is gone can't say where it came from");
    }

    #[test]
    fn the_parent_is_found_whatever_the_name_is() {
        assert_eq!(parent_of("12 (a b) c) S 7 12 12"), Pid::from_raw(7));
        assert_eq!(parent_of("12 (a"), None);
        assert_eq!(parent_of(""), None);
    }
}
