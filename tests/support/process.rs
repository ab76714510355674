//! What the system tells of a server's process.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use std::fs;

pub struct Process(pub u32);

impl Process {
    /// Memory of its own that is resident: no files, no shared pages.
    pub fn resident_bytes(&self) -> u64 {
        self.status("RssAnon:") * 1024
    }

    /// All memory that is resident, that of mapped files included.
    pub fn resident_with_files_bytes(&self) -> u64 {
        self.status("VmRSS:") * 1024
    }

    /// The most that was ever resident.
    pub fn peak_bytes(&self) -> u64 {
        self.status("VmHWM:") * 1024
    }

    pub fn n_threads(&self) -> u64 {
        self.status("Threads:")
    }

    pub fn n_files(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.0))
            .unwrap()
            .count()
    }

    /// The files that are mapped, each as often as it is.
    pub fn mapped(&self) -> Vec<String> {
        let maps = fs::read_to_string(format!("/proc/{}/maps", self.0)).unwrap();
        maps.lines()
            .filter_map(|line| line.find('/').map(|at| line[at..].to_owned()))
            .collect()
    }

    fn status(&self, name: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0)).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let value = line.unwrap().split_whitespace().next().unwrap();
        value.parse().unwrap()
    }
}

/// How many processes have this among their arguments.
pub fn n_processes_with(argument: &str) -> usize {
    let command_lines = fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    command_lines
        .filter(|line| String::from_utf8_lossy(line).contains(argument))
        .count()
}
