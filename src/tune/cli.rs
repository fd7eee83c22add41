//! The command line of `tune`.

use super::machine::Machine;
use super::{apply, plan};
use crate::config::parse_cpu_list;
use crate::error::{Error, Kind, Result};
use clap::{Arg, ArgAction, ArgMatches, Command};
use std::path::PathBuf;

/// The grammar.
pub fn command() -> Command {
    Command::new("tune")
        .about("Show, apply or take back what the kernel and the network interfaces could do better")
        .after_help(
            "Without --apply nothing is written. What is applied lasts until --restore or a reboot; to keep kernel \
             settings, see deploy/sysctl/90-ringway.conf.",
        )
        .arg(
            Arg::new("root")
                .long("root")
                .value_name("DIR")
                .default_value("/")
                .value_parser(clap::value_parser!(PathBuf))
                .help("Where proc, sys and run are"),
        )
        .arg(
            Arg::new("nic")
                .long("nic")
                .value_name("DEV")
                .action(ArgAction::Append)
                .help("An interface to tune; may be repeated [default: all with hardware that are not down]"),
        )
        .arg(
            Arg::new("cores")
                .long("cores")
                .value_name("LIST")
                .help("CPUs the server runs on, such as 0-3 [default: all that are online]"),
        )
        .arg(
            Arg::new("apply")
                .long("apply")
                .action(ArgAction::SetTrue)
                .help("Write it, and keep what was in /run/ringway-tune.json"),
        )
        .arg(
            Arg::new("restore")
                .long("restore")
                .action(ArgAction::SetTrue)
                .conflicts_with_all(["apply", "nic", "cores"])
                .help("Write back what was"),
        )
}

/// What to do about the machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Act {
    Show,
    Apply,
    Restore,
}

/// What was said.
#[derive(Debug)]
pub struct Run {
    root: PathBuf,
    nics: Vec<String>,
    cores: Option<Vec<usize>>,
    act: Act,
}

/// Understands what was said.
///
/// # Errors
/// The list of CPUs is none.
pub fn tune(given: &ArgMatches) -> Result<Run> {
    let cores = given.get_one::<String>("cores").map(|list| {
        parse_cpu_list(list).map_err(|why| Error::new(Kind::Usage, "use --cores", format!("`{list}` {why}")))
    });
    Ok(Run {
        root: given.get_one::<PathBuf>("root").cloned().unwrap_or_else(|| "/".into()),
        nics: given.get_many::<String>("nic").unwrap_or_default().cloned().collect(),
        cores: cores.transpose()?,
        act: match (given.get_flag("apply"), given.get_flag("restore")) {
            (_, true) => Act::Restore,
            (true, _) => Act::Apply,
            _ => Act::Show,
        },
    })
}

impl Run {
    /// Does it: what there is to tell.
    ///
    /// # Errors
    /// As [`Machine::read`], [`apply::apply`] and [`apply::restore`]; a CPU is not online.
    pub fn run(self) -> Result<String> {
        if self.act == Act::Restore {
            let said = apply::restore(&self.root)?;
            return Ok(format!("{said}what was before is back\n"));
        }
        let machine = Machine::read(&self.root, &plan::wanted_settings(), &self.nics)?;
        let cores = self.cores.unwrap_or_else(|| machine.online.clone());
        if let Some(cpu) = cores.iter().find(|cpu| !machine.online.contains(cpu)) {
            return Err(Error::new(Kind::Usage, "use --cores", format!("CPU {cpu} is not online")));
        }
        let plan = plan::plan(&machine, &cores);
        let text = plan::text(&plan);
        Ok(match self.act {
            _ if plan.changes.is_empty() => text,
            Act::Apply => {
                apply::apply(&self.root, &plan.changes)?;
                format!("{text}{} files written; ringway tune --restore takes them back\n", plan.changes.len())
            }
            _ => format!("{text}nothing was written: ringway tune --apply does it\n"),
        })
    }
}
