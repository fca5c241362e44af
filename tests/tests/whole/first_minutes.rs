//! The first ten minutes: one box, no agent installed, no second node.

use std::process::Command;

use tieline_tests::{Process, Setup, node::binary, until};

/// The commands that `up` prints, as they stand.
fn printed_commands(log: &str) -> Vec<String> {
    log.lines()
        .map(|line| line.trim_start_matches(|c: char| c.is_whitespace() || "$>*-•".contains(c)))
        .filter(|line| line.starts_with("tieline "))
        .map(|line| line.split("   ").next().unwrap_or(line).trim_end().to_owned())
        .collect()
}

/// Without any agent, `up` shows a member that works and the next commands; they work as they are.
#[test]
fn commands_that_up_prints_work_and_the_first_post_is_answered() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let mut setup = Setup::new(dir.path());
    let folder = binary("tieline").parent().expect("a binary is in a folder").to_owned();
    setup = setup.env("PATH", format!("{}:/usr/bin:/bin", folder.display()));
    let node = setup.start();
    let commands = until("the next commands", || {
        let commands = printed_commands(&node.log());
        commands.iter().any(|command| command.contains(" post ")).then_some(commands)
    });
    let mut answered = false;
    for command in commands {
        if [" pair", " join", " up"].iter().any(|waits| command.ends_with(waits)) {
            continue;
        }
        let command = command.replace("--follow", "--once");
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(&command).env_clear().current_dir(dir.path());
        shell.env("PATH", format!("{}:/usr/bin:/bin", folder.display()));
        shell.env("HOME", node.setup().home()).env("XDG_CONFIG_HOME", dir.path().join("config"));
        let ended = Process::spawn(shell).finish().ok();
        answered |= command.contains(" post ") && command.contains("--wait") && !ended.stdout.trim().is_empty();
    }
    assert!(answered, "a post was answered:\n{}", node.log());
}
