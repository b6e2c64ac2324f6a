//! The rules of STYLE.md that a machine can check: dependencies between rooms, rooms without `std`, words forbidden in the
//! simulator, places of `unsafe`, sizes, headers, links and paths in pages (`tidy/paths.rs`), and type names (`tidy/types.rs`).
//!
//! Deliberately absent: the checks of rustfmt, clippy and rustdoc.

#![allow(clippy::unwrap_used)] // A test may panic.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

#[path = "tidy/fields.rs"]
mod fields;
#[path = "tidy/no_std.rs"]
mod no_std;
#[path = "tidy/paths.rs"]
mod paths;
#[path = "tidy/types.rs"]
mod types;

/// Which rooms a room may depend on. A new crate has to be entered here, with a reason in its change.
const ROOMS: [(&str, &[&str]); 25] = [
    ("base", &[]),
    ("matrix", &["base"]),
    ("verify", &["matrix"]),
    ("link", &[]),
    ("plan", &["base"]),
    // Only its tests use `verify`: no product of a kernel may raise a false alarm.
    ("kernel", &["matrix", "verify"]),
    ("wire", &["base", "plan"]),
    ("schedule", &["base", "plan", "wire"]),
    ("arrays", &["base", "plan", "wire"]),
    ("worker", &["kernel", "link", "lu", "matrix", "schedule", "wire"]),
    ("record", &["link", "matrix", "plan", "schedule", "wire"]),
    ("sessions", &["link", "matrix", "plan", "record", "wire"]),
    (
        "primary",
        &["arrays", "kernel", "link", "matrix", "plan", "record", "schedule", "sessions", "verify", "wire"],
    ),
    ("report", &["matrix", "plan", "primary", "record", "sim", "verify"]),
    ("lu", &["kernel", "matrix", "schedule", "wire"]),
    ("solve", &["cluster", "kernel", "lu", "matrix", "plan", "primary", "report", "worker"]),
    ("cluster", &["kernel", "link", "matrix", "plan", "primary", "report", "worker"]),
    ("bench", &["cluster", "kernel", "link", "matrix", "primary", "report", "solve", "worker"]),
    ("client", &["arrays", "cluster", "kernel", "matrix", "plan", "primary", "report", "verify"]),
    ("batch", &["client", "cluster", "matrix", "plan", "primary", "record", "report", "verify"]),
    ("lab", &["cluster", "kernel", "link", "report", "worker"]),
    (
        "cli",
        &[
            "batch", "bench", "cluster", "kernel", "lab", "link", "matrix", "plan", "primary", "record",
            "report", "sim", "solve", "verify", "wire", "worker",
        ],
    ),
    (
        "python",
        // `link` only for the features that it has in tests.
        &[
            "cli", "client", "cluster", "kernel", "link", "lu", "matrix", "plan", "primary", "report",
            "verify", "worker",
        ],
    ),
    ("sim", &["arrays", "matrix", "plan", "schedule", "wire"]),
    ("fuzz", &["cluster", "link", "matrix", "plan", "schedule", "wire"]),
];

/// Rooms without sockets, files, threads, clocks, randomness and hash-order iteration that need `std` (`sim` catches the panic
/// of a trial). Rooms without `std` are in `tidy/no_std.rs`.
const PURE: [&str; 1] = ["sim"];
/// Words that such a room has no use for.
const IMPURE: [&str; 14] = [
    "std::net",
    "std::fs",
    "std::io",
    "std::thread",
    "std::process",
    "std::env",
    "Instant",
    "SystemTime",
    "HashMap",
    "HashSet",
    "RandomState",
    "tokio",
    "rand",
    "Mutex",
];

/// Where `unsafe` may be: the kernels, the memory maps with their views and leases, memory that two processes share,
/// descriptors on the event loop, two calls on sockets, one that returns free memory, one that asks for huge pages, MPI's
/// functions with the memory that they use between two calls, a stand-in for it in tests, the buffers of Python, and two
/// allocators that count, in an example and in a test.
const UNSAFE: [&str; 16] = [
    "crates/kernel/src/",
    "crates/link/src/local/watch.rs",
    "crates/link/src/mpi/held.rs",
    "crates/link/src/mpi/plain.rs",
    "crates/link/src/mpi/table.rs",
    "crates/link/src/mpi/tests/leaving.rs",
    "crates/link/src/shm/map.rs",
    "crates/link/src/tcp/socket.rs",
    "crates/matrix/src/file/map.rs",
    "crates/matrix/src/heap.rs",
    "crates/matrix/src/output/lease.rs",
    "crates/matrix/src/pages.rs",
    "crates/matrix/src/view.rs",
    "crates/schedule/examples/job_cost/heap.rs",
    "crates/worker/tests/suite/huge.rs",
    "python/src/memory.rs",
];

