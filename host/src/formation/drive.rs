//! Does what the formation's state machine asks for, and tells it what came of it: members are started, their doors
//! waited for, their lifelines closed, and those that do not end are killed.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use nix::sys::signal::Signal;
use tokio::time::Instant;

use crate::cli::Outcome;
use crate::diagnostics::output;
use crate::process::{Exit, Pidfd};

use super::announce::{self, Peer};
use super::credentials::Credentials;
use super::launch::Launch;
use super::machine::{Action, Event, Launcher, Target, Verdict};
use super::member::{self, Member, Plan, Setting};
use super::readiness::{self, NotReady, Ready};
use super::refusal::{self, Failed};
use super::relay::{LastLines, Lines, relay};
use super::signals::{self, Signals};

/// How long the relays of ended members may take to drain.
const DRAIN: Duration = Duration::from_secs(2);

/// A formation between its first member and its verdict.
pub struct Drive<'a> {
    launch: &'a Launch,
    machine: Launcher,
    plans: Vec<Plan>,
    /// Emptied member by member, as each is handed its own.
    credentials: Credentials,
    members: Vec<Option<Member>>,
    ready: Vec<Option<Ready>>,
    failed: Vec<(usize, NotReady)>,
    /// Who ran when the end began.
    stopped: Vec<String>,
    news: FuturesUnordered<LocalBoxFuture<'static, News>>,
    verdict: Option<Verdict>,
}

/// What became of a member.
enum News {
    Readiness(usize, Result<Ready, NotReady>, Option<Lines>),
    Ended(usize),
}

impl<'a> Drive<'a> {
    /// A formation of which nothing runs yet.
    pub fn new(launch: &'a Launch, credentials: Credentials) -> Self {
        let count = launch.admitted.members.len();
        let deadline = launch.deadline_at.map(|at| at.duration_since(launch.started));
        Self {
            launch,
            machine: Launcher::new(count, launch.admitted.entry(), deadline),
            plans: Vec::new(),
            credentials,
            members: (0..count).map(|_| None).collect(),
            ready: vec![None; count],
            failed: Vec::new(),
            stopped: Vec::new(),
            news: FuturesUnordered::new(),
            verdict: None,
        }
    }

    /// Runs it to its end: the launcher's exit status, or why the launch was refused.
    pub async fn run(mut self, mut signals: Signals) -> Outcome {
        match self.launch.plans() {
            Ok(plans) => {
                self.plans = plans;
                self.tell(Event::Prepared);
            }
            Err((index, why)) => {
                self.failed.push((index, why));
                self.tell(Event::NotStarted(index));
            }
        }
        let verdict = loop {
            if let Some(verdict) = self.verdict {
                break verdict;
            }
            let wake = self.machine.wake_at().map(|at| self.launch.started + at);
            tokio::select! {
                biased;
                Some(news) = self.news.next() => self.learn_all(news),
                signal = signals.next() => self.signalled(signal),
                () = moment(wake) => {
                    self.tell(Event::Clock);
                }
            }
        };
        self.drain_relays().await;
        self.report(verdict)
    }

    /// Everything that is known by now, before any of it is acted on: a refusal names all that failed together.
    fn learn_all(&mut self, first: News) {
        let mut events = vec![self.learn(first)];
        while let Some(Some(more)) = self.news.next().now_or_never() {
            events.push(self.learn(more));
        }
        for event in events {
            self.tell(event);
        }
    }

    fn learn(&mut self, news: News) -> Event {
        match news {
            News::Ended(index) => self.ended(index),
            News::Readiness(index, Ok(ready), stdout) => {
                self.ready[index] = Some(ready);
                if let Some(member) = &mut self.members[index] {
                    member.stdout = stdout;
                }
                self.watch_for_the_end_of(index);
                Event::Ready(index)
            }
            News::Readiness(index, Err(why), _) => {
                let exit = match why {
                    NotReady::ExitedBefore(exit) | NotReady::ExitedAfter(exit) => Some(exit),
                    _ => None,
                };
                if !self.machine.is_ending() {
                    self.failed.push((index, why));
                }
                if let Some(exit) = exit {
                    if let Some(member) = &mut self.members[index] {
                        member.exit = Some(exit);
                    }
                    return Event::Ended(index, exit);
                }
                self.watch_for_the_end_of(index);
                Event::NotReady(index)
            }
        }
    }

