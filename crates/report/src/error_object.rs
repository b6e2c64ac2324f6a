//! A failure as JSON: the object `bramble.error/1` on stdout (docs/json.md), in addition to the line on stderr.
//!
//! Place in the flow: the last output of a failed run with `--json`. A verb that has already printed its own object
//! reports the failure there instead.
//!
//! Invariant: `what` and `next` are substrings of `message`, found by its form `WHAT: why; next step`; they are
//! `null` if a message lacks that part. For command-line errors, the parser provides `what`.

use crate::exit::{Exit, Failure};
use serde_json::{Value, json};
use std::ffi::OsString;

/// First words of a clause that tells the user the next step.
const ADVICE: [&str; 35] = [
    "add ",
    "ask ",
    "begin ",
    "check ",
    "choose ",
    "compare ",
    "continue ",
    "convert ",
    "copy ",
    "describe ",
    "did you ",
    "end ",
    "free ",
    "give ",
    "go on ",
    "install ",
    "is it ",
    "leave ",
    "let ",
    "make ",
    "name ",
    "or ",
    "pass ",
    "put ",
    "remove ",
    "run ",
    "say ",
    "see ",
    "set ",
    "start ",
    "take ",
    "try ",
    "unset ",
    "use ",
    "write ",
];
/// Text before the first colon that is longer than this is a sentence, and not a name.
const WHAT_CHARS_MAX: usize = 200;

/// Whether the command line has `--json`. This searches the raw words, since an invalid command line may have it,
/// too. Words after `--` belong to another program.
pub fn is_wanted(words: impl Iterator<Item = OsString>) -> bool {
    words.skip(1).take_while(|word| word != "--").any(|word| word == "--json")
}

/// Prints the object of a failure, if the command line has `--json`. If stdout cannot be written, stderr still has
/// the message.
pub fn print(failure: &Failure) {
    print_about(None, failure);
}

/// The same with a known `what`.
pub fn print_about(what: Option<&str>, failure: &Failure) {
    if is_wanted(std::env::args_os()) {
        let _ = crate::out(format!("{}\n", object(what, failure)).as_bytes());
    }
}

/// The object `bramble.error/1`.
fn object(known: Option<&str>, failure: &Failure) -> Value {
    let message = failure.text.replace('\n', " ");
    let (found, next) = parts(&message);
    let what = known.or(found);
    json!({"schema": "bramble.error/1", "error": error_of(failure.exit, &message, what, next)})
}

/// The member `error` of a failure, for an object with other members.
pub fn error(failure: &Failure) -> Value {
    let message = failure.text.replace('\n', " ");
    let (what, next) = parts(&message);
    error_of(failure.exit, &message, what, next)
}

fn error_of(exit: Exit, message: &str, what: Option<&str>, next: Option<&str>) -> Value {
    json!({
        "code": code(exit),
        "exit_code": exit.number(),
        "message": message,
        "what": what,
        "next": next,
    })
}

/// The names of exit codes, which are a contract with scripts.
fn code(exit: Exit) -> &'static str {
    match exit {
        Exit::Done => "done",
        Exit::Failed => "failed",
        Exit::Usage => "usage",
        Exit::Degraded => "degraded",
        Exit::Unverified => "unverified",
        Exit::Unreachable => "unreachable",
        Exit::Partial => "partial",
        Exit::HungUp => "hung_up",
        Exit::Interrupted => "interrupted",
        Exit::Terminated => "terminated",
    }
}

/// The `what` and `next` of a message.
fn parts(message: &str) -> (Option<&str>, Option<&str>) {
    let head = message.split_once(": ").map(|(head, _)| head);
    let what = head.filter(|head| !head.contains("; ") && head.chars().count() <= WHAT_CHARS_MAX);
    let is_advice = |clause: &str| ADVICE.iter().any(|word| clause.starts_with(word));
    // `next` extends from the first clause of advice to the end.
    let clauses = message.match_indices("; ").map(|(at, separator)| &message[at + separator.len()..]);
    (what, clauses.into_iter().find(|rest| is_advice(rest)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> impl Iterator<Item = OsString> {
        text.split(' ').map(OsString::from).collect::<Vec<_>>().into_iter()
    }

    #[test]
    fn json_is_wanted_where_the_word_stands_before_those_of_another_program() {
        assert!(is_wanted(words("bramble nodes --json")));
        assert!(is_wanted(words("bramble plan --json --size x")));
        assert!(!is_wanted(words("bramble lab exec pi1 -- bramble nodes --json")));
        assert!(!is_wanted(words("bramble multiply json -o --jsonx")));
    }

    #[test]
    fn messages_are_taken_apart_where_they_have_the_form() {
        let cases = [
            ("A.npy: cannot open: no such file", Some("A.npy"), None),
            ("--tile 0: must be more; use 16 or more", Some("--tile 0"), Some("use 16 or more")),
            (
                "A.npy is 2x3 and B.npy is 2x3: the columns must equal the rows; did you mean --transpose-b?",
                Some("A.npy is 2x3 and B.npy is 2x3"),
                Some("did you mean --transpose-b?"),
            ),
            ("C is wrong: row 3; C.npy was not written", Some("C is wrong"), None),
            ("x: y; z; use a; or b", Some("x"), Some("use a; or b")),
            ("stopped by a signal", None, None),
            ("no room; use less: much less", None, Some("use less: much less")),
        ];
        for (message, what, next) in cases {
            assert_eq!(parts(message), (what, next), "{message}");
        }
    }

    #[test]
    fn the_object_has_the_code_and_one_line() {
        let object = object(None, &Failure::unreachable("worker a:1:\nnobody is there; start one there"));
        assert_eq!(object["schema"], "bramble.error/1");
        let error = &object["error"];
        assert_eq!((&error["code"], &error["exit_code"]), (&json!("unreachable"), &json!(5)));
        assert_eq!(error["message"], "worker a:1: nobody is there; start one there");
        assert_eq!((&error["what"], &error["next"]), (&json!("worker a:1"), &json!("start one there")));
        assert!(!object.to_string().contains('\n'));
    }
}
