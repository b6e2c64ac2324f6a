//! Matrices that are computed from their indices: `random:ROWSxCOLS:DTYPE:SEED` and `identity:N:DTYPE`.
//!
//! Place in the flow: an operand that needs no file. Element (i, j) is a function of (seed, i, j)
//! alone, so a worker can make any block by itself and nothing is sent.
//!
//! Invariants: the values are a promise (`docs/matrix-files.md` defines them, a known-answer test holds
//! them); they depend neither on the shape, nor on the rectangle asked for, nor on the order of filling.
//! The 16 bytes of `to_bytes` are part of the wire format.
//!
//! Deliberately absent: cryptographic quality. The numbers are for measurements and tests.

use crate::error::printable;
use crate::{DType, Layout, MatrixError, Rect, Shape};

/// Row `i` is the splitmix64 sequence that starts from the `i`-th output of splitmix64(seed). This is the
/// step of that sequence (2^64 / golden ratio, odd).
const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// The output function of splitmix64.
#[inline(always)]
const fn mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// State before output number `index` of the sequence that starts from `start`.
#[inline(always)]
const fn state(start: u64, index: u64) -> u64 {
    start.wrapping_add(STEP.wrapping_mul(index))
}

/// Uniform in [-1, 1): the upper 53 bits, signed, in steps of 2^-52.
#[inline(always)]
fn unit_f64(bits: u64) -> [u8; 8] {
    ((bits.cast_signed() >> 11) as f64 * (1.0 / (1u64 << 52) as f64)).to_le_bytes()
}

/// Uniform in [-1, 1): the upper 24 bits, signed, in steps of 2^-23.
#[inline(always)]
fn unit_f32(bits: u64) -> [u8; 4] {
    ((bits.cast_signed() >> 40) as f32 * (1.0 / (1u32 << 23) as f32)).to_le_bytes()
}

/// Uniform in -100..=100: the upper 32 bits scaled to 201 values.
#[inline(always)]
const fn small_int(bits: u64) -> i64 {
    (((bits >> 32) * 201) >> 32).cast_signed() - 100
}

/// The kinds of generators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Random,
    Identity,
}

/// A rule that gives every element of a matrix of any shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generator {
    kind: Kind,
    transposed: bool,
    seed: u64,
}

impl Generator {
    /// Random elements: floats uniform in [-1, 1), integers uniform in -100..=100.
    pub const fn random(seed: u64) -> Self {
        Self { kind: Kind::Random, transposed: false, seed }
    }

    /// Ones on the diagonal, zeros elsewhere.
    pub const fn identity() -> Self {
        Self { kind: Kind::Identity, transposed: false, seed: 0 }
    }

    /// The generator of the transposed matrix.
    pub const fn transposed(self) -> Self {
        Self { transposed: !self.transposed, ..self }
    }

    /// Whether it makes the transposed matrix.
    pub const fn is_transposed(&self) -> bool {
        self.transposed
    }

    /// The 16 bytes on the wire: kind, flags (bit 0: transposed), six zeros, seed little-endian.
    pub fn to_bytes(&self) -> [u8; 16] {
        let kind = match self.kind {
            Kind::Random => 1,
            Kind::Identity => 2,
        };
        let mut bytes = [0; 16];
        bytes[0] = kind;
        bytes[1] = u8::from(self.transposed);
        bytes[8..].copy_from_slice(&self.seed.to_le_bytes());
        bytes
    }