/// Where numbers from the remote end are handled: conversions are `From`, `TryFrom` or `bramble_matrix::number`, and
/// `as`, which silently drops bits, is only in `use … as …`.
const CAST_FREE: [&str; 11] = [
    "crates/link/src/",
    "crates/primary/src/bodies.rs",
    "crates/sessions/src/opening.rs",
    "crates/primary/src/run",
    "crates/wire/src/limits.rs",
    "crates/wire/src/message/",
    "crates/schedule/src/primary/",
    "crates/schedule/src/worker/",
    "crates/worker/src/ledger.rs",
    "crates/worker/src/memory.rs",
    "crates/worker/src/session/",
];

const LINE_CHARS_MAX: usize = 130;
const FILE_LINES_MAX: usize = 500;
const FUNCTION_LINES_MAX: usize = 70;
/// Files that define or call methods of this project named `expect`.
const OWN_EXPECT: [&str; 6] = [
    "crates/primary/src/run.rs",
    "crates/primary/src/run/land.rs",
    "crates/schedule/src/primary/mod.rs",
    "sim/src/trial/check.rs",
    "sim/src/trial/shell.rs",
    "sim/src/world/event_loop.rs",
];
/// Files with calls of `unwrap` and `expect`, and how many: the numbers may only fall.
const UNWRAPS: [(&str, usize); 1] = [("crates/kernel/src/blas/mod.rs", 4)];
/// Files that are longer, with their lines: the numbers may only fall.
const LONG_FILES: [(&str, usize); 0] = [];
/// Functions that are longer, with their lines: the numbers may only fall.
const LONG_FUNCTIONS: [(&str, usize); 0] = [];
/// Files with longer lines, and how many: the numbers may only fall.
const LONG_LINES: [(&str, usize); 8] = [
    ("crates/base/src/shape.rs", 1),
    ("crates/kernel/examples/rates.rs", 1),
    ("crates/kernel/src/peak.rs", 1),
    ("crates/link/src/frame.rs", 1),
    ("crates/matrix/src/file/mtx.rs", 3),
    ("crates/matrix/src/file/npy.rs", 2),
    ("crates/matrix/src/source.rs", 1),
    ("crates/wire/src/message/tests.rs", 6),
];

/// Pages that other pages may name before they exist.
const PAGES_TO_COME: [&str; 0] = [];

fn root() -> PathBuf {
    fs::canonicalize(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")).unwrap()
}

/// A source file, by its path from the root, with `/` between the parts.
struct Source {
    path: String,
    text: String,
}

impl Source {
    fn room(&self) -> &str {
        let mut parts = self.path.split('/').skip_while(|part| *part == "crates");
        parts.next().unwrap_or_default()
    }

    /// Whether the whole file is for tests only.
    fn is_test(&self) -> bool {
        self.path.contains("/tests/")
            || self.path.ends_with("/tests.rs")
            || self.path == "crates/link/tests/contract/main.rs"
    }

    /// Lines of code without comments and the contents of texts, numbered from 1.
    fn code(&self) -> Vec<(usize, String)> {
        without_comments_and_texts(&self.text)
            .lines()
            .map(str::to_owned)
            .enumerate()
            .map(|(i, l)| (i + 1, l))
            .collect()
    }

    /// The same without the tests at its end.
    fn shipped_code(&self) -> Vec<(usize, String)> {
        let lines = self.code();
        let is_body = |at: usize| lines.get(at + 1).is_some_and(|(_, next)| !next.trim_end().ends_with(';'));
        let end = (0..lines.len()).find(|at| lines[*at].1.trim() == "#[cfg(test)]" && is_body(*at));
        lines[..end.unwrap_or(lines.len())].to_vec()
    }
}

/// Every `.rs` file below `crates/*/FOLDER`, `python/FOLDER` and `sim/FOLDER`, in order.
fn sources(folders: &[&str]) -> Vec<Source> {
    let root = root();
    let mut found = Vec::new();
    for room in children(&root.join("crates")).into_iter().chain([root.join("python"), root.join("sim")]) {
        for folder in folders {
            collect(&room.join(folder), "rs", &mut found);
        }
    }
    assert!(found.len() > 50, "only {} source files were found", found.len());
    let name = |path: &Path| path.strip_prefix(&root).unwrap().to_string_lossy().replace('\\', "/");
    found.iter().map(|p| Source { path: name(p), text: fs::read_to_string(p).unwrap() }).collect()
}

fn children(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.map(|e| e.unwrap().path()).collect();
    paths.sort();
    paths
}

fn collect(folder: &Path, ending: &str, found: &mut Vec<PathBuf>) {
    for path in children(folder) {
        if path.is_dir() {
            collect(&path, ending, found);
        } else if path.extension().is_some_and(|e| e == ending) {
            found.push(path);
        }
    }
}

/// The text with blanks for comments and quoted texts; line numbers do not change.
fn without_comments_and_texts(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let (next, keep) = match (chars[at], chars.get(at + 1)) {
            ('/', Some('/')) => (find(&chars, at, &['\n']), 0),
            ('/', Some('*')) => (find(&chars, at + 2, &['*', '/']) + 2, 0),
            ('r', Some('"' | '#')) if raw_text_end(&chars, at).is_some() => {
                (raw_text_end(&chars, at).unwrap_or(at), 1)
            }
            ('"', _) => (text_end(&chars, at), 1),
            ('\'', Some('\\')) => (find(&chars, at + 3, &['\'']) + 1, 1),
            ('\'', Some(_)) if chars.get(at + 2) == Some(&'\'') => (at + 3, 1),
            _ => (at + 1, 1),
        };
        let next = next.min(chars.len());
        for (i, c) in chars[at..next].iter().enumerate() {
            let is_edge = keep == 1 && (i == 0 || at + i + 1 == next);
            out.push(if is_edge || *c == '\n' { *c } else { ' ' });
        }
        at = next;
    }
    out
}

