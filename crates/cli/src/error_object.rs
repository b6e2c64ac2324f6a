//! A failure for programs: the object `bramble.error/1` on stdout, beside the line on stderr (docs/json.md).
//!
//! Place in the flow: the last thing that a run with `--json` prints where it fails. A run that has printed its own object on
//! stdout says there what failed, and this is not printed.
//!
//! Invariant: `what` and `next` are parts of `message`. Messages have the form `WHAT: why; next step`, so they are found by
//! that form, and are `null` where a message has no such part. The parser of the command line says itself what it is about.

use crate::exit::{Exit, Failure};
use serde_json::{Value, json};
use std::ffi::OsString;

/// Beginnings of a clause that tells the user what to do.
const ADVICE: [&str; 34] = [
    "add ",
    "ask ",
    "begin ",
    "check ",
    "choose ",
    "compare ",
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
/// A longer beginning of a message is a sentence, and not the name of what it is about.
const WHAT_CHARS_MAX: usize = 200;

/// Whether the command line asks for JSON. It is looked for among the words themselves, since a command line that cannot be
/// read asks for it too. Words after `--` are another program's.
pub(crate) fn is_wanted(words: impl Iterator<Item = OsString>) -> bool {
    words.skip(1).take_while(|word| word != "--").any(|word| word == "--json")
}

/// Prints the object of a failure, if JSON is wanted. Where stdout cannot be written, stderr has the message.
pub(crate) fn print(failure: &Failure) {
    print_about(None, failure);
}

/// The same where it is known what the failure is about.
pub(crate) fn print_about(what: Option<&str>, failure: &Failure) {
    if is_wanted(std::env::args_os()) {
        let _ = crate::out(format!("{}\n", object(what, failure)).as_bytes());
    }
}

/// The object `bramble.error/1`.
fn object(known: Option<&str>, failure: &Failure) -> Value {
    let message = failure.text.replace('\n', " ");
    let (found, next) = parts(&message);
    let what = known.or(found);
    json!({
        "schema": "bramble.error/1",
        "error": {
            "code": code(failure.exit),
            "exit_code": failure.exit.number(),
            "message": message,
            "what": what,
            "next": next,
        },
    })
}

/// The names of exit codes; scripts rely on them.
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

/// What a message is about, and the next step that it names.
fn parts(message: &str) -> (Option<&str>, Option<&str>) {
    let head = message.split_once(": ").map(|(head, _)| head);
    let what = head.filter(|head| !head.contains("; ") && head.chars().count() <= WHAT_CHARS_MAX);
    let is_advice = |clause: &str| ADVICE.iter().any(|word| clause.starts_with(word));
    // Several clauses may be advice: all of them from the first on.
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
            ("ended as was asked", None, None),
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
