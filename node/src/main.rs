//! The `tieline` binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    if let Some(code) = tieline::harness::keeper::run_if_asked() {
        return code;
    }
    let data = std::path::PathBuf::from(std::env::args().nth(1).unwrap());
    let flags = tieline::config::Flags { data: Some(data), api: Some("127.0.0.1:0".into()), listen: vec!["/ip4/127.0.0.1/tcp/0".into()], ready_file: std::env::args().nth(2).map(Into::into), ..Default::default() };
    let config = tieline::config::load(&flags, &|_: &str| None, &tieline::config::Places::of_user()).unwrap().config;
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let rt = tokio::runtime::Runtime::new().unwrap();
    match rt.block_on(tieline::node::up(config)) { Ok(()) => ExitCode::SUCCESS, Err(e) => { eprintln!("{e:?}"); ExitCode::FAILURE } }
}
