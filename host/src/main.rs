//! The `sluice` command.

use std::process::ExitCode;

use clap::Parser;
use sluice::config::{Cli, Command};
use sluice::{author, bench, perplexity, plugin, serve, telemetry};

fn main() -> ExitCode {
    let outcome = match Cli::parse().into_command() {
        Command::PluginCompile {
            output,
            vocabulary,
            snapshot,
            shipped,
            compile_seconds,
            compile_bytes,
            memory_bytes,
            open_ms,
            parent,
        } => {
            return plugin::compile_child(&plugin::CompileTask {
                output,
                vocabulary,
                snapshot,
                shipped,
                compile_seconds,
                compile_bytes,
                memory_bytes,
                open_ms,
                parent,
            });
        }
        Command::Plugin(command) => match author::run(command) {
            Ok(true) => return ExitCode::SUCCESS,
            Ok(false) => return ExitCode::FAILURE,
            Err(error) => Err(error.to_string()),
        },
        Command::Serve(config) => {
            telemetry::init();
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
