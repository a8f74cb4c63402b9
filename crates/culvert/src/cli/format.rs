//! `culvert format`

use clap::Args;

use super::{Failure, Global, note, print, refused, sources};

#[derive(Args, Debug)]
pub(super) struct Arguments {
    /// Rewrite files that are not in canonical form instead of printing.
    #[arg(short, long)]
    write: bool,
}

/// Prints each file, several ones with their paths above them; or rewrites them and prints the paths of those that
/// changed on stderr.
pub(super) fn execute(global: &Global, arguments: &Arguments) -> Result<(), Failure> {
    let sources = sources::read(global)?;
    let many = sources.len() > 1;
    for source in &sources {
        let text = culvert_config::format(source).map_err(|findings| refused(&findings))? + "\n";
        let path = std::path::absolute(source.name()).unwrap_or_else(|_| source.name().into());
        if !arguments.write {
            let title = if many { format!("{}\n", path.display()) } else { String::new() };
            print(format!("{title}{text}\n").as_bytes())?;
        } else if text != source.text() {
            replace(source.name(), &text)?;
            note(path.display());
        }
    }
    Ok(())
}

/// Puts the new text in the file's place in one step, so that a fault cannot leave half of it.
fn replace(path: &str, text: &str) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure(format!("write {path}: {error}"));
    let beside = format!("{path}.new");
    std::fs::write(&beside, text).map_err(failed)?;
    let permissions = std::fs::metadata(path).map_err(failed)?.permissions();
    std::fs::set_permissions(&beside, permissions).map_err(failed)?;
    std::fs::rename(&beside, path).map_err(failed)
}
