//! `mur __enclosure`: the process that holds what a session shares.
//!
//! It loads the libraries it is handed, tries what the host can back, makes the enclosure and stays, single-threaded, in a
//! process group of its own. When its connection ends, however the session ended, it ends everything inside the enclosure
//! and removes what it made.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use mur_plugin_api::{BackendObject, Class, CommandRequest, EnclosureObject, ErrorKind, PluginError, Profile};

use super::delegation;
use super::message::{Answer, Ask, DESCRIPTOR, NotSpawned, Report, receive, send};
use super::wrapped::Programs;
use crate::diagnostics::output;
use crate::process::fds;

/// How long what is inside has to end once the session is gone.
const CLOSING: Duration = Duration::from_secs(10);

/// Entry of the hidden subcommand.
pub fn main() -> u8 {
    match serve() {
        Ok(()) => 0,
        Err(why) => {
            output::stderr_line(&format!("[mur __enclosure] {why}"));
            1
        }
    }
}

struct Helper {
    backends: BTreeMap<Class, BackendObject>,
    /// The libraries, for those who load them where a program has composed a root.
    libraries: BTreeMap<Class, OwnedFd>,
    enclosure: Option<EnclosureObject>,
    /// The class of the enclosure.
    class: Option<Class>,
    commands: Vec<Profile>,
    programs: Programs,
}

fn serve() -> Result<(), String> {
    if std::env::vars_os().next().is_some() {
        return Err("mur __enclosure is started by mur itself".to_owned());
    }
    let socket = fds::adopt(DESCRIPTOR).map_err(|_| "descriptor 3 is not the connection to mur".to_owned())?;
    std::env::set_current_dir("/").map_err(|error| format!("cannot enter /: {error}"))?;
    let socket = UnixStream::from(socket);
    let mut helper = Helper {
        backends: BTreeMap::new(),
        libraries: BTreeMap::new(),
        enclosure: None,
        class: None,
        commands: Vec::new(),
        programs: Programs::default(),
    };
    let mut lost = Ok(());
    loop {
        if helper.waits_for(&socket) == Waited::Lost {
            lost = Err("the server of the session's commands ended before the session".to_owned());
            break;
        }
        let (ask, handed) = match receive::<Ask>(&socket) {
            Ok(Some(asked)) => asked,
            // The session is gone, or no longer makes sense: the same end.
            Ok(None) | Err(_) => break,
        };
        let (answer, fds) = match helper.answer(ask, handed) {
            Ok(answered) => answered,
            Err(why) => (Answer::Failed(why), Vec::new()),
        };
        let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
        if send(&socket, &answer, &borrowed).is_err() {
            break;
        }
    }
    helper.programs.end();
    let closed = match helper.enclosure.take() {
        Some(mut enclosure) => enclosure.close(CLOSING).map_err(|error| error.to_string()),
        None => Ok(()),
    };
    lost.and(closed)
}

#[derive(Debug, PartialEq, Eq)]
enum Waited {
    /// The session asks, or is gone.
    Asked,
    /// The enclosure is lost.
    Lost,
}

