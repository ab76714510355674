#![no_main]

libfuzzer_sys::fuzz_target!(
    // The server contains panics of the library that reads components: here they
    // must not end the run, as libFuzzer has them do. Others still do.
    init: std::panic::set_hook(Box::new(|panic| eprintln!("{panic}"))),
    |bytes: &[u8]| {
        sluice_fuzz::component(bytes);
    }
);
