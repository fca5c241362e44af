//! The command line. Answers go to stdout, everything else to stderr; with `--json` stdout holds JSON alone.
//!
//! | module | holds |
//! |---|---|
//! | [`client`], [`follow`] | the way to a running node, and a subscription that survives its restart |
//! | [`out`], [`table`], [`render`] | what is printed, and how it looks |
//! | [`verify`] | channels and exported files, read without a node |
//! | others | a group of commands each |
//!
//! Commands return an [`Exit`] or an [`ApiError`]; [`main`] alone prints errors and chooses the exit status.

use std::ffi::OsString;
use std::future::Future;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, CommandFactory, Parser, Subcommand};
use tieline_proto::api::{ApiError, Code};
use tieline_proto::id::ClientId;

use crate::config::{self, Config, LogFormat, Places};
use crate::logging;

mod attach;
mod channel;
mod client;
mod follow;
mod harness;
mod inbox;
mod logs;
mod member;
mod node;
mod out;
mod pair;
mod post;
mod render;
mod shell;
mod table;
mod tail;
mod up;
mod verify;

use client::Dial;
use out::Out;

/// One channel for people, coding agents and a voice, over all your boxes
#[derive(Debug, Parser)]
#[command(name = "tieline", version, arg_required_else_help = true, disable_help_subcommand = true, after_help = AFTER_HELP)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

const AFTER_HELP: &str = "\
First steps:
  tieline up                                  start the node, in a terminal of its own
  tieline channel create lobby                make a channel
  tieline member add lobby echo --harness scripted
  tieline post lobby \"@echo hello\" --wait     ask, and wait for the answer

Exit status: 0 ok, 1 other, 2 usage, 3 refused, 4 not found, 5 not finished in time, 6 node not running,
7 already running, 8 outcome unknown or held";

/// Options of every command.
#[derive(Args, Clone, Debug)]
struct Global {
    /// Folder of the node's data [default: $TIELINE_DATA, else the user's data folder]
    #[arg(long, global = true, value_name = "DIR", help_heading = "Global options")]
    data: Option<PathBuf>,

    /// Print JSON: one value, or one a line for streams
    #[arg(long, global = true, help_heading = "Global options")]
    json: bool,

    /// Form of the logs on stderr: human or json
    #[arg(long, global = true, value_name = "FORM", help_heading = "Global options")]
    log: Option<String>,

    /// What to log, such as debug or tieline=debug,warn
    #[arg(long, global = true, value_name = "FILTER", help_heading = "Global options")]
    log_level: Option<String>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start the node and stay in the foreground
    Up(up::Up),
    /// Stop the node
    Stop,
    /// Show the node, its links, channels and members
    Status,
    /// Show or found the org
    #[command(subcommand)]
    Org(node::OrgCommand),
    /// Enrol another device: print a link and its QR code, wait, ask for the six digits
    Pair(pair::Pair),
    /// Enrol this box by a link that `tieline pair` printed elsewhere
    Join(pair::Join),
    /// Manage the org's devices
    #[command(subcommand)]
    Device(pair::DeviceCommand),
    /// Define harnesses of this box: commands that members may run
    #[command(subcommand)]
    Harness(harness::HarnessCommand),
    /// Manage channels
    #[command(subcommand)]
    Channel(channel::ChannelCommand),
    /// Manage members of a channel
    #[command(subcommand)]
    Member(member::MemberCommand),
    /// Post a message
    Post(post::Post),
    /// Show a channel's messages and follow it
    Tail(tail::Tail),
    /// List questions, approvals and holds that wait for a person
    Inbox(inbox::Inbox),
    /// Answer a question or an approval
    Answer(inbox::Answer),
    /// Decide deliveries and turns that are held
    #[command(subcommand)]
    Hold(inbox::HoldCommand),
    /// Show the configuration
    #[command(subcommand)]
    Config(node::ConfigCommand),
    /// Show the node's log
    Logs(logs::Logs),
    /// Print completions for a shell
    Completions(shell::Completions),
    /// Print the manual page
    Man,
}

impl Command {
    /// Whether it makes sense from inside a turn: the others work on a data folder, which would be another one than that
    /// of the node that runs the turn.
    const fn is_for_agents(&self) -> bool {
        !matches!(
            self,
            Self::Up(_)
                | Self::Org(_)
                | Self::Join(_)
                | Self::Harness(_)
                | Self::Config(_)
                | Self::Logs(_)
                | Self::Channel(channel::ChannelCommand::Export { .. })
        )
    }
}

fn not_for_agents() -> ApiError {
    ApiError::new(Code::Refused, "from inside a turn an agent posts and reads, and nothing else")
        .hint("ask a person; or, for a node of your own: --data DIR")
}

/// How a command ended that was no error.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Exit(u8);

impl Exit {
    const OK: Self = Self(0);
    /// What was asked for happened, and it did not go well.
    const FAILED: Self = Self(1);
    /// Accepted, but not finished in time.
    const UNFINISHED: Self = Self(5);
    /// Held, or nobody knows how it ended.
    const UNKNOWN: Self = Self(8);
}

type Done = Result<Exit, ApiError>;

/// What every command gets.
struct Context {
    global: Global,
    places: Places,
    out: Out,
}

impl Context {
    fn env(name: &str) -> Option<String> {
        std::env::var(name).ok()
    }

    /// Whether an agent calls, and not for another data folder than its node's.
    fn in_turn(global: &Global) -> bool {
        global.data.is_none() && Self::env("TIELINE_SOCKET").is_some_and(|socket| !socket.is_empty())
    }

