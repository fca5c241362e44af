//! The keys: how each is spelled, what it takes, what it is when nobody says anything.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use libp2p::Multiaddr;
use serde_json::{Value, json};
use tieline_proto::id::Handle;

use super::file::File;
use super::{ApiAddr, Config, ConfigError, Flags, HarnessConfig, Listen, Loaded, LogFormat, Places, Setting, Source};

/// Port of the loopback API when nobody chose one.
pub const API_PORT: u16 = 8137;

/// Port other nodes reach this one at, TCP and UDP, when nobody chose one.
pub const LISTEN_PORT: u16 = 8138;

/// Longest node name, in bytes: it is shown in every list.
const NAME_LEN_MAX: usize = 63;

/// The keys of the config file, sorted. `data` and `ready_file` are no keys: they are where one starts from.
pub const NAMES: [&str; 11] =
    ["api", "bootstrap", "env_pass", "harness", "lan", "listen", "log", "log_level", "mdns", "name", "relay"];

/// Looks every key up, strongest source first.
pub fn resolve(
    flags: &Flags,
    env: &dyn Fn(&str) -> Option<String>,
    places: &Places,
    (data, data_source): (PathBuf, Source),
    file: Option<File>,
) -> Result<Loaded, ConfigError> {
    let layers = Layers { env, file };
    let text = |flag: &Option<String>| flag.clone().map(Value::String);
    let list = |flag: &[String]| (!flag.is_empty()).then(|| json!(flag));

    layers.check_file()?;
    let api = layers.pick("api", text(&flags.api), || json!(format!("127.0.0.1:{API_PORT}")));
    let listen = layers.pick("listen", list(&flags.listen), || json!(default_listen()));
    let bootstrap = layers.pick("bootstrap", list(&flags.bootstrap), || json!([]));
    let relay = layers.pick("relay", list(&flags.relay), || json!([]));
    let mdns = layers.pick("mdns", flags.no_mdns.then_some(json!(false)), || json!(true));
    let lan = layers.pick("lan", flags.lan.then_some(json!(true)), || json!(false));
    let name = layers.pick("name", text(&flags.name), || json!(host_name(&places.host)));
    let env_pass = layers.pick("env_pass", None, || json!([]));
    let harness = layers.pick_file("harness");
    let log = layers.pick("log", text(&flags.log), || json!("human"));
    let log_level = layers.pick("log_level", text(&flags.log_level), || json!("info"));

    let config = Config {
        data: data.clone(),
        data_chosen: data_source != Source::Default,
        name: name.text(node_name)?,
        name_chosen: name.source != Source::Default,
        api: ApiAddr { addr: api.text(loopback)?, chosen: api.source != Source::Default },
        listen: Listen { addrs: listen.list(multiaddr)?, chosen: listen.source != Source::Default },
        bootstrap: bootstrap.list(multiaddr)?,
        relay: relay.list(multiaddr)?,
        mdns: mdns.bool()?,
        lan: lan.bool()?,
        env_pass: env_pass.list(env_name)?,
        harness: harnesses(&harness)?,
        log: log.text(log_format)?,
        log_level: log_level.text(log_filter)?,
        ready_file: flags.ready_file.clone(),
        json: flags.json,
    };

    let mut settings = vec![Setting { key: "data".to_owned(), value: json!(data), source: data_source }];
    for picked in [api, bootstrap, env_pass, lan, listen, log, log_level, mdns, name, relay] {
        settings.push(Setting { key: picked.key.to_owned(), value: picked.value, source: picked.source });
    }
    for (name, of) in &config.harness {
        settings.push(Setting {
            key: format!("harness.{name}.command"),
            value: json!(mask(&of.command)),
            source: harness.source.clone(),
        });
    }
    Ok(Loaded { config, settings })
}

/// The sources below the command line.
struct Layers<'a> {
    env: &'a dyn Fn(&str) -> Option<String>,
    file: Option<File>,
}