    /// The generator of those 16 bytes; `None` for anything that `to_bytes` does not write.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; 16] = bytes.try_into().ok()?;
        let (head, seed) = bytes.split_first_chunk::<8>()?;
        let seed = u64::from_le_bytes(seed.try_into().ok()?);
        let kind = match head[0] {
            1 => Kind::Random,
            2 if seed == 0 => Kind::Identity,
            _ => return None,
        };
        if head[1] > 1 || head[2..] != [0; 6] {
            return None;
        }
        Some(Self { kind, transposed: head[1] == 1, seed })
    }

    /// Whether elements made as `to` are the same numbers as elements made as `from`, so that a
    /// conversion can be made by generating anew.
    pub(crate) const fn same_values(&self, from: DType, to: DType) -> bool {
        matches!(self.kind, Kind::Identity) || (!from.is_float() && !to.is_float())
    }

    /// Writes the elements of a rectangle (of the transposed matrix where the generator is transposed) to
    /// `dst`, contiguous, line by line of `layout`. `dst` must have exactly the rectangle's bytes.
    pub fn fill(&self, rect: Rect, dtype: DType, layout: Layout, dst: &mut [u8]) {
        assert_eq!(rect.shape().bytes(dtype), Some(dst.len() as u64), "fill: a destination of another size");
        if dst.is_empty() {
            return;
        }
        let (rect, layout) =
            if self.transposed { (rect.transposed(), layout.transposed()) } else { (rect, layout) };
        match dtype {
            DType::F32 => self.fill_as(rect, layout, dst, unit_f32, 1f32.to_le_bytes()),
            DType::F64 => self.fill_as(rect, layout, dst, unit_f64, 1f64.to_le_bytes()),
            // -100..=100 fits every integer type.
            DType::I32 => {
                self.fill_as(rect, layout, dst, |b| (small_int(b) as i32).to_le_bytes(), 1i32.to_le_bytes());
            }
            DType::I64 => self.fill_as(rect, layout, dst, |b| small_int(b).to_le_bytes(), 1i64.to_le_bytes()),
        }
    }

    fn fill_as<const N: usize>(
        &self,
        rect: Rect,
        layout: Layout,
        dst: &mut [u8],
        value: impl Fn(u64) -> [u8; N] + Copy,
        one: [u8; N],
    ) {
        let (elements, _) = dst.as_chunks_mut::<N>();
        let (lines, within) = match layout {
            Layout::RowMajor => (rect.rows, rect.cols),
            Layout::ColMajor => (rect.cols, rect.rows),
        };
        // `dst` holds the whole rectangle, so a line's length fits usize.
        for (line, at) in elements.chunks_exact_mut(within.len() as usize).zip(lines.iter()) {
            match (self.kind, layout) {
                (Kind::Random, Layout::RowMajor) => random_row(self.seed, at, within.start, line, value),
                (Kind::Random, Layout::ColMajor) => random_col(self.seed, within.start, at, line, value),
                (Kind::Identity, _) => {
                    line.fill([0; N]);
                    if within.contains(at) {
                        line[(at - within.start) as usize] = one;
                    }
                }
            }
        }
    }
}

/// Elements (row, from), (row, from + 1), …
fn random_row<const N: usize>(
    seed: u64,
    row: u64,
    from: u64,
    line: &mut [[u8; N]],
    value: impl Fn(u64) -> [u8; N],
) {
    let key = mix(state(seed, row.wrapping_add(1)));
    let mut at = state(key, from);
    for element in line {
        at = at.wrapping_add(STEP);
        *element = value(mix(at));
    }
}

/// Elements (from, col), (from + 1, col), …: each is in another row's sequence, so this costs twice as much.
fn random_col<const N: usize>(
    seed: u64,
    from: u64,
    col: u64,
    line: &mut [[u8; N]],
    value: impl Fn(u64) -> [u8; N],
) {
    let mut at = state(seed, from);
    let step = state(0, col.wrapping_add(1));
    for element in line {
        at = at.wrapping_add(STEP);
        *element = value(mix(mix(at).wrapping_add(step)));
    }
}

/// A generator, the shape and the type of its matrix.
pub(crate) type GeneratedMatrix = (Generator, Shape, DType);

/// Parses a `random:` or `identity:` text; `None` if it is neither.
pub(crate) fn parse(spec: &str) -> Option<Result<GeneratedMatrix, MatrixError>> {
    let wrong = |usage: &'static str| {
        move |what: String| MatrixError::Description {
            name: printable(spec),
            what: format!("{what}; {usage}"),
        }
    };
    if let Some(rest) = spec.strip_prefix("random:") {
        let usage =
            "write random:ROWSxCOLS:DTYPE:SEED, as in random:1000x500:f64:7 (DTYPE and SEED are optional)";
        return Some(parse_random(rest).map_err(wrong(usage)));
    }
    let rest = spec.strip_prefix("identity:")?;
    let usage = "write identity:N:DTYPE, as in identity:1000:f64 (DTYPE is optional)";
    Some(parse_identity(rest).map_err(wrong(usage)))
}

