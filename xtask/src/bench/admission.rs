//! Admission of a large roster, by the same child the launcher asks.

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

use serde_json::{Value, json};

use super::formation::Place;
use crate::{Outcome, bundle, sh};

const MEMBERS: usize = 1000;

/// Which roster.
#[derive(Clone, Copy)]
pub enum Shape {
    /// Everyone may call everyone.
    All,
    /// Every member may call a hundred others, by rules.
    Rules,
}

/// Milliseconds of each admission, the start of the child included.
pub fn times(place: &Place, shape: Shape, runs: usize) -> Outcome<Vec<f64>> {
    let store = place.home().join(".murmur/artifacts");
    let mut members = Vec::new();
    for number in 0..MEMBERS {
        let name = format!("many-{number}");
        install(&store, &name)?;
        let mut member = json!({"name": format!("m{number}"), "capsule": format!("local/{name}"), "version": "0.1.0"});
        if number == 0 {
            member["entry"] = true.into();
        }
        members.push(member);
    }
    let reachability = match shape {
        Shape::All => json!("all"),
        // Nobody calls the entry member, which is the first.
        Shape::Rules => (0..MEMBERS)
            .map(|from| {
                let to: Vec<String> = (1..=101)
                    .map(|step| 1 + (from + step) % (MEMBERS - 1))
                    .filter(|to| *to != from)
                    .take(100)
                    .map(|to| format!("m{to}"))
                    .collect();
                json!({"from": format!("m{from}"), "to": to})
            })
            .collect(),
    };
    let roster = json!({"roster_version": 1, "members": members, "reachability": reachability}).to_string();
    let project = place.home().join("many");
    sh::folder(&project)?;
    let project = project.to_string_lossy().into_owned();
    let request = json!({"project": base64(project.as_bytes()), "text": base64(roster.as_bytes())}).to_string();
    let mut times = Vec::new();
    for run in 0..=runs {
        let start = Instant::now();
        let answer = ask(place, Path::new(&project), request.as_bytes())?;
        let elapsed = start.elapsed().as_secs_f64() * 1000.0;
        if answer.get("admitted").is_none() {
            return Err(format!("the roster was refused: {answer}"));
        }
        // The first reads the disk.
        if run > 0 {
            times.push(elapsed);
        }
    }
    Ok(times)
}

fn install(store: &Path, name: &str) -> Outcome {
    let manifest = json!({
        "name": name, "version": "0.1.0", "runtime": "capsule", "execution": "static",
        "artifacts": [{"name": "murmur/driver-scripted", "version": "0.1.0", "runtime": "driver",
            "gateway": {"endpoint": "http://127.0.0.1:9", "keyless": true}}],
        "inference": {"transport": "http", "model": "scripted", "driver": {"artifact": "murmur/driver-scripted"}},
        "network": {"authentication": {"scheme": "bearer"}},
        "exports": {"peer_tasks": {"accept": true}},
        "lifecycle": {"task_acceptance": "queue", "after_task": "sleep", "queue_depth": 2000},
    });
    let archive = bundle::archive(&[("murmur.yaml", manifest.to_string().as_bytes())])?;
    let entry = bundle::Entry {
        scope: "local",
        name,
        version: "0.1.0",
        role: "capsule",
        packaging: "static",
        contracts: json!({"exports": [], "imports": []}),
        built_at_level: None,
    };
    bundle::file(store, &entry, &archive).map(drop)
}

fn ask(place: &Place, project: &Path, request: &[u8]) -> Outcome<Value> {
    let mut command = place.command(project);
    command.arg("__admit").stdin(Stdio::piped()).stdout(Stdio::piped());
    // It says which store it asks; the launcher listens for that only when the child dies.
    command.stderr(Stdio::null());
    let mut child = command.spawn().map_err(|fault| format!("mur: {fault}"))?;
    let say = |fault: std::io::Error| format!("mur __admit: {fault}");
    let mut stdin = child.stdin.take().expect("stdin is a pipe");
    stdin.write_all(&(request.len() as u32).to_le_bytes()).and_then(|()| stdin.write_all(request)).map_err(say)?;
    drop(stdin);
    let mut answer = Vec::new();
    child.stdout.take().expect("stdout is a pipe").read_to_end(&mut answer).map_err(say)?;
    child.wait().map_err(say)?;
    let body = answer.get(4..).ok_or("mur __admit gave no answer")?;
    // Reading the answer is the launcher's work, and half a second of it in this program: only its kind is looked at.
    match body.starts_with(b"{\"admitted\"") {
        true => Ok(json!({"admitted": {}})),
        false => serde_json::from_slice(body).map_err(|fault| fault.to_string()),
    }
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let number =
            group.iter().fold(0u32, |number, byte| (number << 8) | u32::from(*byte)) << (8 * (3 - group.len()));
        for digit in 0..4 {
            let value = (number >> (18 - 6 * digit)) & 63;
            text.push(if digit <= group.len() { char::from(DIGITS[value as usize]) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn base64_is_what_it_should_be() {
        let pairs = [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")];
        for (plain, coded) in pairs {
            assert_eq!(super::base64(plain.as_bytes()), coded);
        }
    }
}