impl Layers<'_> {
    fn pick(&self, key: &'static str, flag: Option<Value>, default: impl FnOnce() -> Value) -> Picked {
        if let Some(value) = flag {
            let flag = if key == "mdns" { "--no-mdns".to_owned() } else { format!("--{}", key.replace('_', "-")) };
            return Picked { key, value, source: Source::Flag(flag) };
        }
        let variable = format!("TIELINE_{}", key.to_ascii_uppercase());
        // An empty variable is how scripts say "unset".
        if let Some(text) = (self.env)(&variable).filter(|text| !text.is_empty()) {
            return Picked { key, value: Value::String(text), source: Source::Env(variable) };
        }
        let picked = self.pick_file(key);
        if picked.source == Source::Default { Picked { value: default(), ..picked } } else { picked }
    }

    /// A wrong value in the file is said also when a stronger source hides it: it would strike another day.
    fn check_file(&self) -> Result<(), ConfigError> {
        let given = |key| Some(self.pick_file(key)).filter(|picked| picked.source != Source::Default);
        given("api").map(|picked| picked.text(loopback)).transpose()?;
        for key in ["listen", "bootstrap", "relay"] {
            given(key).map(|picked| picked.list(multiaddr)).transpose()?;
        }
        for key in ["mdns", "lan"] {
            given(key).map(|picked| picked.bool()).transpose()?;
        }
        given("name").map(|picked| picked.text(node_name)).transpose()?;
        given("env_pass").map(|picked| picked.list(env_name)).transpose()?;
        given("log").map(|picked| picked.text(log_format)).transpose()?;
        given("log_level").map(|picked| picked.text(log_filter)).transpose()?;
        Ok(())
    }

    /// The file's value; null from [`Source::Default`] when it has none.
    fn pick_file(&self, key: &'static str) -> Picked {
        let found = self.file.as_ref().and_then(|file| Some((file, file.table.get(key)?)));
        match found {
            Some((file, value)) => Picked { key, value: to_json(value), source: Source::File(file.path.clone()) },
            None => Picked { key, value: Value::Null, source: Source::Default },
        }
    }
}

/// A value before it is parsed.
struct Picked {
    key: &'static str,
    value: Value,
    source: Source,
}

impl Picked {
    fn text<T>(&self, parse: impl Fn(&str) -> Result<T, String>) -> Result<T, ConfigError> {
        let text = self.value.as_str().ok_or_else(|| self.wrong("it takes a text"))?;
        parse(text).map_err(|reason| self.wrong(reason))
    }

    fn bool(&self) -> Result<bool, ConfigError> {
        match (&self.value, &self.source) {
            (Value::Bool(is), _) => Ok(*is),
            (Value::String(text), Source::Env(_)) => match text.as_str() {
                "1" | "true" | "yes" | "on" => Ok(true),
                "0" | "false" | "no" | "off" => Ok(false),
                _ => Err(self.wrong("it takes true or false")),
            },
            _ => Err(self.wrong("it takes true or false")),
        }
    }

    /// Lists come as such from flags and file, and separated by commas or white space from the environment.
    fn list<T>(&self, parse: impl Fn(&str) -> Result<T, String>) -> Result<Vec<T>, ConfigError> {
        let parse = |text: &str| parse(text).map_err(|reason| self.wrong(reason));
        match &self.value {
            Value::Array(items) => items
                .iter()
                .map(|item| parse(item.as_str().ok_or_else(|| self.wrong("it takes a list of texts"))?))
                .collect(),
            Value::String(text) if matches!(self.source, Source::Env(_)) => {
                text.split([',', ' ', '\n', '\t']).filter(|item| !item.is_empty()).map(parse).collect()
            }
            _ => Err(self.wrong("it takes a list of texts")),
        }
    }

    fn wrong(&self, reason: impl Into<String>) -> ConfigError {
        ConfigError::Value {
            key: self.key.to_owned(),
            value: self.value.to_string(),
            source_text: self.source.to_string(),
            reason: reason.into(),
        }
    }
}

fn default_listen() -> [String; 4] {
    [
        format!("/ip4/0.0.0.0/tcp/{LISTEN_PORT}"),
        format!("/ip4/0.0.0.0/udp/{LISTEN_PORT}/quic-v1"),
        format!("/ip6/::/tcp/{LISTEN_PORT}"),
        format!("/ip6/::/udp/{LISTEN_PORT}/quic-v1"),
    ]
}

/// The first label of the host's name, if it can be a node's name.
fn host_name(host: &str) -> String {
    let label = host.split('.').next().unwrap_or_default();
    if node_name(label).is_ok() { label.to_owned() } else { "node".to_owned() }
}

fn node_name(text: &str) -> Result<String, String> {
    let printable = text.chars().all(|c| !c.is_control()) && text.trim() == text;
    if printable && (1..=NAME_LEN_MAX).contains(&text.len()) {
        Ok(text.to_owned())
    } else {
        Err(format!("a name has 1 to {NAME_LEN_MAX} bytes and no control characters or outer spaces"))
    }
}

