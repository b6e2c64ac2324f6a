//! The names most similar to a mistyped one.
//!
//! Place in the flow: for messages about tensors that do not exist.

/// Most names in a message.
const NAMED_MAX: usize = 3;

/// Longer names are not compared: users do not type them.
const CHARS_MAX: usize = 200;

/// The names that the user may have meant, the most likely first; none if no name is similar. Names that differ in
/// a few letters precede names that contain `typed`.
pub(crate) fn similar(typed: &str, names: &[String]) -> Vec<String> {
    let lower = |text: &str| text.to_lowercase().chars().collect::<Vec<char>>();
    let wanted = lower(typed);
    if wanted.is_empty() || wanted.len() > CHARS_MAX {
        return Vec::new();
    }
    let allowed = (wanted.len() / 4).max(1);
    let mut found: Vec<(usize, &String)> = Vec::new();
    for name in names.iter().filter(|name| name.len() <= 4 * CHARS_MAX) {
        let chars = lower(name);
        if chars.len().abs_diff(wanted.len()) <= allowed {
            let changes = changes(&wanted, &chars);
            if changes <= allowed {
                found.push((changes, name));
                continue;
            }
        }
        let is_part = wanted.len() >= 3 && chars.windows(wanted.len()).any(|part| part == wanted);
        if is_part {
            found.push((allowed + chars.len() - wanted.len(), name));
        }
    }
    found.sort();
    found.into_iter().take(NAMED_MAX).map(|(_, name)| name.clone()).collect()
}

/// The edit distance (Levenshtein): letters to insert, delete or replace.
fn changes(one: &[char], other: &[char]) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in other.iter().enumerate() {
            let replaced = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_names_come_first() {
        let names = ["layers.0.weight", "layers.1.weight", "layers.10.weight", "lm_head", "bias"];
        let names = names.map(str::to_owned);
        let like = |typed: &str| similar(typed, &names).join(" ");
        assert_eq!(like("layer.1.weight"), "layers.1.weight layers.0.weight layers.10.weight");
        assert_eq!(like("LM_HEAD"), "lm_head");
        assert_eq!(like("head"), "lm_head");
        assert_eq!((like("embedding"), like(""), like("x")), (String::new(), String::new(), String::new()));
        assert_eq!(changes(&['a', 'b', 'c'], &['b', 'c', 'd']), 2);
    }
}
