//! The one place that reads the time.

use std::time::Instant;

#[inline]
pub fn monotonic_now() -> Instant {
    Instant::now()
}

/// Seconds since the epoch, for stamps in records; never for durations.
pub fn wall_seconds() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

/// RFC 3339 in UTC, to the second.
pub fn rfc3339(epoch_seconds: u64) -> String {
    let (days, rest) = (epoch_seconds / 86400, epoch_seconds % 86400);
    let (year, month, day) = civil(days as i64);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

/// Days since 1970-01-01 → year, month, day of the Gregorian calendar.
fn civil(days: i64) -> (i64, u32, u32) {
    let mut year = 1970;
    let mut left = days;
    loop {
        let in_year = if leap(year) { 366 } else { 365 };
        if left < in_year {
            break;
        }
        left -= in_year;
        year += 1;
    }
    let lengths = [31, if leap(year) { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while left >= lengths[month] {
        left -= lengths[month];
        month += 1;
    }
    (year, month as u32 + 1, left as u32 + 1)
}

fn leap(year: i64) -> bool {
    (year % 4 == 0 && year % 100 != 0) || year % 400 == 0
}

#[cfg(test)]
mod tests {
    #[test]
    fn stamps_are_right_over_leap_years() {
        assert_eq!(super::rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(super::rfc3339(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(super::rfc3339(1_900_000_000), "2030-03-17T17:46:40Z");
    }
}
