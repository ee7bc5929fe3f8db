use std::sync::mpsc;

use super::*;
use crate::credentials::MemberName;
use crate::ids::ContextId;

/// Writes every observation down as a word and an id.
struct Notes(mpsc::Sender<String>);

impl TaskObserver for Notes {
    fn received(&self, task: &TaskFacts) {
        let _ = self.0.send(format!("received {}", task.id));
    }

    fn canceled_in_queue(&self, task: &TaskFacts) {
        let _ = self.0.send(format!("canceled {}", task.id));
    }

    fn rejected_in_queue(&self, task: &TaskFacts, closing: Closing) {
        let _ = self.0.send(format!("{} {}", closing.cause(), task.id));
    }
}

fn registry(capacity: Capacity) -> (TaskRegistry, mpsc::Receiver<String>) {
    let (sender, notes) = mpsc::channel();
    (TaskRegistry::new(capacity, Box::new(Notes(sender))), notes)
}

fn queue(depth: usize) -> TaskRegistry {
    registry(Capacity::Queue { depth }).0
}

fn of(owner: Owner, origin: Origin) -> NewTask {
    NewTask { source: Source::A2a, owner, origin, ..NewTask::of_launch("do it".to_owned(), None) }
}

fn event() -> NewTask {
    of(Owner::Operator, Origin::Event)
}

fn member(name: &str) -> Owner {
    Owner::Member(MemberName::parse(name).unwrap())
}

fn accepted(registry: &TaskRegistry, new: NewTask) -> TaskId {
    match registry.submit(new) {
        Submitted::Accepted { view, .. } => view.id,
        Submitted::Rejected(view) => panic!("rejected: {:?}", view.message),
    }
}

fn refusal(registry: &TaskRegistry, new: NewTask) -> String {
    match registry.submit(new) {
        Submitted::Accepted { view, .. } => panic!("accepted {}", view.id),
        Submitted::Rejected(view) => {
            assert_eq!(view.state, State::Rejected);
            assert!(registry.view(&Owner::Operator, view.id.as_str()).is_none(), "a refused task is not kept");
            view.message.unwrap().to_string()
        }
    }
}

fn take(registry: &TaskRegistry) -> Option<ActiveTask> {
    match registry.try_next() {
        Take::Task(task) => Some(*task),
        Take::Nothing | Take::Closed => None,
    }
}

fn state(registry: &TaskRegistry, id: &TaskId) -> State {
    registry.view(&Owner::Operator, id.as_str()).unwrap().state
}

/// The words of a task's events so far.
fn story(registry: &TaskRegistry, id: &TaskId) -> Vec<String> {
    let mut all = registry.watch(None);
    let events = all.take().events;
    events.iter().filter(|event| event.task.as_ref() == Some(id)).map(|event| word(event)).collect()
}

fn word(event: &Event) -> String {
    match &event.kind {
        EventKind::Status { state, text, .. } => format!("{} {}", state.word(), text.as_deref().unwrap_or("-")),
        EventKind::Response(text) => format!("response {text}"),
        EventKind::Frame(Frame::ToolCallProgress { input_bytes, .. }) => format!("progress {input_bytes}"),
        EventKind::Frame(_) => "frame".to_owned(),
    }
}

#[test]
fn single_takes_one_task_in_the_sessions_life() {
    let (registry, notes) = registry(Capacity::Single);
    let first = accepted(&registry, event());
    assert_eq!(notes.recv().unwrap(), format!("received {first}"));
    assert_eq!(refusal(&registry, event()), BUSY);
    let task = take(&registry).unwrap();
    assert_eq!(refusal(&registry, event()), BUSY);
    registry.finish(&task.id, TaskEnd::completed("42".to_owned()));
    assert_eq!(refusal(&registry, event()), BUSY);
    assert!(notes.try_recv().is_err(), "a refused message leaves no record");
}

#[test]
fn single_a_task_canceled_while_it_waited_frees_the_place() {
    let (registry, notes) = registry(Capacity::Single);
    let first = accepted(&registry, event());
    let view = registry.cancel(&Owner::Operator, first.as_str()).unwrap();
    assert_eq!((view.state, view.ended), (State::Canceled, true));
    assert_eq!(notes.iter().take(2).last().unwrap(), format!("canceled {first}"));
    assert_eq!(story(&registry, &first), ["canceled task canceled before it started"]);
    assert!(take(&registry).is_none());
    accepted(&registry, event());
}

