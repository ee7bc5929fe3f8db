//! The methods: which are served, what each needs, and their answers.

use std::sync::Arc;

use axum::response::Response;
use http::HeaderMap;
use serde_json::{Map, Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::app::App;
use super::authorize::Caller;
use super::card::{DOOR_EXTENSION, STREAM_EXTENSION};
use super::message::{self, Message};
use super::render::{TaskJson, with_answer};
use super::rpc::{self, RpcError};
use super::stream::{Ending, Feed};
use super::{DoorConfig, origin};
use crate::credentials::door::Scope;
use crate::ids::ContextId;
use crate::session::tasks::{
    CancelRefusal, DEFAULT_PAGE, DeliverRefusal, LARGEST_PAGE, ListQuery, NewTask, Origin, PageToken, Source,
    StateFilter, Submitted, SubscribeRefusal, TaskView,
};

/// Header: the session a completion is addressed to.
const COMPLETION_SESSION: &str = "x-murmur-completion-session";
/// Header: the delegation that has ended.
const DELEGATION: &str = "x-murmur-delegation-id";
/// Longest trace context that is carried onto a task.
const MAX_TRACEPARENT: usize = 256;
/// Push notification methods, none of which is served.
const PUSH_METHODS: [&str; 4] = [
    "CreateTaskPushNotificationConfig",
    "GetTaskPushNotificationConfig",
    "ListTaskPushNotificationConfigs",
    "DeleteTaskPushNotificationConfig",
];

/// A method of the door, in the card's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    SendMessage,
    SendStreamingMessage,
    WatchSession,
    GetTask,
    ListTasks,
    CancelTask,
    SubscribeToTask,
    StopSession,
    GetExtendedAgentCard,
}

impl Method {
    const ALL: [Self; 9] = [
        Self::SendMessage,
        Self::SendStreamingMessage,
        Self::WatchSession,
        Self::GetTask,
        Self::ListTasks,
        Self::CancelTask,
        Self::SubscribeToTask,
        Self::StopSession,
        Self::GetExtendedAgentCard,
    ];

    pub(super) fn name(self) -> &'static str {
        self.scope().map_or("GetExtendedAgentCard", Scope::as_str)
    }

    /// The scope a credential needs; none for the card.
    pub(super) fn scope(self) -> Option<Scope> {
        match self {
            Self::SendMessage => Some(Scope::SendMessage),
            Self::SendStreamingMessage => Some(Scope::SendStreamingMessage),
            Self::WatchSession => Some(Scope::WatchSession),
            Self::GetTask => Some(Scope::GetTask),
            Self::ListTasks => Some(Scope::ListTasks),
            Self::CancelTask => Some(Scope::CancelTask),
            Self::SubscribeToTask => Some(Scope::SubscribeToTask),
            Self::StopSession => Some(Scope::StopSession),
            Self::GetExtendedAgentCard => None,
        }
    }

    /// The methods a door serves, in order.
    pub(super) fn served(accepts_tasks: bool, authenticated: bool) -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(move |method| match method {
            Self::SendMessage | Self::SendStreamingMessage | Self::SubscribeToTask => accepts_tasks,
            Self::GetExtendedAgentCard => authenticated,
            _ => true,
        })
    }

    /// The method of this exact name, where it is served.
    pub(super) fn find(name: &str, config: &DoorConfig) -> Result<Self, RpcError> {
        let served = Self::served(config.accepts_tasks, config.tokens.is_some()).find(|method| method.name() == name);
        match served {
            Some(method) => Ok(method),
            None if PUSH_METHODS.contains(&name) => Err(RpcError::push_notifications()),
            None if name == "GetExtendedAgentCard" => {
                Err(RpcError::unsupported("this agent serves no extended agent card"))
            }
            None if name == "SendStreamingMessage" || name == "SubscribeToTask" => {
                Err(RpcError::unsupported("this agent does not stream: it starts no task"))
            }
            None => Err(RpcError::no_method()),
        }
    }
}

/// One call of a method.
pub(super) struct Call<'a> {
    pub(super) app: &'a Arc<App>,
    pub(super) caller: Caller,
    pub(super) origin: Origin,
    pub(super) headers: &'a HeaderMap,
    pub(super) id: Value,
    pub(super) params: Map<String, Value>,
}