fn parse_random(rest: &str) -> Result<GeneratedMatrix, String> {
    let mut parts = rest.split(':');
    let size = parts.next().unwrap_or_default();
    let (rows, cols) = size.split_once('x').ok_or_else(|| format!("'{size}' is not ROWSxCOLS"))?;
    let shape =
        Shape::new(parse_number(rows, "a number of rows")?, parse_number(cols, "a number of columns")?);
    let dtype = parse_dtype(parts.next())?;
    let seed = parts.next().map_or(Ok(0), |text| parse_number(text, "a seed (0 to 2^64-1)"))?;
    end_of(parts.next())?;
    Ok((Generator::random(seed), shape, dtype))
}

fn parse_identity(rest: &str) -> Result<GeneratedMatrix, String> {
    let mut parts = rest.split(':');
    let n = parse_number(parts.next().unwrap_or_default(), "a number of rows")?;
    let dtype = parse_dtype(parts.next())?;
    end_of(parts.next())?;
    Ok((Generator::identity(), Shape::new(n, n), dtype))
}

fn parse_number(text: &str, meaning: &str) -> Result<u64, String> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    text.parse().ok().filter(|_| digits).ok_or_else(|| format!("'{text}' is not {meaning}"))
}

fn parse_dtype(text: Option<&str>) -> Result<DType, String> {
    let Some(text) = text else { return Ok(DType::F64) };
    DType::parse(text).ok_or_else(|| format!("'{text}' is not an element type (f32, f64, i32 or i64)"))
}

