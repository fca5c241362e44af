//! The offline model that real agents are pointed at: scripted answers by directives such as `fake:text(hello)`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::mesh::Plan;
use crate::process::Process;

/// A model server on loopback. Dropping it ends it.
#[derive(Debug)]
pub struct Model {
    process: Process,
    port: u16,
    log: PathBuf,
}

impl Model {
    /// Starts it; it logs requests below `dir`.
    ///
    /// # Panics
    /// When `python3` is missing or it does not start.
    #[must_use]
    pub fn start(dir: &Path) -> Self {
        fs::create_dir_all(dir).expect("the model's folder can be made");
        let log = dir.join("requests.jsonl");
        let mut command = Command::new("python3");
        command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/fake-model/fake_model.py"));
        command.args(["--port", "0", "--log"]).arg(&log).arg("--workdir").arg(dir);
        let mut process = Process::spawn(command);
        let hello = process.next_line(Duration::from_secs(30)).expect("the model says its port");
        let port = serde_json::from_str::<Value>(&hello).ok().and_then(|hello| hello["port"].as_u64());
        let port = port.and_then(|port| u16::try_from(port).ok()).expect("the port is a number");
        Self { process, port, log }
    }

    /// Its address.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Its log: one value a request.
    #[must_use]
    pub fn requests(&self) -> Vec<Value> {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Whether an agent really closed a stream before its end, as an interrupt must.
    #[must_use]
    pub fn client_gone(&self) -> bool {
        self.requests().iter().any(|request| request["t"] == "client_gone")
    }

    /// Its process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.process.id()
    }
}

/// Lets the resident run Claude Code against the model.
#[must_use]
pub fn with_claude(plan: Plan, model: &Model) -> Plan {
    plan.harness("claude-code")
        .pass("ANTHROPIC_API_KEY", "sk-test")
        .pass("ANTHROPIC_BASE_URL", model.url())
        .pass("DISABLE_TELEMETRY", "1")
        .pass("DISABLE_AUTOUPDATER", "1")
        .pass("DISABLE_ERROR_REPORTING", "1")
        .pass("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1")
        .pass("CLAUDE_CODE_MAX_RETRIES", "1")
}

/// Lets the resident run Codex against the model.
///
/// # Panics
/// When its configuration cannot be written.
#[must_use]
pub fn with_codex(plan: Plan, model: &Model) -> Plan {
    let folder = plan.resident.home().join(".codex");
    fs::create_dir_all(&folder).expect("a folder can be made");
    let config = format!(
        "model = \"fake-model\"\nmodel_provider = \"fake\"\ncheck_for_update_on_startup = false\n\n\
         [analytics]\nenabled = false\n\n\
         [model_providers.fake]\nname = \"fake\"\nbase_url = \"{}/v1\"\nwire_api = \"responses\"\n\
         env_key = \"FAKE_MODEL_KEY\"\nrequest_max_retries = 1\nstream_max_retries = 1\nsupports_websockets = false\n",
        model.url()
    );
    fs::write(folder.join("config.toml"), config).expect("the configuration can be written");
    plan.harness("codex").pass("FAKE_MODEL_KEY", "sk-test")
}
