//! The picture of a plan: the owner of each part of C, one letter per machine.
//!
//! Invariant: a character shows the owner of the element at its centre, so the picture agrees with the plan. A
//! picture is at most 64 characters wide and 24 high, and never wider than the terminal.
//!
//! Deliberately absent: more than 52 distinct letters. With more machines the letters repeat, and the legend says so.

use super::owners::Owners;
use bramble_matrix::Span;
use bramble_plan::Plan;

const WIDTH_MAX: usize = 64;
const HEIGHT_MAX: usize = 24;
/// Most layers of k that are drawn.
const LAYERS_MAX: usize = 4;
/// Most names in the legend.
const NAMES_MAX: usize = 12;
/// Spaces before each line, and between adjacent pictures.
const INDENT: usize = 2;
/// The letter of the primary.
const OWN: char = '@';
const LETTERS: &[u8; 52] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
/// Background colours of the 256-colour palette on which black text is readable.
const COLOURS: [u8; 12] = [117, 216, 150, 222, 183, 115, 210, 153, 186, 180, 218, 109];

/// Terminal properties that pictures depend on.
#[derive(Clone, Copy, Debug)]
pub struct PictureStyle {
    /// Characters in a line of the terminal.
    pub columns: usize,
    /// Whether to use colours.
    pub colours: bool,
}

/// The owners (member indices) of width × height character cells of C at one depth k.
fn owners_of_places(
    owners: &Owners<'_>,
    plan: &Plan,
    k: u64,
    width: usize,
    height: usize,
) -> Vec<Vec<Option<usize>>> {
    let at = |y: usize, x: usize| {
        owners.at(middle(y, height, plan.problem.m), middle(x, width, plan.problem.n), k)
    };
    (0..height).map(|y| (0..width).map(|x| at(y, x)).collect()).collect()
}

/// The centre element of cell `index`, if `elements` are divided among `count` cells.
fn middle(index: usize, count: usize, elements: u64) -> u64 {
    let at = (2 * index as u128 + 1) * u128::from(elements) / (2 * count as u128);
    u64::try_from(at).unwrap_or(u64::MAX)
}

/// Width and height of a picture with about the aspect ratio of m × n: a character is about twice as high as wide.
fn extent(m: u64, n: u64, width_max: usize) -> (usize, usize) {
    let wide = n as f64 * 2.0 / (m as f64).max(1.0);
    let height = (width_max as f64 / wide).min(HEIGHT_MAX as f64);
    let whole = |x: f64, most: usize| (x.round() as usize).clamp(1, most);
    (whole(height * wide, width_max), whole(height, HEIGHT_MAX))
}

/// The lines of the picture and its legend; a single line if one machine computes all of C.
pub fn lines(plan: &Plan, names: &[&str], look: PictureStyle) -> Vec<String> {
    if let [only] = names {
        return vec![format!("all of C: {only}")];
    }
    let owners = Owners::of(plan);
    let layers = owners.layers();
    let shown = &layers[..layers.len().min(LAYERS_MAX)];
    let room = WIDTH_MAX.min(look.columns.saturating_sub(INDENT)).max(1);
    let each = room.saturating_sub(INDENT * shown.len().saturating_sub(1)) / shown.len().max(1);
    let heads: Vec<String> = match shown.len() {
        1 => Vec::new(),
        _ => (1..=shown.len()).map(|i| format!("part {i}")).collect(),
    };
    let (width, height) = extent(plan.problem.m, plan.problem.n, each.max(1));
    let pictures: Vec<Vec<String>> = shown
        .iter()
        .map(|layer| {
            let places = owners_of_places(&owners, plan, owners.k_of(*layer), width, height);
            places.iter().map(|row| painted(row, plan, look.colours)).collect()
        })
        .collect();
    let gap = width.max(heads.iter().map(String::len).max().unwrap_or(0)) - width + INDENT;
    let mut out = Vec::new();
    if layers.len() > 1 {
        out.push(parts_of_k(plan, &layers));
        out.push(beside(heads.iter().map(|h| format!("{h:width$}")).collect(), gap));
    }
    for y in 0..height {
        out.push(beside(pictures.iter().map(|p| p[y].clone()).collect(), gap));
    }
    if plan.strategy.levels > 0 {
        out.push(strassen(plan));
    }
    out.extend(legend(plan, names, look));
    out
}

