//! When a peer is ready: its readiness line is right, and the door at the URL it reported serves the session it named.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use serde::Deserialize;
use tokio::time::Instant;
use zeroize::Zeroizing;

use crate::ids::{FormationId, SessionId};
use crate::process::{Exit, Pidfd};
use crate::records::probe;

use super::relay::Lines;

/// How long a member has from its own start.
pub const READY_WITHIN: Duration = Duration::from_secs(180);
/// Pause before a door that did not answer is asked again.
const PROBE_AGAIN: Duration = Duration::from_millis(100);
/// How long a peer whose stdout closed may take to exit before it counts as having printed no readiness line.
const EXIT_AFTER_CLOSE: Duration = Duration::from_secs(2);

/// A peer that came up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ready {
    /// The session it runs.
    pub session: SessionId,
    /// `localhost:<port>`.
    pub address: String,
}

/// Why a peer did not come up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotReady {
    /// It could not be started; the words say why.
    NotStarted(String),
    /// It ended before it reported.
    ExitedBefore(Exit),
    /// It reported, then ended before its door answered.
    ExitedAfter(Exit),
    /// It did not report in time; seconds.
    Silent(u64),
    /// Its first line is no readiness line; the words say why.
    BadLine(String),
    /// It reported no door.
    NoDoor,
    /// It reported another formation, or none.
    OtherFormation(Option<String>),
    /// Its door did not answer as its session in time.
    DoorSilent {
        /// The URL it reported.
        address: String,
        /// The session it reported.
        session: SessionId,
        /// What the last probe found.
        last: String,
        /// Seconds it was given.
        secs: u64,
    },
    /// The formation's own deadline fell first.
    DeadlineFell,
}

#[derive(Deserialize)]
struct Line {
    url: String,
    session_id: SessionId,
    formation_id: Option<String>,
    #[serde(default)]
    tokens: Tokens,
}

#[derive(Default, Deserialize)]
struct Tokens {
    #[serde(default)]
    operator: Option<String>,
}

/// Waits until a peer is ready or cannot become so, at the longest until `until`.
pub async fn wait(
    pidfd: Rc<Pidfd>,
    lines: &mut Option<Lines>,
    formation: &FormationId,
    until: Instant,
) -> Result<Ready, NotReady> {
    let started = Instant::now();
    let secs = |until: Instant| until.duration_since(started).as_secs_f64().round() as u64;
    let line = match tokio::time::timeout_at(until, first_line(&pidfd, lines)).await {
        Ok(line) => Zeroizing::new(line?),
        Err(_) => return Err(NotReady::Silent(secs(until))),
    };
    let (ready, token) = read_line(&line, formation)?;
    let last = RefCell::new("no probe was answered".to_owned());
    let door = door_answers(&ready, token.as_deref().map(String::as_str), &last);
    tokio::select! {
        biased;
        () = door => Ok(ready),
        ended = pidfd.ended() => Err(match ended.and_then(|()| pidfd.reap()) {
            Ok(exit) => NotReady::ExitedAfter(exit),
            Err(error) => NotReady::NotStarted(error.to_string()),
        }),
        () = tokio::time::sleep_until(until) => Err(NotReady::DoorSilent {
            address: ready.address.clone(),
            session: ready.session.clone(),
            last: last.borrow().clone(),
            secs: secs(until),
        }),
    }
}

async fn first_line(pidfd: &Pidfd, lines: &mut Option<Lines>) -> Result<String, NotReady> {
    let line = match lines {
        Some(lines) => lines.next().await,
        None => None,
    };
    if let Some(line) = line {
        return Ok(line);
    }
    // Its stdout closed: normally because it is ending.
    match tokio::time::timeout(EXIT_AFTER_CLOSE, pidfd.wait()).await {
        Ok(Ok(exit)) => Err(NotReady::ExitedBefore(exit)),
        _ => Err(NotReady::BadLine("it closed its standard output without printing one".to_owned())),
    }
}

