//! Naming a running session: `@N`, a full id, or a suffix of at least four characters, over the running records.

use crate::diagnostics::{Diagnostic, Result, codes};
use crate::ids::SessionId;
use crate::paths::MurmurHome;

use super::running::{self, Process, Record};

/// Shortest suffix that names a session.
const MIN_SUFFIX: usize = 4;

/// Finds the running session an address names; `None` means the newest (`@1`). Records whose process is gone are
/// removed as they are read and never counted in `@N`; one that the address meant is named. `E-RUN-022`, `E-RUN-028`.
pub fn running(home: &MurmurHome, address: Option<&str>) -> Result<Record> {
    let address = address.unwrap_or("@1");
    if address.contains(['/', ':']) || address.ends_with(".jsonl") {
        return Err(no_session(&format!("'{address}' is no address of a running session"), &[]));
    }
    let listing = running::list(home)?;
    let mut alive = Vec::new();
    let mut gone = Vec::new();
    for record in listing.records {
        match record.process() {
            Process::Gone(reason) => {
                running::remove(home, &record.session_id);
                gone.push((record, reason));
            }
            Process::Alive | Process::Unknown => alive.push(record),
        }
    }
    pick(address, &alive, &gone).cloned()
}

fn pick<'a>(address: &str, alive: &'a [Record], gone: &[(Record, String)]) -> Result<&'a Record> {
    if let Some(number) = address.strip_prefix('@') {
        let index: Option<usize> = number.parse().ok().filter(|index| *index >= 1);
        return index
            .and_then(|index| alive.get(index - 1))
            .ok_or_else(|| no_session(&format!("'{address}' names no running session"), alive));
    }
    if address.len() < MIN_SUFFIX {
        return Err(no_session(&format!("'{address}' is too short: give at least {MIN_SUFFIX} characters"), alive));
    }
    let wanted = address.to_lowercase();
    let named = |id: &SessionId| id.as_str().ends_with(&wanted);
    let found: Vec<&Record> = alive.iter().filter(|record| named(&record.session_id)).collect();
    match found.as_slice() {
        [record] => Ok(record),
        [] => match gone.iter().find(|(record, _)| named(&record.session_id)) {
            Some((record, reason)) => {
                Err(no_session(&format!("{} is not running: {reason}", record.session_id), alive))
            }
            None => Err(no_session(&format!("'{address}' names no running session"), alive)),
        },
        several => {
            let ids: String = several.iter().map(|record| format!("\n{}", record.session_id)).collect();
            Err(Diagnostic::new(codes::E_RUN_022, format!("'{address}' names several running sessions:{ids}"))
                .hint("give more of the id's last characters"))
        }
    }
}

fn no_session(message: &str, alive: &[Record]) -> Diagnostic {
    let list: String = alive
        .iter()
        .map(|record| format!("\n{}  {}@{}", record.session_id, record.capsule_name, record.capsule_version))
        .collect();
    let message = if alive.is_empty() {
        format!("{message}\nnothing is running")
    } else {
        format!("{message}\nrunning now:{list}")
    };
    Diagnostic::new(codes::E_RUN_022, message).hint("list what runs with mur ps, or start a session with mur run")
}

#[cfg(test)]
mod tests {
    use super::super::running::tests::record;
    use super::*;

    #[test]
    fn an_address_is_a_rank_an_id_or_a_suffix() {
        let newer = record(1, "1");
        let older = record(1, "1");
        let alive = vec![newer.clone(), older];
        for address in ["@1".to_owned(), newer.session_id.to_string(), newer.session_id.as_str()[20..].to_uppercase()] {
            assert_eq!(pick(&address, &alive, &[]).ok().unwrap().session_id, newer.session_id, "{address}");
        }
        for bad in ["@0", "@3", "@x", "abc", "zzzz"] {
            assert_eq!(pick(bad, &alive, &[]).err().unwrap().code(), codes::E_RUN_022, "{bad}");
        }
    }

    #[test]
    fn one_that_has_ended_is_named_with_the_reason() {
        let ended = record(1, "1");
        let gone = vec![(ended.clone(), "pid 1 has ended".to_owned())];
        let refusal = pick(ended.session_id.as_str(), &[], &gone).err().unwrap();
        assert!(refusal.message().contains("is not running: pid 1 has ended"), "{refusal}");
    }
}