fn find(chars: &[char], from: usize, what: &[char]) -> usize {
    (from..chars.len()).find(|i| chars[*i..].starts_with(what)).unwrap_or(chars.len())
}

fn text_end(chars: &[char], quote: usize) -> usize {
    let mut at = quote + 1;
    while at < chars.len() && chars[at] != '"' {
        at += if chars[at] == '\\' { 2 } else { 1 };
    }
    at + 1
}

/// End of `r"…"` or `r#"…"#`; `None` where it is neither (a raw name, or a name that ends in r).
fn raw_text_end(chars: &[char], at: usize) -> Option<usize> {
    if at > 0 && is_word(chars[at - 1]) && chars[at - 1] != 'b' {
        return None;
    }
    let hashes = chars[at + 1..].iter().take_while(|c| **c == '#').count();
    if chars.get(at + 1 + hashes) != Some(&'"') {
        return None;
    }
    let mut end = vec!['"'];
    end.extend(std::iter::repeat_n('#', hashes));
    Some(find(chars, at + 2 + hashes, &end) + end.len())
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Whether `word` is in the line, not as a part of a longer one.
fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        !line[..at].chars().next_back().is_some_and(is_word)
            && !line[at + word.len()..].chars().next().is_some_and(is_word)
    })
}

/// Fails with every finding on its own line.
fn none(findings: &[String], rule: &str) {
    assert!(findings.is_empty(), "{rule}:\n  {}", findings.join("\n  "));
}

/// The number that a list allows for a name; `otherwise` where the name is not on it.
fn allowed(list: &[(&str, usize)], name: &str, otherwise: usize) -> usize {
    list.iter().find(|(known, _)| *known == name).map_or(otherwise, |(_, number)| *number)
}