#[test]
fn none_takes_the_launchs_own_task_only() {
    let (registry, notes) = registry(Capacity::None);
    assert_eq!(refusal(&registry, event()), BUSY);
    accepted(&registry, NewTask::of_launch("x".to_owned(), None));
    assert!(notes.try_recv().is_err(), "a launch's task is not received at the door");
    assert_eq!(take(&registry).unwrap().origin, Origin::User);
}

#[test]
fn a_queue_holds_its_depth_beside_the_running_task() {
    let registry = queue(2);
    accepted(&registry, event());
    let running = take(&registry).unwrap();
    accepted(&registry, event());
    let second = accepted(&registry, event());
    assert_eq!(refusal(&registry, event()), BUSY);
    registry.cancel(&Owner::Operator, second.as_str()).unwrap();
    accepted(&registry, event());
    assert_eq!(refusal(&registry, event()), BUSY);
    registry.finish(&running.id, TaskEnd::failed("no"));
    assert_eq!(refusal(&registry, event()), BUSY, "a place is free once the next task has begun");
    take(&registry).unwrap();
    accepted(&registry, event());
}

#[test]
fn an_idle_queue_of_one_holds_two_that_come_at_once() {
    let registry = queue(1);
    assert!(take(&registry).is_none(), "the runner stands waiting");
    accepted(&registry, event());
    accepted(&registry, event());
    assert_eq!(refusal(&registry, event()), BUSY);
}

#[test]
fn the_launchs_task_passes_a_full_queue_and_counts_while_it_waits() {
    let registry = queue(1);
    accepted(&registry, NewTask::of_launch("x".to_owned(), None));
    assert_eq!(refusal(&registry, event()), BUSY);
    accepted(&registry, NewTask { source: Source::DetachedShell, ..event() });
}

#[test]
fn lanes_are_emptied_in_order_and_each_by_arrival() {
    let registry = queue(9);
    let ids: Vec<TaskId> = [Origin::Event, Origin::Peer, Origin::Completion, Origin::Peer, Origin::User]
        .into_iter()
        .map(|origin| accepted(&registry, of(Owner::Operator, origin)))
        .collect();
    for expected in [4, 1, 3, 0, 2] {
        let task = take(&registry).unwrap();
        assert_eq!(task.id, ids[expected]);
        assert!(take(&registry).is_none(), "one task runs at a time");
        registry.finish(&task.id, TaskEnd::completed(String::new()));
    }
}

#[test]
fn r024_anothers_task_is_as_if_it_were_not_there() {
    let registry = queue(9);
    let (a, b) = (member("a"), member("b"));
    let own = NewTask { context: ContextId::parse("shared"), ..of(a.clone(), Origin::Peer) };
    let id = accepted(&registry, own);
    let strangers = [b, Owner::Credential("a".into())];
    for phase in ["waiting", "running", "ended"] {
        if phase == "running" {
            take(&registry).unwrap();
        } else if phase == "ended" {
            registry.finish(&id, TaskEnd::completed("x".to_owned()));
        }
        for stranger in &strangers {
            assert!(registry.view(stranger, id.as_str()).is_none(), "{phase}");
            assert_eq!(registry.cancel(stranger, id.as_str()).err(), Some(CancelRefusal::NotFound), "{phase}");
            assert!(matches!(registry.subscribe(stranger, id.as_str(), None), Err(SubscribeRefusal::NotFound)));
            let delivered = registry.deliver(stranger, id.as_str(), None, "x".to_owned());
            assert_eq!(delivered.err(), Some(DeliverRefusal::NotFound));
            assert_eq!(registry.list(stranger, &ListQuery::default()).unwrap().total, 0);
        }
        assert!(registry.view(&a, id.as_str()).is_some());
        assert!(registry.view(&Owner::Operator, id.as_str()).is_some());
    }
    assert_eq!(state(&registry, &id), State::Completed, "nothing was canceled");
}

#[test]
fn an_answer_comes_just_before_the_final_status() {
    let registry = queue(1);
    let id = accepted(&registry, event());
    let task = take(&registry).unwrap();
    registry.status(&id, "inference turn 1");
    assert_eq!(registry.finish(&id, TaskEnd::completed("42".to_owned())), State::Completed);
    assert_eq!(story(&registry, &id), ["working inference turn 1", "response 42", "completed task completed"]);
    registry.status(&id, "too late");
    registry.frame(Some(&id), Frame::Thinking { text: "too late".into() });
    registry.finish(&id, TaskEnd::failed("twice"));
    assert_eq!(story(&registry, &id).len(), 3);
    let view = registry.view(&Owner::Operator, id.as_str()).unwrap();
    assert_eq!(view.response, Some(Answer::Text("42".into())));
    assert!(!task.canceled.is_set());
}

