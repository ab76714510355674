//! The `sluice` command.

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    match &arguments[..] {
        [command, output] if command == "plugin-compile" => {
            sluice::plugin::compile_child(Path::new(output))
        }
        _ => ExitCode::SUCCESS,
    }
}
