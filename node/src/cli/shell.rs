//! `tieline completions` and `tieline man`.

use clap::{Args, CommandFactory};
use clap_complete::Shell;
use tieline_proto::api::{ApiError, Code};

use super::{Cli, Context, Done, Exit};

/// Print completions for a shell.
#[derive(Args, Debug)]
pub struct Completions {
    /// The shell
    shell: Shell,
}

/// `tieline completions`.
pub fn completions(context: &Context, args: Completions) -> Done {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "tieline", &mut script);
    print(context, &script)
}

/// `tieline man`: one page for all commands.
pub fn man(context: &Context) -> Done {
    let mut page = Vec::new();
    render(&mut page).map_err(|error| ApiError::new(Code::Internal, format!("the page can't be made: {error}")))?;
    print(context, &page)
}

fn render(page: &mut Vec<u8>) -> std::io::Result<()> {
    let mut root = Cli::command();
    root.build();
    let man = clap_mangen::Man::new(root.clone());
    man.render_title(page)?;
    man.render_name_section(page)?;
    man.render_synopsis_section(page)?;
    man.render_description_section(page)?;
    man.render_options_section(page)?;
    page.extend_from_slice(b".SH COMMANDS\n");
    command_sections(page, &root, "tieline");
    man.render_extra_section(page)?;
    man.render_version_section(page)
}

/// A subsection for each command that does something, with its help as it is printed.
fn command_sections(page: &mut Vec<u8>, command: &clap::Command, path: &str) {
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        let path = format!("{path} {}", sub.get_name());
        if sub.has_subcommands() {
            command_sections(page, sub, &path);
            continue;
        }
        page.extend_from_slice(format!(".SS {}\n.nf\n", escape(&path)).as_bytes());
        // Global options are described once, above.
        let help = sub.clone().render_long_help().to_string();
        let own = help.split("\nGlobal options:").next().unwrap_or(&help);
        for line in own.trim_end().lines() {
            page.extend_from_slice(escape(line).as_bytes());
            page.push(b'\n');
        }
        page.extend_from_slice(b".fi\n");
    }
}

/// A line that roff prints as it is.
fn escape(line: &str) -> String {
    let line = line.replace('\\', r"\e").replace('-', r"\-");
    if line.starts_with(['.', '\'']) { format!(r"\&{line}") } else { line }
}

fn print(context: &Context, text: &[u8]) -> Done {
    let text = String::from_utf8_lossy(text);
    if context.out.json {
        context.out.value(&text)?
    } else {
        context.out.text(&text)?
    }
    Ok(Exit::OK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manual_page_has_every_command() {
        let mut page = Vec::new();
        render(&mut page).unwrap();
        let page = String::from_utf8(page).unwrap();
        for command in ["tieline up", r"tieline channel create", r"tieline hold release", r"tieline member add"] {
            assert!(page.contains(&format!(".SS {command}\n")), "{command}\n{page}");
        }
        assert!(page.contains(r"\-\-json") && !page.contains("__child"));
    }
}
