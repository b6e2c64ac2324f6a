//! One name, one thing: no public type name is defined in more than one file of the workspace.
//!
//! Tests are exempt. The list of exceptions may only shrink: the check fails where a name on it is
//! defined in fewer files than the list says.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use super::{none, root, without_comments_and_texts};
use crate::paths::Tree;

/// Names that several files define, with the number of files, by the reason for which they may.
const SHARED: [(&str, &[(&str, usize)]); 5] = [
    ("definitions for different systems, of which each build has one", &[("Endpoint", 2)]),
    (
        "the inputs and outputs of each state machine, always named with its module",
        &[("Action", 3), ("Event", 4)],
    ),
    (
        "the simulator's model of the program's type; only one of them is visible in any file",
        &[
            ("Before", 2),
            ("Body", 2),
            ("Cluster", 2),
            ("End", 3),
            ("Fault", 3),
            ("Frame", 3),
            ("Held", 2),
            ("Keeper", 2),
            ("Left", 2),
            ("Loss", 3),
            ("MachineReport", 2),
            ("Pace", 3),
            ("Random", 3),
            ("Report", 2),
            ("Seen", 2),
            ("Session", 2),
            ("Setting", 2),
            ("Tile", 6),
            ("Tried", 2),
            ("Watch", 3),
            ("Way", 3),
        ],
    ),
    (
        "types of different rooms, of which no file uses two",
        &[
            ("Came", 2),
            ("Clock", 2),
            ("Cut", 2),
            ("Described", 2),
            ("Destination", 2),
            ("Effort", 2),
            ("Ended", 2),
            ("Ends", 2),
            ("Flow", 2),
            ("Found", 3),
            ("Gathered", 2),
            ("Generated", 2),
            ("Introduction", 2),
            ("Job", 2),
            ("Kind", 2),
            ("Leaving", 2),
            ("Ledger", 2),
            ("Limits", 2),
            ("Lines", 2),
            ("Log", 2),
            ("Look", 2),
            ("Machine", 3),
            ("Met", 2),
            ("Meter", 2),
            ("Moved", 3),
            ("Order", 3),
            ("Out", 2),
            ("Parts", 2),
            ("Piece", 2),
            ("Place", 3),
            ("Plain", 2),
            ("Pool", 2),
            ("Problem", 2),
            ("Progress", 2),
            ("Reader", 3),
            ("Record", 2),
            ("Recorder", 2),
            ("Reference", 2),
            ("Region", 2),
            ("Role", 3),
            ("Run", 2),
            ("Share", 3),
            ("SharedBytes", 2),
            ("Shown", 2),
            ("Side", 3),
            ("Signals", 2),
            ("Span", 2),
            ("Team", 2),
            ("Turns", 2),
            ("View", 2),
            ("Wish", 2),
            ("Writer", 2),
        ],
    ),
    (
        "helpers of private modules of one room; each should get a prefix of its own",
        &[
            ("Case", 2),
            ("Pair", 2),
            ("Part", 5),
            ("Point", 3),
            ("Said", 2),
            ("Signal", 2),
            ("Source", 3),
            ("Stored", 2),
            ("Task", 3),
            ("Tls", 2),
            ("Wanted", 3),
            ("Work", 2),
        ],
    ),
];

/// The names of public types that a text of Rust defines.
fn public_types(text: &str) -> BTreeSet<String> {
    let code = without_comments_and_texts(text);
    let name_of = |line: &str| {
        let rest = line.trim_start().strip_prefix("pub")?;
        let rest = match rest.strip_prefix('(') {
            Some(inner) => inner.split_once(')')?.1,
            None => rest,
        };
        let mut words = rest.strip_prefix(' ')?.split_whitespace();
        let is_type = matches!(words.next()?, "struct" | "enum" | "trait" | "union" | "type");
        let word = words.next().filter(|_| is_type)?;
        Some(word.chars().take_while(|c| super::is_word(*c)).collect())
    };
    code.lines().filter_map(name_of).collect()
}

/// Names that more than one file defines, with these files.
fn defined_twice(files: &[(String, String)]) -> BTreeMap<String, Vec<&str>> {
    let mut places: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (path, text) in files {
        for name in public_types(text) {
            places.entry(name).or_default().push(path);
        }
    }
    places.retain(|_, files| files.len() > 1);
    places
}

fn is_test(path: &str) -> bool {
    path.split('/').any(|part| matches!(part, "test" | "tests" | "test.rs" | "tests.rs"))
}

/// The violations of the rule in these files, given its exceptions.
fn findings(files: &[(String, String)], shared: &[(&str, &[(&str, usize)])]) -> Vec<String> {
    let found = defined_twice(files);
    let allowed: BTreeMap<&str, usize> = shared.iter().flat_map(|(_, names)| names.iter().copied()).collect();
    let listed = shared.iter().map(|(_, names)| names.len()).sum::<usize>();
    assert_eq!(listed, allowed.len(), "a name stands twice in the list SHARED");
    let mut findings = Vec::new();
    for (name, places) in &found {
        let most = allowed.get(name.as_str()).copied().unwrap_or(1);
        if places.len() > most {
            findings.push(format!("{name}: in {} files, {most} may: {}", places.len(), places.join(", ")));
        }
    }
    for (name, most) in allowed {
        match found.get(name).map_or(1, Vec::len) {
            1 => findings.push(format!("{name}: is defined once now; remove it from the list SHARED")),
            files if files < most => {
                findings.push(format!("{name}: is in {files} files now; the list SHARED says {most}"));
            }
            _ => {}
        }
    }
    findings
}

#[test]
fn a_public_type_name_is_defined_in_one_file() {
    let tree = Tree::of_the_repository();
    let files: Vec<(String, String)> = tree
        .sources()
        .filter(|path| !is_test(path))
        .map(|path| (path.to_owned(), fs::read_to_string(root().join(path)).unwrap()))
        .collect();
    none(&findings(&files, &SHARED), "one name for one thing: give the type a qualifying prefix (`ShmSlot`)");
}

#[test]
fn a_name_that_is_defined_twice_is_found_and_one_that_is_not_leaves_the_list() {
    let file = |path: &str, text: &str| (path.to_owned(), text.to_owned());
    let files = [
        file("a.rs", "pub struct Slot<T>(T);\n// pub struct Noted;\nstruct Own;\n"),
        file("b.rs", "    pub(crate) enum Slot { }\npub type Noted = u8;\nstruct Own;\n"),
        file("c.rs", "pub(in crate::a) trait Lane {}\npub fn struct_of() {}\n"),
        file("d.rs", "pub struct Lane;\n"),
    ];
    let found = |shared: &[(&str, &[(&str, usize)])]| findings(&files, shared);
    assert_eq!(found(&[("why", &[("Slot", 2), ("Lane", 2)])]), [""; 0]);
    assert_eq!(found(&[("why", &[("Lane", 2)])]), ["Slot: in 2 files, 1 may: a.rs, b.rs"]);
    let gone = found(&[("why", &[("Slot", 2), ("Lane", 3), ("Noted", 2)])]);
    assert_eq!(gone.len(), 2, "{gone:?}");
}