/// Answers a call.
pub(super) async fn answer(method: Method, call: Call<'_>) -> Response {
    let answered = match method {
        Method::SendMessage => send_message(&call).await,
        Method::SendStreamingMessage => send_streaming_message(&call).await,
        Method::WatchSession => Ok(watch_session(&call)),
        Method::GetTask => get_task(&call).await,
        Method::ListTasks => list_tasks(&call).await,
        Method::CancelTask => cancel_task(&call),
        Method::SubscribeToTask => subscribe_to_task(&call).await,
        Method::StopSession => Ok(stop_session(&call)),
        Method::GetExtendedAgentCard => Ok(call.result(&call.app.extended_card)),
    };
    answered.unwrap_or_else(|error| rpc::error_response(&call.id, &error))
}

/// A completion never becomes a task; this session hands nothing off that could complete.
pub(super) fn completion(app: &App, headers: &HeaderMap, method: &str) -> RpcError {
    let text = |name| headers.get(name).and_then(|line| line.to_str().ok()).unwrap_or("").trim();
    let addressed = text(COMPLETION_SESSION);
    if addressed != app.config.session.as_str() {
        return RpcError::completion_misaddressed(addressed);
    }
    if method != Method::SendMessage.name() {
        return RpcError::completion_method();
    }
    RpcError::completion_not_awaited(Some(text(DELEGATION)).filter(|id| !id.is_empty()))
}

impl Call<'_> {
    fn result(&self, result: &impl serde::Serialize) -> Response {
        rpc::result_response(&self.id, result, &[])
    }

    /// Where a message belongs that names no context: with the launch's own for the operator, in a new one for anybody
    /// else. At a public door nobody is known to be the operator.
    fn own_context(&self) -> Option<ContextId> {
        self.app.config.context.clone().filter(|_| matches!(self.caller, Caller::Operator))
    }

    /// A parameter that is an id.
    fn task_id(&self, method: &str) -> Result<&str, RpcError> {
        match self.params.get("id") {
            Some(Value::String(id)) if !id.is_empty() => Ok(id),
            _ => Err(RpcError::params(format!("{method} requires an id"))),
        }
    }

    /// Whether the request asks for the stream extension's frames.
    fn activated(&self) -> bool {
        let lines = self.headers.get_all("a2a-extensions").iter().filter_map(|line| line.to_str().ok());
        lines.flat_map(|line| line.split(',')).any(|uri| uri.trim() == STREAM_EXTENSION)
    }

    fn last_event_id(&self) -> Option<u64> {
        self.headers.get("last-event-id")?.to_str().ok()?.trim().parse().ok()
    }
}

// Messages.

/// What became of a message.
enum Taken {
    Accepted { view: TaskView, next_event: u64 },
    Rejected(TaskView),
}

async fn send_message(call: &Call<'_>) -> Result<Response, RpcError> {
    let message = message::read(&call.params)?;
    let (immediately, used_door) = (message.return_immediately, message.used_door_extension);
    let view = match take(call, message).await? {
        Taken::Rejected(view) => view,
        Taken::Accepted { view, .. } if immediately => view,
        Taken::Accepted { view, .. } => settled(call.app, view).await,
    };
    let view = with_answer(view).await;
    let extensions: &[&str] = if used_door { &[DOOR_EXTENSION] } else { &[] };
    Ok(rpc::result_response(&call.id, &json!({ "task": TaskJson::of(&view) }), extensions))
}

/// The task once it has ended or asks for input; as it stands when the door closes first.
async fn settled(app: &App, view: TaskView) -> TaskView {
    let settled = tokio::select! {
        settled = app.registry.settled(&view.id) => settled,
        () = app.closed() => app.registry.view(&crate::session::tasks::Owner::Operator, view.id.as_str()),
    };
    settled.unwrap_or(view)
}

