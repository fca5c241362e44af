use std::fs;

use super::*;

struct Box {
    root: tempfile::TempDir,
    env: BTreeMap<String, String>,
    flags: Flags,
}

impl Box {
    fn new() -> Self {
        Self { root: tempfile::tempdir().unwrap(), env: BTreeMap::new(), flags: Flags::default() }
    }

    fn env(mut self, name: &str, value: &str) -> Self {
        self.env.insert(name.to_owned(), value.to_owned());
        self
    }

    fn file(self, folder: &str, text: &str) -> Self {
        let folder = self.root.path().join(folder);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("config.toml"), text).unwrap();
        self
    }

    fn load(&self) -> Result<Loaded, ConfigError> {
        let places = Places {
            data: self.root.path().join("data"),
            config: Some(self.root.path().join("config")),
            host: "desk.example.org".to_owned(),
        };
        load(&self.flags, &|name| self.env.get(name).cloned(), &places)
    }

    fn refusal(&self) -> ApiError {
        self.load().unwrap_err().into()
    }
}

fn source_of(loaded: &Loaded, key: &str) -> Source {
    loaded.settings.iter().find(|setting| setting.key == key).unwrap().source.clone()
}

#[test]
fn defaults_are_those_of_the_contract() {
    let config = Box::new().load().unwrap().config;
    assert_eq!(config.api, ApiAddr { addr: "127.0.0.1:8137".parse().unwrap(), chosen: false });
    assert_eq!(config.listen.addrs.len(), 4);
    assert!(!config.listen.chosen && config.mdns && !config.lan);
    assert_eq!(config.name, "desk");
}

#[test]
fn flags_win_over_environment_over_file_over_defaults() {
    let mut at = Box::new();
    let name = |at: &Box| {
        let loaded = at.load().unwrap();
        (loaded.config.name.clone(), source_of(&loaded, "name"))
    };
    assert_eq!(name(&at), ("desk".to_owned(), Source::Default));
    at = at.file("data", "name = 'data-file'");
    assert_eq!(name(&at).0, "data-file");
    at = at.file("config", "name = 'user-file'");
    let file = at.root.path().join("config/config.toml");
    assert_eq!(name(&at), ("user-file".to_owned(), Source::File(file)));
    at = at.env("TIELINE_NAME", "env");
    assert_eq!(name(&at), ("env".to_owned(), Source::Env("TIELINE_NAME".to_owned())));
    at.flags.name = Some("flag".to_owned());
    assert_eq!(name(&at), ("flag".to_owned(), Source::Flag("--name".to_owned())));
}

#[test]
fn data_folder_is_found_by_flag_then_environment() {
    let mut at = Box::new().env("TIELINE_DATA", "/env");
    assert_eq!(at.load().unwrap().config.data, PathBuf::from("/env"));
    at.flags.data = Some(PathBuf::from("/flag"));
    assert_eq!(at.load().unwrap().config.data, PathBuf::from("/flag"));
}

#[test]
fn unknown_key_is_refused_with_its_file_and_the_nearest_key() {
    let at = Box::new().file("data", "listn = []");
    let error = at.refusal();
    assert_eq!(error.code, Code::Invalid);
    assert!(error.message.contains("\"listn\"") && error.message.contains("data/config.toml"), "{}", error.message);
    assert_eq!(error.hint, "did you mean \"listen\"?");

    let at = Box::new().file("data", "[harness.gpu]\ncommand = ['train']\ncwd = '/'");
    assert!(at.refusal().message.contains("harness.gpu.cwd"));
}

