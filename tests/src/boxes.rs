//! Two boxes on this one: network namespaces of Linux, joined by a cable. Needs root.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::mesh::Plan;
use crate::node::Setup;
use crate::process::{Finished, Process};
use crate::wait::until;

/// Name of the cable's end in each box.
const PORT: &str = "eth0";

/// A network of its own: processes inside see no other interface of this computer. It ends with its last process.
#[derive(Debug)]
pub struct NetBox {
    /// Keeps the namespace. It ends with the test, however that ends, because its stdin closes.
    holder: Process,
}

/// A home's box and a resident's box, joined by a cable.
#[derive(Debug)]
pub struct Cable {
    /// The home's box.
    pub home: NetBox,
    /// The resident's box.
    pub resident: NetBox,
}

impl NetBox {
    fn new() -> Self {
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-c", "ip link set lo up && echo ready && exec cat"]);
        let mut holder = Process::spawn(command);
        if holder.next_line(Duration::from_secs(30)).as_deref() != Some("ready") {
            let ended = holder.finish();
            panic!("no network namespace can be made here: {}", ended.stderr);
        }
        Self { holder }
    }

    fn namespace(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/ns/net", self.holder.id()))
    }

    /// The command that another one runs inside this box behind.
    fn inside(&self) -> Vec<OsString> {
        let mut net = OsString::from("--net=");
        net.push(self.namespace());
        vec!["nsenter".into(), net]
    }

    /// Runs `ip` inside.
    ///
    /// # Panics
    /// When it fails.
    pub fn ip(&self, args: &str) {
        let mut command = Command::new("nsenter");
        command.args(self.inside().split_off(1)).arg("ip").args(args.split(' '));
        let _ = run(command);
    }

    /// Gives the box this address and no other.
    ///
    /// # Panics
    /// When it cannot be had.
    pub fn address(&self, address: &str) {
        self.ip(&format!("address flush dev {PORT}"));
        self.ip(&format!("address add {address}/24 dev {PORT}"));
    }

    /// Pulls the cable out.
    ///
    /// # Panics
    /// When `ip` fails.
    pub fn unplug(&self) {
        self.ip(&format!("link set {PORT} down"));
    }

    /// Plugs the cable in.
    ///
    /// # Panics
    /// When `ip` fails.
    pub fn plug(&self) {
        self.ip(&format!("link set {PORT} up"));
    }

    /// Every process of the box: what its lid would put to sleep.
    fn processes(&self) -> Vec<Pid> {
        let ours = fs::read_link(self.namespace()).expect("the namespace is there");
        let pids = fs::read_dir("/proc").expect("there is a /proc").flatten();
        pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
            .filter(|pid| fs::read_link(format!("/proc/{pid}/ns/net")).is_ok_and(|net| net == ours))
            .filter_map(Pid::from_raw)
            .collect()
    }

    /// Stops every process of the box, as sleep does.
    ///
    /// # Panics
    /// When one does not stop.
    pub fn sleep(&self) {
        let stopped = |pid: &Pid| {
            let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
            // The state stands behind the name, which may hold anything. What is gone sleeps well.
            stat.rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with(['T', 'Z']))
        };
        until("the box to sleep", || {
            let awake: Vec<_> = self.processes().into_iter().filter(|pid| !stopped(pid)).collect();
            for pid in &awake {
                let _ = kill_process(*pid, Signal::STOP);
            }
            awake.is_empty().then_some(())
        });
    }

    /// Lets every process of the box go on.
    pub fn wake(&self) {
        for pid in self.processes() {
            let _ = kill_process(pid, Signal::CONT);
        }
    }
}

impl Cable {
    /// Two boxes at the addresses 10.77.0.1 (the home's) and 10.77.0.2 (the resident's).
    ///
    /// # Panics
    /// When this system cannot make network namespaces.
    #[must_use]
    pub fn new() -> Self {
        let (home, resident) = (NetBox::new(), NetBox::new());
        let [near, far] = [&home, &resident].map(|end| end.holder.id().to_string());
        let mut command = Command::new("ip");
        command.args(["link", "add", "name", PORT, "netns", &near, "type", "veth"]);
        command.args(["peer", "name", PORT, "netns", &far]);
        let _ = run(command);
        for (end, address) in [(&home, "10.77.0.1"), (&resident, "10.77.0.2")] {
            end.address(address);
            end.plug();
        }
        Self { home, resident }
    }

    /// A plan for a mesh with its home in one box and its resident in the other.
    #[must_use]
    pub fn plan(&self) -> Plan {
        let mut plan = Plan::default();
        plan.home = self.home.setup(&plan.home.dir);
        plan.resident = self.resident.setup(&plan.resident.dir);
        plan
    }
}

impl Default for Cable {
    fn default() -> Self {
        Self::new()
    }
}

impl NetBox {
    /// A node inside, on all interfaces.
    fn setup(&self, dir: &Path) -> Setup {
        let mut setup = Setup::new(dir);
        setup = setup.args(["--api", "127.0.0.1:0", "--listen", "/ip4/0.0.0.0/tcp/0", "--no-mdns"]);
        setup.inside = self.inside();
        setup
    }
}

impl Drop for NetBox {
    fn drop(&mut self) {
        // A test that failed while the box slept must not leave sleepers behind.
        self.wake();
    }
}

fn run(command: Command) -> Finished {
    let ended = Process::spawn(command).finish();
    assert_eq!(ended.code, Some(0), "{}: {}", ended.what, ended.stderr);
    ended
}
