//! What is printed where: answers on stdout, everything else on stderr, and no escape sequence but our own colors.

use std::io::{self, IsTerminal, Write};
use std::path::Path;

use serde::Serialize;
use tieline_proto::api::{ApiError, Code};
use tieline_proto::text;

use crate::config;

/// How this program is called.
const PROGRAM: &str = "tieline";

/// Where a command's answer goes.
#[derive(Clone, Copy, Debug)]
pub struct Out {
    /// Stdout holds JSON alone.
    pub json: bool,
    /// How text on stdout is marked up.
    pub style: Style,
    /// How this program is called, with the data folder if somebody named one: what is shown to be typed must reach the
    /// same node.
    pub program: &'static str,
}

/// An error, as `--json` prints it: all fields, always.
#[derive(Serialize)]
struct Failure<'a> {
    error: FailureBody<'a>,
}

#[derive(Serialize)]
struct FailureBody<'a> {
    code: Code,
    message: &'a str,
    hint: &'a str,
}

/// What helps when an error comes without a hint of its own.
const fn usual_hint(code: Code) -> &'static str {
    match code {
        Code::Invalid => "tieline --help",
        Code::NotRunning => "tieline up",
        Code::Unreachable | Code::Timeout => "tieline status",
        Code::NotFound => "tieline channel list",
        Code::Internal => "tieline logs",
        _ => "tieline status",
    }
}

/// Colors, when somebody sees them. Nothing is said by color alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct Style {
    has_color: bool,
}

impl Style {
    /// Marks nothing.
    #[cfg(test)]
    pub const PLAIN: Self = Self { has_color: false };

    fn of(is_terminal: bool) -> Self {
        let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self { has_color: is_terminal && !set("NO_COLOR") && !dumb }
    }

    fn paint(self, code: &str, text: &str) -> String {
        if self.has_color && !text.is_empty() { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// What a reader looks for.
    pub fn bold(self, text: &str) -> String {
        self.paint("1", text)
    }

    /// What a reader may skip.
    pub fn dim(self, text: &str) -> String {
        self.paint("2", text)
    }

    /// Something went well.
    pub fn good(self, text: &str) -> String {
        self.paint("32", text)
    }

    /// Something needs a look.
    pub fn warn(self, text: &str) -> String {
        self.paint("33", text)
    }

    /// Something failed.
    pub fn bad(self, text: &str) -> String {
        self.paint("31", text)
    }

    /// A member's handle: bold, in a color that stays the member's.
    pub fn handle(self, handle: &str) -> String {
        const COLORS: [&str; 6] = ["1;36", "1;35", "1;34", "1;33", "1;32", "1;31"];
        let sum = handle.bytes().fold(0_usize, |sum, byte| sum.wrapping_mul(31).wrapping_add(usize::from(byte)));
        self.paint(COLORS.get(sum % COLORS.len()).copied().unwrap_or("1"), handle)
    }
}

impl Out {
    /// Stdout of this process.
    pub fn new(json: bool) -> Self {
        Self { json, style: Style::of(io::stdout().is_terminal()), program: PROGRAM }
    }

    /// Names the data folder in what is shown to be typed.
    pub fn of_data(self, data: Option<&Path>) -> Self {
        let data = data.and_then(|data| std::path::absolute(data).ok());
        // Once a process.
        data.map_or(self, |data| Self { program: config::program(&data).leak(), ..self })
    }

    /// A text in which each command is one for the data folder.
    pub fn commands(self, text: &str) -> String {
        if self.program == PROGRAM || text.contains("--data") {
            return text.to_owned();
        }
        let named = format!("{PROGRAM} ");
        let mut pieces = text.split(&named);
        let mut out = pieces.next().unwrap_or_default().to_owned();
        for piece in pieces {
            // Words in a sentence are not for typing.
            let is_command = piece.starts_with(|c: char| c.is_ascii_lowercase());
            out.push_str(if is_command { self.program } else { PROGRAM });
            out.push(' ');
            out.push_str(piece);
        }
        out
    }

    /// Prints a JSON value on a line.
    pub fn value(self, value: &impl Serialize) -> Result<(), ApiError> {
        let mut line = serde_json::to_string(value)
            .map_err(|error| ApiError::new(Code::Internal, format!("the answer can't be written as JSON: {error}")))?;
        line.push('\n');
        self.raw(&line)
    }

    /// Prints lines. Text of others in it has passed [`text::visible`].
    pub fn text(self, lines: &str) -> Result<(), ApiError> {
        if lines.ends_with('\n') || lines.is_empty() { self.raw(lines) } else { self.raw(&format!("{lines}\n")) }
    }

    /// Prints as it stands, at once.
    pub fn raw(self, text: &str) -> Result<(), ApiError> {
        let mut stdout = io::stdout().lock();
        match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
            Ok(()) => Ok(()),
            // The reader has seen enough, as `head` does.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
            Err(error) => Err(ApiError::new(Code::Internal, format!("stdout can't be written: {error}"))),
        }
    }

    /// Tells a person how it goes, on stderr.
    pub fn note(self, note: &str) {
        // Nobody is there to be told that stderr is gone.
        let _ = writeln!(io::stderr().lock(), "{}", text::visible(&self.commands(note)));
    }

    /// Asks a person for something, on stderr, without a line end.
    pub fn prompt(self, prompt: &str) {
        let mut stderr = io::stderr().lock();
        let _ = write!(stderr, "{}", text::visible(prompt)).and_then(|()| stderr.flush());
    }

    /// Prints an error: as JSON on stdout, or as text on stderr.
    pub fn error(self, error: &ApiError) {
        if self.json {
            let ApiError { code, message, hint } = error;
            let hint = &self.commands(if hint.is_empty() { usual_hint(*code) } else { hint });
            // If stdout is gone there is only the exit status left to tell.
            let _ = self.value(&Failure { error: FailureBody { code: *code, message, hint } });
            return;
        }
        let style = Style::of(io::stderr().is_terminal());
        let mut shown = format!("{} {}", style.bad("error:"), text::visible(&error.message));
        let hint = if error.hint.is_empty() { usual_hint(error.code) } else { &error.hint };
        shown.push_str(&format!("\n{} {}", style.dim(" hint:"), text::visible(&self.commands(hint))));
        let _ = writeln!(io::stderr().lock(), "{shown}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_style_marks_nothing() {
        let style = Style::PLAIN;
        assert_eq!(style.bold("a") + &style.handle("gpu") + &style.bad("x"), "agpux");
    }

    #[test]
    fn commands_name_the_data_folder_that_was_named() {
        let out = Out::new(false);
        assert_eq!(out.commands("tieline up"), "tieline up");
        let out = out.of_data(Some(Path::new("/d x")));
        assert_eq!(out.commands("next: tieline tail c"), "next: tieline --data '/d x' tail c");
        assert_eq!(out.commands("tieline up --data /d"), "tieline up --data /d");
        assert_eq!(out.commands("a tieline LINK; tieline pair"), "a tieline LINK; tieline --data '/d x' pair");
    }

    #[test]
    fn a_handle_keeps_its_color() {
        let style = Style { has_color: true };
        assert_eq!(style.handle("gpu"), style.handle("gpu"));
        assert!(style.handle("gpu").ends_with("gpu\x1b[0m"));
        assert_eq!(style.dim(""), "");
    }
}
