//! Literals as Python reads them, and texts that are none.

use super::*;

fn read(text: &str) -> Option<Value> {
    evaluate(text, false)
}

fn int(n: i128) -> Value {
    Value::Int(Some(n))
}

#[test]
fn numbers_are_those_of_python() {
    for (text, value) in [
        ("0x10", 16),
        ("0X_ff", 255),
        ("0o17", 15),
        ("0b101", 5),
        ("1_000", 1000),
        ("000", 0),
        ("-3", -3),
        ("+3", 3),
        (" (7)", 7),
        ("-(7) # seven\n\n", -7),
    ] {
        assert_eq!(read(text), Some(int(value)), "{text}");
    }
    for text in ["1.5", ".5", "1.", "1e3", "0_1.5", "08.5"] {
        assert_eq!(read(text), Some(Value::Float), "{text}");
    }
    assert_eq!(read("1+2j"), Some(Value::Other));
    assert_eq!(read("9".repeat(60).as_str()), Some(Value::Int(None)));
    for text in
        ["", "1__0", "1_", "007", "3L", "--3", "-True", "0x", "1 2", "1+2", "2j+1j", "3x", "1.5.2", "\u{b2}"]
    {
        assert_eq!(read(text), None, "{text}");
    }
    assert_eq!(evaluate("(3L, 0x10 L)", true), Some(Value::Tuple(vec![int(3), int(16)])));
    assert_eq!(evaluate("(3LL)", true), None);
}

#[test]
fn strings_have_pythons_prefixes_escapes_and_quotes() {
    for (text, value) in [
        ("'a' \"b\"", "ab"),
        (r"'\x66\070\146\u0038\q'", "f8f8\\q"),
        (r"r'\x'", "\\x"),
        ("u'''it's\nlong'''", "it's\nlong"),
        ("('a'\n'b')", "ab"),
    ] {
        assert_eq!(read(text), Some(Value::Text(value.to_owned())), "{text}");
    }
    assert_eq!(read("b'x' B'y'"), Some(Value::Bytes));
    for text in ["'a", "'a\nb'", "f'a'", "'a' b'b'", r"'\xg0'", "b'\u{e9}'", "ur'a'", "'''a''"] {
        assert_eq!(read(text), None, "{text}");
    }
}

#[test]
fn brackets_comments_and_lines() {
    assert_eq!(read("(1, (2,), ())"), {
        let inner = Value::Tuple(vec![int(2)]);
        Some(Value::Tuple(vec![int(1), inner, Value::Tuple(Vec::new())]))
    });
    assert_eq!(read("{'a': True, # yes\n 'a': False,}"), {
        let key = || Value::Text("a".to_owned());
        Some(Value::Dict(vec![(key(), Value::Bool(true)), (key(), Value::Bool(false))]))
    });
    for text in ["{1, 2}", "{1}", "set()", "None", "..."] {
        assert_eq!(read(text), Some(Value::Other), "{text}");
    }
    assert_eq!(read("\n# first\n[1,\n2]\n"), Some(Value::List));
    for text in ["(1", "[1)", "(,)", "{'a': 1, 2}", "1\n2", "\n 1", "(1)\0", "Truee", "a", "set(1)"] {
        assert_eq!(read(text), None, "{text}");
    }
    let nested = |n: usize| "(".repeat(n) + "1" + &")".repeat(n);
    assert_eq!((read(&nested(100)), read(&nested(10_000))), (Some(int(1)), None));
}
