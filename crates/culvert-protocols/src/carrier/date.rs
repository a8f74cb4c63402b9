//! The time in the form of HTTP's `Date` (RFC 9110 section 5.6.7).

use std::time::{SystemTime, UNIX_EPOCH};

/// The current time: `Sun, 06 Nov 1994 08:49:37 GMT`.
pub(crate) fn now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    at(since.as_secs())
}

/// A time in seconds since 1970 likewise.
pub(crate) fn at(seconds: u64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (days, time) = (seconds / 86_400, seconds % 86_400);
    let mut left = days;
    let mut year = 1970;
    while left >= year_length(year) {
        left -= year_length(year);
        year += 1;
    }
    let mut month = 0;
    while left >= month_length(month, year) {
        left -= month_length(month, year);
        month += 1;
    }
    let (day_name, month_name) = (DAYS[(days % 7) as usize], MONTHS[month]);
    let (hour, minute, second) = (time / 3600, time / 60 % 60, time % 60);
    format!("{day_name}, {:02} {month_name} {year} {hour:02}:{minute:02}:{second:02} GMT", left + 1)
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn year_length(year: u64) -> u64 {
    if is_leap(year) { 366 } else { 365 }
}

fn month_length(month: usize, year: u64) -> u64 {
    match month {
        1 if is_leap(year) => 29,
        1 => 28,
        3 | 5 | 8 | 10 => 30,
        _ => 31,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(at(0), "Thu, 01 Jan 1970 00:00:00 GMT");
        assert_eq!(at(784_111_777), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(at(951_782_400), "Tue, 29 Feb 2000 00:00:00 GMT");
        assert_eq!(at(4_107_542_399), "Sun, 28 Feb 2100 23:59:59 GMT");
        assert_eq!(at(1_796_067_255), "Mon, 30 Nov 2026 19:34:15 GMT");
    }
}
