//! Redis with `appendfsync always`: a durable stream of another make, on the same disk, in the same run.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

use super::Failure;
use super::client::filler;
use super::report::Times;

/// A server of our own on loopback. Dropping it ends it.
pub struct Redis {
    child: Child,
    port: u16,
}

impl Redis {
    /// Starts one on `folder`; gives it and how long it took until it answered. `None` when it is not installed.
    ///
    /// # Errors
    /// When it does not come up.
    pub async fn start(folder: &Path) -> Result<Option<(Self, Duration)>, Failure> {
        std::fs::create_dir_all(folder)?;
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let mut command = Command::new("redis-server");
        command.args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", "", "--daemonize", "no"]);
        command.args(["--appendonly", "yes", "--appendfsync", "always", "--dir"]).arg(folder);
        // No rewriting of its file while it is measured.
        command.args(["--auto-aof-rewrite-percentage", "0"]);
        let began = Instant::now();
        let child = match command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn() {
            Ok(child) => child,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                eprintln!("redis-server is not installed: its rows are left out");
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        let redis = Self { child, port };
        let mut last = Connection::open(port).await;
        while last.is_err() && began.elapsed() < Duration::from_secs(10) {
            tokio::time::sleep(Duration::from_millis(1)).await;
            last = Connection::open(port).await;
        }
        let mut connection = last?;
        // It answers before it has read its file, and then refuses.
        while let Err(error) = connection.append().await {
            if !error.to_string().contains("LOADING") {
                return Err(error);
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(Some((redis, began.elapsed())))
    }

    /// Appends from several clients, each with one in flight, for `time`; gives the times of all.
    ///
    /// # Errors
    /// When the server fails.
    pub async fn appends(&self, clients: usize, time: Duration) -> Result<Times, Failure> {
        let port = self.port;
        let tasks = (0..clients).map(|_| {
            tokio::spawn(async move {
                let mut connection = Connection::open(port).await?;
                let mut times = Times::default();
                let began = Instant::now();
                while began.elapsed() < time {
                    let started = Instant::now();
                    connection.append().await?;
                    times.push(started.elapsed());
                }
                Ok::<_, Failure>(times)
            })
        });
        let mut all = Times::default();
        for task in tasks.collect::<Vec<_>>() {
            all.extend(task.await??);
        }
        Ok(all)
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Connection(BufReader<TcpStream>);

impl Connection {
    async fn open(port: u16) -> Result<Self, Failure> {
        let stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.set_nodelay(true)?;
        Ok(Self(BufReader::new(stream)))
    }

    /// `XADD`, and its answer: `$LEN`, then the id.
    async fn append(&mut self) -> Result<(), Failure> {
        let text = filler();
        let command =
            format!("*5\r\n$4\r\nXADD\r\n$5\r\nlobby\r\n$1\r\n*\r\n$4\r\ntext\r\n${}\r\n{text}\r\n", text.len());
        self.0.get_mut().write_all(command.as_bytes()).await?;
        let mut head = String::new();
        self.0.read_line(&mut head).await?;
        let len: usize = head.trim().strip_prefix('$').ok_or_else(|| format!("redis says {head:?}"))?.parse()?;
        let mut id = vec![0; len + 2];
        self.0.read_exact(&mut id).await?;
        Ok(())
    }
}