    /// The data folder.
    fn data(&self) -> PathBuf {
        config::data_dir(self.global.data.as_deref(), &Self::env, &self.places).0
    }

    /// How to reach the node.
    fn dial(&self) -> Dial {
        Dial::new(self.global.data.is_some(), &self.data(), &Self::env)
    }

    /// The whole configuration, with what the command line says.
    fn load(&self, mut flags: config::Flags) -> Result<config::Loaded, ApiError> {
        flags.data.clone_from(&self.global.data);
        flags.log.clone_from(&self.global.log);
        flags.log_level.clone_from(&self.global.log_level);
        flags.json = self.global.json;
        Ok(config::load(&flags, &Self::env, &self.places)?)
    }
}

/// Runs the command line of this process; `run` is what `up` does with its configuration.
pub fn main<F>(run: impl FnOnce(Config) -> F) -> ExitCode
where
    F: Future<Output = Result<(), ApiError>> + Send + 'static,
{
    let args: Vec<OsString> = std::env::args_os().collect();
    let cli = match Cli::try_parse_from(&args) {
        Ok(cli) => cli,
        Err(error) => return usage(&error, &args),
    };
    let out = Out::new(cli.global.json).of_data(cli.global.data.as_deref());
    let context = Context { global: cli.global, places: Places::of_user(), out };
    let done = match cli.command {
        command if Context::in_turn(&context.global) && !command.is_for_agents() => Err(not_for_agents()),
        Command::Up(up) => up.run(&context, run),
        command => command_mode(&context, command),
    };
    match done {
        Ok(Exit(code)) => ExitCode::from(code),
        Err(mut error) => {
            if error.hint.is_empty() && error.code == Code::Invalid {
                error.hint = help_of(&args);
            }
            context.out.error(&error);
            ExitCode::from(error.code.exit())
        }
    }
}

/// Runs a command that is not the node itself. One thread is enough, and quick to start.
fn command_mode(context: &Context, command: Command) -> Done {
    let format = match context.global.log.as_deref() {
        None | Some("human") => LogFormat::Human,
        Some("json") => LogFormat::Json,
        Some(_) => return Err(ApiError::new(Code::Invalid, "--log takes human or json")),
    };
    let level = context.global.log_level.as_deref();
    level
        .map(config::log_filter)
        .transpose()
        .map_err(|why| ApiError::new(Code::Invalid, format!("--log-level: {why}")))?;
    logging::init_command(format, level);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| ApiError::new(Code::Internal, format!("no runtime: {error}")))?;
    let done = runtime.block_on(execute(context, command));
    // A thread that waits for stdin must not keep the process.
    runtime.shutdown_background();
    done
}

async fn execute(context: &Context, command: Command) -> Done {
    match command {
        // `main` has taken it.
        Command::Up(_) => Ok(Exit::OK),
        Command::Stop => node::stop(context).await,
        Command::Status => node::status(context).await,
        Command::Org(command) => node::org(context, command).await,
        Command::Pair(args) => pair::pair(context, args).await,
        Command::Join(args) => pair::join(context, args).await,
        Command::Device(command) => pair::device(context, command).await,
        Command::Harness(command) => harness::run(context, command).await,
        Command::Channel(command) => channel::run(context, command).await,
        Command::Member(command) => member::run(context, command).await,
        Command::Post(args) => post::run(context, args).await,
        Command::Tail(args) => tail::run(context, args).await,
        Command::Inbox(args) => inbox::inbox(context, args).await,
        Command::Answer(args) => inbox::answer(context, args).await,
        Command::Hold(command) => inbox::hold(context, command).await,
        Command::Config(command) => node::config(context, command),
        Command::Logs(args) => logs::run(context, args).await,
        Command::Completions(args) => shell::completions(context, args),
        Command::Man => shell::man(context),
    }
}

/// A new id for a request that must not be carried out twice.
fn new_client_id() -> Result<ClientId, ApiError> {
    let id = uuid::Uuid::new_v4().to_string();
    ClientId::new(&id).map_err(|error| ApiError::new(Code::Internal, error.to_string()))
}

/// Prints what is wrong with a command line, or the help that it asks for.
fn usage(error: &clap::Error, args: &[OsString]) -> ExitCode {
    use clap::error::ErrorKind;
    let is_help = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    let wants_json = args.iter().take_while(|arg| *arg != "--").any(|arg| arg == "--json");
    if is_help || !wants_json {
        let _ = error.print();
    } else {
        let text = error.render().to_string();
        let message = text.split("\n\n").next().unwrap_or_default().trim_start_matches("error: ").trim();
        let message = message.split_whitespace().collect::<Vec<_>>().join(" ");
        Out::new(true).error(&ApiError::new(Code::Invalid, message).hint(help_of(args)));
    }
    ExitCode::from(if is_help { 0 } else { Code::Invalid.exit() })
}

/// What shows the help of the command that was typed.
fn help_of(args: &[OsString]) -> String {
    let mut known = Cli::command();
    let mut hint = String::from("tieline");
    // Only words that name commands lead to a help text; options and their values may stand before.
    for word in args.iter().skip(1).filter_map(|arg| arg.to_str()) {
        match known.find_subcommand(word).cloned() {
            Some(found) => known = found,
            None if hint == "tieline" => continue,
            None => break,
        }
        hint.push(' ');
        hint.push_str(word);
    }
    format!("{hint} --help")
}

#[cfg(test)]
mod tests;
