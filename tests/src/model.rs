//! The offline model that real agents are pointed at: scripted answers by directives such as `fake:text(hello)`.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

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
        command.args(["--port", "0", "--log-key", "--log"]).arg(&log).arg("--workdir").arg(dir);
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

/// Variables that a node may have and that no program of its members may see.
pub const SECRETS: [(&str, &str); 6] = [
    ("ANTHROPIC_API_KEY", "sk-of-the-node"),
    ("OPENAI_API_KEY", "sk-of-the-node"),
    ("CODEX_API_KEY", "sk-of-the-node"),
    ("AWS_SECRET_ACCESS_KEY", "of-the-node"),
    ("GITHUB_TOKEN", "of-the-node"),
    ("SSH_AUTH_SOCK", "/of/the/node"),
];

/// Claude Code with a person's own login: nothing but the files in their HOME, as `claude /login` leaves them. Gives the
/// credential that requests must carry.
///
/// # Panics
/// When the files cannot be written.
#[must_use]
pub fn with_own_claude(plan: Plan, model: &Model) -> (Plan, String) {
    let folder = plan.resident.home().join(".claude");
    fs::create_dir_all(&folder).expect("a folder can be made");
    let token = "sk-ant-oat01-of-the-person";
    let login = json!({ "claudeAiOauth": {
        "accessToken": token, "refreshToken": "sk-ant-ort01-of-the-person", "expiresAt": 4_102_444_800_000_u64,
        "scopes": ["user:inference", "user:profile"], "subscriptionType": "max" } });
    write_private(&folder.join(".credentials.json"), &login);
    let settings = json!({ "env": {
        "ANTHROPIC_BASE_URL": model.url(), "CLAUDE_CODE_MAX_RETRIES": "1", "DISABLE_TELEMETRY": "1",
        "DISABLE_AUTOUPDATER": "1", "DISABLE_ERROR_REPORTING": "1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1" } });
    write_private(&folder.join("settings.json"), &settings);
    (plan.harness("claude-code"), format!("Bearer {token}"))
}

/// A token as ChatGPT gives it: unsigned, of person@example.test, good until 2100.
const CHATGPT_TOKEN: &str = "eyJhbGciOiJub25lIiwidHlwIjoiSldUIn0.\
     eyJlbWFpbCI6InBlcnNvbkBleGFtcGxlLnRlc3QiLCJleHAiOjQxMDI0NDQ4MDAsImh0dHBzOi8vYXBpLm9wZW5haS5jb20v\
     YXV0aCI6eyJjaGF0Z3B0X3BsYW5fdHlwZSI6InBsdXMiLCJjaGF0Z3B0X2FjY291bnRfaWQiOiJhY2NvdW50LTEiLCJjaGF0\
     Z3B0X3VzZXJfaWQiOiJ1c2VyLTEifX0.c2ln";

/// Codex with a person's own API key, as `codex login --with-api-key` leaves it. Gives the credential that requests must
/// carry.
///
/// # Panics
/// When the files cannot be written.
#[must_use]
pub fn with_own_codex(plan: Plan, model: &Model) -> (Plan, String) {
    let key = "sk-of-the-person";
    with_codex_login(plan, model, &json!({ "OPENAI_API_KEY": key }), key)
}

/// Codex with a person's own ChatGPT account, as `codex login` leaves it. Gives the credential that requests must carry.
///
/// # Panics
/// When the files cannot be written.
#[must_use]
pub fn with_own_chatgpt(plan: Plan, model: &Model) -> (Plan, String) {
    let token = CHATGPT_TOKEN;
    // A login is refreshed when it is old, and this one never is.
    let login = json!({
        "auth_mode": "chatgpt", "OPENAI_API_KEY": null, "last_refresh": "2099-01-01T00:00:00Z",
        "tokens": { "id_token": token, "access_token": token, "refresh_token": "of-the-person", "account_id": "account-1" },
    });
    with_codex_login(plan, model, &login, token)
}

fn with_codex_login(plan: Plan, model: &Model, login: &Value, credential: &str) -> (Plan, String) {
    codex_config(&plan, model, "requires_openai_auth = true");
    write_private(&plan.resident.home().join(".codex/auth.json"), login);
    (plan.harness("codex"), format!("Bearer {credential}"))
}

fn write_private(path: &Path, value: &Value) {
    fs::write(path, value.to_string()).expect("a login can be written");
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("it is ours");
}

/// Lets the resident run Codex against the model.
///
/// # Panics
/// When its configuration cannot be written.
#[must_use]
pub fn with_codex(plan: Plan, model: &Model) -> Plan {
    codex_config(&plan, model, "env_key = \"FAKE_MODEL_KEY\"");
    plan.harness("codex").pass("FAKE_MODEL_KEY", "sk-test")
}

fn codex_config(plan: &Plan, model: &Model, login: &str) {
    let folder = plan.resident.home().join(".codex");
    fs::create_dir_all(&folder).expect("a folder can be made");
    let config = format!(
        "model = \"fake-model\"\nmodel_provider = \"fake\"\ncheck_for_update_on_startup = false\n\
         chatgpt_base_url = \"{url}/backend-api\"\n\n\
         [analytics]\nenabled = false\n\n\
         [model_providers.fake]\nname = \"fake\"\nbase_url = \"{url}/v1\"\nwire_api = \"responses\"\n{login}\n\
         request_max_retries = 1\nstream_max_retries = 1\nsupports_websockets = false\n",
        url = model.url()
    );
    fs::write(folder.join("config.toml"), config).expect("the configuration can be written");
}
