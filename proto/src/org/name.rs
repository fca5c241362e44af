//! Names of devices and orgs: what people call them, safe to show anywhere.
//!
//! Two names are one when their bytes are: a look-alike in another script is another name. Who somebody is, is said by
//! its key.

use crate::text::is_hidden;

/// Longest name, in bytes.
pub const NAME_LEN_MAX: usize = 64;

/// Whether a text can be the name of a device or an org: 1 to [`NAME_LEN_MAX`] bytes, no space at its ends, and no
/// character that a terminal obeys, that cannot be seen, or that turns the direction of what stands around it.
#[must_use]
pub fn is_name(text: &str) -> bool {
    (1..=NAME_LEN_MAX).contains(&text.len()) && text.trim() == text && !text.chars().any(is_hidden)
}

/// `wanted`, or the first of `wanted-2`, `wanted-3` … that is not taken; cut so that it fits.
pub(super) fn unique(wanted: &str, taken: impl Fn(&str) -> bool) -> String {
    let mut name = wanted.to_owned();
    let mut number = 1_u64;
    // Ends: there are fewer taken names than numbers.
    while taken(&name) {
        number += 1;
        let suffix = format!("-{number}");
        let mut cut = NAME_LEN_MAX.saturating_sub(suffix.len()).min(wanted.len());
        while !wanted.is_char_boundary(cut) {
            cut -= 1;
        }
        name = format!("{}{suffix}", wanted.get(..cut).unwrap_or_default().trim_end());
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_hide_nothing() {
        for good in ["desk", "Jürgen’s phone", "ラボ 2", "a".repeat(64).as_str()] {
            assert!(is_name(good), "{good:?}");
        }
        let bad = ["", " a", "a\n", "a\u{1b}[2J", "a\u{202e}b", "a\u{200b}b", "a\u{85}b", "a\u{e0041}", "\u{3164}"];
        let blank = ["\u{2800}", "desk\u{2800}", "a\u{1d173}b", "a\u{1bca0}b"];
        for bad in bad.into_iter().chain(blank) {
            assert!(!is_name(bad), "{bad:?}");
        }
        assert!(!is_name(&"a".repeat(65)));
    }

    #[test]
    fn a_second_device_of_a_name_gets_a_number() {
        let taken = ["box".to_owned(), "box-2".to_owned(), "é".repeat(32)];
        let unique = |name: &str| unique(name, |text| taken.iter().any(|other| other == text));
        assert_eq!(unique("lab"), "lab");
        assert_eq!(unique("box"), "box-3");
        let long = unique(&"é".repeat(32));
        assert!(is_name(&long) && long.ends_with("-2"), "{long}");
    }
}
