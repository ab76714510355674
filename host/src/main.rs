//! The `sluice` command.

use std::process::ExitCode;

use sluice::config::{Cli, Command};
use sluice::{author, bench, perplexity, plugin, serve, telemetry};

fn main() -> ExitCode {
    let outcome = match Cli::read() {
        Command::PluginCompile(task) => return plugin::compile_child(&task),
        Command::Plugin(command) => match author::run(command) {
            Ok(true) => return ExitCode::SUCCESS,
            Ok(false) => return ExitCode::FAILURE,
            Err(error) => Err(error.to_string()),
        },
        Command::Serve(config) => {
            telemetry::init(config.log_format);
            match serve::serve(&config) {
                Ok(exit) => exit.leave(),
                Err(error) => Err(error.to_string()),
            }
        }
        Command::Bench { args, model } => {
            bench::run(&model, &args).map_err(|error| error.to_string())
        }
        Command::Perplexity { args, model } => {
            perplexity::run(&model, &args).map_err(|error| error.to_string())
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