#[test]
fn a_cancel_wins_over_what_the_runner_reports_later() {
    let registry = queue(1);
    let id = accepted(&registry, event());
    let task = take(&registry).unwrap();
    let view = registry.cancel(&Owner::Operator, id.as_str()).unwrap();
    assert_eq!((view.state, view.ended), (State::Canceled, false));
    assert!(task.canceled.is_set());
    registry.status(&id, "inference turn 2");
    assert!(registry.require_input(&id, "?").is_none());
    assert!(matches!(registry.subscribe(&Owner::Operator, id.as_str(), None), Err(SubscribeRefusal::Ended(_))));
    let again = registry.cancel(&Owner::Operator, id.as_str());
    assert_eq!(again.err(), Some(CancelRefusal::Ended(State::Canceled)));
    assert_eq!(registry.finish(&id, TaskEnd::completed("42".to_owned())), State::Canceled);
    let view = registry.view(&Owner::Operator, id.as_str()).unwrap();
    assert_eq!((view.message.as_deref(), view.response), (Some(TASK_CANCELED), None));
    assert_eq!(story(&registry, &id), ["canceled task canceled"]);
}

#[test]
fn stopping_the_session_cancels_each_live_task_once() {
    let registry = queue(3);
    let mut ids: Vec<TaskId> = (0..3).map(|_| accepted(&registry, event())).collect();
    let running = take(&registry).unwrap().id.clone();
    ids.sort();
    assert_eq!(registry.cancel_all(), ids);
    assert_eq!(registry.cancel_all(), []);
    let stopped: Vec<&TaskId> = ids.iter().filter(|id| registry.was_stopped(id)).collect();
    assert_eq!(stopped, [&running], "what only waited was never run");
}

#[test]
fn closing_refuses_what_waits_and_what_comes() {
    let (registry, notes) = registry(Capacity::Queue { depth: 3 });
    let running = accepted(&registry, event());
    take(&registry).unwrap();
    let waiting = accepted(&registry, event());
    assert_eq!(registry.close(Closing::Stopped), std::slice::from_ref(&waiting));
    assert_eq!(notes.iter().take(3).last().unwrap(), format!("session_stopped {waiting}"));
    let told = "task rejected: the session was stopped before this task started";
    assert_eq!(story(&registry, &waiting), [format!("rejected {told}")]);
    assert_eq!(refusal(&registry, event()), CLOSING);
    assert_eq!(refusal(&registry, NewTask::of_launch("x".to_owned(), None)), CLOSING);
    assert!(matches!(registry.try_next(), Take::Nothing), "the running task is still the runner's");
    registry.finish(&running, TaskEnd::completed("x".to_owned()));
    assert!(matches!(registry.try_next(), Take::Closed));
}

#[test]
fn a_waiting_task_takes_one_message_and_works_on() {
    let registry = queue(1);
    let id = accepted(&registry, NewTask { context: ContextId::parse("c"), ..event() });
    let deliver = |context: Option<&str>| registry.deliver(&Owner::Operator, id.as_str(), context, "yes".to_owned());
    assert_eq!(deliver(None).err(), Some(DeliverRefusal::NotWaiting(State::Submitted)));
    take(&registry).unwrap();
    assert_eq!(deliver(None).err(), Some(DeliverRefusal::NotWaiting(State::Working)));
    let mut wait = registry.require_input(&id, "sure?").unwrap();
    assert_eq!(registry.view(&Owner::Operator, id.as_str()).unwrap().prompt.as_deref(), Some("sure?"));
    assert_eq!(deliver(Some("other")).err(), Some(DeliverRefusal::OtherContext));
    let (view, _) = deliver(Some("c")).unwrap();
    assert_eq!((view.state, view.prompt), (State::Working, None));
    assert_eq!(wait.0.try_recv().unwrap(), "yes");
    assert_eq!(story(&registry, &id), ["input-required sure?", "working resumed"]);
    // A second question, given up, and a third, canceled.
    let given_up = registry.require_input(&id, "again?").unwrap();
    drop(given_up);
    assert!(registry.input_expired(&id));
    assert!(!registry.input_expired(&id));
    let mut wait = registry.require_input(&id, "still?").unwrap();
    registry.cancel(&Owner::Operator, id.as_str()).unwrap();
    assert!(wait.0.try_recv().is_err());
    assert_eq!(deliver(None).err(), Some(DeliverRefusal::Ended(State::Canceled)));
}

