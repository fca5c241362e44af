//! The command line.

use std::io;
use std::path::PathBuf;

use clap::Parser;
use libp2p::Multiaddr;
use tracing_subscriber::EnvFilter;

/// Port of the default addresses: the one after the node's, so that both run on one box.
pub const DEFAULT_PORT: u16 = 8139;

/// Lets Tieline nodes find each other. Knows no content
#[derive(Clone, Debug, Parser)]
#[command(version)]
pub struct Args {
    /// Listen on this address; all interfaces, TCP and QUIC, port 8139, when none is given
    #[arg(long, value_name = "MULTIADDR", env = "TIELINE_RELAY_LISTEN", value_delimiter = ',')]
    pub listen: Vec<Multiaddr>,

    /// Tell peers that this address, too, leads here: one that a router forwards, or a name
    #[arg(long, value_name = "MULTIADDR", env = "TIELINE_RELAY_EXTERNAL", value_delimiter = ',')]
    pub external: Vec<Multiaddr>,

    /// Keep the key in this folder
    #[arg(long, value_name = "DIR", env = "TIELINE_RELAY_DATA")]
    pub data: Option<PathBuf>,

    /// Write this file when the relay answers, and remove it at a clean stop
    #[arg(long, value_name = "PATH")]
    pub ready_file: Option<PathBuf>,

    /// Log JSON, one record a line
    #[arg(long)]
    pub json: bool,

    // What a relay that forwards will take. It is named here so that whoever gives it is told, and not served less
    // than was asked for.
    #[arg(long, hide = true)]
    http: Option<String>,
    #[arg(long, hide = true)]
    allow: Vec<String>,
    #[arg(long, hide = true)]
    open: bool,
}

impl Args {
    /// The first option given that this version does not serve.
    #[must_use]
    pub fn unserved(&self) -> Option<&'static str> {
        let given = [("--http", self.http.is_some()), ("--allow", !self.allow.is_empty()), ("--open", self.open)];
        given.into_iter().find(|(_, given)| *given).map(|(option, _)| option)
    }

    /// The folder of the key.
    ///
    /// # Errors
    /// When none was given and the box has no home folder.
    pub fn data(&self) -> io::Result<PathBuf> {
        let missing = || io::Error::new(io::ErrorKind::NotFound, "no home folder: give --data DIR");
        match &self.data {
            Some(folder) => Ok(folder.clone()),
            None => {
                let folders = directories::ProjectDirs::from("", "", "tieline-relay").ok_or_else(missing)?;
                Ok(folders.data_dir().to_owned())
            }
        }
    }

    /// Sends logs to stderr, at the level of `RUST_LOG`, else `info`.
    pub fn init_logs(&self) {
        // Kademlia warns whenever it has nobody to ask, as it is before the first node has come.
        let default = || EnvFilter::new("info,libp2p_kad=error");
        let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| default());
        let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
        if self.json { logs.json().init() } else { logs.with_ansi(false).init() }
    }
}

/// Where to listen when nobody says. IPv6 may be missing from the box.
#[must_use]
pub fn default_listen() -> Vec<Multiaddr> {
    use libp2p::multiaddr::Protocol;
    use std::net::{Ipv4Addr, Ipv6Addr};
    let ips = [Protocol::Ip4(Ipv4Addr::UNSPECIFIED), Protocol::Ip6(Ipv6Addr::UNSPECIFIED)];
    let with = |ip: &Protocol<'static>| {
        let ip = Multiaddr::from(ip.clone());
        let tcp = ip.clone().with(Protocol::Tcp(DEFAULT_PORT));
        [tcp, ip.with(Protocol::Udp(DEFAULT_PORT)).with(Protocol::QuicV1)]
    };
    ips.iter().flat_map(with).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        use clap::CommandFactory;
        Args::command().debug_assert();
    }

    #[test]
    fn defaults_are_tcp_and_quic_everywhere() {
        let listen: Vec<_> = default_listen().iter().map(ToString::to_string).collect();
        assert_eq!(
            listen,
            ["/ip4/0.0.0.0/tcp/8139", "/ip4/0.0.0.0/udp/8139/quic-v1", "/ip6/::/tcp/8139", "/ip6/::/udp/8139/quic-v1"]
        );
    }
}