fn end_of(text: Option<&str>) -> Result<(), String> {
    text.map_or(Ok(()), |text| Err(format!("'{text}' is too much")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Span;
    use proptest::prelude::*;

    fn filled(generator: Generator, rect: Rect, dtype: DType, layout: Layout) -> Vec<u8> {
        let mut out = vec![0xAA; rect.shape().bytes(dtype).unwrap() as usize];
        generator.fill(rect, dtype, layout, &mut out);
        out
    }

    /// FNV-1a, so that this test needs no hash from another crate.
    fn fnv(bytes: &[u8]) -> u64 {
        bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3))
    }

    #[test]
    fn values_are_those_promised() {
        let rect = Rect::new(Span::new(3, 20), Span::new(5, 36));
        let hashes =
            DType::ALL.map(|dtype| fnv(&filled(Generator::random(7), rect, dtype, Layout::RowMajor)));
        assert_eq!(hashes, KNOWN, "random matrices have changed: {hashes:#x?}");
        let ints = filled(Generator::random(0), Shape::new(1, 4).rect(), DType::I32, Layout::RowMajor);
        let ints: Vec<i32> = ints.as_chunks().0.iter().map(|b| i32::from_le_bytes(*b)).collect();
        assert_eq!(ints, FIRST);
    }
    const KNOWN: [u64; 4] =
        [0x338a_48e2_a0dd_7992, 0x5b51_e876_0cce_feb6, 0x3b0a_87b9_c4b5_3c6c, 0x0b7e_41c7_16b5_cda8];
    const FIRST: [i32; 4] = [31, 40, -23, 31];

    #[test]
    fn elements_are_within_their_range_and_spread_over_it() {
        let shape = Shape::new(100, 300);
        let floats = filled(Generator::random(1), shape.rect(), DType::F64, Layout::RowMajor);
        let floats: Vec<f64> = floats.as_chunks().0.iter().map(|b| f64::from_le_bytes(*b)).collect();
        assert!(floats.iter().all(|x| (-1.0..1.0).contains(x)));
        assert!((floats.iter().sum::<f64>() / 30_000.0).abs() < 0.02);
        let singles = filled(Generator::random(1), shape.rect(), DType::F32, Layout::RowMajor);
        assert!(singles.as_chunks().0.iter().all(|b| (-1.0..1.0).contains(&f32::from_le_bytes(*b))));
        let ints = filled(Generator::random(1), shape.rect(), DType::I64, Layout::RowMajor);
        let mut seen = [false; 201];
        for b in ints.as_chunks().0 {
            seen[usize::try_from(i64::from_le_bytes(*b) + 100).unwrap()] = true;
        }
        assert!(seen.iter().all(|&s| s));
    }

    #[test]
    fn identity_has_ones_on_the_diagonal_of_any_rectangle() {
        let rect = Rect::new(Span::new(2, 5), Span::new(3, 9));
        for layout in [Layout::RowMajor, Layout::ColMajor] {
            let bytes = filled(Generator::identity(), rect, DType::I32, layout);
            let sum: i32 = bytes.as_chunks().0.iter().map(|b| i32::from_le_bytes(*b)).sum();
            assert_eq!(sum, 2, "(3,3) and (4,4)");
        }
    }

    #[test]
    fn wire_bytes_of_unknown_generators_are_refused() {
        let good = Generator::random(u64::MAX).transposed().to_bytes();
        assert_eq!(Generator::from_bytes(&good), Some(Generator::random(u64::MAX).transposed()));
        for (at, value) in [(0, 0), (0, 3), (1, 2), (2, 1), (7, 1)] {
            let mut bad = good;
            bad[at] = value;
            assert_eq!(Generator::from_bytes(&bad), None);
        }
        assert_eq!(Generator::from_bytes(&good[..15]), None);
    }

    #[test]
    fn texts_are_parsed_or_explained() {
        let parsed = |s: &str| parse(s).unwrap().unwrap();
        assert_eq!(parsed("random:3x4"), (Generator::random(0), Shape::new(3, 4), DType::F64));
        assert_eq!(parsed("random:3x4:i32:9"), (Generator::random(9), Shape::new(3, 4), DType::I32));
        assert_eq!(parsed("identity:5:f32"), (Generator::identity(), Shape::new(5, 5), DType::F32));
        assert!(parse("file.npy").is_none());
        for bad in [
            "random:",
            "random:3",
            "random:3x",
            "random:-1x2",
            "random:3x4:f16",
            "random:3x4:f64:x",
            "random:3x4:f64:1:2",
            "identity:",
            "identity:3x3",
            "identity:3:f64:0",
            "random:+3x4",
        ] {
            let message = parse(bad).unwrap().unwrap_err().to_string();
            assert!(message.starts_with(bad) && message.contains("write "), "{message}");
        }
    }

    proptest! {
        #[test]
        fn an_element_depends_only_on_its_indices(
            seed: u64, i in 0u64..50, j in 0u64..50, up in 0u64..5, left in 0u64..5, down in 1u64..5, right in 1u64..5,
            identity: bool, dtype in 0usize..4,
        ) {
            let dtype = DType::ALL[dtype];
            let size = dtype.size_bytes();
            let generator = if identity { Generator::identity() } else { Generator::random(seed) };
            let one = Rect::new(Span::new(i, i + 1), Span::new(j, j + 1));
            let want = filled(generator, one, dtype, Layout::RowMajor);
            let rect = Rect::new(Span::new(i - up.min(i), i + down), Span::new(j - left.min(j), j + right));
            let (r, c) = ((i - rect.rows.start) as usize, (j - rect.cols.start) as usize);
            let (rows, cols) = (rect.rows.len() as usize, rect.cols.len() as usize);
            for (g, rect, at) in [
                (generator, rect, [r * cols + c, c * rows + r]),
                (generator.transposed(), rect.transposed(), [c * rows + r, r * cols + c]),
            ] {
                for (layout, at) in [Layout::RowMajor, Layout::ColMajor].into_iter().zip(at) {
                    let bytes = filled(g, rect, dtype, layout);
                    prop_assert_eq!(&bytes[at * size..][..size], &want[..]);
                }
            }
        }

        #[test]
        fn wire_bytes_round_trip(bytes: [u8; 16]) {
            if let Some(generator) = Generator::from_bytes(&bytes) {
                prop_assert_eq!(generator.to_bytes(), bytes);
            }
        }
    }
}
