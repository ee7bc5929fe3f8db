//! A session that the workdir root at hand does not have: looked for where formations of this home record, and where
//! sessions that run do.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use super::formations::Marker;
use super::members;
use super::recorded::{Group, Reach};
use super::running;
use crate::diagnostics::{Diagnostic, codes};
use crate::ids::{FormationId, SessionId};
use crate::paths::{MurmurHome, shell_word};

/// Most sessions a message names.
const MAX_NAMED: usize = 20;

/// The sessions whose id ends with a text, each with its group.
pub fn find(home: &MurmurHome, text: &str) -> Vec<(Group, SessionId)> {
    let groups = groups(home).into_iter().map(|dir| Group::at(home, &dir));
    groups.flat_map(|group| group.ending_in(text).into_iter().map(move |id| (group.clone(), id))).collect()
}

/// Every records group of a formation's member, and of a running session.
fn groups(home: &MurmurHome) -> BTreeSet<PathBuf> {
    let formations = fs::read_dir(home.formations()).into_iter().flatten().flatten();
    let ids = formations.filter_map(|entry| FormationId::parse(entry.file_name().to_str()?));
    let mut groups: BTreeSet<PathBuf> = ids.flat_map(|id| of_formation(home, &id)).collect();
    let records = running::list(home).map(|listing| listing.records).unwrap_or_default();
    let own = home.records();
    // A record is a hint, never proof: only what lies among the records is looked at.
    groups.extend(
        records
            .iter()
            .filter_map(|record| record.records_dir.parent())
            .filter(|dir| dir.starts_with(&own))
            .map(PathBuf::from),
    );
    groups
}

/// Where a formation's entry member records, by the project its marker names, and each peer.
pub fn of_formation(home: &MurmurHome, id: &FormationId) -> Vec<PathBuf> {
    let marker = Marker::read(&home.formations().join(id.as_str()));
    let project = marker.map(|marker| home.records_group(&marker.project_dir));
    project.into_iter().chain(members::peer_groups(home, id)).collect()
}

/// What to do about sessions that lie elsewhere and were not taken.
pub fn hint(found: &[(Group, SessionId)], reach: Reach) -> String {
    match found {
        [(group, session)] if reach == Reach::Root => {
            format!("{session} is recorded under another root: --workdir {}", shell_word(&group.root.to_string_lossy()))
        }
        [(_, session)] => format!("{session} ends so and is recorded under another root: give its whole id"),
        several => {
            let mut hint = "several recorded under other roots end so; give the whole id of one:".to_owned();
            for (group, session) in several.iter().take(MAX_NAMED) {
                let _ = write!(hint, " {session} (under {})", group.root.display());
            }
            hint
        }
    }
}

/// The refusal of a formation's id where one session is wanted: it names the sessions there are to choose from.
pub fn no_session(home: &MurmurHome, address: &str) -> Option<Diagnostic> {
    if !address.starts_with(FormationId::PREFIX) {
        return None;
    }
    let mut message = format!("'{address}' names a formation, and one session is wanted");
    let sessions = FormationId::parse(address).map(|id| members::find(&id, of_formation(home, &id)).sessions);
    let sessions = sessions.unwrap_or_default();
    for one in sessions.iter().take(MAX_NAMED) {
        let _ = write!(message, "\n{}  {}", one.session, one.member().unwrap_or("-"));
    }
    let hint = match sessions.is_empty() {
        true => {
            format!("give the id of one of its sessions; in the roster's project mur trace show {address} names them")
        }
        false => "give the id of one of its sessions".to_owned(),
    };
    Some(Diagnostic::new(codes::E_TRC_002, message).hint(hint))
}