async fn send_streaming_message(call: &Call<'_>) -> Result<Response, RpcError> {
    let message = message::read(&call.params)?;
    let mut extensions = Vec::new();
    if message.used_door_extension {
        extensions.push(DOOR_EXTENSION);
    }
    if call.activated() {
        extensions.push(STREAM_EXTENSION);
    }
    let feed = match take(call, message).await? {
        Taken::Rejected(view) => Feed::of_rejected(call.app, &call.id, &view),
        Taken::Accepted { view, next_event } => {
            let subscription = call.app.registry.follow(&view.id, next_event, call.last_event_id());
            Feed::of_task(call.app, &call.id, &view, subscription, call.activated(), Ending::Message)
        }
    };
    Ok(feed.response(&extensions))
}

/// Makes a task of a message, or hands it to the task it names.
async fn take(call: &Call<'_>, message: Message) -> Result<Taken, RpcError> {
    let registry = &call.app.registry;
    let owner = call.caller.owner();
    let mut text = message.text;
    if !message.references.is_empty() {
        let mut tasks = Vec::with_capacity(message.references.len());
        for id in &message.references {
            let view = registry.view(&owner, id);
            let view = match view {
                Some(view) => Some(with_answer(view).await),
                None => None,
            };
            tasks.push((id.clone(), view));
        }
        text.push_str(&message::referenced(&tasks));
    }
    if let Some(id) = message.task_id {
        let context = message.context.as_ref().map(crate::ids::ContextId::as_str);
        return match registry.deliver(&owner, &id, context, text) {
            Ok((view, next_event)) => Ok(Taken::Accepted { view, next_event }),
            Err(refusal) => Err(deliver_refusal(&id, refusal)),
        };
    }
    let traceparent = call.headers.get("traceparent").and_then(|line| line.to_str().ok());
    let submitted = registry.submit(NewTask {
        text,
        context: message.context.or_else(|| call.own_context()),
        origin: call.origin,
        trust: origin::trust(call.headers, call.origin, &call.caller),
        source: Source::A2a,
        owner,
        message_id: Some(message.message_id),
        traceparent: traceparent.filter(|text| text.len() <= MAX_TRACEPARENT).map(str::to_owned),
        part_kinds: message.part_kinds,
        reference_task_ids: message.references,
    });
    Ok(match submitted {
        Submitted::Accepted { view, next_event } => Taken::Accepted { view, next_event },
        Submitted::Rejected(view) => Taken::Rejected(view),
    })
}

fn deliver_refusal(id: &str, refusal: DeliverRefusal) -> RpcError {
    match refusal {
        DeliverRefusal::NotFound => RpcError::task_not_found(id),
        DeliverRefusal::Ended(state) => RpcError::wrong_state(
            format!(
                "task {id} has ended in {}; send a new message without taskId, in the same contextId, to start a new task",
                state.wire()
            ),
            id,
            state,
        ),
        DeliverRefusal::NotWaiting(state) => RpcError::wrong_state(
            format!(
                "task {id} is {}; this agent takes a message on a task only while it waits in TASK_STATE_INPUT_REQUIRED",
                state.wire()
            ),
            id,
            state,
        ),
        DeliverRefusal::OtherContext => {
            RpcError::params(format!("message.contextId is not the context task {id} waits in"))
        }
    }
}

// Tasks.

async fn get_task(call: &Call<'_>) -> Result<Response, RpcError> {
    let id = call.task_id("GetTask")?;
    let view = call.app.registry.view(&call.caller.owner(), id).ok_or_else(|| RpcError::task_not_found(id))?;
    let view = with_answer(view).await;
    Ok(call.result(&TaskJson::of(&view)))
}

async fn list_tasks(call: &Call<'_>) -> Result<Response, RpcError> {
    let with_artifacts = match call.params.get("includeArtifacts") {
        None | Some(Value::Null) => false,
        Some(Value::Bool(with)) => *with,
        Some(_) => return Err(RpcError::params("includeArtifacts must be a boolean")),
    };
    let query = list_query(&call.params)?;
    let page = call.app.registry.list(&call.caller.owner(), &query).map_err(|_| bad_page_token())?;
    let mut tasks = Vec::with_capacity(page.tasks.len());
    for view in page.tasks {
        tasks.push(if with_artifacts { with_answer(view).await } else { view });
    }
    let tasks: Vec<TaskJson<'_>> = tasks.iter().map(|view| TaskJson::in_list(view, with_artifacts)).collect();
    Ok(call.result(&json!({
        "tasks": tasks,
        "nextPageToken": page.next.map(|token| token.to_text()).unwrap_or_default(),
        "pageSize": query.page_size,
        "totalSize": page.total,
    })))
}

