//! The command line of `bench`.

use super::profiles::{self, Profile};
use super::{Plan, Settings};
use crate::error::{Error, Kind, Result};
use clap::{Arg, ArgAction, ArgMatches, Command};
use std::time::Duration;

/// The grammar.
pub fn command() -> Command {
    let list: Vec<String> =
        profiles::ALL.iter().map(|profile| format!("  {:<14} {}", profile.name, profile.about)).collect();
    let option = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help).action(ArgAction::Set)
    };
    let switch =
        |name: &'static str, help: &'static str| Arg::new(name).long(name).help(help).action(ArgAction::SetTrue);
    Command::new("bench")
        .about("Run both ends on this machine, one experiment or all")
        .after_help(format!("Profiles:\n{}\n  all            every one of them", list.join("\n")))
        .arg(Arg::new("PROFILE").required(true).action(ArgAction::Append).help("Profiles, or all"))
        .arg(switch("quick", "One second a run and fewer rows: a first look"))
        .arg(option("time", "SECONDS", "Measured time of a run [default: 5, with --quick 1]"))
        .arg(option("congestion", "NAME", "Congestion control of every flow [default: cubic]"))
        .arg(switch("json", "One JSON document: machine, tables, verdicts and every run whole"))
        .arg(option("svg", "FILE", "Draw each profile's chart; with several the names are put before the extension"))
}

/// Understands a parsed command line.
///
/// # Errors
/// Something in it is wrong.
pub fn understand(given: &ArgMatches) -> Result<Plan> {
    let mut chosen: Vec<&'static Profile> = Vec::new();
    for name in given.get_many::<String>("PROFILE").unwrap_or_default() {
        if name == "all" {
            chosen = profiles::ALL.iter().collect();
            break;
        }
        let profile = profiles::ALL.iter().find(|profile| profile.name == name).ok_or_else(|| {
            let names: Vec<&str> = profiles::ALL.iter().map(|profile| profile.name).collect();
            Error::new(
                Kind::Usage,
                format!("run the profile {name}"),
                format!("it is none of {}, all", names.join(", ")),
            )
        })?;
        chosen.push(profile);
    }
    let quick = given.get_flag("quick");
    let seconds = match given.get_one::<String>("time") {
        None => {
            if quick {
                1.0
            } else {
                5.0
            }
        }
        Some(text) => text.parse::<f64>().ok().filter(|seconds| (0.2..=600.0).contains(seconds)).ok_or_else(|| {
            Error::new(Kind::Usage, format!("use --time {text}"), "it is not a number of seconds between 0.2 and 600")
        })?,
    };
    let congestion = given.get_one::<String>("congestion").cloned().unwrap_or_else(|| "cubic".to_owned());
    let settings = Settings {
        time: Duration::from_secs_f64(seconds),
        omit: Duration::from_millis(if quick { 200 } else { 1000 }),
        repeats: 1,
        quick,
        congestion,
    };
    Ok(Plan {
        profiles: chosen,
        settings,
        json: given.get_flag("json"),
        svg: given.get_one::<String>("svg").map(Into::into),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(line: &str) -> std::result::Result<Plan, String> {
        let given = command().try_get_matches_from(line.split(' ')).map_err(|error| error.to_string())?;
        understand(&given).map_err(|error| error.to_string())
    }

    #[test]
    fn profiles_by_name() {
        command().debug_assert();
        assert_eq!(told("bench all").expect("all").profiles.len(), profiles::ALL.len());
        let plan = told("bench ttcp nics --quick --svg a.svg").expect("two");
        assert_eq!(plan.profiles.iter().map(|profile| profile.name).collect::<Vec<_>>(), ["ttcp", "nics"]);
        assert_eq!(plan.settings.time, Duration::from_secs(1));
        for (line, wanted) in [("bench", "PROFILE"), ("bench warp", "none of pinning"), ("bench ttcp --time 0", "0.2")]
        {
            let told = told(line).expect_err(line);
            assert!(told.contains(wanted), "{line}: {told}");
        }
    }
}
