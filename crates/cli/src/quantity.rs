//! Sizes as users type them, and quantities as they read them: in one form everywhere.

/// Bytes, with K, M, G or T (powers of 1024; `KB`, `MiB` and so on are taken too).
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.to_ascii_uppercase().trim_end_matches('B').trim_end_matches('I') {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err("use a number with K, M, G or T, as in 512M".to_owned()),
    };
    let number: u64 = number.parse().map_err(|_| "use a number with K, M, G or T, as in 512M".to_owned())?;
    number.checked_mul(1 << shift).filter(|n| *n > 0).ok_or_else(|| "that is no size".to_owned())
}

/// A size as `size` takes it: 512M, 1536M, 2G.
pub(crate) fn size_text(bytes: u64) -> String {
    let whole = [(40, "T"), (30, "G"), (20, "M"), (10, "K")];
    let unit = whole.iter().find(|(shift, _)| bytes > 0 && bytes.is_multiple_of(1 << shift));
    unit.map_or_else(|| bytes.to_string(), |(shift, unit)| format!("{}{unit}", bytes >> shift))
}

/// "1 tile", "2 tiles".
pub(crate) fn counted(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Slowest rate of a link, bits a second.
const RATE_MIN: f64 = 64e3;
/// Fastest.
const RATE_MAX: f64 = 400e9;

/// The rate of a link in bits a second, with kbit/s, Mbit/s or Gbit/s (powers of 1000, as links are sold).
pub(crate) fn rate(text: &str) -> Result<u64, String> {
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
    // Whole bits: nobody sells parts of them.
    if fits { Ok(rate.round() as u64) } else { Err("a rate is from 64 kbit/s to 400 Gbit/s".to_owned()) }
}

/// A rate as `rate` takes it: 64 kbit/s, 200 Mbit/s, 2.5 Gbit/s.
#[cfg_attr(not(target_os = "linux"), allow(dead_code))] // For labs.
pub(crate) fn rate_text(bits_per_s: u64) -> String {
    let rate = bits_per_s as f64;
    match bits_per_s {
        1_000_000_000.. => format!("{} Gbit/s", rate / 1e9),
        1_000_000.. => format!("{} Mbit/s", rate / 1e6),
        _ => format!("{} kbit/s", rate / 1e3),
    }
}

/// 45.6 ms, 1.23 s, 12.3 min, 4.56 h, 7.89 days.
pub(crate) fn seconds(t: f64) -> String {
    const UNITS: [(&str, f64, f64); 3] =
        [("days", 86_400.0, 48.0 * 3600.0), ("h", 3600.0, 7200.0), ("min", 60.0, 600.0)];
    for (unit, size, from) in UNITS {
        if t >= from {
            return format!("{} {unit}", three(t / size));
        }
    }
    if t >= 1.0 { format!("{t:.2} s") } else { format!("{:.1} ms", t * 1e3) }
}

/// 45.6 µs, 45.6 ms, and longer ones as `seconds`.
pub(crate) fn brief(t: f64) -> String {
    match t {
        _ if t < 1e-3 => format!("{} µs", three(t * 1e6)),
        _ if t < 1.0 => format!("{} ms", three(t * 1e3)),
        _ => seconds(t),
    }
}

/// 1.23 GB (powers of 1000, as links are sold).
pub(crate) fn bytes(b: f64) -> String {
    const UNITS: [(&str, f64); 4] = [("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)];
    for (unit, size) in UNITS {
        if b >= size {
            return format!("{:.2} {unit}", b / size);
        }
    }
    format!("{b:.0} B")
}

/// Three figures: 1.23, 12.3, 123.
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
