//! `culvert migrate`: a configuration of any dialect since sing-box 1.8 in the newest one.

use clap::Args;

use super::format::replace;
use super::{Failure, Global, note, print, refused, sources};

#[derive(Args, Debug)]
pub(super) struct Arguments {
    /// Rewrite the files instead of printing them.
    #[arg(short, long)]
    write: bool,
}

/// Prints each file in its newest form, several ones with their paths above them, or rewrites those that change. What was
/// changed, and where, goes to stderr, a line for each.
pub(super) fn execute(global: &Global, arguments: &Arguments) -> Result<(), Failure> {
    let sources = sources::read(global)?;
    let many = sources.len() > 1;
    let mut changes = 0;
    for source in &sources {
        let (text, report) = culvert_config::migrate(source).map_err(|findings| refused(&findings))?;
        let text = text + "\n";
        for change in report.iter() {
            note(change);
        }
        changes += report.len();
        if !arguments.write {
            let title = if many { format!("// {}\n", source.name()) } else { String::new() };
            print(format!("{title}{text}").as_bytes())?;
        } else if !report.is_empty() {
            replace(source.name(), &text)?;
        }
    }
    note(match changes {
        0 => "nothing to change".to_owned(),
        1 => "1 change".to_owned(),
        changes => format!("{changes} changes"),
    });
    Ok(())
}
