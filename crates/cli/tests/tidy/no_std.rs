//! Rooms without `std`: they are pure because the compiler knows no clock, socket, file, thread or hash map there.
//!
//! The build proves it (decision 0059). The test here checks that the attribute stays, and that neither an `extern crate`, nor a
//! feature, nor another library brings `std` back.

use super::{has_word, is_word, metadata, none, room_of, sources};

/// Rooms that are built without `std`: sockets, files, threads, clocks and hash maps have no name in them, so the compiler
/// refuses them. The test only checks that `std` cannot come back.
const NO_STD: [&str; 5] = ["arrays", "base", "plan", "schedule", "wire"];
/// The libraries that these rooms may use beside each other: each builds without `std`.
const NO_STD_LIBRARIES: [&str; 3] = ["blake3", "libm", "thiserror"];

/// How a line of shipped code brings `std` back into a room without it.
fn std_in(line: &str) -> Option<&'static str> {
    let words: Vec<&str> = line.split(|c: char| !is_word(c)).filter(|word| !word.is_empty()).collect();
    let has = |pattern: [&str; 2]| words.windows(2).any(|pair| pair == pattern);
    if has(["extern", "crate"]) && !has(["crate", "alloc"]) {
        return Some("a crate that is not `alloc`");
    }
    // A feature could bring `std` in where no test builds the room with it.
    if line.contains("cfg") && has_word(line, "feature") {
        return Some("code that depends on a feature");
    }
    line.contains("std::").then_some("a path of `std`")
}

#[test]
fn rooms_without_std_cannot_get_it_back() {
    let mut findings = Vec::new();
    for source in sources(&["src"]).iter().filter(|s| NO_STD.contains(&s.room()) && !s.is_test()) {
        let has_attribute = || source.text.lines().any(|line| line == "#![cfg_attr(not(test), no_std)]");
        if source.path.ends_with("/src/lib.rs") && !has_attribute() {
            findings.push(format!("{}: lacks `#![cfg_attr(not(test), no_std)]`", source.path));
        }
        for (number, line) in source.shipped_code() {
            findings.extend(std_in(&line).map(|what| format!("{}:{number}: {what}", source.path)));
        }
    }
    let metadata = metadata();
    let packages = metadata["packages"].as_array().unwrap();
    let pure = packages.iter().filter(|p| NO_STD.contains(&room_of(p["name"].as_str().unwrap()).as_str()));
    let mut seen = 0;
    for package in pure {
        seen += 1;
        let (room, features) = (package["name"].as_str().unwrap(), package["features"].as_object().unwrap());
        findings.extend(features.keys().map(|feature| format!("{room}: has the feature {feature}")));
        for dependency in package["dependencies"].as_array().unwrap().iter().filter(|d| d["kind"].is_null()) {
            let name = dependency["name"].as_str().unwrap();
            let features = dependency["features"].as_array().unwrap();
            let is_lean =
                dependency["uses_default_features"] == false && !features.iter().any(|f| f == "std");
            let is_known = NO_STD_LIBRARIES.contains(&name) && is_lean;
            if !is_known && !NO_STD.contains(&room_of(name).as_str()) {
                findings.push(format!("{room}: {name} is not known to build without `std`"));
            }
        }
    }
    assert_eq!(seen, NO_STD.len(), "the list NO_STD names a room that is gone");
    none(&findings, "arrays, base, plan, schedule and wire are pure because they are built without `std`");
}

#[test]
fn std_is_found_however_it_comes_back() {
    for line in [
        "extern crate std;",
        "extern crate std as core_too;",
        "use std::time::Instant;",
        "#[cfg(feature = \"std\")]",
    ] {
        assert!(std_in(line).is_some(), "{line}");
    }
    for line in
        ["extern crate alloc;", "use core::time::Duration;", "let feature = std_deviation;", "#[cfg(test)]"]
    {
        assert_eq!(std_in(line), None, "{line}");
    }
}
