//! Points in time as HPL prints them (`ctime`) and as JSON has them (ISO 8601), in UTC.

use std::time::{SystemTime, UNIX_EPOCH};

const DAYS: [&str; 7] = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// A second in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    seconds: u64,
}

impl Stamp {
    /// Now; 1970 if the clock is before that.
    pub(super) fn now() -> Self {
        Self { seconds: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()) }
    }

    /// Year, month from 1, day (Hinnant, "chrono-compatible low-level date algorithms": years begin in March, so that the day
    /// that leap years add is the last).
    fn date(self) -> (u64, u64, u64) {
        let days = self.seconds / 86_400 + 719_468;
        let (era, of_era) = (days / 146_097, days % 146_097);
        let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year + year / 4 - year / 100);
        let month = (5 * of_year + 2) / 153;
        let day = of_year - (153 * month + 2) / 5 + 1;
        let month = if month < 10 { month + 3 } else { month - 9 };
        (era * 400 + year + u64::from(month <= 2), month, day)
    }

    fn clock(self) -> (u64, u64, u64) {
        let second = self.seconds % 86_400;
        (second / 3600, second / 60 % 60, second % 60)
    }

    /// `Thu Jan  1 00:00:00 1970`.
    pub(super) fn ctime(self) -> String {
        let ((year, month, day), (h, m, s)) = (self.date(), self.clock());
        let week = DAYS[((self.seconds / 86_400 + 4) % 7) as usize];
        format!("{week} {} {day:2} {h:02}:{m:02}:{s:02} {year}", MONTHS[(month - 1) as usize])
    }

    /// `1970-01-01T00:00:00Z`.
    pub(super) fn iso(self) -> String {
        let ((year, month, day), (h, m, s)) = (self.date(), self.clock());
        format!("{year:04}-{month:02}-{day:02}T{h:02}:{m:02}:{s:02}Z")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_right_around_leap_days_and_centuries() {
        for (seconds, iso, ctime) in [
            (0, "1970-01-01T00:00:00Z", "Thu Jan  1 00:00:00 1970"),
            (951_782_399, "2000-02-28T23:59:59Z", "Mon Feb 28 23:59:59 2000"),
            (951_782_400, "2000-02-29T00:00:00Z", "Tue Feb 29 00:00:00 2000"),
            (1_709_251_199, "2024-02-29T23:59:59Z", "Thu Feb 29 23:59:59 2024"),
            (1_764_067_830, "2025-11-25T10:50:30Z", "Tue Nov 25 10:50:30 2025"),
            (4_107_542_400, "2100-03-01T00:00:00Z", "Mon Mar  1 00:00:00 2100"),
        ] {
            let stamp = Stamp { seconds };
            assert_eq!((stamp.iso().as_str(), stamp.ctime().as_str()), (iso, ctime));
        }
    }
}
