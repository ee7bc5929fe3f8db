//! `mur plugin publisher`, `keygen` and `sign`: signatures of plugins, on the operator's side and on the author's.

use std::path::Path;

use clap::Subcommand;
use serde_json::json;

use crate::cli::Outcome;
use crate::credentials::publisher::AuthorKey;
use crate::diagnostics::output;
use crate::plugins::{self, Registry};

/// `mur plugin publisher`.
#[derive(Subcommand)]
pub enum Command {
    /// Trust a publisher: every plugin they sign, now and later, is then trusted as mur itself
    Trust {
        /// What you call them: lowercase letters, digits and hyphens
        name: String,
        /// Their public key, `ed25519:…`, from a place you trust
        key: String,
    },
    /// List the publishers you trust
    List {
        /// One JSON object a line
        #[arg(long)]
        json: bool,
    },
    /// Trust a publisher no longer: what they signed is not loaded again, unless it is pinned
    Remove {
        /// What you call them
        name: String,
    },
}

/// Runs one of them.
pub fn run(command: Command, registry: &Registry) -> Outcome {
    match command {
        Command::Trust { name, key } => {
            let publisher = registry.trust_publisher(&name, &key)?;
            output::stdout_line(&format!("Trusted publisher '{}' ({})", publisher.name, publisher.key));
        }
        Command::List { json } => {
            let publishers = registry.publishers()?;
            if publishers.is_empty() && !json {
                output::stdout_line("No publishers.");
            }
            for one in publishers {
                output::stdout_line(&if json {
                    json!({ "name": one.name, "key": one.key.to_string() }).to_string()
                } else {
                    format!("{:<16} {}", one.name, one.key)
                });
            }
        }
        Command::Remove { name } => {
            let publisher = registry.remove_publisher(&name)?;
            output::stdout_line(&format!("Removed publisher '{}' ({})", publisher.name, publisher.key));
        }
    }
    Ok(0)
}

/// Makes a key for an author.
pub fn keygen(file: &Path) -> Outcome {
    let key = AuthorKey::mint()?;
    key.write_new(file)?;
    output::stdout_line(&key.public().to_string());
    output::stderr_line(&format!("{} holds the secret half: keep it to yourself, and give the line above away", file.display()));
    Ok(0)
}

/// Signs a library.
pub fn sign(file: &Path, key: &Path) -> Outcome {
    let (signed, path) = plugins::sign(file, &AuthorKey::read(key)?)?;
    let about = &signed.statement;
    output::stdout_line(&format!("Signed {} '{}' {} (sha256 {})", about.kind, about.name, about.version, about.sha256));
    output::stdout_line(&format!("  {} by {}", path.display(), about.publisher));
    Ok(0)
}