/// What `cargo metadata` says about the packages of the workspace.
fn metadata() -> serde_json::Value {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn room_of(package: &str) -> String {
    if package == "bramble" { "cli".to_owned() } else { package.replace("bramble-", "") }
}

#[test]
fn rooms_depend_only_on_the_rooms_that_they_may_know() {
    let metadata = metadata();
    let rules: BTreeMap<&str, &[&str]> = ROOMS.into_iter().collect();
    let (mut findings, mut seen) = (Vec::new(), BTreeSet::new());
    for package in metadata["packages"].as_array().unwrap() {
        let manifest = package["manifest_path"].as_str().unwrap();
        let room = room_of(package["name"].as_str().unwrap());
        seen.insert(room.clone());
        let Some(may) = rules.get(room.as_str()) else {
            findings.push(format!("{manifest}: the room {room} is not in the table ROOMS of tidy.rs"));
            continue;
        };
        for dependency in package["dependencies"].as_array().unwrap() {
            let name = dependency["name"].as_str().unwrap();
            let other = room_of(name);
            if name.starts_with("bramble") && !may.contains(&other.as_str()) {
                findings.push(format!("{manifest}: {room} must not depend on {other}"));
            }
        }
    }
    findings.extend(
        rules
            .keys()
            .filter(|r| !seen.contains(**r))
            .map(|r| format!("the table ROOMS names {r}, which is gone")),
    );
    none(
        &findings,
        "a room uses only the rooms that ARCHITECTURE.md and the table ROOMS in tidy.rs allow; a new use changes both",
    );
}

#[test]
fn every_file_opens_with_its_purpose() {
    let bare = |s: &Source| (!s.text.starts_with("//! ")).then(|| format!("{}:1", s.path));
    let findings: Vec<String> = sources(&["src"]).iter().filter_map(bare).collect();
    none(&findings, "a source file opens with `//!` and its purpose in one sentence (STYLE.md, Files)");
}

#[test]
fn pure_rooms_touch_nothing() {
    let mut findings = Vec::new();
    for source in sources(&["src"]).iter().filter(|s| PURE.contains(&s.room())) {
        for (number, line) in source.code() {
            for word in IMPURE.iter().filter(|w| has_word(&line, w)) {
                findings.push(format!("{}:{number}: {word}", source.path));
            }
        }
    }
    none(&findings, "sim is pure: time, seeds and limits are arguments");
}

#[test]
fn unsafe_is_only_where_it_has_to_be() {
    let mut findings = Vec::new();
    for source in sources(&["src", "tests", "examples"]) {
        if UNSAFE.iter().any(|place| source.path.starts_with(place)) {
            continue;
        }
        let lines = source.code();
        findings.extend(
            lines.iter().filter(|l| has_word(&l.1, "unsafe")).map(|l| format!("{}:{}", source.path, l.0)),
        );
    }
    none(
        &findings,
        "`unsafe` is only in the files of the list UNSAFE in tidy.rs; find a safe call, or enter the file there with its reason",
    );
}

#[test]
fn numbers_from_the_remote_end_are_never_cast() {
    let mut findings = Vec::new();
    for place in CAST_FREE {
        let files: Vec<Source> =
            sources(&["src"]).into_iter().filter(|s| s.path.starts_with(place)).collect();
        findings.extend(files.is_empty().then(|| format!("the list CAST_FREE names {place}, which is gone")));
        for source in files.iter().filter(|s| !s.is_test()) {
            let casts = |line: &str| has_word(line, "as") && !line.trim_start().starts_with("use ");
            let lines = source.shipped_code().into_iter().filter(|(_, line)| casts(line));
            findings.extend(lines.map(|(number, _)| format!("{}:{number}", source.path)));
        }
    }
    none(
        &findings,
        "no `as` where numbers come from the remote end; use `From`, `TryFrom` or `bramble_matrix::number`",
    );
}

#[test]
fn nothing_is_left_to_be_done() {
    let mut findings = Vec::new();
    for source in sources(&["src"]) {
        let code = source.code();
        for ((number, line), raw) in code.iter().zip(source.text.lines()) {
            let macros = ["todo!", "unimplemented!"].iter().filter(|m| line.contains(**m));
            let marks = ["FIXME", "XXX", "TODO"].iter().filter(|m| has_word(raw, m));
            findings.extend(macros.chain(marks).map(|what| format!("{}:{number}: {what}", source.path)));
        }
    }
    none(
        &findings,
        "unfinished work is not in the code: finish it, or name the missing part in `//!` as deliberately absent",
    );
}

#[test]
fn shipped_code_does_not_unwrap() {
    let mut findings = Vec::new();
    for source in sources(&["src"]).iter().filter(|s| !s.is_test()) {
        let has_own = OWN_EXPECT.contains(&source.path.as_str());
        let unwraps = |line: &str| line.contains(".unwrap()") || (!has_own && line.contains(".expect("));
        let lines = source.shipped_code().into_iter().filter(|(_, line)| unwraps(line));
        let found: Vec<String> = lines.map(|(number, _)| format!("{}:{number}", source.path)).collect();
        if found.len() > allowed(&UNWRAPS, &source.path, 0) {
            findings.extend(found);
        }
    }
    none(
        &findings,
        "errors of the world are returned; a bug panics with a sentence (`unwrap_or_else(|| panic!(…))`)",
    );
}

#[test]
fn lines_fit_a_screen() {
    let mut findings = Vec::new();
    for source in sources(&["src", "tests", "examples"]) {
        let long: Vec<String> = source
            .text
            .lines()
            .enumerate()
            .filter(|(_, line)| line.chars().count() > LINE_CHARS_MAX)
            .map(|(i, line)| format!("{}:{}: {} characters", source.path, i + 1, line.chars().count()))
            .collect();
        if long.len() > allowed(&LONG_LINES, &source.path, 0) {
            findings.extend(long);
        }
    }
    none(
        &findings,
        &format!("a line has at most {LINE_CHARS_MAX} characters; rustfmt breaks no texts and comments"),
    );
}

#[test]
fn files_and_functions_stay_short() {
    let mut findings = Vec::new();
    let mut check = |name: String, at: String, lines: usize, most: usize, known: &[(&str, usize)]| {
        let most = allowed(known, &name, most);
        if lines > most {
            findings.push(format!("{at}: {lines} lines, {most} are allowed"));
        }
    };
    for source in sources(&["src"]) {
        let lines = source.text.lines().count();
        check(source.path.clone(), source.path.clone(), lines, FILE_LINES_MAX, &LONG_FILES);
        for (name, start, lines) in functions(&source.code()) {
            let at = format!("{}:{start}: fn {name}", source.path);
            check(format!("{}:{name}", source.path), at, lines, FUNCTION_LINES_MAX, &LONG_FUNCTIONS);
        }
    }
    none(&findings, "files and functions stay short; the lists of the long ones in tidy.rs may only shrink");
    for (name, number) in LONG_FILES.iter().chain(&LONG_FUNCTIONS).chain(&LONG_LINES).chain(&UNWRAPS) {
        println!("still allowed: {name}: {number}");
    }
}

/// Functions with bodies: (name, first line, lines). Crude: counts braces from the word `fn` on.
fn functions(code: &[(usize, String)]) -> Vec<(String, usize, usize)> {
    let mut found = Vec::new();
    for (at, (number, line)) in code.iter().enumerate() {
        let Some((_, after)) = line.split_once("fn ").filter(|(before, _)| !before.ends_with(is_word)) else {
            continue;
        };
        let name: String = after.chars().take_while(|c| is_word(*c)).collect();
        if name.is_empty() {
            continue;
        }
        let (mut depth, mut opened) = (0i32, false);
        'body: for (last, text) in &code[at..] {
            for c in text.chars() {
                match c {
                    '{' | '(' | '[' => depth += 1,
                    '}' | ')' | ']' => depth -= 1,
                    ';' if depth == 0 && !opened => break 'body,
                    _ => {}
                }
                opened |= c == '{';
                if opened && depth == 0 {
                    found.push((name, *number, last - number + 1));
                    break 'body;
                }
            }
        }
    }
    found
}

