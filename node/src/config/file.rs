//! The config file: found, read, and checked for keys that nobody reads.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::{ConfigError, keys};

/// File name in either folder.
const FILE_NAME: &str = "config.toml";

/// A config file that was read.
#[derive(Debug)]
pub struct File {
    /// Where it is.
    pub path: PathBuf,
    /// What it says; every key is known.
    pub table: toml::Table,
}

/// Reads the first file that exists: the user's, else the data folder's.
pub fn read(config: Option<&Path>, data: &Path) -> Result<Option<File>, ConfigError> {
    for path in config.into_iter().chain([data]).map(|dir| dir.join(FILE_NAME)) {
        match std::fs::read_to_string(&path) {
            Ok(text) => return parse(path, &text).map(Some),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
            Err(error) => return Err(ConfigError::Read { path, error }),
        }
    }
    Ok(None)
}

fn parse(path: PathBuf, text: &str) -> Result<File, ConfigError> {
    let table: toml::Table = match text.parse() {
        Ok(table) => table,
        Err(error) => return Err(ConfigError::Syntax { path, error }),
    };
    let unknown = table.keys().find(|key| !keys::NAMES.contains(&key.as_str())).cloned().or_else(|| {
        // `[harness.NAME]` holds one key; a misspelled one would silently be a harness without a command.
        let harnesses = table.get("harness")?.as_table()?;
        harnesses.iter().find_map(|(name, of)| {
            let key = of.as_table()?.keys().find(|key| *key != "command")?;
            Some(format!("harness.{name}.{key}"))
        })
    });
    match unknown {
        Some(key) => Err(ConfigError::UnknownKey { nearest: nearest(&key), key, path }),
        None => Ok(File { path, table }),
    }
}

/// The valid key that is spelled most like `key`, if any comes near.
fn nearest(key: &str) -> Option<String> {
    if let Some((harness, _)) = key.strip_prefix("harness.").and_then(|rest| rest.rsplit_once('.')) {
        return Some(format!("harness.{harness}.command"));
    }
    keys::NAMES
        .iter()
        .map(|name| (distance(key, name), *name))
        .filter(|(distance, name)| *distance <= 1 + name.len() / 3)
        .min()
        .map(|(_, name)| name.to_owned())
}

/// Edit distance, with '-' and '_' taken for the same character.
fn distance(a: &str, b: &str) -> usize {
    let plain = |text: &str| text.to_ascii_lowercase().replace('-', "_").into_bytes();
    let (a, b) = (plain(a), plain(b));
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.iter().enumerate() {
        let mut before = i;
        let mut left = i + 1;
        for (cell, to) in row.iter_mut().skip(1).zip(&b) {
            let here = (before + usize::from(from != to)).min(left + 1).min(*cell + 1);
            before = *cell;
            *cell = here;
            left = here;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_key_is_the_one_meant() {
        let check = |typed: &str, meant: Option<&str>| assert_eq!(nearest(typed).as_deref(), meant, "{typed}");
        check("listn", Some("listen"));
        check("env-pass", Some("env_pass"));
        check("LOG", Some("log"));
        check("bootstraps", Some("bootstrap"));
        check("harness.gpu.cmd", Some("harness.gpu.command"));
        check("telemetry_endpoint", None);
    }

    #[test]
    fn distance_counts_edits() {
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("name", "name"), 0);
    }
}
