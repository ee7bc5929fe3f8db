//! `mur token`: prints a door token of a running session, for an `Authorization` header.

use crate::cli::Outcome;
use crate::credentials::door::OPERATOR;
use crate::diagnostics::{Diagnostic, Result, codes, output};
use crate::paths::MurmurHome;
use crate::records::{address, running::Record};

/// Flags of `mur token`.
#[derive(clap::Args)]
pub struct Args {
    /// A running session: @N, an id, or at least four last characters of one [default: @1]
    session: Option<String>,
    /// The credential whose token to print
    #[arg(long, value_name = "NAME", default_value = OPERATOR)]
    credential: String,
}

/// Runs the command. The door itself is not asked: its record holds what it minted.
pub fn run(args: Args) -> Outcome {
    let record = address::running(&MurmurHome::from_env()?, args.session.as_deref())?;
    let token = token(&record, &args.credential)?;
    output::stdout_secret_line(token);
    Ok(0)
}

fn token<'a>(record: &'a Record, credential: &str) -> Result<&'a str> {
    let session = &record.session_id;
    let Some(operator) = &record.door_token else {
        let message = format!(
            "{session} has a public door: its capsule declares no network.authentication, so it minted no token"
        );
        return Err(Diagnostic::new(codes::E_RUN_048, message).hint("call its door without an Authorization header"));
    };
    if credential == OPERATOR {
        return Ok(operator);
    }
    let declared = record.credentials.as_ref();
    if let Some(token) = declared.and_then(|declared| declared.get(credential)) {
        return Ok(token);
    }
    let names: String = declared.into_iter().flatten().map(|(name, _)| format!(", {name}")).collect();
    Err(Diagnostic::new(
        codes::E_RUN_049,
        format!("{session} minted no credential '{credential}'; it has: {OPERATOR}{names}"),
    )
    .hint("credentials are declared under network.authentication.credentials in the capsule's murmur.yaml"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::running::tests::record;

    #[test]
    fn a_record_gives_the_named_credentials_token() {
        let mut record = record(1, "1");
        assert_eq!(token(&record, OPERATOR).unwrap_err().code(), codes::E_RUN_048);
        record.door_token = Some("mdt1.a".to_owned());
        assert_eq!(token(&record, OPERATOR).unwrap(), "mdt1.a");
        let none = token(&record, "watcher").unwrap_err();
        assert!(none.message().ends_with("minted no credential 'watcher'; it has: operator"), "{none}");
        let declared = [("watcher", "mdt1.w"), ("bot", "mdt1.b")];
        record.credentials = Some(declared.map(|(name, token)| (name.to_owned(), token.to_owned())).into());
        assert_eq!(token(&record, "watcher").unwrap(), "mdt1.w");
        let refusal = token(&record, "x").unwrap_err();
        assert!(refusal.message().ends_with("it has: operator, bot, watcher"), "{refusal}");
        assert!(!refusal.to_string().contains("mdt1"));
    }
}
