//! Parses sizes, times and rates, and formats quantities, in the same form everywhere.

use std::time::Duration;

/// Parses bytes with K, M, G or T (powers of 1024; `KB`, `MiB` and so on work, too); `1.5G` equals `1536M`.
pub fn size(text: &str) -> Result<u64, String> {
    let form = || "use a number with K, M, G or T, as in 512M or 1.5G".to_owned();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.to_ascii_uppercase().trim_end_matches('B').trim_end_matches('I') {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err(form()),
    };
    let bytes = match number.contains('.') {
        false => number.parse::<u64>().map_err(|_| form())?.checked_mul(1 << shift),
        // Fractions of a byte are truncated.
        true => {
            let bytes = number.parse::<f64>().map_err(|_| form())? * (1u64 << shift) as f64;
            (bytes < 2f64.powi(63)).then_some(bytes as u64)
        }
    };
    match bytes {
        Some(0) => Err("must be at least 1 byte".to_owned()),
        Some(bytes) => Ok(bytes),
        None => Err("is more than any machine has".to_owned()),
    }
}

/// Parses a finite number, with or without a sign. A number that `f64` would round to 0 is refused.
pub fn number(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().map_err(|_| "use a number, as in -0.5 or 1e-3".to_owned())?;
    let mantissa = text.split(['e', 'E']).next().unwrap_or_default();
    if number == 0.0 && mantissa.bytes().any(|digit| (b'1'..=b'9').contains(&digit)) {
        return Err("is smaller than the smallest f64, 5e-324".to_owned());
    }
    if number.is_finite() { Ok(number) } else { Err("must be a finite number, at most 1.79e308".to_owned()) }
}

/// Parses a time: seconds, or a number with s, m or h, such as `90s`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let form = || "use a number with s, m or h, as in 90s or 10m".to_owned();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit_s = match unit {
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(form()),
    };
    let seconds = number.parse::<f64>().map_err(|_| form())? * unit_s;
    let time = Duration::try_from_secs_f64(seconds).map_err(|_| form())?;
    if time.is_zero() { Err("must be longer than 0".to_owned()) } else { Ok(time) }
}

/// Formats a size as `size` parses it: 512M, 1536M, 2G.
pub fn size_text(bytes: u64) -> String {
    let whole = [(40, "T"), (30, "G"), (20, "M"), (10, "K")];
    let unit = whole.iter().find(|(shift, _)| bytes > 0 && bytes.is_multiple_of(1 << shift));
    unit.map_or_else(|| bytes.to_string(), |(shift, unit)| format!("{}{unit}", bytes >> shift))
}

