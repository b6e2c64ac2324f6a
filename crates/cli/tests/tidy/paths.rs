//! Pages name only files and folders that exist.
//!
//! A page names a path in backticks. A word between backticks is a path of the repository where it
//! - begins with a folder of the root (`docs/`, `crates/`, …): it must exist from the root;
//! - begins with `src/`, `tests/` or `examples/` and ends in `/`, or ends in `.rs` or `.py`: some path of the
//!   repository must end with it, and in a README of a crate a path of that crate. So pages may shorten
//!   `crates/plan/src/grid.rs` to `plan/src/grid.rs`, and the README of `plan` to `src/grid.rs`.
//!
//! Words with placeholders (`NAME`, `…`, `*`, `<…>`) are checked up to the first placeholder. Fenced blocks are commands and
//! their output: they are not checked.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::{none, root};

/// Folders of the root that builds and tools make: pages may name what will be in them.
const GENERATED: [&str; 3] = ["target", "fuzz/coverage", "fuzz/artifacts"];

/// Files and folders below the root, as paths from it with `/`; a folder's path ends in `/`.
pub(crate) struct Tree(BTreeSet<String>);

impl Tree {
    pub(crate) fn of_the_repository() -> Self {
        let mut found = BTreeSet::new();
        walk(&root(), "", &mut found);
        assert!(found.len() > 300, "only {} files and folders were found", found.len());
        Self(found)
    }

    fn contains(&self, path: &str) -> bool {
        let path = path.trim_end_matches('/');
        self.0.contains(path) || self.0.contains(&format!("{path}/"))
    }

    /// Whether a path below `folder` ends with the whole parts of `path`.
    fn has_ending(&self, folder: &str, path: &str) -> bool {
        let end = format!("/{path}");
        self.0.iter().any(|p| p.starts_with(folder) && (p == path || p.ends_with(&end)))
    }

    fn is_top_folder(&self, name: &str) -> bool {
        self.0.contains(&format!("{name}/"))
    }

    /// Every Markdown page but the changelog and the decision records, which tell of the past.
    pub(crate) fn pages(&self) -> impl Iterator<Item = &str> {
        let is_page = |p: &&String| {
            p.ends_with(".md") && p.as_str() != "CHANGELOG.md" && !p.starts_with("docs/decisions/")
        };
        self.0.iter().filter(is_page).map(String::as_str)
    }

    /// Every Rust source file.
    pub(crate) fn sources(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter(|p| p.ends_with(".rs")).map(String::as_str)
    }
}

fn walk(folder: &Path, from_root: &str, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_skipped =
            matches!(name.as_str(), ".git" | "target" | "corpus" | "__pycache__" | ".pytest_cache");
        // A symbolic link (a virtual environment, say) is no folder of the repository.
        let is_folder = entry.file_type().unwrap().is_dir() && !entry.path().join("pyvenv.cfg").exists();
        if is_folder && !is_skipped {
            let path = format!("{from_root}{name}/");
            walk(&entry.path(), &path, found);
            found.insert(path);
        } else {
            found.insert(format!("{from_root}{name}{}", if is_folder { "/" } else { "" }));
        }
    }
}

/// The words between backticks of a page's text, each with its line's number from 1.
fn quoted_words(text: &str) -> Vec<(usize, &str)> {
    let (mut words, mut is_fenced) = (Vec::new(), false);
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            is_fenced = !is_fenced;
        } else if !is_fenced {
            let quoted = line.split('`').skip(1).step_by(2).flat_map(str::split_whitespace);
            words.extend(quoted.map(|w| (number + 1, w.trim_matches([',', ';', '\'', '"', '(', ')']))));
        }
    }
    words
}

/// The part of a word before its first placeholder, cut back to a whole folder.
fn before_placeholder(word: &str) -> &str {
    let is_name =
        |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
    let is_placeholder = |part: &str| {
        part.chars().any(|c| c.is_ascii_uppercase())
            && !part.contains('.')
            && part.chars().all(|c| c.is_ascii_uppercase() || c == '_')
    };
    let mut end = 0;
    for part in word.split_inclusive('/') {
        let name = part.trim_end_matches('/');
        if !is_name(name) || is_placeholder(name) {
            break;
        }
        end += part.len();
    }
    &word[..end]
}