#[test]
fn a_reply_to_a_waiter_that_has_just_gone_is_refused() {
    let registry = queue(1);
    let id = accepted(&registry, event());
    take(&registry).unwrap();
    drop(registry.require_input(&id, "?"));
    let refused = registry.deliver(&Owner::Operator, id.as_str(), None, "x".to_owned());
    assert_eq!(refused.err(), Some(DeliverRefusal::NotWaiting(State::Working)));
    assert_eq!(state(&registry, &id), State::Working);
}

#[test]
fn progress_is_thinned_never_falls_and_ends_with_the_last_word() {
    let registry = queue(1);
    let id = accepted(&registry, event());
    take(&registry).unwrap();
    let progress = |bytes, now| {
        let frame = Frame::ToolCallProgress { tool_call_id: "c".into(), input_bytes: bytes };
        registry.lock().frame(Some(&id), frame, now);
    };
    for (bytes, now) in [(10, 0), (20, 100), (30, 200), (40, 250), (35, 600), (50, 610)] {
        progress(bytes, now);
    }
    registry.lock().frame(Some(&id), Frame::Artifact(ArtifactFrame::default()), 620);
    assert_eq!(story(&registry, &id), ["progress 10", "progress 40", "progress 50", "frame"]);
}

#[test]
fn pages_are_newest_change_first_and_go_on_where_the_last_ended() {
    let registry = queue(9);
    let ids: Vec<TaskId> = (0..5).map(|_| accepted(&registry, event())).collect();
    take(&registry).unwrap();
    // ids[0] changed last.
    let query = ListQuery { page_size: 2, ..ListQuery::default() };
    let first = registry.list(&Owner::Operator, &query).unwrap();
    let names = |page: &TaskPage| page.tasks.iter().map(|task| task.id.clone()).collect::<Vec<_>>();
    assert_eq!(names(&first), [ids[0].clone(), ids[4].clone()]);
    assert_eq!(first.total, 5);
    let token = PageToken::parse(&first.next.unwrap().to_text()).unwrap();
    // A task that moves to the front meanwhile is not met again.
    registry.cancel(&Owner::Operator, ids[4].as_str()).unwrap();
    let second = registry.list(&Owner::Operator, &ListQuery { after: Some(token), ..query.clone() }).unwrap();
    assert_eq!(names(&second), [ids[3].clone(), ids[2].clone()]);
    let third = registry.list(&Owner::Operator, &ListQuery { after: second.next, ..query }).unwrap();
    assert_eq!(names(&third), [ids[1].clone()]);
    assert!(third.next.is_none());
}

#[test]
fn filters_count_only_what_matches() {
    let registry = queue(9);
    let mine = accepted(&registry, NewTask { context: ContextId::parse("c"), ..of(member("a"), Origin::Peer) });
    accepted(&registry, event());
    let count = |query: ListQuery| registry.list(&Owner::Operator, &query).unwrap().total;
    assert_eq!(count(ListQuery { context: Some("c".to_owned()), ..ListQuery::default() }), 1);
    let states = StateFilter::parse("TASK_STATE_WORKING").unwrap();
    assert_eq!(count(ListQuery { states, ..ListQuery::default() }), 0);
    let states = StateFilter::parse("TASK_STATE_AUTH_REQUIRED").unwrap();
    assert_eq!(count(ListQuery { states, ..ListQuery::default() }), 0);
    assert_eq!(StateFilter::parse("submitted"), None);
    assert_eq!(count(ListQuery { changed_since_ns: Some(i128::MAX), ..ListQuery::default() }), 0);
    assert_eq!(count(ListQuery { changed_since_ns: Some(0), ..ListQuery::default() }), 2);
    assert_eq!(registry.list(&member("a"), &ListQuery::default()).unwrap().tasks[0].id, mine);
}

