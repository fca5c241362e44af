//! What a process costs, from `/proc`.

use std::fs;

/// Ticks a second of the times in `/proc/PID/stat`: fixed on Linux.
const TICKS_PER_S: f64 = 100.0;

/// Processor time that a process has used, in milliseconds; 0 when it is gone.
pub fn cpu_ms(pid: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name, in brackets, may hold blanks; user and system time are the 12th and 13th field behind it.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / TICKS_PER_S * 1e3
}

/// Resident memory of a process in MiB; 0 when it is gone.
pub fn rss_mib(pid: u32) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<f64>().ok());
    kib.unwrap_or(0.0) / 1024.0
}
