//! `culvert format`

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use clap::Args;

use super::{Failure, Global, note, print, refused, report, sources};

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
        let formatted = culvert_config::format_with_report(source);
        let (text, warnings) = formatted.map_err(|findings| refused(&findings))?;
        let text = text + "\n";
        // What is old is not only laid out anew.
        report(&warnings);
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

/// Puts the new text in the file's place: the file that a link leads to, with its owner and permissions, and where the
/// directory lets us, in one step, so that a fault cannot leave half of it.
pub(super) fn replace(path: &str, text: &str) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure(format!("write {path}: {error}"));
    let file = fs::canonicalize(path).map_err(failed)?;
    let metadata = fs::metadata(&file).map_err(failed)?;
    // One that says it is not to be written is not, though its directory would allow it. Root is not told otherwise.
    drop(fs::OpenOptions::new().write(true).open(&file).map_err(failed)?);
    // Another name of the same file would keep the old text.
    if metadata.nlink() == 1 && swap(&file, &metadata, text).is_ok() {
        return Ok(());
    }
    fs::write(&file, text).map_err(failed)
}

/// Writes a new file beside the old one and gives it the old one's name. Secrets in it are at no time readable by more
/// people than before.
fn swap(file: &Path, metadata: &fs::Metadata, text: &str) -> io::Result<()> {
    let mut name = OsString::from(".");
    name.push(file.file_name().unwrap_or_default());
    name.push(format!(".{}.new", std::process::id()));
    let beside = file.with_file_name(name);
    let mut new = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
    let written = new
        .write_all(text.as_bytes())
        .and_then(|()| std::os::unix::fs::fchown(&new, Some(metadata.uid()), Some(metadata.gid())))
        .and_then(|()| new.set_permissions(metadata.permissions()))
        .and_then(|()| new.sync_all())
        .and_then(|()| fs::rename(&beside, file));
    if written.is_err() {
        let _ = fs::remove_file(&beside);
    }
    written
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_file_keeps_its_place_its_links_and_its_permissions() {
        let directory = std::env::temp_dir().join(format!("culvert-format-{}", std::process::id()));
        fs::create_dir_all(directory.join("real")).unwrap();
        let at = |name: &str| directory.join(name);
        let name = |name: &str| at(name).to_str().unwrap().to_owned();
        fs::write(at("real/config.json"), "old").unwrap();
        fs::set_permissions(at("real/config.json"), fs::Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink("real/config.json", at("link.json")).unwrap();
        replace(&name("link.json"), "new").unwrap();
        assert!(fs::symlink_metadata(at("link.json")).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(at("real/config.json")).unwrap(), "new");
        assert_eq!(fs::metadata(at("real/config.json")).unwrap().permissions().mode() & 0o777, 0o640);

        fs::hard_link(at("real/config.json"), at("other.json")).unwrap();
        replace(&name("other.json"), "newer").unwrap();
        assert_eq!(fs::read_to_string(at("real/config.json")).unwrap(), "newer");
        assert_eq!(fs::read_dir(at("real")).unwrap().count(), 1, "nothing is left beside it");
        assert!(replace(&name("none.json"), "").is_err());
        fs::remove_dir_all(directory).unwrap();
    }
}
