//! Replays the committed corpora and the seeds, on any compiler and without a fuzzer.

#![allow(clippy::unwrap_used)] // A test may panic.

use bramble_fuzz::{TARGETS, corpus};
use std::collections::BTreeSet;
use std::path::Path;

fn folder(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// Names of the files with this ending.
fn names(of: &str, ending: &str) -> BTreeSet<String> {
    let paths = std::fs::read_dir(folder(of)).unwrap().map(|e| e.unwrap().path());
    let matching = paths.filter(|p| p.extension().is_some_and(|e| e == ending));
    matching.map(|p| p.file_stem().unwrap().to_str().unwrap().to_owned()).collect()
}

#[test]
fn every_target_has_a_corpus_and_a_door() {
    let targets: BTreeSet<String> = TARGETS.iter().map(|t| t.name.to_owned()).collect();
    assert_eq!(names("corpus", "hex"), targets);
    assert_eq!(names("fuzz_targets", "rs"), targets);
}

#[test]
fn every_input_of_the_corpora_passes() {
    let mut failed = Vec::new();
    for target in &TARGETS {
        let text = std::fs::read_to_string(folder("corpus").join(format!("{}.hex", target.name))).unwrap();
        let inputs = corpus::parse(&text).unwrap();
        assert!(!inputs.is_empty(), "{}: the corpus is empty", target.name);
        let seeds = (target.seeds)();
        assert!(!seeds.is_empty(), "{}: there are no seeds", target.name);
        for input in inputs.iter().chain(&seeds) {
            if std::panic::catch_unwind(|| (target.run)(input)).is_err() {
                let hex = corpus::format(target.name, std::slice::from_ref(input));
                failed.push(format!("{}: {}", target.name, hex.lines().last().unwrap()));
            }
        }
        println!("{}: {} inputs and {} seeds", target.name, inputs.len(), seeds.len());
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