/// "1 tile", "2 tiles".
pub fn counted(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Slowest allowed rate of a link, bits a second.
const RATE_MIN: f64 = 64e3;
/// Fastest allowed rate of a link, bits a second.
const RATE_MAX: f64 = 400e9;

/// Parses the rate of a link in bits a second, with kbit/s, Mbit/s or Gbit/s (powers of 1000).
pub fn rate(text: &str) -> Result<u64, String> {
    let form = || "use a rate as in 200Mbit/s or 2.5Gbit/s".to_owned();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim_start().to_ascii_lowercase();
    let scale = match unit.strip_suffix("/s").unwrap_or(&unit) {
        "kbit" => 1e3,
        "mbit" => 1e6,
        "gbit" => 1e9,
        _ => return Err(form()),
    };
    let rate = number.parse::<f64>().map_err(|_| form())? * scale;
    let fits = (RATE_MIN..=RATE_MAX).contains(&rate);
    // Rounded to whole bits.
    if fits { Ok(rate.round() as u64) } else { Err("a rate is from 64 kbit/s to 400 Gbit/s".to_owned()) }
}

/// Formats a rate: 64 kbit/s, 200 Mbit/s, 2.5 Gbit/s.
#[cfg_attr(not(target_os = "linux"), allow(dead_code))] // For labs.
pub fn rate_text(bits_per_s: u64) -> String {
    let rate = bits_per_s as f64;
    match bits_per_s {
        1_000_000_000.. => format!("{} Gbit/s", rate / 1e9),
        1_000_000.. => format!("{} Mbit/s", rate / 1e6),
        _ => format!("{} kbit/s", rate / 1e3),
    }
}

/// 45.6 ms, 1.23 s, 12.3 min, 4.56 h, 7.89 days.
pub fn seconds(t: f64) -> String {
    const UNITS: [(&str, f64, f64); 3] =
        [("days", 86_400.0, 48.0 * 3600.0), ("h", 3600.0, 7200.0), ("min", 60.0, 600.0)];
    for (unit, size, from) in UNITS {
        if t >= from {
            return format!("{} {unit}", three(t / size));
        }
    }
    if t >= 1.0 { format!("{t:.2} s") } else { format!("{:.1} ms", t * 1e3) }
}

/// 45.6 µs, 45.6 ms; longer times as by `seconds`.
pub fn brief(t: f64) -> String {
    match t {
        _ if t < 1e-3 => format!("{} µs", three(t * 1e6)),
        _ if t < 1.0 => format!("{} ms", three(t * 1e3)),
        _ => seconds(t),
    }
}

/// 1.23 GB (powers of 1000).
pub fn bytes(b: f64) -> String {
    const UNITS: [(&str, f64); 4] = [("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)];
    for (unit, size) in UNITS {
        if b >= size {
            return format!("{:.2} {unit}", b / size);
        }
    }
    format!("{b:.0} B")
}

/// Three significant digits: 1.23, 12.3, 123.
fn three(x: f64) -> String {
    match x {
        _ if x < 9.995 => format!("{x:.2}"),
        _ if x < 99.95 => format!("{x:.1}"),
        _ => format!("{x:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_powers_of_1024() {
        assert_eq!(size("512M"), Ok(512 << 20));
        assert_eq!(size("4GiB"), Ok(4 << 30));
        assert_eq!(size("100"), Ok(100));
        assert!(size("").is_err() && size("0").is_err() && size("5X").is_err());
        assert!(size("99999999999T").is_err());
        assert_eq!((size("1.5G"), size("0.5K"), size(".25KiB")), (Ok(3 << 29), Ok(512), Ok(256)));
        for bad in ["1.5.5G", ".", "-1", "1e3", "0.1", "9000000000000.0T", "nan"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn times_have_units_and_are_not_nothing() {
        let seconds = |text| duration(text).map(|t| t.as_secs_f64());
        assert_eq!((seconds("90"), seconds("0.5s"), seconds("10m")), (Ok(90.0), Ok(0.5), Ok(600.0)));
        assert_eq!((seconds("2min"), seconds("12h")), (Ok(120.0), Ok(43200.0)));
        for bad in ["", "s", "0", "0s", "-1", "1d", "1.2.3s", "1e3", "999999999999999999999h"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn numbers_are_finite_and_may_have_signs() {
        assert_eq!((number("-1e-3"), number("-.5"), number("+2")), (Ok(-1e-3), Ok(-0.5), Ok(2.0)));
        for bad in ["", "x", "1e999", "inf", "nan", "--json", "-v"] {
            assert!(number(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_and_rates_are_shown_as_they_are_typed() {
        for text in ["512M", "1536M", "2G", "3T", "7K", "100"] {
            assert_eq!(size(text).map(size_text), Ok(text.to_owned()));
        }
        for text in ["64 kbit/s", "200 Mbit/s", "1 Gbit/s", "2.5 Gbit/s", "999.5 Mbit/s"] {
            assert_eq!(rate(text).map(rate_text), Ok(text.to_owned()));
        }
    }

    #[test]
    fn rates_are_powers_of_1000_within_limits() {
        assert_eq!(rate("200Mbit/s"), Ok(200_000_000));
        assert_eq!(rate("1gbit"), Ok(1_000_000_000));
        assert_eq!(rate("0.5 Mbit/s"), Ok(500_000));
        for bad in ["", "200", "200MB/s", "Mbit/s", "-1Mbit/s", "1.2.3Mbit/s", "nanMbit/s", "1e3Mbit/s"] {
            assert!(rate(bad).unwrap_err().contains("as in"), "{bad}");
        }
        for bad in ["0Mbit/s", "63kbit/s", "401Gbit/s", "99999999999999999999999Gbit/s"] {
            assert!(rate(bad).unwrap_err().contains("from 64 kbit/s"), "{bad}");
        }
    }

    #[test]
    fn quantities_have_units_of_their_size() {
        let times: Vec<String> = [0.0123, 1.5, 599.0, 900.0, 7200.0, 1e6].into_iter().map(seconds).collect();
        assert_eq!(times, ["12.3 ms", "1.50 s", "599.00 s", "15.0 min", "2.00 h", "11.6 days"]);
        let amounts: Vec<String> = [12.0, 1.5e3, 2.5e6, 3e9, 4e13].into_iter().map(bytes).collect();
        assert_eq!(amounts, ["12 B", "1.50 kB", "2.50 MB", "3.00 GB", "40.00 TB"]);
    }

    #[test]
    fn times_of_measurements_have_three_figures() {
        let said = [0.5e-6, 45.61e-6, 1.234e-3, 0.9, 12.0].map(brief);
        assert_eq!(said, ["0.50 µs", "45.6 µs", "1.23 ms", "900 ms", "12.00 s"]);
    }
}