#[test]
fn a_page_token_is_one_this_registry_can_have_issued() {
    let registry = queue(9);
    accepted(&registry, event());
    for bad in ["", "x", "MQ", "MTp0c2tfMA", "MQ=="] {
        assert_eq!(PageToken::parse(bad), None, "{bad}");
    }
    use base64::Engine as _;
    let far = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(format!("99:{}", TaskId::mint()));
    let query = ListQuery { after: PageToken::parse(&far), ..ListQuery::default() };
    assert!(query.after.is_some());
    assert!(registry.list(&Owner::Operator, &query).is_err());
}

#[test]
fn ended_tasks_keep_a_bounded_record() {
    let registry = queue(9);
    let mut first = None;
    let large = "x".repeat(KEPT_ANSWER_BYTES / 4);
    for index in 0..KEPT_ENDED + 5 {
        let id = accepted(&registry, event());
        take(&registry).unwrap();
        let mut end = TaskEnd::completed(if index < 8 { large.clone() } else { "x".to_owned() });
        end.answer_file = (index % 2 == 0).then(|| "/somewhere".into());
        registry.finish(&id, end);
        if index == 7 {
            let answers: Vec<Option<Answer>> = registry
                .list(&Owner::Operator, &ListQuery::default())
                .unwrap()
                .tasks
                .into_iter()
                .rev()
                .map(|task| task.response)
                .collect();
            assert_eq!(answers[0], Some(Answer::File("/somewhere".into())));
            assert_eq!(answers[1], None);
            assert!(answers[4..].iter().all(|answer| matches!(answer, Some(Answer::Text(_)))));
        }
        first.get_or_insert(id);
    }
    assert!(registry.view(&Owner::Operator, first.unwrap().as_str()).is_none());
    let page = registry.list(&Owner::Operator, &ListQuery::default()).unwrap();
    assert_eq!(page.total, KEPT_ENDED);
    assert_eq!(registry.lock().records.len(), KEPT_ENDED);
    assert_eq!(registry.lock().order.len(), KEPT_ENDED);
}

#[test]
fn r026_a_second_subscription_starts_with_the_present_and_gets_the_rest() {
    let registry = queue(2);
    let id = accepted(&registry, event());
    let other = accepted(&registry, event());
    take(&registry).unwrap();
    registry.status(&id, "inference turn 1");
    let (view, mut second) = registry.subscribe(&Owner::Operator, id.as_str(), None).unwrap();
    assert_eq!(view.state, State::Working);
    assert!(second.take().events.is_empty());
    let (_, mut third) = registry.subscribe(&Owner::Operator, id.as_str(), Some(0)).unwrap();
    assert_eq!(third.take().events.len(), 1);
    drop(third);
    registry.cancel(&Owner::Operator, other.as_str()).unwrap();
    registry.status(&id, "inference turn 2");
    registry.finish(&id, TaskEnd::completed("42".to_owned()));
    let words: Vec<String> = second.take().events.iter().map(|event| word(event)).collect();
    assert_eq!(words, ["working inference turn 2", "response 42", "completed task completed"]);
    let ended = registry.subscribe(&Owner::Operator, id.as_str(), None);
    assert!(matches!(ended, Err(SubscribeRefusal::Ended(State::Completed))));
}

#[tokio::test]
async fn those_who_wait_are_woken() {
    let registry = queue(2);
    let runner = tokio::spawn({
        let registry = registry.clone();
        async move { (registry.next().await, registry) }
    });
    tokio::task::yield_now().await;
    let id = accepted(&registry, event());
    let (task, _) = runner.await.unwrap();
    let task = task.unwrap();
    assert_eq!(task.id, id);
    let (_, mut stream) = registry.subscribe(&Owner::Operator, id.as_str(), None).unwrap();
    assert!(stream.take().events.is_empty());
    let settled = tokio::spawn({
        let (registry, id) = (registry.clone(), id.clone());
        async move { registry.settled(&id).await }
    });
    let canceled = tokio::spawn({
        let signal = task.canceled.clone();
        async move { signal.set().await }
    });
    tokio::task::yield_now().await;
    registry.cancel(&Owner::Operator, id.as_str()).unwrap();
    canceled.await.unwrap();
    assert!(!settled.is_finished(), "an ending is waited for until it is recorded");
    registry.finish(&id, TaskEnd::canceled());
    assert!(settled.await.unwrap().unwrap().ended);
    stream.changed().await;
    assert_eq!(stream.take().events.len(), 1);
    let runner = tokio::spawn({
        let registry = registry.clone();
        async move { registry.next().await.is_none() }
    });
    tokio::task::yield_now().await;
    registry.close(Closing::Ended);
    assert!(runner.await.unwrap());
}
