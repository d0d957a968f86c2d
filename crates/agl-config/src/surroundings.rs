//! What a configuration can ask of the world around it: environment variables, the current folder, the time.
//!
//! It is taken once, at the edge, and handed in: resolving is then a pure function, and tests need no global state.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

/// Environment variables, current folder and time at the start of the program.
#[derive(Debug, Clone, Default)]
pub struct Surroundings {
    /// Environment variables.
    pub variables: BTreeMap<String, String>,
    /// Folder that relative paths start from.
    pub folder: PathBuf,
    /// Seconds since 1970, UTC.
    pub now_s: u64,
}

impl Surroundings {
    /// Those of this process. Variables that aren't Unicode are left out.
    pub fn of_process() -> Self {
        let variables =
            std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        Self {
            variables: variables.collect(),
            folder: std::env::current_dir().unwrap_or_default(),
            now_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        }
    }

    /// The variable, if it is set.
    pub fn variable(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str)
    }

    /// The time in UTC by a `strftime` pattern, of which `%Y %m %d %H %M %S` and `%%` are known.
    pub fn format_now(&self, pattern: &str) -> String {
        let (days, seconds) = (self.now_s / 86_400, self.now_s % 86_400);
        let (year, month, day) = civil_date(days);
        let mut result = String::new();
        let mut characters = pattern.chars();
        while let Some(character) = characters.next() {
            if character != '%' {
                result.push(character);
                continue;
            }
            let part = match characters.next() {
                Some('Y') => year.to_string(),
                Some('m') => format!("{month:02}"),
                Some('d') => format!("{day:02}"),
                Some('H') => format!("{:02}", seconds / 3600),
                Some('M') => format!("{:02}", seconds / 60 % 60),
                Some('S') => format!("{:02}", seconds % 60),
                Some('%') | None => "%".to_owned(),
                Some(other) => format!("%{other}"),
            };
            result.push_str(&part);
        }
        result
    }
}

/// Year, month and day of a day counted from 1970-01-01. Source: H. Hinnant, "chrono-Compatible Low-Level Date Algorithms".
fn civil_date(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_formatted_in_utc() {
        let check = |now_s, expected: &str| {
            let surroundings = Surroundings { now_s, ..Surroundings::default() };
            assert_eq!(surroundings.format_now("%Y-%m-%d/%H-%M-%S %% %j"), format!("{expected} % %j"));
        };
        check(0, "1970-01-01/00-00-00");
        check(951_782_399, "2000-02-28/23-59-59");
        check(951_782_400, "2000-02-29/00-00-00");
        check(1_796_083_205, "2026-12-01/00-00-05");
    }
}
