//! Asks the system for something, as the interpreters of other languages do,
//! and fails with what it was told.

use serde::Deserialize;
use sluice_plugin::{
    Description, OpenError, Plugin, SequenceInfo, TokenId, TokenProcessor, export,
    schemars::{self, JsonSchema},
};

use crate::system::wasi::{
    cli::{environment, exit, stderr},
    clocks0_2_0::monotonic_clock,
    clocks0_2_3::wall_clock,
    filesystem::preopens,
    random::random,
};

mod system {
    #![allow(
        clippy::all,
        clippy::pedantic,
        unsafe_code,
        unreachable_pub,
        reason = "generated"
    )]
    wit_bindgen::generate!({
        inline: "
            package test:guest;

            world asks {
                import wasi:cli/environment@0.2.0;
                import wasi:cli/exit@0.2.0;
                import wasi:cli/stderr@0.2.0;
                import wasi:clocks/monotonic-clock@0.2.0;
                import wasi:clocks/wall-clock@0.2.3;
                import wasi:filesystem/preopens@0.2.0;
                import wasi:random/random@0.2.0;
            }

            package wasi:io@0.2.0 {
                interface poll {
                    resource pollable { block: func(); }
                }
                interface streams {
                    use poll.{pollable};
                    resource error;
                    variant stream-error { last-operation-failed(error), closed }
                    resource output-stream {
                        check-write: func() -> result<u64, stream-error>;
                        write: func(contents: list<u8>) -> result<_, stream-error>;
                        blocking-flush: func() -> result<_, stream-error>;
                        subscribe: func() -> pollable;
                    }
                }
            }
            package wasi:cli@0.2.0 {
                interface environment {
                    get-environment: func() -> list<tuple<string, string>>;
                    get-arguments: func() -> list<string>;
                    initial-cwd: func() -> option<string>;
                }
                interface exit { exit: func(status: result); }
                interface stderr {
                    use wasi:io/streams@0.2.0.{output-stream};
                    get-stderr: func() -> output-stream;
                }
            }
            package wasi:clocks@0.2.0 {
                interface monotonic-clock {
                    use wasi:io/poll@0.2.0.{pollable};
                    now: func() -> u64;
                    subscribe-duration: func(when: u64) -> pollable;
                }
            }
            package wasi:clocks@0.2.3 {
                interface wall-clock {
                    record datetime { seconds: u64, nanoseconds: u32 }
                    now: func() -> datetime;
                }
            }
            package wasi:filesystem@0.2.0 {
                interface types {
                    resource descriptor;
                }
                interface preopens {
                    use types.{descriptor};
                    get-directories: func() -> list<tuple<descriptor, string>>;
                }
            }
            package wasi:random@0.2.0 {
                interface random {
                    get-random-bytes: func(len: u64) -> list<u8>;
                    get-random-u64: func() -> u64;
                }
            }
        ",
        generate_all,
    });
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Asks {
    what: String,
}

impl Plugin for Asks {
    type Params = Self;

    fn describe() -> Description {
        test_guests::description("wasi")
    }

    fn open(params: Self, _: SequenceInfo) -> Result<Self, OpenError> {
        Ok(params)
    }
}

impl TokenProcessor for Asks {
    fn plan(&mut self, _accepted: &[TokenId]) -> Result<(), String> {
        Err(match self.what.as_str() {
            "time" => {
                let wall = wall_clock::now();
                let (seconds, rest) = (wall.seconds, wall.nanoseconds);
                format!("{} {seconds} {rest}", monotonic_clock::now())
            }
            "chance" => format!(
                "{:?} {}",
                random::get_random_bytes(3),
                random::get_random_u64()
            ),
            "much chance" => format!("{}", random::get_random_bytes(u64::MAX).len()),
            "environment" => format!(
                "{:?} {:?} {:?}",
                environment::get_environment(),
                environment::get_arguments(),
                environment::initial_cwd()
            ),
            "files" => format!("{}", preopens::get_directories().len()),
            "sleep" => {
                monotonic_clock::subscribe_duration(3_600_000_000_000).block();
                "slept".into()
            }
            "poll" => {
                stderr::get_stderr().subscribe().block();
                "waited".into()
            }
            "end" => {
                exit::exit(Ok(()));
                "still here".into()
            }
            other => {
                let stream = stderr::get_stderr();
                let ready = stream.check_write().is_ok_and(|n| n > 0);
                let said = stream.write(other.as_bytes()).is_ok();
                format!("{}", ready && said && stream.blocking_flush().is_ok())
            }
        })
    }
}

export!(TokenProcessor for Asks);