/// Joins the pieces of one line.
fn beside(pieces: Vec<String>, gap: usize) -> String {
    format!("{}{}", " ".repeat(INDENT), pieces.join(&" ".repeat(gap))).trim_end().to_owned()
}

fn parts_of_k(plan: &Plan, layers: &[Span]) -> String {
    let span = |s: &Span| match (plan.regions.first(), plan.strategy.levels) {
        (Some(region), 0) => {
            let until = |step: u64| region.depth_of(Span::new(0, step));
            format!("{}..{}", until(s.start), until(s.end))
        }
        _ => format!("steps {}..{}", s.start, s.end),
    };
    let shown: Vec<String> = layers.iter().take(LAYERS_MAX).map(span).collect();
    let more = match layers.len() - shown.len() {
        0 => String::new(),
        more => format!(", … and {more} more"),
    };
    format!("k in {} parts: {}{more}", layers.len(), shown.join(", "))
}

fn strassen(plan: &Plan) -> String {
    let q = 1u64 << plan.strategy.levels;
    format!(
        "Strassen's method splits C into {q} x {q} parts, and a machine computes the same cells of each part: the \
        picture repeats {q} times each way"
    )
}

/// The letter of a member.
fn letter(plan: &Plan, member: usize) -> char {
    if plan.members[member].machine == 0 {
        return OWN;
    }
    let before = plan.members[..member].iter().filter(|m| m.machine != 0).count();
    char::from(LETTERS[before % LETTERS.len()])
}

/// A line of letters, coloured if `colours`.
fn painted(row: &[Option<usize>], plan: &Plan, colours: bool) -> String {
    let mut line = String::new();
    let mut last = None;
    for owner in row {
        if colours && *owner != last {
            line.push_str(&owner.map_or_else(|| "\x1b[0m".to_owned(), colour));
            last = *owner;
        }
        line.push(owner.map_or(' ', |member| letter(plan, member)));
    }
    if last.is_some() {
        line.push_str("\x1b[0m");
    }
    line
}

fn colour(member: usize) -> String {
    format!("\x1b[30;48;5;{}m", COLOURS[member % COLOURS.len()])
}

/// The legend: letters and names, wrapped to the terminal's width.
fn legend(plan: &Plan, names: &[&str], look: PictureStyle) -> Vec<String> {
    let members = plan.members.len().min(NAMES_MAX);
    let mut out = Vec::new();
    let (mut line, mut length) = (" ".repeat(INDENT), INDENT);
    for (member, name) in names.iter().enumerate().take(members) {
        let entry = format!("{} {name}", letter(plan, member));
        let wide = entry.chars().count() + 2;
        if length > INDENT && length + wide > look.columns.max(20) {
            out.push(line.trim_end().to_owned());
            (line, length) = (" ".repeat(INDENT), INDENT);
        }
        let text = match look.colours {
            true => format!("{}{}\x1b[0m {name}  ", colour(member), letter(plan, member)),
            false => format!("{entry}  "),
        };
        line.push_str(&text);
        length += wide;
    }
    out.push(line.trim_end().to_owned());
    if plan.members.len() > members {
        let more = plan.members.len() - members;
        let again = match plan.members.len() > LETTERS.len() {
            true => format!("; after {} machines the letters repeat", LETTERS.len()),
            false => String::new(),
        };
        out.push(format!("{}… and {more} more in this order{again}", " ".repeat(INDENT)));
    }
    out
}

#[cfg(test)]
mod tests;
