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
    fn quantities_have_units_of_their_size() {
        let times: Vec<String> = [0.0123, 1.5, 599.0, 900.0, 7200.0, 1e6].into_iter().map(seconds).collect();
        assert_eq!(times, ["12.3 ms", "1.50 s", "599.00 s", "15.0 min", "2.00 h", "11.6 days"]);
        let amounts: Vec<String> = [12.0, 1.5e3, 2.5e6, 3e9, 4e13].into_iter().map(bytes).collect();
        assert_eq!(amounts, ["12 B", "1.50 kB", "2.50 MB", "3.00 GB", "40.00 TB"]);
    }
}
