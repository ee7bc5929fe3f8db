//! What one running call of a hook may ask of the session.

use std::sync::Arc;

use super::{Hook, Scene};
use crate::egress::{Egress, HttpError, HttpRequest, HttpResponse, Sender, TrustClass};
use crate::session::agent::{hook_inference, hook_messages, tokens};
use crate::session::context::{ArtifactNetwork, SessionContext, blocking};
use crate::session::staging::ByName;
use crate::worker::hook::{InferenceRequest, InferenceResponse, IoError, MessagePage, TaskIo, TaskIoReply};
use crate::worker::{BoxFuture, HostCalls};

/// Most messages of a page.
const PAGE: u32 = 100;

/// The host calls of one hook's call.
pub(super) struct HookCall {
    ctx: Arc<SessionContext>,
    hook: Arc<Hook>,
    scene: Scene,
}

impl HookCall {
    pub(super) fn of(ctx: &Arc<SessionContext>, hook: &Arc<Hook>, scene: &Scene) -> Arc<Self> {
        Arc::new(Self { ctx: ctx.clone(), hook: hook.clone(), scene: scene.clone() })
    }

    fn trust(&self) -> TrustClass {
        self.scene.trust()
    }
}

impl HostCalls for HookCall {
    fn http<'a>(&'a self, artifact: &'a str, request: HttpRequest) -> BoxFuture<'a, Result<HttpResponse, HttpError>> {
        Box::pin(async move {
            let sender = self.ctx.sender(artifact, self.trust(), None);
            self.ctx.egress.send(&sender, request).await
        })
    }

    fn run_inference(&self, request: InferenceRequest) -> BoxFuture<'_, Result<InferenceResponse, String>> {
        Box::pin(hook_inference::run(&self.ctx, &self.hook.name, &self.scene, request))
    }

    fn count_tokens(&self, text: String) -> BoxFuture<'_, u64> {
        Box::pin(tokens::count(text))
    }

    fn task_io(&self, question: TaskIo) -> Result<TaskIoReply, IoError> {
        if self.hook.reads_task { self.scene.read(question) } else { Err(IoError::NotGranted) }
    }

    fn read_conversation(&self, cursor: Option<String>, most: u32) -> BoxFuture<'_, Result<MessagePage, String>> {
        let granted = self.hook.reads_conversation;
        let record = self.scene.task.as_ref().and_then(|task| task.record.clone());
        Box::pin(async move {
            if !granted {
                return Err("not-granted".to_owned());
            }
            let Some(record) = record else {
                return Ok(MessagePage { messages: Vec::new(), next_cursor: None, total: 0 });
            };
            let loaded = blocking(move || record.load()).await.map_err(|error| format!("unavailable: {error}"))?;
            page(&loaded.messages, cursor.as_deref(), most)
        })
    }
}

/// Messages older than the cursor's, newest first. The cursor is the id of the last message of the page before, so that
/// messages which join meanwhile change nothing.
fn page(messages: &[crate::session::agent::Message], cursor: Option<&str>, most: u32) -> Result<MessagePage, String> {
    let older = match cursor {
        None => messages,
        Some(cursor) => {
            let at = messages.iter().position(|message| message.id.as_str() == cursor);
            &messages[..at.ok_or("invalid-cursor")?]
        }
    };
    let shown: Vec<_> = older.iter().rev().take(most.clamp(1, PAGE) as usize).collect();
    let more = shown.len() < older.len();
    Ok(MessagePage {
        next_cursor: shown.last().filter(|_| more).map(|message| message.id.to_string()),
        messages: shown.into_iter().map(hook_messages::to_hook).collect(),
        total: u32::try_from(messages.len()).unwrap_or(u32::MAX),
    })
}

/// The host calls of `on-stage`: there is no session yet, only what its hooks may send.
pub struct StagingCalls {
    /// Which artifact may send where.
    pub senders: ByName<ArtifactNetwork>,
    /// The way out.
    pub egress: Arc<Egress>,
}

impl HostCalls for StagingCalls {
    fn http<'a>(&'a self, artifact: &'a str, request: HttpRequest) -> BoxFuture<'a, Result<HttpResponse, HttpError>> {
        Box::pin(async move {
            let ArtifactNetwork { rules, gateway } = self.senders.get(artifact).cloned().unwrap_or_default();
            let artifact = artifact.to_owned();
            let sender = Sender { artifact, rules, gateway, trust: TrustClass::Trusted, traceparent: None };
            self.egress.send(&sender, request).await
        })
    }

    fn count_tokens(&self, text: String) -> BoxFuture<'_, u64> {
        Box::pin(tokens::count(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::agent::Message;

    #[test]
    fn pages_go_from_the_newest_to_the_oldest() {
        let messages: Vec<Message> = ["a", "b", "c"].map(Message::user).into();
        let first = page(&messages, None, 2).unwrap();
        assert_eq!((first.messages.len(), first.total), (2, 3));
        assert!(first.messages[0].content.contains("\"c\""), "{:?}", first.messages[0]);
        let rest = page(&messages, first.next_cursor.as_deref(), 2).unwrap();
        assert!(rest.messages[0].content.contains("\"a\""));
        assert_eq!((rest.messages.len(), rest.next_cursor), (1, None));
        assert_eq!(page(&messages, Some("msg_none"), 2).unwrap_err(), "invalid-cursor");
        assert_eq!(page(&messages, None, 0).unwrap().messages.len(), 1, "at least one");
    }
}