impl Helper {
    fn answer(&mut self, ask: Ask, handed: Vec<OwnedFd>) -> Result<(Answer, Vec<OwnedFd>), String> {
        let done = |answer| Ok((answer, Vec::new()));
        match ask {
            Ask::Delegate(buses) => {
                // Refused or unheard, the scope is made where this process stands.
                let _ = delegation::ask(&buses);
                done(Answer::Done)
            }
            Ask::Load(class) => {
                let library = handed.into_iter().next().ok_or("a library was announced and did not come")?;
                self.libraries.insert(class, library.try_clone().map_err(|error| error.to_string())?);
                self.backends.insert(class, crate::plugins::load_backend(library)?);
                done(Answer::Done)
            }
            Ask::Probe(class) => {
                let backend = self.backend(class)?;
                let mechanism = backend.info().map_err(|error| account(&error))?.mechanism;
                let report = backend.probe().map_err(|error| account(&error))?;
                done(Answer::Report(Box::new(Report::of(&mechanism, &report))))
            }
            Ask::Open(class, request) => {
                if self.enclosure.is_some() {
                    return Err("a session has one enclosure".to_owned());
                }
                let request = encode(&request)?;
                let backend = self.backend(class)?;
                let mechanism = backend.info().map_err(|error| account(&error))?.mechanism;
                let mut enclosure = backend.open(&request).map_err(|error| account(&error))?;
                let report = enclosure.report().map_err(|error| account(&error))?;
                self.enclosure = Some(enclosure);
                self.class = Some(class);
                done(Answer::Report(Box::new(Report::of(&mechanism, &report))))
            }
            Ask::Prepare(request) => {
                let request = encode(&request)?;
                let profile = crate::plugins::prepare_profile(self.enclosure()?, &request);
                let (bytes, fds) = profile.map_err(|error| account(&error))?;
                Ok((Answer::Profile(bytes), fds))
            }
            Ask::Network => {
                let sockets = crate::plugins::network_sockets(self.enclosure()?).map_err(|error| account(&error))?;
                Ok((Answer::Network, sockets))
            }
            Ask::Commands(request) => {
                let request = encode(&request)?;
                let profile = self.enclosure()?.prepare(&request).map_err(|error| account(&error))?;
                let mapped = profile.tmp_mapped;
                self.commands.push(profile);
                let number = u32::try_from(self.commands.len() - 1).map_err(|error| error.to_string())?;
                done(Answer::Commands(number, mapped))
            }
            Ask::Spawn(number, command) => done(self.spawn(number, &command, &handed)?),
            Ask::Bounds => {
                let bounds = self.enclosure()?.bounds().map_err(|error| account(&error))?;
                done(Answer::Bounds(bounds))
            }
            Ask::Usage => {
                let used = self.enclosure()?.usage().map_err(|error| account(&error))?;
                done(Answer::Usage(used.memory, used.cpu_nanos, used.pids))
            }
            Ask::Close(within) => {
                self.programs.end();
                let closed = self.enclosure()?.close(Duration::from_millis(within));
                closed.map_err(|error| account(&error))?;
                done(Answer::Done)
            }
        }
    }

    fn spawn(&mut self, number: u32, command: &CommandRequest, handed: &[OwnedFd]) -> Result<Answer, String> {
        let fds: Vec<i32> = handed.iter().map(AsRawFd::as_raw_fd).collect();
        let fds = <[i32; 4]>::try_from(fds).map_err(|_| "a command was announced and its descriptors did not come")?;
        let encoded = encode(command)?;
        let profile = self.commands.get(number as usize).cloned().ok_or("there is no such kind of command")?;
        Ok(match self.enclosure()?.spawn(&profile, &encoded, fds) {
            Ok(spawned) if spawned.errno != 0 => Answer::NotSpawned(NotSpawned::Program(spawned.errno)),
            Ok(spawned) if !spawned.wrap.is_empty() => {
                let library = self.class.and_then(|class| self.libraries.get(&class)).ok_or("no library was loaded")?;
                self.programs.start(library, &spawned, &profile, command, handed)
            }
            Ok(spawned) if spawned.pid > 0 => Answer::Spawned(spawned.pid),
            Ok(_) => {
                Answer::NotSpawned(NotSpawned::SetUp("the backend started nothing and did not say why".to_owned()))
            }
            Err(error) if error.kind() == ErrorKind::Missing => Answer::NotSpawned(NotSpawned::Gone(account(&error))),
            Err(error) => Answer::NotSpawned(NotSpawned::SetUp(account(&error))),
        })
    }

    /// Waits until the session asks for something, unless the enclosure is lost before.
    fn waits_for(&mut self, socket: &UnixStream) -> Waited {
        let watched = self.enclosure.as_mut().and_then(|enclosure| enclosure.watched().ok()).unwrap_or_default();
        crate::process::fds::wait_readable(socket.as_fd(), &watched)
            .map_or(Waited::Asked, |other| if other { Waited::Lost } else { Waited::Asked })
    }

    fn backend(&mut self, class: Class) -> Result<&mut BackendObject, String> {
        self.backends.get_mut(&class).ok_or_else(|| format!("no library of class '{class}' was loaded"))
    }

    fn enclosure(&mut self) -> Result<&mut EnclosureObject, String> {
        self.enclosure.as_mut().ok_or_else(|| "no enclosure was opened".to_owned())
    }
}

fn encode(request: &impl serde::Serialize) -> Result<Vec<u8>, String> {
    serde_json::to_vec(request).map_err(|error| error.to_string())
}

/// A plugin's error on one line.
fn account(error: &PluginError) -> String {
    let panicked = if error.kind() == ErrorKind::Panicked { "the library panicked: " } else { "" };
    format!("{panicked}{}", error.message().replace('\n', " "))
}