#[test]
fn links_between_pages_lead_somewhere() {
    let root = root();
    let mut pages: Vec<PathBuf> =
        children(&root).into_iter().filter(|p| p.extension().is_some_and(|e| e == "md")).collect();
    for folder in children(&root.join("crates")) {
        pages.extend(Some(folder.join("README.md")).filter(|page| page.exists()));
    }
    for folder in ["docs", "sim", "bench", "examples"] {
        collect(&root.join(folder), "md", &mut pages);
    }
    pages.push(root.join("fuzz/README.md"));
    let mut findings = Vec::new();
    for page in pages {
        let text = fs::read_to_string(&page).unwrap();
        let name = page.strip_prefix(&root).unwrap().display().to_string();
        for (number, line) in text.lines().enumerate() {
            for target in line.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
                let file = target.split('#').next().unwrap_or_default();
                let is_elsewhere = target.contains("://") || target.starts_with("mailto:") || file.is_empty();
                let plain = file.trim_start_matches("../").trim_start_matches("docs/");
                let is_to_come = PAGES_TO_COME.iter().any(|p| p.trim_start_matches("docs/") == plain);
                if !is_elsewhere && !is_to_come && !page.parent().unwrap().join(file).exists() {
                    findings.push(format!("{name}:{}: {target}", number + 1));
                }
            }
        }
    }
    none(&findings, "a relative link names a file that exists");
}

#[test]
fn the_checks_themselves_see_through_comments_and_texts() {
    let text = "let a = \"unsafe { \\\" \"; // unsafe\nlet b = '{'; /* unsafe\n */ let c = r#\"un\"wrap\"#; fn f<'a>() {}\n";
    let code = without_comments_and_texts(text);
    assert_eq!(code.lines().count(), 3);
    assert!(!code.contains("unsafe") && !code.contains("'{'") && !code.contains("wrap"), "{code}");
    assert!(code.contains("fn f<'a>() {}"), "{code}");
    assert!(!has_word("unsafe_code", "unsafe") && has_word("(unsafe {", "unsafe"));
    let lines: Vec<(usize, String)> = ["fn a();", "fn long(x: [u8; 2]) {", "  if x { y }", "}"]
        .into_iter()
        .map(str::to_owned)
        .enumerate()
        .collect();
    assert_eq!(functions(&lines), [("long".to_owned(), 1, 3)]);
}