/// The words that a word with one or more lists in braces stands for, as in a shell: `a/{b,c}.rs` is `a/b.rs` and `a/c.rs`.
fn expanded(word: &str) -> Vec<String> {
    let lists = word.split_once('{').and_then(|(before, rest)| {
        let (list, after) = rest.split_once('}')?;
        Some(list.split(',').flat_map(move |part| expanded(&format!("{before}{part}{after}"))).collect())
    });
    lists.unwrap_or_else(|| vec![word.to_owned()])
}

/// Whether a word is a path of the repository, and no file or folder has it.
fn is_broken(tree: &Tree, page: &str, word: &str) -> bool {
    if word.contains("//") || word.starts_with(['/', '~', '-', '.']) && !word.starts_with(".ci/") {
        return false;
    }
    let first = word.split('/').next().unwrap_or_default();
    if word.contains('/') && tree.is_top_folder(first) {
        let path = before_placeholder(word);
        let is_made = GENERATED.iter().any(|g| path.starts_with(g));
        let here = page.rsplit_once('/').map_or("", |(folder, _)| folder);
        let is_near = !here.is_empty() && tree.contains(&format!("{here}/{path}"));
        return !is_made && !is_near && !tree.contains(path);
    }
    let is_source = word.ends_with(".rs") || word.ends_with(".py");
    let is_folder = word.ends_with('/') && (word.starts_with("src/") || word.contains("/src/"));
    if (!is_source && !is_folder) || before_placeholder(word) != word {
        return false;
    }
    let is_readme = page.ends_with("/README.md");
    let folder = if is_readme { page.trim_end_matches("README.md") } else { "" };
    !tree.has_ending(folder, word)
}

/// The broken paths of a page, each with its place.
fn broken_of_page(tree: &Tree, page: &str, text: &str) -> Vec<String> {
    let mut findings = Vec::new();
    for (line, word) in quoted_words(text) {
        // A path may name a function or a heading behind it.
        let path = word.split([':', '#']).next().unwrap_or_default();
        let broken = expanded(path).into_iter().filter(|path| is_broken(tree, page, path));
        findings.extend(broken.map(|path| format!("{page}:{line}: {path}")));
    }
    findings
}

#[test]
fn paths_in_pages_exist() {
    let tree = Tree::of_the_repository();
    let read = |page: &str| fs::read_to_string(root().join(page)).unwrap();
    let findings: Vec<String> =
        tree.pages().flat_map(|page| broken_of_page(&tree, page, &read(page))).collect();
    none(
        &findings,
        "a page names in backticks only files and folders that exist; a README of a crate names other crates' from the root",
    );
}

#[test]
fn a_broken_path_in_a_page_is_found() {
    let tree = Tree::of_the_repository();
    let text = "`docs/none.md` and `plan/src/grid.rs`\n```\ndocs/fenced.md\n```\nrun `python bench/none.py -n 8`, \
                `bench/results/*.jsonl`, `src/none/`, `grid.rs`, `C.npy`, `docs/`, `target/release/bramble`, `docs/{json,no}.md`";
    let found = broken_of_page(&tree, "STYLE.md", text);
    assert_eq!(
        found,
        [
            "STYLE.md:1: docs/none.md",
            "STYLE.md:5: bench/none.py",
            "STYLE.md:5: src/none/",
            "STYLE.md:5: docs/no.md"
        ]
    );
    // A crate's README speaks of its own files.
    let found =
        broken_of_page(&tree, "crates/plan/README.md", "`src/grid.rs` `src/framed/` `pool.rs` `docs/lab.md`");
    assert_eq!(found, ["crates/plan/README.md:1: src/framed/", "crates/plan/README.md:1: pool.rs"]);
}
