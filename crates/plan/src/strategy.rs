//! The names of strategies: on the command line and in reports.
//!
//! Invariant: `Display` and `FromStr` are inverse to each other.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::iter::successors;
use core::str::FromStr;

/// How C and k are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Base {
    /// Each product of two tiles is returned at once, and the primary adds them.
    Naive,
    /// The worker adds N products along k before it returns a tile; the row of A stays at the worker meanwhile.
    Row(u32),
    /// Squares of N × N tiles of A and B make one of C.
    Square(u32),
    /// Blocks of C as large as memory allows stay at their worker over the whole of k.
    Reuse,
    /// The longest of m, n and k is halved until each machine has one box (CARMA).
    Cuboid,
    /// A boxes down, B across, C along k.
    Box3(u32, u32, u32),
    /// A mesh of workers: R rows, C columns.
    Summa(u32, u32),
}

/// A strategy: a cut, with or without levels of Strassen–Winograd in its tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Strategy {
    /// How C and k are cut.
    pub base: Base,
    /// Levels of Strassen–Winograd; 0 is none.
    pub levels: u32,
}

/// Most levels of Strassen–Winograd: 343 products.
pub const LEVELS_MAX: u32 = 3;
/// Most tiles that `row` and `square` combine in one direction.
pub(crate) const TOGETHER_MAX: u32 = 1024;
/// Most places of a mesh in one direction.
const MESH_MAX: u32 = 4096;
/// Most places of a mesh in all.
pub(crate) const PLACES_MAX: u32 = 65_536;

impl Base {
    /// One cut of each kind, with these sizes: the list from which tests draw strategies. Its order stays: seeds of the simulator
    /// and inputs of fuzz targets select a cut by its position.
    pub fn one_of_each([a, b, c]: [u32; 3]) -> impl Iterator<Item = Self> {
        // Each cut names the next, so that the compiler asks for the position of a new one.
        let next = move |cut: &Self| match cut {
            Self::Naive => Some(Self::Row(a)),
            Self::Row(_) => Some(Self::Square(a)),
            Self::Square(_) => Some(Self::Reuse),
            Self::Reuse => Some(Self::Cuboid),
            Self::Cuboid => Some(Self::Box3(a, b, c)),
            Self::Box3(..) => Some(Self::Summa(a, b)),
            Self::Summa(..) => None,
        };
        successors(Some(Self::Naive), next)
    }

    /// Whether the strategy defines the block size: schemes of papers, whose traffic is part of their definition. Such blocks are
    /// neither halved, reordered nor relayed, and cells stay where the cut puts them.
    pub(crate) const fn is_fixed(self) -> bool {
        match self {
            Self::Naive | Self::Row(_) | Self::Square(_) => true,
            Self::Reuse | Self::Cuboid | Self::Box3(..) | Self::Summa(..) => false,
        }
    }
}

impl Strategy {
    /// A cut without Strassen.
    pub const fn plain(base: Base) -> Self {
        Self { base, levels: 0 }
    }
}

impl fmt::Display for Base {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Naive => f.write_str("naive"),
            Self::Row(n) => write!(f, "row:{n}"),
            Self::Square(n) => write!(f, "square:{n}"),
            Self::Reuse => f.write_str("reuse"),
            Self::Cuboid => f.write_str("cuboid"),
            Self::Box3(a, b, c) => write!(f, "cuboid:{a}x{b}x{c}"),
            Self::Summa(r, c) => write!(f, "summa:{r}x{c}"),
        }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.levels, self.base) {
            (0, base) => write!(f, "{base}"),
            (levels, Base::Reuse) => write!(f, "strassen:{levels}"),
            (levels, base) => write!(f, "strassen:{levels}+{base}"),
        }
    }
}

/// The help for an unknown name.
const FORMS: &str = "use auto, naive, row:N, square:N, reuse, cuboid, cuboid:AxBxC, summa:RxC, strassen:L or strassen:L+ANOTHER";

impl FromStr for Strategy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refuse = || format!("{text}: no such strategy; {FORMS}");
        let Some(rest) = text.strip_prefix("strassen:") else {
            return Ok(Self::plain(base(text).ok_or_else(refuse)?));
        };
        let (levels, under) = rest.split_once('+').unwrap_or((rest, "reuse"));
        // Zero levels: the strategy itself.
        let levels = if levels == "0" { Some(0) } else { number(levels, LEVELS_MAX) };
        let levels = levels.ok_or_else(|| format!("{text}: strassen takes 0 to {LEVELS_MAX} levels"))?;
        Ok(Self { base: base(under).ok_or_else(refuse)?, levels })
    }
}

fn base(text: &str) -> Option<Base> {
    let (name, rest) = text.split_once(':').map_or((text, None), |(name, rest)| (name, Some(rest)));
    let places = || -> Option<Vec<u32>> {
        let places: Vec<u32> = rest?.split('x').map(|part| number(part, MESH_MAX)).collect::<Option<_>>()?;
        let all = places.iter().try_fold(1u32, |all, n| all.checked_mul(*n));
        all.is_some_and(|all| all <= PLACES_MAX).then_some(places)
    };
    Some(match (name, rest) {
        ("naive", None) => Base::Naive,
        ("reuse", None) => Base::Reuse,
        ("cuboid", None) => Base::Cuboid,
        ("row", Some(n)) => Base::Row(number(n, TOGETHER_MAX)?),
        ("square", Some(n)) => Base::Square(number(n, TOGETHER_MAX)?),
        ("cuboid", Some(_)) => match places()?[..] {
            [a, b, c] => Base::Box3(a, b, c),
            _ => return None,
        },
        ("summa", Some(_)) => match places()?[..] {
            [r, c] => Base::Summa(r, c),
            _ => return None,
        },
        _ => return None,
    })
}

/// A plain number from 1 to `max`.
fn number(text: &str, max: u32) -> Option<u32> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    text.parse().ok().filter(|n| digits && (1..=max).contains(n))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for base in Base::one_of_each([4, 2, 3]) {
            assert_eq!(base.to_string().parse::<Strategy>(), Ok(Strategy::plain(base)));
        }
        let names = [
            "naive",
            "row:4",
            "square:8",
            "reuse",
            "cuboid",
            "cuboid:2x2x4",
            "summa:3x5",
            "strassen:1",
            "strassen:3+square:2",
            "strassen:2+summa:1x4",
        ];
        for name in names {
            assert_eq!(name.parse::<Strategy>().unwrap().to_string(), name);
        }
        assert_eq!("strassen:2+reuse".parse::<Strategy>(), "strassen:2".parse());
        assert_eq!("strassen:0".parse::<Strategy>(), "reuse".parse());
        assert_eq!("strassen:0+summa:1x4".parse::<Strategy>(), "summa:1x4".parse());
    }

    #[test]
    fn other_names_are_answered_with_those_that_exist() {
        let bad = [
            "",
            "auto2",
            "row",
            "row:0",
            "row:+4",
            "row:4x4",
            "square:1025",
            "summa:2",
            "summa:2x",
            "summa:2x2x2",
            "cuboid:1x1",
            "summa:4096x4096",
            "cuboid:4096x4096x4096",
            "strassen",
            "strassen:00",
            "strassen:0+",
            "strassen:4",
            "strassen:1+",
            "strassen:1+strassen:1",
            "naive:1",
        ];
        for name in bad {
            let error = name.parse::<Strategy>().unwrap_err();
            assert!(error.contains("use auto") || error.contains("0 to 3"), "{error}");
        }
    }
}