fn loopback(text: &str) -> Result<SocketAddr, String> {
    let addr: SocketAddr = text
        .strip_prefix("localhost:")
        .and_then(|port| Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port.parse().ok()?)))
        .or_else(|| text.parse().ok())
        .ok_or("it takes an address with a port, as 127.0.0.1:8137")?;
    if addr.ip().is_loopback() { Ok(addr) } else { Err("the API listens on loopback only".to_owned()) }
}

fn multiaddr(text: &str) -> Result<Multiaddr, String> {
    text.parse().map_err(|error| format!("{text:?} is not a multiaddr such as /ip4/192.0.2.1/tcp/8138: {error}"))
}

fn env_name(text: &str) -> Result<String, String> {
    let mut chars = text.bytes();
    let first = chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == b'_');
    if first && chars.all(|c| c.is_ascii_alphanumeric() || c == b'_') {
        Ok(text.to_owned())
    } else {
        Err(format!("{text:?} is not the name of a variable"))
    }
}

fn log_format(text: &str) -> Result<LogFormat, String> {
    match text {
        "human" => Ok(LogFormat::Human),
        "json" => Ok(LogFormat::Json),
        _ => Err("it takes human or json".to_owned()),
    }
}

/// Checks what is to be logged.
///
/// # Errors
/// When it is no filter, in words.
pub fn log_filter(text: &str) -> Result<String, String> {
    // The library takes any word for the name of a part to log, and then logs nothing else.
    let is_level = |word: &str| word.parse::<tracing_subscriber::filter::LevelFilter>().is_ok();
    let is_sound = |part: &str| is_level(part.rsplit_once('=').map_or(part, |(_, level)| level).trim());
    match tracing_subscriber::EnvFilter::try_new(text) {
        Ok(_) if text.split(',').all(is_sound) => Ok(text.to_owned()),
        _ => Err("it takes a level, or a filter such as info,tieline=debug".to_owned()),
    }
}

fn harnesses(picked: &Picked) -> Result<BTreeMap<String, HarnessConfig>, ConfigError> {
    let table = match &picked.value {
        Value::Null => return Ok(BTreeMap::new()),
        Value::Object(table) => table,
        _ => return Err(picked.wrong("it takes tables: [harness.NAME] with command = [\"program\", …]")),
    };
    let mut harnesses = BTreeMap::new();
    for (name, of) in table {
        Handle::lexical(name, "harness name").map_err(|error| picked.wrong(error.to_string()))?;
        let command: Option<Vec<String>> = of
            .get("command")
            .and_then(Value::as_array)
            .and_then(|words| words.iter().map(|word| word.as_str().map(str::to_owned)).collect());
        match command {
            Some(command) if command.first().is_some_and(|program| !program.is_empty()) => {
                harnesses.insert(name.clone(), HarnessConfig { command });
            }
            _ => return Err(picked.wrong(format!("harness.{name} needs command = [\"program\", …]"))),
        }
    }
    Ok(harnesses)
}

/// Replaces what looks like a credential in a command: the value of `--token X`, `--api-key=X`, `SECRET=X`.
fn mask(command: &[String]) -> Vec<String> {
    const MASK: &str = "…";
    let names_secret = |word: &str| {
        let word = word.to_ascii_lowercase();
        ["token", "secret", "password", "passwd", "key", "credential", "bearer"].iter().any(|part| word.contains(part))
    };
    let mut shown: Vec<String> = Vec::with_capacity(command.len());
    let mut secret_follows = false;
    for word in command {
        if secret_follows && !word.starts_with('-') {
            shown.push(MASK.to_owned());
            secret_follows = false;
            continue;
        }
        secret_follows = false;
        match word.split_once('=') {
            Some((name, _)) if names_secret(name) => shown.push(format!("{name}={MASK}")),
            _ => {
                secret_follows = word.starts_with('-') && names_secret(word);
                shown.push(word.clone());
            }
        }
    }
    shown
}

/// Dates are the only TOML values without a JSON form; no key takes one, so their text will do for the error.
fn to_json(value: &toml::Value) -> Value {
    match value {
        toml::Value::String(text) => json!(text),
        toml::Value::Integer(number) => json!(number),
        toml::Value::Float(number) => json!(number),
        toml::Value::Boolean(is) => json!(is),
        toml::Value::Datetime(date) => json!({ "date": date.to_string() }),
        toml::Value::Array(items) => Value::Array(items.iter().map(to_json).collect()),
        toml::Value::Table(table) => {
            Value::Object(table.iter().map(|(key, value)| (key.clone(), to_json(value))).collect())
        }
    }
}