/// The token is taken only from here: whatever else the line carries is dropped with it.
fn read_line(line: &str, formation: &FormationId) -> Result<(Ready, Option<Zeroizing<String>>), NotReady> {
    let line: Line = serde_json::from_str(line).map_err(|error| {
        // The position is enough: the line itself may carry a token.
        NotReady::BadLine(format!("it is not the JSON of one (at column {})", error.column()))
    })?;
    if line.formation_id.as_deref() != Some(formation.as_str()) {
        return Err(NotReady::OtherFormation(line.formation_id));
    }
    if line.url.is_empty() {
        return Err(NotReady::NoDoor);
    }
    let operator = line.tokens.operator.map(Zeroizing::new);
    Ok((Ready { session: line.session_id, address: line.url }, operator))
}

/// Asks the door every 100 ms until it answers as the reported session.
async fn door_answers(ready: &Ready, token: Option<&str>, last: &RefCell<String>) {
    loop {
        let address = ready.address.clone();
        let token = token.map(|token| Zeroizing::new(token.to_owned()));
        let asked =
            tokio::task::spawn_blocking(move || probe::session_at(&address, token.as_deref().map(String::as_str)));
        match asked.await {
            Ok(Ok(session)) if session == ready.session.as_str() => return,
            Ok(Ok(session)) => *last.borrow_mut() = format!("it answered as {session}"),
            Ok(Err(error)) => *last.borrow_mut() = error.to_string(),
            Err(error) => *last.borrow_mut() = error.to_string(),
        }
        tokio::time::sleep(PROBE_AGAIN).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::{Spawn, Stream};

    #[test]
    fn a_readiness_line_is_read_or_refused_with_its_reason() {
        let formation = FormationId::mint();
        let session = SessionId::mint();
        let line = |url: &str, formation: &str| {
            format!(r#"{{"url":"{url}","session_id":"{session}","formation_id":"{formation}","pid":1}}"#)
        };
        let (ready, token) = read_line(&line("localhost:9", formation.as_str()), &formation).unwrap();
        assert_eq!(ready, Ready { session: session.clone(), address: "localhost:9".into() });
        assert!(token.is_none());
        assert_eq!(read_line(&line("", formation.as_str()), &formation).unwrap_err(), NotReady::NoDoor);
        let other = FormationId::mint().to_string();
        assert_eq!(
            read_line(&line("localhost:9", &other), &formation).unwrap_err(),
            NotReady::OtherFormation(Some(other))
        );
        for bad in ["", "hello", "{}", "[]", r#"{"url":1}"#] {
            assert!(matches!(read_line(bad, &formation), Err(NotReady::BadLine(_))), "{bad}");
        }
    }

    /// Waits for a real child that runs this shell script; `$READY` is a readiness line for the formation.
    fn wait_for(script: &str, url: &str, secs: u64) -> Result<Ready, NotReady> {
        let formation = FormationId::parse("frm_0123456789abcdef0123456789abcdef").unwrap();
        let session = SessionId::parse("ses_0123456789abcdef0123456789abcdef").unwrap();
        let line = format!(r#"{{"url":"{url}","session_id":"{session}","formation_id":"{formation}"}}"#);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let script = script.replace("$READY", &format!("'{line}'"));
        runtime.block_on(async {
            let spawn = Spawn::program("/bin/sh").arg("-c").arg(script).own_group();
            let child = spawn.stdio(Stream::Null, Stream::Pipe, Stream::Null).spawn().unwrap();
            let mut lines = child.stdout.and_then(|fd| Lines::new(fd).ok());
            let pidfd = Rc::new(child.pidfd);
            let until = Instant::now() + Duration::from_secs(secs);
            let outcome = wait(Rc::clone(&pidfd), &mut lines, &formation, until).await;
            let _ = pidfd.signal_group(nix::sys::signal::Signal::SIGKILL);
            outcome
        })
    }

    /// A door that answers every request with a card that names `session`.
    fn door(session: &'static str) -> String {
        use std::io::{Read as _, Write as _};
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("localhost:{}", listener.local_addr().unwrap().port());
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let mut request = [0; 4096];
                let _ = stream.read(&mut request);
                let card = serde_json::json!({"capabilities": {"extensions": [{
                    "uri": "https://docs.murmur.nexus/reference/agent-card/#murmur-capsule-v1",
                    "params": {"sessionId": session},
                }]}})
                .to_string();
                let _ = write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{card}", card.len());
            }
        });
        address
    }

    const OWN: &str = "ses_0123456789abcdef0123456789abcdef";
    const FOREIGN: &str = "ses_fedcba9876543210fedcba9876543210";

    #[test]
    fn a_peer_whose_door_answers_as_its_session_is_ready() {
        let address = door(OWN);
        let ready = wait_for("echo $READY; sleep 60", &address, 60).unwrap();
        assert_eq!((ready.session.as_str(), ready.address), (OWN, address));
    }

    #[test]
    fn a_peer_that_exits_before_it_reports_is_not_ready() {
        assert_eq!(wait_for("exit 3", "", 60).unwrap_err(), NotReady::ExitedBefore(Exit::Status(3)));
        assert_eq!(wait_for("kill -9 $$", "", 60).unwrap_err(), NotReady::ExitedBefore(Exit::Signal(9)));
    }

    #[test]
    fn a_peer_whose_first_line_is_no_readiness_line_is_not_ready() {
        for script in ["echo hello; sleep 60", "echo; echo $READY; sleep 60", "exec >&-; sleep 60"] {
            let refused = wait_for(script, "localhost:1", 60).unwrap_err();
            assert!(matches!(refused, NotReady::BadLine(_)), "{script}: {refused:?}");
        }
    }

    #[test]
    fn a_peer_that_reports_no_door_is_not_ready() {
        assert_eq!(wait_for("echo $READY; sleep 60", "", 60).unwrap_err(), NotReady::NoDoor);
    }

    #[test]
    fn a_peer_that_reports_another_formation_or_none_is_not_ready() {
        let other = r#"echo '{"url":"localhost:1","session_id":"ses_0123456789abcdef0123456789abcdef","formation_id":"frm_x"}'"#;
        assert_eq!(wait_for(other, "", 60).unwrap_err(), NotReady::OtherFormation(Some("frm_x".into())));
        let none = r#"echo '{"url":"localhost:1","session_id":"ses_0123456789abcdef0123456789abcdef"}'"#;
        assert_eq!(wait_for(none, "", 60).unwrap_err(), NotReady::OtherFormation(None));
    }

    #[test]
    fn a_peer_that_does_not_report_in_its_time_is_not_ready() {
        assert_eq!(wait_for("sleep 60", "", 1).unwrap_err(), NotReady::Silent(1));
        assert_eq!(wait_for("printf half; sleep 60", "", 1).unwrap_err(), NotReady::Silent(1));
    }

    #[test]
    fn a_peer_that_exits_after_it_reports_and_before_its_door_answers_is_not_ready() {
        let closed = wait_for("echo $READY; sleep 0.3; exit 5", "localhost:1", 60).unwrap_err();
        assert_eq!(closed, NotReady::ExitedAfter(Exit::Status(5)));
    }

    #[test]
    fn a_peer_whose_door_does_not_answer_as_its_session_in_time_is_not_ready() {
        let foreign = wait_for("echo $READY; sleep 60", &door(FOREIGN), 2).unwrap_err();
        let NotReady::DoorSilent { last, secs, .. } = foreign else { panic!("{foreign:?}") };
        assert_eq!((last.as_str(), secs), ("it answered as ses_fedcba9876543210fedcba9876543210", 2));
        let closed = wait_for("echo $READY; sleep 60", "localhost:1", 2).unwrap_err();
        assert!(matches!(closed, NotReady::DoorSilent { .. }), "{closed:?}");
    }
}
