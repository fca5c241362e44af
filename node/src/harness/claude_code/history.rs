//! Claude Code's own store of a session: what it already knows, before it is asked anything.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use serde_json::Value;

/// How much of the end of a session's file is read, in bytes: many turns, in a fraction of a second.
const TAIL_LEN_MAX: u64 = 32 * 1024 * 1024;

/// Longest line that is looked at, in bytes; a longer one is no prompt of ours.
const LINE_LEN_MAX: u64 = 8 * 1024 * 1024;

/// Project folders that are searched for a session.
const PROJECTS_MAX: usize = 100_000;

/// What the end of a session's file says.
#[derive(Debug, Default, PartialEq)]
pub(super) struct History {
    /// A prompt was taken and stands there.
    pub has_prompt: bool,
    /// What the session had cost when it was last left, in US dollars.
    pub cost_usd: Option<f64>,
}

/// Reads the session's file, if there is one.
pub(super) fn read(env: &BTreeMap<String, String>, session: &str, prompt: &str) -> History {
    find(env, session).and_then(|file| scan(&file, prompt).ok()).unwrap_or_default()
}

fn find(env: &BTreeMap<String, String>, session: &str) -> Option<PathBuf> {
    // The name goes into a path.
    let is_name = !session.is_empty() && session.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    let store = match env.get("CLAUDE_CONFIG_DIR") {
        Some(folder) => PathBuf::from(folder),
        None => Path::new(env.get("HOME")?).join(".claude"),
    };
    let projects = fs::read_dir(store.join("projects")).ok().filter(|_| is_name)?;
    let name = format!("{session}.jsonl");
    let files = projects.take(PROJECTS_MAX).filter_map(|project| Some(project.ok()?.path().join(&name)));
    files.into_iter().find(|file| file.is_file())
}

fn scan(file: &Path, prompt: &str) -> io::Result<History> {
    let mut file = File::open(file)?;
    let start = file.metadata()?.len().saturating_sub(TAIL_LEN_MAX);
    file.seek(SeekFrom::Start(start))?;
    let mut reader = BufReader::new(file);
    let mut history = History::default();
    let mut line = Vec::new();
    loop {
        line.clear();
        if io::Read::take(&mut reader, LINE_LEN_MAX).read_until(b'\n', &mut line)? == 0 {
            return Ok(history);
        }
        // The first line may be the end of one, the last one may be torn: neither is JSON.
        let Ok(row) = serde_json::from_slice::<Value>(&line) else { continue };
        match row.get("type").and_then(Value::as_str) {
            Some("user") => history.has_prompt |= holds(&row, prompt),
            Some("cost-state") => history.cost_usd = row.get("totalCostUSD").and_then(Value::as_f64),
            _ => {}
        }
    }
}

fn holds(row: &Value, prompt: &str) -> bool {
    let content = row.pointer("/message/content").unwrap_or(&Value::Null);
    let blocks = content.as_array().into_iter().flatten();
    content.as_str() == Some(prompt)
        || blocks.into_iter().any(|block| block.get("text").and_then(Value::as_str) == Some(prompt))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn home(lines: &str) -> (tempfile::TempDir, BTreeMap<String, String>) {
        let home = tempfile::tempdir().expect("a folder");
        let project = home.path().join(".claude/projects/-srv-a");
        fs::create_dir_all(&project).expect("a folder");
        fs::write(project.join("s-1.jsonl"), lines).expect("written");
        let env = BTreeMap::from([("HOME".to_owned(), home.path().display().to_string())]);
        (home, env)
    }

    #[test]
    fn a_prompt_and_the_cost_are_found_beside_rows_of_other_kinds_and_torn_lines() {
        let (_home, env) = home(concat!(
            "e\":1}\n",
            "{\"type\":\"user\",\"message\":{\"content\":[{\"type\":\"text\",\"text\":\"do \\\"it\\\"\"}]}}\n",
            "{\"type\":\"cost-state\",\"totalCostUSD\":0.25}\n{\"type\":\"user\",\"mess",
        ));
        assert_eq!(read(&env, "s-1", "do \"it\""), History { has_prompt: true, cost_usd: Some(0.25) });
        assert!(!read(&env, "s-1", "do").has_prompt);
    }

    #[test]
    fn a_session_that_is_not_there_or_no_name_has_no_history() {
        let (_home, env) = home("");
        for session in ["s-2", "", "../-srv-a/s-1", "s-1\0"] {
            assert_eq!(read(&env, session, "x"), History::default(), "{session:?}");
        }
        assert_eq!(read(&BTreeMap::new(), "s-1", "x"), History::default());
    }
}
