//! Python literals as `ast.literal_eval` reads them: the language of the header of a `.npy` file.
//!
//! Place in the flow: `npy::parse` passes the header's text and gets the dictionary.
//!
//! Invariants: a text is accepted if and only if `ast.literal_eval` accepts it (after NumPy's clean-up of Python
//! 2's `3L`, if requested); no access is out of bounds; nesting is bounded, so no text exhausts the stack.
//!
//! Deliberately absent: `\N{…}` escapes and literals nested deeper than 100, which no header needs; and the values
//! of floats, bytes, lists and sets, which no supported header contains.

/// Most nested brackets.
const DEPTH_MAX: u32 = 100;

/// The value of a literal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Text(String),
    /// `None` if it does not fit 127 bits.
    Int(Option<i128>),
    Bool(bool),
    Tuple(Vec<Self>),
    Dict(Vec<(Self, Self)>),
    List,
    /// A number with an imaginary part only: it may follow a real number and a sign.
    Imaginary,
    Float,
    Bytes,
    Other,
}

/// The value of a text, or `None` if it is no literal. `longs`: an `L` after a number is skipped, as NumPy does in
/// files of the formats 1.0 and 2.0.
pub(super) fn evaluate(text: &str, longs: bool) -> Option<Value> {
    // Python's tokenizer sees no carriage returns, and refuses texts with a null character.
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    if text.contains('\0') {
        return None;
    }
    let chars: Vec<char> = text.trim_start_matches([' ', '\t']).chars().collect();
    let mut parser = Parser { chars: &chars, at: 0, depth: 0, longs };
    parser.empty_lines()?;
    let value = parser.expression()?;
    parser.end()?;
    Some(value)
}

struct Parser<'a> {
    chars: &'a [char],
    at: usize,
    /// Open brackets: inside of them a newline is a blank.
    depth: u32,
    longs: bool,
}

