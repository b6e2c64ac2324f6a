//! Structs with many fields are several things in one: the limit is 16 named fields.
//!
//! Tests are exempt.

use super::{is_word, none, sources};

const STRUCT_FIELDS_MAX: usize = 16;
#[test]
fn structs_stay_small() {
    let mut findings = Vec::new();
    for source in sources(&["src"]).iter().filter(|s| !s.is_test()) {
        for (name, line, fields) in structs(&source.shipped_code()) {
            if fields > STRUCT_FIELDS_MAX {
                findings.push(format!(
                    "{}:{line}: struct {name}: {fields} fields, {STRUCT_FIELDS_MAX} are allowed",
                    source.path
                ));
            }
        }
    }
    none(&findings, "group fields that change together");
}

/// Structs with named fields: (name, line, fields). Crude: counts the colons between the struct's own braces.
fn structs(code: &[(usize, String)]) -> Vec<(String, usize, usize)> {
    let mut found = Vec::new();
    for (at, (number, line)) in code.iter().enumerate() {
        let Some((_, after)) = line.split_once("struct ").filter(|(before, _)| !before.ends_with(is_word))
        else {
            continue;
        };
        let name: String = after.chars().take_while(|c| is_word(*c)).collect();
        let text: String = code[at..].iter().map(|(_, line)| format!("{line}\n")).collect();
        let body = text.split_once("struct ").map_or("", |(_, body)| body);
        // A struct without named fields ends, or opens a parenthesis, before any brace.
        if name.is_empty() || body.find(['{', ';', '(']).is_none_or(|at| !body[at..].starts_with('{')) {
            continue;
        }
        let (mut depth, mut fields, mut last) = (0, 0, ' ');
        for pair in body.chars().collect::<Vec<_>>().windows(2) {
            match pair[0] {
                '{' | '(' | '[' => depth += 1,
                '}' | ')' | ']' => depth -= 1,
                ':' if depth == 1 && last != ':' && pair[1] != ':' => fields += 1,
                _ => {}
            }
            last = pair[0];
            if depth == 0 && pair[0] == '}' {
                break;
            }
        }
        found.push((name, *number, fields));
    }
    found
}

#[test]
fn fields_are_counted_between_the_braces_of_their_struct() {
    let text = "pub struct Two<T: Copy> {\n    a: u8,\n    pub(crate) b: [std::cell::Cell<T>; 2],\n}\n\
                struct Tuple(u8, a::B);\nstruct Unit;\nfn f() { let x: u8 = 1; }\n";
    let lines: Vec<(usize, String)> = text.lines().map(str::to_owned).enumerate().collect();
    assert_eq!(structs(&lines), [("Two".to_owned(), 0, 2)]);
}