    fn ended(&mut self, index: usize) -> Event {
        let exit = self.members[index].as_mut().and_then(Member::try_reap);
        // A child that cannot be waited for is nobody's any more.
        Event::Ended(index, exit.unwrap_or(Exit::Status(1)))
    }

    fn watch_for_the_end_of(&mut self, index: usize) {
        if let Some(pidfd) = self.members[index].as_ref().map(|member| Rc::clone(&member.pidfd)) {
            self.news.push(ended(pidfd, index).boxed_local());
        }
    }

    fn signalled(&mut self, signal: u8) {
        let again = self.machine.is_ending();
        let killed = self.tell(Event::Signal(signal));
        if again && killed {
            let name = signals::name(signal);
            output::stderr_line(&format!("[mur run] {name} again: the members that were still there are killed"));
        }
    }

    /// Tells the machine and does what it answers, with whatever comes of that. Whether members were killed.
    fn tell(&mut self, event: Event) -> bool {
        let mut events = VecDeque::from([event]);
        let mut killed = false;
        while let Some(event) = events.pop_front() {
            let was_ending = self.machine.is_ending();
            let fallen: Vec<usize> = self.machine.not_ready().collect();
            let actions = self.machine.on(event, self.launch.started.elapsed());
            if self.machine.is_ending() && !was_ending {
                self.end_begins(fallen);
            }
            for action in actions {
                killed |= matches!(action, Action::Kill(..));
                events.extend(self.act(action));
            }
        }
        killed
    }

    /// Who runs is found out before anything is closed.
    fn end_begins(&mut self, fallen: Vec<usize>) {
        let running = self.members.iter_mut().flatten().filter(|member| member.exit.is_none());
        self.stopped = running.map(|member| member.label()).collect();
        if self.failed.is_empty() {
            // Read only when the deadline is what ended the launch.
            self.failed = fallen.into_iter().map(|index| (index, NotReady::DeadlineFell)).collect();
        }
    }

    fn act(&mut self, action: Action) -> Option<Event> {
        match action {
            Action::Start(index) => return Some(self.start(index)),
            Action::HandOut => self.hand_out(),
            Action::NamePeer(index, exit) => {
                if let Some(member) = &self.members[index] {
                    output::stderr_line(&peer_ended(&member.label(), exit));
                }
            }
            Action::CloseLifeline(index) => {
                if let Some(member) = &mut self.members[index] {
                    member.channel = None;
                    member.lifeline = None;
                }
            }
            Action::Kill(index, target) => {
                if let Some(member) = &self.members[index] {
                    kill(member, target);
                }
            }
            Action::Finish(verdict) => self.verdict = Some(verdict),
        }
        None
    }

    fn start(&mut self, index: usize) -> Event {
        let launch = self.launch;
        let entry = index == launch.admitted.entry();
        let setting = Setting {
            id: &launch.id,
            project: &launch.project.dir,
            request: &launch.request,
            deadline_ms: launch.deadline.map(|deadline| deadline.at_ms),
        };
        let urls = if entry { self.credentials.urls_line(index, &self.ready) } else { String::new() };
        let lines = self.credentials.take_first_lines(index, &urls);
        let mut member = match member::start(self.plans[index].clone(), &setting, lines) {
            Ok(member) => member,
            Err(why) => {
                self.failed.push((index, NotReady::NotStarted(why)));
                return Event::NotStarted(index);
            }
        };
        // Nothing follows for the entry member, nor for one that may call nobody.
        if (entry || !self.credentials.has_callees(index))
            && let Some(channel) = member.channel.take()
        {
            channel.finish();
        }
        let (pidfd, stdout) = (Rc::clone(&member.pidfd), member.stdout.take());
        self.members[index] = Some(member);
        let news = if entry {
            ended(pidfd, index).boxed_local()
        } else {
            ready(pidfd, stdout, launch.id.clone(), index).boxed_local()
        };
        self.news.push(news);
        Event::Started(index)
    }