fn bad_page_token() -> RpcError {
    RpcError::params("pageToken is not a nextPageToken this agent issued")
}

fn list_query(params: &Map<String, Value>) -> Result<ListQuery, RpcError> {
    let text = |key: &str| match params.get(key) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.as_str())),
        Some(_) => Err(RpcError::params(format!("{key} must be a string"))),
    };
    let states = match text("status")? {
        None => StateFilter::Any,
        Some(name) => {
            StateFilter::parse(name).ok_or_else(|| RpcError::params(format!("status '{name}' is no task state")))?
        }
    };
    let page_size = match params.get("pageSize") {
        None => DEFAULT_PAGE,
        Some(size) => size
            .as_u64()
            .filter(|size| *size >= 1)
            .map(|size| usize::try_from(size).unwrap_or(LARGEST_PAGE).min(LARGEST_PAGE))
            .ok_or_else(|| RpcError::params("pageSize must be an integer of at least 1"))?,
    };
    let after = match text("pageToken")? {
        None | Some("") => None,
        Some(token) => Some(PageToken::parse(token).ok_or_else(bad_page_token)?),
    };
    let changed_since_ns = match params.get("statusTimestampAfter") {
        None | Some(Value::Null) => None,
        Some(since) => Some(
            since
                .as_str()
                .and_then(|text| OffsetDateTime::parse(text, &Rfc3339).ok())
                .map(OffsetDateTime::unix_timestamp_nanos)
                .ok_or_else(|| {
                    RpcError::params("statusTimestampAfter must be an RFC 3339 timestamp, such as 2026-10-13T09:00:00Z")
                })?,
        ),
    };
    let context = text("contextId")?.filter(|context| !context.is_empty()).map(str::to_owned);
    Ok(ListQuery { context, states, changed_since_ns, page_size, after })
}

fn cancel_task(call: &Call<'_>) -> Result<Response, RpcError> {
    let id = match call.params.get("id") {
        Some(Value::String(id)) => id,
        _ => return Err(RpcError::params("CancelTask requires an id")),
    };
    match call.app.registry.cancel(&call.caller.owner(), id) {
        Ok(view) => Ok(call.result(&TaskJson::canceled(&view))),
        Err(CancelRefusal::NotFound) => Err(RpcError::task_not_found(id)),
        Err(CancelRefusal::Ended(state)) => Err(RpcError::not_cancelable(id, state)),
    }
}

async fn subscribe_to_task(call: &Call<'_>) -> Result<Response, RpcError> {
    let id = call.task_id("SubscribeToTask")?;
    let subscribed = call.app.registry.subscribe(&call.caller.owner(), id, call.last_event_id());
    let (view, subscription) = subscribed.map_err(|refusal| match refusal {
        SubscribeRefusal::NotFound => RpcError::task_not_found(id),
        SubscribeRefusal::Ended(state) => RpcError::wrong_state(
            format!("task {id} has ended in {}; there is nothing left to subscribe to", state.wire()),
            id,
            state,
        ),
    })?;
    let activated = call.activated();
    let extensions: &[&str] = if activated { &[STREAM_EXTENSION] } else { &[] };
    Ok(Feed::of_task(call.app, &call.id, &view, subscription, activated, Ending::Task).response(extensions))
}

fn watch_session(call: &Call<'_>) -> Response {
    let subscription = call.app.registry.watch(call.last_event_id());
    Feed::of_session(call.app, &call.id, subscription).response(&[DOOR_EXTENSION, STREAM_EXTENSION])
}

fn stop_session(call: &Call<'_>) -> Response {
    let canceled = call.app.registry.cancel_all();
    let result = json!({ "session_id": call.app.config.session, "canceled": canceled, "residue": [] });
    rpc::result_response(&call.id, &result, &[DOOR_EXTENSION])
}