#[test]
fn wrong_values_say_key_value_source_and_reason() {
    let check = |text: &str, parts: &[&str]| {
        let message = Box::new().file("data", text).refusal().message;
        assert!(parts.iter().all(|part| message.contains(part)), "{message}");
    };
    check("mdns = 'yes'", &["mdns", "\"yes\"", "config.toml", "true or false"]);
    check("listen = '/ip4/0.0.0.0/tcp/1'", &["listen", "list of texts"]);
    check("listen = ['tcp://x']", &["listen", "multiaddr"]);
    check("api = '0.0.0.0:80'", &["api", "loopback only"]);
    check("harness = 3", &["[harness.NAME]"]);
    check("harness.GPU.command = ['x']", &["harness name"]);
    check("harness.gpu.command = []", &["harness.gpu needs command"]);
    check("env_pass = ['A B']", &["A B"]);
    check("log = 2030-01-01", &["log", "text"]);
    for filter in ["===", "zz((", "zzz", "info,x"] {
        check(&format!("log_level = '{filter}'"), &["log_level", filter]);
    }
    for filter in ["debug", "tieline=debug,warn", "tieline::net=trace, info", "off"] {
        Box::new().env("TIELINE_LOG_LEVEL", filter).load().unwrap();
    }
    check("name = ''", &["name"]);
    let error = Box::new().file("data", "name = [").refusal();
    assert!(error.message.contains("not valid TOML"), "{}", error.message);
}

#[test]
fn environment_gives_lists_and_booleans() {
    let at = Box::new()
        .env("TIELINE_LISTEN", "/ip4/127.0.0.1/tcp/0, /ip4/127.0.0.1/udp/0/quic-v1")
        .env("TIELINE_MDNS", "off")
        .env("TIELINE_LAN", "1")
        .env("TIELINE_RELAY", "");
    let config = at.load().unwrap().config;
    assert!(config.listen.addrs.len() == 2 && config.listen.chosen);
    assert!(!config.mdns && config.lan && config.relay.is_empty());
    assert!(Box::new().env("TIELINE_MDNS", "maybe").load().is_err());
}

#[test]
fn chosen_api_address_is_known_as_chosen() {
    let at = Box::new().env("TIELINE_API", "localhost:0");
    let api = at.load().unwrap().config.api;
    assert_eq!(api, ApiAddr { addr: "127.0.0.1:0".parse().unwrap(), chosen: true });
    assert!(Box::new().env("TIELINE_API", "[::1]:9").load().unwrap().config.api.addr.is_ipv6());
}

#[test]
fn shown_settings_hide_credentials_in_commands() {
    let at = Box::new().file(
        "data",
        "[harness.gpu]\ncommand = ['env', 'API_TOKEN=hunter2', 'run', '--api-key', 'hunter2', '--secret=hunter2', '-v']",
    );
    let loaded = at.load().unwrap();
    let shown = serde_json::to_string(&loaded.settings).unwrap();
    assert!(!shown.contains("hunter2"), "{shown}");
    assert!(shown.contains("--api-key") && shown.contains("-v"), "{shown}");
    assert!(loaded.config.harness["gpu"].command.contains(&"hunter2".to_owned()));
}

#[test]
fn unreadable_file_is_an_error_not_a_default() {
    let at = Box::new();
    fs::create_dir_all(at.root.path().join("data/config.toml")).unwrap();
    assert!(matches!(at.load(), Err(ConfigError::Read { .. })));
}

#[test]
fn a_relative_data_folder_is_made_absolute() {
    let here = std::env::current_dir().unwrap();
    let mut at = Box::new().env("TIELINE_DATA", "env/data");
    assert_eq!(at.load().unwrap().config.data, here.join("env/data"));
    at.flags.data = Some(PathBuf::from("flag"));
    let config = at.load().unwrap().config;
    assert_eq!(config.data, here.join("flag"));
    assert_eq!(config.command("status"), format!("tieline --data {} status", here.join("flag").display()));
    assert_eq!(Box::new().load().unwrap().config.command("status"), "tieline status");
}

#[test]
fn what_does_nothing_yet_is_refused_and_not_believed() {
    let check = |at: Box, part: &str| {
        let error = at.load().unwrap().config.check_supported().unwrap_err();
        assert_eq!(error.code, Code::Invalid);
        assert!(error.message.contains(part) && error.message.contains("in this version yet"), "{}", error.message);
    };
    check(Box::new().env("TIELINE_LAN", "1"), "LAN");
    check(Box::new().file("data", "relay = ['/ip4/192.0.2.1/tcp/8140']"), "relay");
    Box::new().env("TIELINE_MDNS", "off").load().unwrap().config.check_supported().unwrap();
}
