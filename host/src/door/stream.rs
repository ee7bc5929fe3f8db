//! Streams of events: what opens one, what it carries, and what ends it.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::sync::Arc;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::{HeaderValue, header};
use serde_json::{Value, json};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use super::app::App;
use super::render::{self, TaskJson};
use super::rpc;
use crate::session::tasks::{Answer, Batch, Event, EventKind, State, Subscription, TaskView};

/// A comment line: it keeps the connection and is no event.
const HEARTBEAT: &str = ":heartbeat\n\n";

/// What ends a stream beside its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// The task's end, or its asking for input: the answer of a message.
    Message,
    /// The task's end.
    Task,
    /// The session's.
    Session,
}

/// One open stream.
pub(super) struct Feed {
    app: Arc<App>,
    /// The request's id, as JSON.
    request: String,
    opening: Option<String>,
    subscription: Option<Subscription>,
    activated: bool,
    ending: Ending,
    /// The task it follows, as last written.
    task: Option<TaskView>,
    lagged: bool,
    heartbeat: Interval,
    done: bool,
}

impl Feed {
    /// A stream of one task, which opens with the task as it is.
    pub(super) fn of_task(
        app: &Arc<App>,
        request: &Value,
        view: &TaskView,
        subscription: Subscription,
        activated: bool,
        ending: Ending,
    ) -> Self {
        let mut feed = Self::new(app, request, Some(subscription), activated, ending);
        feed.opening = Some(feed.line(None, &json!({ "task": TaskJson::of(view) })));
        feed.task = Some(view.clone());
        feed
    }

    /// A stream that says a task was not taken, and ends.
    pub(super) fn of_rejected(app: &Arc<App>, request: &Value, view: &TaskView) -> Self {
        let mut feed = Self::new(app, request, None, false, Ending::Message);
        feed.opening = Some(feed.line(None, &json!({ "task": TaskJson::of(view) })));
        feed
    }

    /// The observer's stream.
    pub(super) fn of_session(app: &Arc<App>, request: &Value, subscription: Subscription) -> Self {
        let mut feed = Self::new(app, request, Some(subscription), true, Ending::Session);
        let ack = render::frame_message(render::connection_ack(app.config.threaded));
        feed.opening = Some(feed.line(None, &ack));
        feed
    }

    fn new(
        app: &Arc<App>,
        request: &Value,
        subscription: Option<Subscription>,
        activated: bool,
        ending: Ending,
    ) -> Self {
        let mut heartbeat = interval_at(Instant::now() + app.heartbeat, app.heartbeat);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            app: app.clone(),
            request: request.to_string(),
            opening: None,
            subscription,
            activated,
            ending,
            task: None,
            lagged: false,
            heartbeat,
            done: false,
        }
    }

    pub(super) fn response(self, extensions: &[&str]) -> Response {
        let stream = futures_util::stream::unfold(self, |mut feed| async move {
            let chunk = feed.next().await?;
            Some((Ok::<Bytes, Infallible>(chunk), feed))
        });
        let mut response = Response::new(Body::from_stream(stream));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        headers.insert(header::CONNECTION, HeaderValue::from_static("keep-alive"));
        rpc::name_extensions(&mut response, extensions);
        response
    }

    /// The next bytes, or the end. Each chunk is written out at once.
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(opening) = self.opening.take() {
            return Some(opening.into());
        }
        loop {
            if self.done {
                return None;
            }
            let closing = *self.app.closing.borrow();
            let batch = self.subscription.as_mut()?.take();
            let text = self.render(&batch);
            // What has happened is written before a closing door ends the stream.
            self.done |= closing;
            if !text.is_empty() {
                return Some(text.into());
            }
            if self.done {
                return None;
            }
            let beat = {
                let app = self.app.clone();
                let subscription = self.subscription.as_mut()?;
                tokio::select! {
                    () = subscription.changed() => false,
                    () = app.closed() => false,
                    _ = self.heartbeat.tick() => true,
                }
            };
            if beat {
                return Some(self.beat().into());
            }
        }
    }

    fn render(&mut self, batch: &Batch) -> String {
        let mut text = String::new();
        if let Some(first) = batch.gap {
            self.loss(&mut text, render::gap(first));
        }
        if batch.missed > 0 {
            self.lagged = true;
            self.loss(&mut text, render::lagged(batch.missed));
        }
        for event in &batch.events {
            if let Some(result) = render::event(event, self.activated) {
                text.push_str(&self.line(Some(event.id), &result));
            }
            if self.note(event, batch.replayed) {
                self.done = true;
                break;
            }
        }
        text
    }

    /// Remembers where the task stands; true when the event ends this stream.
    fn note(&mut self, event: &Event, replayed: bool) -> bool {
        let EventKind::Status { state, .. } = &event.kind else { return false };
        let Some(task) = &mut self.task else { return false };
        task.state = *state;
        match self.ending {
            Ending::Session => false,
            Ending::Task => state.is_terminal(),
            Ending::Message => state.is_terminal() || (*state == State::InputRequired && !replayed),
        }
    }

    /// A `gap` or `lagged` frame, for readers that asked for frames.
    fn loss(&self, text: &mut String, frame: Value) {
        if !self.activated {
            return;
        }
        let result = match &self.task {
            Some(task) => render::frame_update(frame, task.state, task.changed_ms, &task.id, &task.context),
            None => render::frame_message(frame),
        };
        text.push_str(&self.line(None, &result));
    }

    /// A heartbeat; a task stream that lost events looks whether its task's end was among them.
    fn beat(&mut self) -> String {
        let mut text = HEARTBEAT.to_owned();
        if !self.lagged || self.ending == Ending::Session {
            return text;
        }
        let Some(view) = self.subscription.as_ref().and_then(Subscription::current) else { return text };
        let asks = self.ending == Ending::Message && view.state == State::InputRequired;
        if !view.ended && !asks {
            return text;
        }
        if let Some(Answer::Text(response)) = &view.response {
            text.push_str(&self.line(None, &render::response_update(response, &view.id, &view.context)));
        }
        let said = if asks { view.prompt.as_deref() } else { view.message.as_deref() };
        let status = render::status_update(view.state, said, view.changed_ms, &view.id, &view.context);
        text.push_str(&self.line(None, &status));
        self.done = true;
        text
    }

    /// One event: its number, where it has one, and its result as a response to the request.
    fn line(&self, id: Option<u64>, result: &Value) -> String {
        let mut line = String::new();
        if let Some(id) = id {
            let _ = writeln!(line, "id: {id}");
        }
        let _ = write!(line, "data: {{\"jsonrpc\":\"2.0\",\"id\":{},\"result\":{result}}}\n\n", self.request);
        line
    }
}
