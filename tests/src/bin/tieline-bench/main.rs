//! Measures the workloads of `make bench`, each beside a reference that is measured in the same run, in turns: on a shared
//! box only ratios of one run mean anything.
//!
//! ```text
//! tieline-bench [W1] [W2] [W3] [W5]     all when none is named
//! ```
//!
//! Prints a table and writes `target/bench.json`. Exit codes: 0 all aims are met, 1 one is not, 2 usage, 3 it could not
//! be measured.

mod client;
mod disk;
mod hop;
mod load;
mod redis;
mod report;
mod w1;
mod w2;
mod w3;
mod w5;

use std::process::ExitCode;

use report::Report;

/// Rounds of every workload; each alternates with its references.
const ROUNDS: usize = 3;

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> ExitCode {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let known = ["W1", "W2", "W3", "W5"];
    if let Some(unknown) = wanted.iter().find(|name| !known.contains(&name.as_str())) {
        eprintln!("no workload {unknown}; there are {}", known.join(", "));
        return ExitCode::from(2);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let measured = runtime.map_err(Failure::from).and_then(|runtime| {
        let mut report = Report::default();
        for name in known.into_iter().filter(|name| wanted.is_empty() || wanted.iter().any(|w| w == name)) {
            eprintln!("{name} …");
            runtime.block_on(async {
                match name {
                    "W1" => w1::run(&mut report).await,
                    "W2" => w2::run(&mut report).await,
                    "W3" => w3::run(&mut report).await,
                    _ => w5::run(&mut report).await,
                }
            })?;
        }
        report.write("target/bench.json")?;
        Ok(report)
    });
    match measured {
        Ok(report) => {
            print!("{report}");
            if report.is_met() { ExitCode::SUCCESS } else { ExitCode::from(1) }
        }
        Err(error) => {
            eprintln!("the bench failed: {error}");
            ExitCode::from(3)
        }
    }
}
