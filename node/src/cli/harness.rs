//! `tieline harness`: what members may run on this box. Its owner alone says so, here, on the box.

use clap::Subcommand;
use serde_json::json;
use tieline_proto::api::{ApiError, Code, Request};

use super::table::columns;
use super::{Context, Done, Exit};
use crate::config::Flags;
use crate::data_dir::DataDir;
use crate::harness::Registry;
use crate::harness::env;
use crate::harness::registry::RegistryError;

/// Define harnesses of this box.
#[derive(Debug, Subcommand)]
pub enum HarnessCommand {
    /// Give a command a name: it gets the prompt on stdin, and what it prints is the answer
    Add {
        /// The name: a-z, 0-9 and -
        name: String,
        /// Program and arguments; no shell reads them
        #[arg(last = true, required = true, value_name = "COMMAND")]
        command: Vec<String>,
    },
    /// List the harnesses and whether they can be started
    List,
    /// Forget a command
    Remove {
        /// The name
        name: String,
    },
}

/// Runs it. No node needs to run; one that does is told.
pub async fn run(context: &Context, command: HarnessCommand) -> Done {
    let config = context.load(Flags::default())?.config;
    let env = env::base(std::env::vars_os(), &config.env_pass);
    // An older binary leaves a newer one's folder alone.
    DataDir::check_format(&config.data).map_err(|error| {
        ApiError::new(Code::Internal, error.to_string()).hint("use the newer version, or another folder: --data DIR")
    })?;
    match command {
        HarnessCommand::List => {
            let commands = config.harness.into_iter().map(|(name, of)| (name, of.command)).collect();
            let reports = Registry::load(&config.data, commands).map_err(refused)?.probe(&env).await;
            if context.out.json {
                context.out.value(&reports)?;
                return Ok(Exit::OK);
            }
            let rows = reports.iter().map(|report| {
                let state = if report.available { "ready" } else { "missing" };
                let version = report.version.clone().unwrap_or_default();
                vec![report.name.clone(), state.to_owned(), version, report.command.join(" ")]
            });
            let mut text = columns(&rows.collect::<Vec<_>>());
            // Whole: it ends with what to type.
            for problem in reports.iter().filter_map(|report| report.problem.as_deref()) {
                text.push_str(&format!("\n{}\n", tieline_proto::text::one_line(problem, 1000)));
            }
            context.out.text(&text)?;
        }
        HarnessCommand::Add { name, command } => {
            DataDir::check(&config.data).map_err(|error| crate::node::explain(&error.into()))?;
            crate::http::bind::private_dir(&config.data)?;
            let path = env.get("PATH").map(String::as_str).unwrap_or_default();
            Registry::add(&config.data, &name, command, path).map_err(refused)?;
            changed(context, &name, "added").await?;
            context.out.note(&format!("next: tieline member add CHANNEL HANDLE --harness {name}"));
        }
        HarnessCommand::Remove { name } => {
            Registry::remove(&config.data, &name).map_err(refused)?;
            changed(context, &name, "removed").await?;
        }
    }
    Ok(Exit::OK)
}

/// Tells the node, if one runs, and the person.
async fn changed(context: &Context, name: &str, what: &str) -> Result<(), ApiError> {
    let dial = context.dial();
    if dial.is_up().await {
        dial.connect().await?.call(Request::Reload {}).await?;
    }
    if context.out.json {
        context.out.value(&json!({"name": name, "state": what}))
    } else {
        context.out.text(&format!("{} {what}", context.out.style.bold(name)))
    }
}

fn refused(error: RegistryError) -> ApiError {
    let code = match &error {
        RegistryError::NotFound(_) | RegistryError::NoProgram(_) => Code::NotFound,
        RegistryError::Reserved(_) => Code::Refused,
        RegistryError::Name(_) | RegistryError::NoCommand => Code::Invalid,
        RegistryError::TooMany => Code::Limit,
        _ => Code::Internal,
    };
    let hint = if code == Code::NotFound { "tieline harness list" } else { "" };
    ApiError::new(code, error.to_string()).hint(hint)
}
