//! One name, one thing: no public type name is defined in more than one file of the workspace.
//!
//! Tests are exempt. The list of exceptions may only shrink: the check fails where a name on it is
//! defined in fewer files than the list says.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use super::{none, root, without_comments_and_texts};
use crate::paths::Tree;

/// Names that several files define, with the number of files, by the reason for which they may.
const SHARED: [(&str, &[(&str, usize)]); 1] =
    [("definitions for different systems, of which each build has one", &[("Endpoint", 2)])];

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