    /// Sends each peer that may call others their door URLs, closes its channel, relays what else it prints on stdout,
    /// and announces the formation.
    fn hand_out(&mut self) {
        for (index, member) in self.members.iter_mut().enumerate() {
            let Some(member) = member else { continue };
            if let Some(mut channel) = member.channel.take() {
                if let Err(error) = channel.push(self.credentials.urls_line(index, &self.ready).as_bytes()) {
                    output::stderr_line(&format!(
                        "[mur run] note: '{}' could not be sent its callees' addresses: {error}",
                        member.plan.name
                    ));
                }
                channel.finish();
            }
            if let Some(lines) = member.stdout.take() {
                tokio::task::spawn_local(relay(member.plan.name.clone(), lines, LastLines::default()));
            }
        }
        let launch = self.launch;
        let peers: Vec<Peer<'_>> = self
            .members
            .iter()
            .zip(&self.ready)
            .filter_map(|(member, ready)| {
                let member = member.as_ref()?;
                Some(Peer { plan: &member.plan, pid: member.pidfd.pid(), ready: ready.as_ref()? })
            })
            .collect();
        let entry = &self.plans[launch.admitted.entry()];
        announce::print(launch.request.json, &launch.id, entry, launch.deadline, &peers);
    }

    async fn drain_relays(&mut self) {
        let relays = self.members.iter_mut().flatten().filter_map(|member| member.relay.take());
        let all = futures_util::future::join_all(relays);
        let _ = tokio::time::timeout(DRAIN, all).await;
    }

    fn report(mut self, verdict: Verdict) -> Outcome {
        for member in self.members.iter().flatten().filter(|member| member.exit.is_none()) {
            output::stderr_line(&format!("[mur run] {} is still there after SIGKILL", member.label()));
        }
        let stopped = if self.stopped.is_empty() { "none".to_owned() } else { self.stopped.join(", ") };
        match verdict {
            Verdict::Entry(_) => {}
            Verdict::Signalled { signal, launched } => {
                let what = if launched {
                    "the formation was stopped"
                } else {
                    "the launch was interrupted before every member was ready"
                };
                output::stderr_line(&format!("[mur run] {}: {what}; stopped: {stopped}", signals::name(signal)));
            }
            Verdict::NotLaunched | Verdict::DeadlineFell => {
                let fell = self.launch.request.deadline.filter(|_| verdict == Verdict::DeadlineFell);
                let failed = self.take_failed();
                return Err(refusal::diagnostic(&failed, self.launch.id.as_str(), &stopped, fell));
            }
        }
        Ok(verdict.exit())
    }

    fn take_failed(&mut self) -> Vec<Failed> {
        let mut failed = std::mem::take(&mut self.failed);
        failed.sort_by_key(|(index, _)| *index);
        let named = failed.into_iter().map(|(index, reason)| {
            let admitted = &self.launch.admitted.members[index];
            Failed {
                member: admitted.name.clone(),
                coordinate: format!("{}@{}", admitted.capsule, admitted.version),
                reason,
                last_lines: self.members[index].as_ref().map(|member| member.last_lines.take()).unwrap_or_default(),
            }
        });
        named.collect()
    }
}

async fn ended(pidfd: Rc<Pidfd>, index: usize) -> News {
    // A process that cannot be waited for has ended as far as anybody can tell.
    let _ = pidfd.ended().await;
    News::Ended(index)
}

async fn ready(pidfd: Rc<Pidfd>, mut stdout: Option<Lines>, id: crate::ids::FormationId, index: usize) -> News {
    let outcome = readiness::wait(pidfd, &mut stdout, &id, Instant::now() + readiness::READY_WITHIN).await;
    News::Readiness(index, outcome, stdout)
}

/// A peer by its process group, before its leader is reaped; the entry member, which shares the launcher's group, alone.
fn kill(member: &Member, target: Target) {
    let result = match target {
        Target::Process => member.pidfd.signal(Signal::SIGKILL),
        Target::Group => member.pidfd.signal_group(Signal::SIGKILL),
    };
    if result.is_ok() {
        output::stderr_line(&format!("[mur run] {} did not wind down in time and was killed", member.label()));
    }
}

/// What a peer's end in a running formation says: the formation goes on.
fn peer_ended(label: &str, exit: Exit) -> String {
    format!("[mur run] peer {label} ended with {exit}; the formation goes on, and calls to it find nobody")
}

async fn moment(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
