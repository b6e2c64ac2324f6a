//! The fuzzer's door to `bramble_fuzz::journal`. Without a fuzzer it replays the files that are named.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| bramble_fuzz::journal(data));

#[cfg(not(fuzzing))]
fn main() -> std::io::Result<()> {
    bramble_fuzz::replay(bramble_fuzz::journal)
}
