//! The door as its clients see it: a bound listener and raw bytes.

mod client;
mod files;
mod http;
mod refusals;
mod streams;
mod tasks;

use serde_json::{Value, json};

use super::*;
use crate::credentials::MemberName;
use crate::credentials::door::Scope;
use crate::credentials::token::{EdgeToken, SigningKey};
use crate::ids::{FormationId, TaskId};
use crate::session::tasks::{ActiveTask, Capacity, Owner, TaskEnd, TaskRegistry, Unobserved};
use client::{Answer, Client, Stream};

/// A door with its registry and everything that opens it.
struct House {
    door: Door,
    registry: TaskRegistry,
    session: SessionId,
    tokens: Option<Arc<DoorTokens>>,
    key: SigningKey,
    formation: FormationId,
    heartbeat: Duration,
}

/// What kind of door.
#[derive(Clone, Copy)]
struct Kind {
    authenticated: bool,
    in_formation: bool,
    accepts_peers: bool,
    accepts_tasks: bool,
    heartbeat: Duration,
}

const PUBLIC: Kind = Kind {
    authenticated: false,
    in_formation: false,
    accepts_peers: true,
    accepts_tasks: true,
    heartbeat: Duration::from_secs(15),
};
const AUTHENTICATED: Kind = Kind { authenticated: true, ..PUBLIC };
const MEMBER: Kind = Kind { in_formation: true, ..AUTHENTICATED };

fn name(text: &str) -> MemberName {
    MemberName::parse(text).unwrap()
}

impl House {
    fn open(kind: Kind) -> Self {
        Self::exporting(kind, None)
    }

    fn exporting(kind: Kind, files: Option<ExportedFiles>) -> Self {
        let capacity = if kind.accepts_tasks { Capacity::Queue { depth: 8 } } else { Capacity::None };
        let registry = TaskRegistry::new(capacity, Box::new(Unobserved));
        let (key, formation) = (SigningKey::mint().unwrap(), FormationId::mint());
        let session = SessionId::mint();
        let watcher: &[Scope] = &[Scope::GetTask, Scope::ListTasks, Scope::WatchSession];
        let tokens = kind.authenticated.then(|| Arc::new(DoorTokens::mint([("watcher", watcher)]).unwrap()));
        let config = DoorConfig {
            capsule: CapsuleFacts {
                name: "tally".to_owned(),
                version: "2.0.1".to_owned(),
                tools: vec!["stats".to_owned()],
                shell: false,
                network: true,
                exports_files: false,
                exports_peer_files: false,
            },
            session: session.clone(),
            tokens: tokens.clone(),
            formation: kind.in_formation.then(|| Verifier::new(formation.clone(), name("coder"), key.verifying_key())),
            accepts_peers: kind.accepts_peers,
            accepts_tasks: kind.accepts_tasks,
            threaded: false,
            context: None,
            files,
        };
        let bound = bind("127.0.0.1", None).unwrap();
        let port = bound.port();
        let listener = tokio::net::TcpListener::from_std(bound.listener).unwrap();
        let (closing, closed) = watch::channel(false);
        let mut app = app::App::new(config, registry.clone(), port, closed);
        app.heartbeat = kind.heartbeat;
        let serving = tokio::spawn(serve::serve(listener, Arc::new(app)));
        let door = Door { port, closing, serving };
        Self { door, registry, session, tokens, key, formation, heartbeat: kind.heartbeat }
    }

    async fn client(&self) -> Client {
        Client::connect(self.door.port()).await
    }

    fn operator(&self) -> String {
        bearer(self.tokens.as_ref().unwrap().operator().expose())
    }

    fn watcher(&self) -> String {
        bearer(self.tokens.as_ref().unwrap().declared()[0].expose())
    }

    fn edge(&self, from: &str, to: &str) -> EdgeToken {
        self.key.sign_edge(&self.formation, &name(from), &name(to))
    }

    /// The header of a member that may call this door.
    fn member(&self, from: &str) -> String {
        bearer(self.edge(from, "coder").expose())
    }

    /// Calls a method on a connection of its own.
    async fn call(&self, headers: &[&str], method: &str, params: Value) -> Answer {
        self.client().await.call(headers, method, params).await
    }

    async fn result(&self, headers: &[&str], method: &str, params: Value) -> Value {
        let answer = self.call(headers, method, params).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let json = answer.json();
        assert!(json.get("error").is_none(), "{json}");
        json["result"].clone()
    }

    async fn error(&self, headers: &[&str], method: &str, params: Value) -> Value {
        let answer = self.call(headers, method, params).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()["error"].clone()
    }

    async fn stream(&self, headers: &[&str], method: &str, params: Value) -> Stream {
        self.client().await.stream(headers, method, params).await
    }

    /// Runs the next task up to its start.
    async fn start(&self) -> ActiveTask {
        tokio::time::timeout(Duration::from_secs(5), self.registry.next()).await.unwrap().unwrap()
    }

    /// Starts a task through the door without waiting for it.
    async fn submit(&self, headers: &[&str], text: &str) -> TaskId {
        let mut params = message(text);
        params["configuration"] = json!({ "returnImmediately": true });
        let result = self.result(headers, "SendMessage", params).await;
        TaskId::parse(result["task"]["id"].as_str().unwrap()).unwrap()
    }

    fn finish(&self, id: &TaskId, answer: &str) {
        self.registry.finish(id, TaskEnd::completed(answer.to_owned()));
    }
}

fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}")
}

fn message(text: &str) -> Value {
    json!({ "message": { "messageId": "m1", "role": "ROLE_USER", "parts": [{ "text": text }] } })
}