impl Parser<'_> {
    fn here(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn after(&self, ahead: usize) -> Option<char> {
        self.chars.get(self.at + ahead).copied()
    }

    /// Skips blanks, comments, continued lines and, inside brackets, newlines; returns the next character.
    fn next(&mut self) -> Option<char> {
        loop {
            match self.here()? {
                ' ' | '\t' | '\x0c' => self.at += 1,
                '\n' if self.depth > 0 => self.at += 1,
                '\\' if self.after(1) == Some('\n') && self.after(2).is_some() => self.at += 2,
                '#' => self.skip_line(),
                other => return Some(other),
            }
        }
    }

    /// To the end of the line that a comment is in.
    fn skip_line(&mut self) {
        while self.here().is_some_and(|c| c != '\n') {
            self.at += 1;
        }
    }

    /// Lines before the literal may contain blanks and comments only; its own line must then not be indented.
    fn empty_lines(&mut self) -> Option<()> {
        loop {
            let line = self.at;
            match self.next() {
                Some('\n') => self.at += 1,
                Some(_) => {
                    let blanks = self.chars[line..self.at].iter().rev().take_while(|c| **c != '\x0c');
                    let is_indented = blanks.into_iter().any(|c| matches!(c, ' ' | '\t'));
                    return (!is_indented).then_some(());
                }
                None => return None,
            }
        }
    }

    /// Nothing but blanks, comments and empty lines follow.
    fn end(&mut self) -> Option<()> {
        while let Some(c) = self.next() {
            if c != '\n' {
                return None;
            }
            self.at += 1;
        }
        Some(())
    }

    fn take(&mut self, wanted: char) -> Option<()> {
        (self.next()? == wanted).then(|| self.at += 1)
    }

    /// A literal, and what literal_eval calculates: a sign before a number, and a complex number as a sum.
    fn expression(&mut self) -> Option<Value> {
        let first = self.signed()?;
        if !matches!(first, Value::Int(_) | Value::Float | Value::Imaginary) {
            return Some(first);
        }
        if !matches!(self.next(), Some('+' | '-')) {
            return Some(first);
        }
        self.at += 1;
        let second = self.atom()?;
        (first != Value::Imaginary && second == Value::Imaginary).then_some(Value::Other)
    }

    fn signed(&mut self) -> Option<Value> {
        let sign = self.next().filter(|c| matches!(c, '+' | '-'));
        if sign.is_none() {
            return self.atom();
        }
        self.at += 1;
        match self.atom()? {
            Value::Int(n) => Some(Value::Int(if sign == Some('-') { n.map(|n| -n) } else { n })),
            number @ (Value::Float | Value::Imaginary) => Some(number),
            _ => None,
        }
    }

    fn atom(&mut self) -> Option<Value> {
        match self.next()? {
            '(' => self.bracketed(Self::parenthesis),
            '[' => self.bracketed(|this| this.items(']').map(|_| Value::List)),
            '{' => self.bracketed(Self::braces),
            '0'..='9' => self.number(),
            '.' if self.after(1).is_some_and(|c| c.is_ascii_digit()) => self.number(),
            '.' if self.after(1) == Some('.') && self.after(2) == Some('.') => {
                self.at += 3;
                Some(Value::Other)
            }
            '\'' | '"' => self.strings(),
            c if c.is_ascii_alphabetic() => self.word(),
            _ => None,
        }
    }

    fn bracketed(&mut self, inside: impl FnOnce(&mut Self) -> Option<Value>) -> Option<Value> {
        self.at += 1;
        self.depth += 1;
        let value = if self.depth <= DEPTH_MAX { inside(self) } else { None }?;
        self.depth -= 1;
        // The closing bracket, on which `inside` has stopped.
        self.at += 1;
        Some(value)
    }

    /// A tuple, or a literal in parentheses.
    fn parenthesis(&mut self) -> Option<Value> {
        if self.next()? == ')' {
            return Some(Value::Tuple(Vec::new()));
        }
        let first = self.expression()?;
        if self.next()? == ')' {
            return Some(first);
        }
        self.take(',')?;
        let mut all = vec![first];
        all.extend(self.items(')')?);
        Some(Value::Tuple(all))
    }

    /// Literals with commas between and perhaps after them, up to the closing bracket.
    fn items(&mut self, closing: char) -> Option<Vec<Value>> {
        let mut all = Vec::new();
        while self.next()? != closing {
            all.push(self.expression()?);
            if self.next()? != closing {
                self.take(',')?;
            }
        }
        Some(all)
    }

    /// A dictionary or a set.
    fn braces(&mut self) -> Option<Value> {
        if self.next()? == '}' {
            return Some(Value::Dict(Vec::new()));
        }
        let first = self.expression()?;
        if self.next()? != ':' {
            if self.next()? != '}' {
                self.take(',')?;
                self.items('}')?;
            }
            return Some(Value::Other);
        }
        let mut pairs = Vec::new();
        let mut key = first;
        loop {
            self.take(':')?;
            pairs.push((key, self.expression()?));
            if self.next()? == '}' {
                return Some(Value::Dict(pairs));
            }
            self.take(',')?;
            if self.next()? == '}' {
                return Some(Value::Dict(pairs));
            }
            key = self.expression()?;
        }
    }

    /// True, False, None, `set()`, or the letters before a string.
    fn word(&mut self) -> Option<Value> {
        let rest = &self.chars[self.at..];
        let len = rest.iter().take_while(|c| is_of_name(**c)).count();
        if matches!(rest.get(len), Some('\'' | '"')) {
            return self.strings();
        }
        let word: String = rest[..len].iter().collect();
        self.at += len;
        match word.as_str() {
            "True" => Some(Value::Bool(true)),
            "False" => Some(Value::Bool(false)),
            "None" => Some(Value::Other),
            "set" => {
                self.take('(')?;
                self.depth += 1;
                let closed = self.take(')');
                self.depth -= 1;
                closed.map(|()| Value::Other)
            }
            _ => None,
        }
    }

    /// Digits of a base, with single underscores between them.
    fn digits(&mut self, radix: u32, text: &mut String) -> Option<()> {
        loop {
            let c = self.here().filter(|c| c.is_digit(radix))?;
            text.push(c);
            self.at += 1;
            match self.here() {
                Some('_') => self.at += 1,
                Some(c) if c.is_digit(radix) => {}
                _ => return Some(()),
            }
        }
    }

    fn number(&mut self) -> Option<Value> {
        let radix = match (self.here(), self.after(1)) {
            (Some('0'), Some('x' | 'X')) => 16,
            (Some('0'), Some('o' | 'O')) => 8,
            (Some('0'), Some('b' | 'B')) => 2,
            _ => 10,
        };
        let mut text = String::new();
        let value = if radix == 10 {
            self.decimal(&mut text)?
        } else {
            self.at += 2;
            if self.here() == Some('_') {
                self.at += 1;
            }
            self.digits(radix, &mut text)?;
            Value::Int(i128::from_str_radix(&text, radix).ok())
        };
        self.long_mark();
        // A name must not follow without a blank.
        (!self.here().is_some_and(is_of_name)).then_some(value)
    }

    fn decimal(&mut self, text: &mut String) -> Option<Value> {
        let mut is_float = false;
        if self.here() != Some('.') {
            self.digits(10, text)?;
        }
        if self.here() == Some('.') {
            is_float = true;
            self.at += 1;
            if self.here().is_some_and(|c| c.is_ascii_digit()) {
                self.digits(10, &mut String::new())?;
            }
        }
        if matches!(self.here(), Some('e' | 'E')) {
            let sign = usize::from(matches!(self.after(1), Some('+' | '-')));
            if self.after(1 + sign).is_some_and(|c| c.is_ascii_digit()) {
                is_float = true;
                self.at += 1 + sign;
                self.digits(10, &mut String::new())?;
            }
        }
        if matches!(self.here(), Some('j' | 'J')) {
            self.at += 1;
            return Some(Value::Imaginary);
        }
        if is_float {
            return Some(Value::Float);
        }
        // 007 is no number, 000 is.
        let is_plain = !text.starts_with('0') || text.bytes().all(|b| b == b'0');
        is_plain.then(|| Value::Int(text.parse().ok()))
    }

    /// Python 2 wrote long integers as 3L.
    fn long_mark(&mut self) {
        let mut at = self.at;
        while matches!(self.chars.get(at), Some(' ' | '\t')) {
            at += 1;
        }
        let is_mark =
            self.chars.get(at) == Some(&'L') && !self.chars.get(at + 1).is_some_and(|c| is_of_name(*c));
        if self.longs && is_mark {
            self.at = at + 1;
        }
    }

    /// One string or several, which Python joins.
    fn strings(&mut self) -> Option<Value> {
        let mut all: Option<(String, bool)> = None;
        loop {
            let (text, is_bytes) = self.string()?;
            all = match all {
                None => Some((text, is_bytes)),
                Some((before, kind)) if kind == is_bytes => Some((before + &text, kind)),
                Some(_) => return None,
            };
            let starts = |c: char| matches!(c, '\'' | '"') || c.is_ascii_alphabetic();
            if !self.next().is_some_and(starts) {
                break;
            }
        }
        let (text, is_bytes) = all?;
        Some(if is_bytes { Value::Bytes } else { Value::Text(text) })
    }

    /// A string with its prefix; whether it is of bytes.
    fn string(&mut self) -> Option<(String, bool)> {
        let mut prefix = String::new();
        while let Some(c) = self.here().filter(char::is_ascii_alphabetic) {
            prefix.push(c.to_ascii_lowercase());
            self.at += 1;
        }
        let (is_raw, is_bytes) = match prefix.as_str() {
            "" | "u" => (false, false),
            "r" => (true, false),
            "b" => (false, true),
            "br" | "rb" => (true, true),
            _ => return None,
        };
        let quote = self.here().filter(|c| matches!(c, '\'' | '"'))?;
        let is_triple = self.after(1) == Some(quote) && self.after(2) == Some(quote);
        self.at += if is_triple { 3 } else { 1 };
        let mut text = String::new();
        loop {
            match self.here()? {
                c if c == quote && !is_triple => {
                    self.at += 1;
                    return Some((text, is_bytes));
                }
                c if c == quote && self.after(1) == Some(quote) && self.after(2) == Some(quote) => {
                    self.at += 3;
                    return Some((text, is_bytes));
                }
                '\n' if !is_triple => return None,
                '\\' if is_raw => {
                    text.push('\\');
                    text.push(self.after(1)?);
                    self.at += 2;
                }
                '\\' => self.escape(is_bytes, &mut text)?,
                c if is_bytes && !c.is_ascii() => return None,
                c => {
                    text.push(c);
                    self.at += 1;
                }
            }
        }
    }

    fn escape(&mut self, is_bytes: bool, text: &mut String) -> Option<()> {
        let c = self.after(1)?;
        self.at += 2;
        let hex = |this: &mut Self, digits: usize| {
            let mut value = 0;
            for _ in 0..digits {
                value = value * 16 + this.here()?.to_digit(16)?;
                this.at += 1;
            }
            Some(value)
        };
        let plain = match c {
            '\n' => return Some(()),
            '\\' | '\'' | '"' => c,
            'a' => '\x07',
            'b' => '\x08',
            'f' => '\x0c',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'v' => '\x0b',
            '0'..='7' => {
                let mut value = c.to_digit(8)?;
                for _ in 0..2 {
                    let Some(digit) = self.here().and_then(|c| c.to_digit(8)) else { break };
                    value = value * 8 + digit;
                    self.at += 1;
                }
                char::from_u32(value)?
            }
            'x' => char::from_u32(hex(self, 2)?)?,
            // A half of a pair of surrogates is a character to Python; no name of a type has one.
            'u' if !is_bytes => char::from_u32(hex(self, 4)?).unwrap_or('\u{fffd}'),
            'U' if !is_bytes => {
                let code = hex(self, 8)?;
                let is_surrogate = (0xd800..0xe000).contains(&code);
                if is_surrogate { '\u{fffd}' } else { char::from_u32(code)? }
            }
            'N' if !is_bytes => return None,
            other => {
                text.push('\\');
                other
            }
        };
        text.push(plain);
        Some(())
    }
}

/// Whether a name may continue with this character.
fn is_of_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests;
