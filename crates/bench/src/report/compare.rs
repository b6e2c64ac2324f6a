//! Compares two machines: pairs equal measurements, computes ratios of speeds, and lists measurements that only one
//! machine has.
//!
//! Invariants: only measures with equal kind and key are paired, each machine's fastest way; a ratio is the second
//! machine's speed over the first's, whatever the unit.

use super::measure::{Measure, MeasureKind, Pages};
use super::read::MeasuredMachine;
use super::schema::KINDS;
use std::collections::BTreeMap;

/// The same measurement on both machines.
pub(crate) struct MeasurePair<'a> {
    pub(crate) of: [&'a Measure; 2],
    /// Speed of the second machine over that of the first.
    pub(crate) ratio: f64,
}

/// The comparison of one kind.
pub(crate) struct Compared<'a> {
    pub(crate) kind: &'static MeasureKind,
    pub(crate) pairs: Vec<MeasurePair<'a>>,
    /// Measures of only the first, and of only the second machine.
    pub(crate) only: [Vec<&'a Measure>; 2],
}

impl Compared<'_> {
    /// Geometric mean, least and greatest ratio; `None` without pairs.
    pub(crate) fn ratios(&self) -> Option<[f64; 3]> {
        let ratios = || self.pairs.iter().map(|pair| pair.ratio);
        let mean = (ratios().map(f64::ln).sum::<f64>() / self.pairs.len() as f64).exp();
        let (least, greatest) = (ratios().fold(f64::INFINITY, f64::min), ratios().fold(0.0, f64::max));
        (!self.pairs.is_empty()).then_some([mean, least, greatest])
    }
}

/// Every kind that at least one machine has, in the order of the page.
pub(crate) fn compared<'a>(first: &'a MeasuredMachine, second: &'a MeasuredMachine) -> Vec<Compared<'a>> {
    let of_two = KINDS.iter().filter(|kind| kind.pages != Pages::OfOne);
    of_two
        .map(|kind| {
            let sides = [first, second].map(|source| by_key(&source.measures, kind));
            let (mut pairs, mut only) = (Vec::new(), [Vec::new(), Vec::new()]);
            for one in ordered(&sides[0]) {
                match sides[1].get(&one.key) {
                    Some((_, other)) => pairs.push(MeasurePair { of: [one, *other], ratio: other.over(one) }),
                    None => only[0].push(one),
                }
            }
            only[1].extend(ordered(&sides[1]).into_iter().filter(|one| !sides[0].contains_key(&one.key)));
            Compared { kind, pairs, only }
        })
        .filter(|of_kind| !of_kind.pairs.is_empty() || of_kind.only.iter().any(|only| !only.is_empty()))
        .collect()
}

/// Measures by key, with their position in the file.
type ByKey<'a> = BTreeMap<&'a Vec<(&'static str, String)>, (usize, &'a Measure)>;

/// The measures of a kind; the fastest of those with equal keys.
pub(crate) fn fastest<'a>(all: &'a [Measure], kind: &'static MeasureKind) -> Vec<&'a Measure> {
    ordered(&by_key(all, kind))
}

fn by_key<'a>(all: &'a [Measure], kind: &'static MeasureKind) -> ByKey<'a> {
    let mut out = ByKey::new();
    for (at, one) in all.iter().enumerate().filter(|(_, one)| one.kind == kind) {
        let known = out.entry(&one.key).or_insert((at, one));
        if one.over(known.1) > 1.0 {
            known.1 = one;
        }
    }
    out
}

/// The measures in the order of the file.
fn ordered<'a>(of: &ByKey<'a>) -> Vec<&'a Measure> {
    let mut all: Vec<(usize, &Measure)> = of.values().copied().collect();
    all.sort_by_key(|(at, _)| *at);
    all.into_iter().map(|(_, one)| one).collect()
}

/// A ratio in words.
pub(crate) fn sentence(ratio: f64, [first, second]: [&str; 2]) -> String {
    let times = |ratio: f64| format!("{} times as fast as", figures(ratio));
    match ratio {
        r if (0.995..1.005).contains(&r) => format!("{first} and {second} are equally fast"),
        r if r > 1.0 => format!("{second} is {} {first}", times(r)),
        r => format!("{first} is {} {second}", times(1.0 / r)),
    }
}

/// A ratio with three significant digits.
pub(crate) fn figures(ratio: f64) -> String {
    match ratio {
        r if r >= 99.95 => format!("{r:.0}"),
        r if r >= 9.995 => format!("{r:.1}"),
        r if r >= 0.0995 => format!("{r:.2}"),
        r => format!("{r:.4}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::source;

    const KERNEL: &str = r#"{"schema":"bramble.bench.kernel/1","kernel":"K","dtype":"f64","m":64,"k":64,"n":64,"threads":1,
        "rounds":3,"seconds":1.0,"seconds_min":1.0,"seconds_max":1.1,"gflops":G,"peak_gflops":P,"outliers":0}"#;

    fn line(kernel: &str, gflops: &str) -> String {
        let line = KERNEL.replace('\n', "").replace("\"K\"", &format!("\"{kernel}\""));
        line.replace(":G", &format!(":{gflops}")).replace(":P", ":50")
    }

    #[test]
    fn the_same_measurements_are_paired_and_the_others_named() {
        let a = source("pi", &[&line("simd", "2"), &line("openblas", "4"), &line("blis", "1")]);
        let b = source("dev", &[&line("simd", "16"), &line("openblas", "8")]);
        let all = compared(&a, &b);
        let of = |title: &str| all.iter().find(|c| c.kind.title == title);
        let Some(kernels) = of("Kernels") else { panic!("kernels are compared") };
        // Ratios 8 and 2: their geometric mean is 4.
        let Some([mean, least, greatest]) = kernels.ratios() else { panic!("two pairs") };
        assert!((mean - 4.0).abs() < 1e-9 && least == 2.0 && greatest == 8.0);
        assert_eq!([kernels.only[0].len(), kernels.only[1].len()], [1, 0]);
        assert_eq!(kernels.only[0][0].key[0].1, "blis");
        let Some(best) = of("Best of all kernels") else { panic!("the best are compared") };
        assert_eq!(best.pairs.len(), 1);
        assert_eq!(best.pairs[0].of.map(|m| m.way.as_str()), ["openblas, 1 thread", "simd, 1 thread"]);
        assert_eq!(best.pairs[0].ratio, 4.0);
        assert_eq!(of("Peak of the processor").map(|peaks| peaks.pairs[0].ratio), Some(1.0));
    }

    #[test]
    fn nothing_in_common_has_no_ratio() {
        let (a, b) =
            (source("a", &[&line("simd", "2")]), source("b", &[&line("simd", "2").replace("f64", "f32")]));
        let all = compared(&a, &b);
        assert!(!all.is_empty() && all.iter().all(|c| c.ratios().is_none()));
    }

    #[test]
    fn sentences_name_the_faster_first() {
        assert_eq!(sentence(4.0, ["pi", "dev"]), "dev is 4.00 times as fast as pi");
        assert_eq!(sentence(0.25, ["pi", "dev"]), "pi is 4.00 times as fast as dev");
        assert_eq!(sentence(1.001, ["pi", "dev"]), "pi and dev are equally fast");
        assert_eq!([123.4, 12.34, 1.234, 0.01234].map(figures), ["123", "12.3", "1.23", "0.0123"]);
    }
}
