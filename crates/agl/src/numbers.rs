//! Numbers as people read them. The terminal and the report spell every figure alike because both come here.

/// Between a number and its unit: a line must not break there.
const NO_BREAK: char = '\u{a0}';

/// A whole number with a comma between thousands: `12,345`.
pub fn count(number: u64) -> String {
    group_thousands(&number.to_string())
}

/// A large whole number in five characters or so: `987`, `12.3k`, `4.5M`.
pub fn compact(number: u64) -> String {
    const UNITS: [(f64, &str); 4] = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    let value = number as f64;
    for (size, unit) in UNITS {
        // Half a digit below the unit already rounds up to it.
        if value >= size * 0.99995 {
            return format!("{:.1}{unit}", value / size);
        }
    }
    number.to_string()
}

/// A reward or another number of the order of one, with three decimals: `0.312`; a huge one as [`metric`] spells it.
pub fn reward(value: f64) -> String {
    if value.abs() < 1e6 { fixed(value, 3) } else { metric(value) }
}

/// A share of one in percent: `31.2%`.
pub fn percent(share: f64) -> String {
    if share.is_finite() { format!("{}%", fixed(share * 100.0, 1)) } else { missing() }
}

/// A time span: `0.42 s`, `12.3 s`, `2 min 05 s`, `1 h 02 min`.
pub fn duration(seconds: f64) -> String {
    if !seconds.is_finite() {
        return missing();
    }
    let whole = seconds.round() as u64;
    match seconds {
        s if s < 0.9995 => format!("{}{NO_BREAK}s", fixed(s.max(0.0), 2)),
        s if s < 59.95 => format!("{}{NO_BREAK}s", fixed(s, 1)),
        _ if whole < 3600 => format!("{}{NO_BREAK}min{NO_BREAK}{:02}{NO_BREAK}s", whole / 60, whole % 60),
        _ => format!("{}{NO_BREAK}h{NO_BREAK}{:02}{NO_BREAK}min", whole / 3600, whole % 3600 / 60),
    }
}

/// Any metric, with at most about four significant digits: `0.03125`, `12,346`, `3.2e-5`.
pub fn metric(value: f64) -> String {
    match value.abs() {
        _ if !value.is_finite() => missing(),
        0.0 => "0".to_owned(),
        size if !(1e-4..1e12).contains(&size) => {
            let text = format!("{value:.3e}");
            let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
            format!("{}e{exponent}", without_trailing_zeros(digits))
        }
        size => {
            let decimals = (3 - size.log10().floor() as i32).clamp(0, 7) as usize;
            without_trailing_zeros(&fixed(value, decimals)).to_owned()
        }
    }
}

fn without_trailing_zeros(decimal: &str) -> &str {
    if decimal.contains('.') { decimal.trim_end_matches('0').trim_end_matches('.') } else { decimal }
}

/// What stands for a number that isn't there, or is not finite.
pub fn missing() -> String {
    "–".to_owned()
}

/// `decimals` digits after the point and a comma between thousands.
pub fn fixed(value: f64, decimals: usize) -> String {
    if !value.is_finite() {
        return missing();
    }
    let text = format!("{value:.decimals$}");
    // −0.0004 with three decimals is 0.000, not −0.000.
    let is_zero = text.bytes().all(|byte| matches!(byte, b'-' | b'0' | b'.'));
    group_thousands(if is_zero { text.trim_start_matches('-') } else { &text })
}

fn group_thousands(number: &str) -> String {
    let digits_start = usize::from(number.starts_with('-'));
    let digits_end = number.find('.').unwrap_or(number.len());
    let mut grouped = String::with_capacity(number.len() + number.len() / 3);
    for (at, character) in number.char_indices() {
        if at > digits_start && at < digits_end && (digits_end - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(character);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts() {
        assert_eq!([0, 999, 1000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(
            [0, 999, 1000, 12_345, 999_999, 4_500_000].map(compact),
            ["0", "999", "1.0k", "12.3k", "1.0M", "4.5M"]
        );
    }

    #[test]
    fn rewards_and_shares() {
        assert_eq!(
            [0.3125, -0.5, -0.0004, 1234.5, -2e300, f64::NAN].map(reward),
            ["0.312", "-0.500", "0.000", "1,234.500", "-2e300", "–"]
        );
        assert_eq!([0.0, 0.3125, 1.0, f64::NAN].map(percent), ["0.0%", "31.2%", "100.0%", "–"]);
    }

    #[test]
    fn durations() {
        let spelled =
            [0.0, 0.42, 0.9996, 12.34, 59.97, 125.4, 3599.6, 3720.0].map(duration).map(|s| s.replace(NO_BREAK, " "));
        assert_eq!(
            spelled,
            ["0.00 s", "0.42 s", "1.0 s", "12.3 s", "1 min 00 s", "2 min 05 s", "1 h 00 min", "1 h 02 min"]
        );
        assert_eq!(duration(f64::INFINITY), "–");
    }

    #[test]
    fn metrics_keep_four_digits_at_most() {
        let spelled = [0.0, 0.031_25, 12.0, 12.3456, 123_456.7, 0.000_032, -0.5, 2e15, f64::NAN].map(metric);
        assert_eq!(spelled, ["0", "0.03125", "12", "12.35", "123,457", "3.2e-5", "-0.5", "2e15", "–"]);
    }
}
