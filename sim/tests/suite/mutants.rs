//! Checks that every mutant of `mutants.json` can still be applied.

use std::collections::BTreeSet;
use std::path::Path;

#[test]
fn the_text_of_every_mutant_occurs_once() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mutants: serde_json::Value = serde_json::from_str(include_str!("../../mutants.json")).unwrap();
    let mutants = mutants.as_array().unwrap();
    let of = |mutant: &serde_json::Value, name: &str| mutant[name].as_str().unwrap().to_owned();
    let names: BTreeSet<String> = mutants.iter().map(|m| of(m, "name")).collect();
    assert!(names.len() == mutants.len() && names.len() >= 20);
    for mutant in mutants {
        let (name, old) = (of(mutant, "name"), of(mutant, "old"));
        let text = std::fs::read_to_string(root.join(of(mutant, "file"))).unwrap();
        assert_eq!(text.matches(&old).count(), 1, "{name}: {old}");
        assert_ne!(old, of(mutant, "new"), "{name}");
    }
}
