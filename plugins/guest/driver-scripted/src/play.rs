//! Playing one turn: its steps in order, each adding to what the driver returns.

use mur_guest_kit::provider::{Events, Failure, Request};
use mur_guest_kit::{Answer, Status};
use serde_json::{Map, Value, json};

use crate::condition;
use crate::scene::Scene;
use crate::script::{Script, known};
use crate::template::{self, Scope};

/// The most steps one turn may play, loops included.
const MAX_STEPS: usize = 20_000;

/// What a step may be: the one key that says so, in any place among the others.
const KINDS: &[&str] = &[
    "say", "think", "call", "wait_ms", "usage", "stop", "metadata", "block", "error", "raw", "let", "if", "for_each",
    "http", "count", "ask", "trap", "spin", "grow_mib",
];

/// The world around a turn.
pub trait Stage: Events {
    /// Lets time pass.
    fn wait(&mut self, millis: u64);
    /// Sends a request and returns its status and body, or why it could not.
    fn http(
        &mut self,
        method: &str,
        url: &str,
        headers: &[(String, String)],
        body: &str,
    ) -> Result<(u16, String), String>;
    /// Reads a number kept in a file of the work folder, and keeps one more.
    fn count(&mut self, path: &str) -> Result<u64, String>;
    /// Asks for input in the middle of the task.
    fn ask(&mut self, prompt: &str) -> String;
    /// The driver's environment.
    fn env(&self) -> Vec<(String, String)>;
    /// Never comes back.
    fn spin(&mut self);
    /// Takes memory and touches it.
    fn grow(&mut self, mebibytes: u64);
}

/// What a turn ends early with.
enum Exit {
    /// A fault of the script.
    Fault(String),
    /// An answer in place of the one that was growing.
    Answer(Answer),
}

impl From<String> for Exit {
    fn from(fault: String) -> Self {
        Self::Fault(fault)
    }
}

impl From<&str> for Exit {
    fn from(fault: &str) -> Self {
        Self::Fault(fault.to_owned())
    }
}

struct Turn<'a> {
    scene: &'a Scene,
    stage: &'a mut dyn Stage,
    content: Vec<Value>,
    calls: usize,
    stop: Option<String>,
    usage: Option<Value>,
    metadata: Vec<(String, String)>,
    steps: usize,
}

/// Plays the turn the request asks for.
pub fn play(request: &Request, script: &Script, stage: &mut dyn Stage) -> Result<Answer, Failure> {
    let scene = Scene::of(request, &stage.env());
    let say = |fault: String| Failure::fixed(format!("the script: {fault}"));
    let mut root = Scope::root(scene.values.clone());
    for (name, value) in &script.values {
        let value = template::fill(value, &root).map_err(say)?;
        root.own.insert(name.clone(), value);
    }
    for (at, rule) in script.rules.iter().enumerate() {
        let in_rule = |fault: String| say(format!("rule {}: {fault}", at + 1));
        let Some(steps) = rule.turn(scene.turn) else { continue };
        let mut captures = Map::new();
        if !condition::holds(&rule.when, &scene, &root, &mut captures).map_err(in_rule)? {
            continue;
        }
        let mut scope = root.inside();
        scope.own = captures;
        let mut turn = Turn {
            scene: &scene,
            stage,
            content: Vec::new(),
            calls: 0,
            stop: None,
            usage: script.usage.clone(),
            metadata: Vec::new(),
            steps: 0,
        };
        return match turn.steps(steps, &mut scope) {
            Ok(()) => turn.answer(request).map_err(in_rule),
            Err(Exit::Answer(answer)) => Ok(answer),
            Err(Exit::Fault(fault)) => Err(in_rule(format!("turn {}: {fault}", scene.turn))),
        };
    }
    let (text, more) = mur_guest_kit::input::cut(&scene.text, 200);
    Err(say(format!("no rule fits turn {} after '{text}{}'", scene.turn, if more { "…" } else { "" })))
}

impl Turn<'_> {
    fn steps(&mut self, steps: &[Value], scope: &mut Scope<'_>) -> Result<(), Exit> {
        for (at, step) in steps.iter().enumerate() {
            self.steps += 1;
            if self.steps > MAX_STEPS {
                return Err(format!("it plays more than {MAX_STEPS} steps").into());
            }
            let step = step.as_object().ok_or_else(|| format!("step {} is no mapping", at + 1))?;
            self.step(step, scope).map_err(|exit| match exit {
                Exit::Fault(fault) => Exit::Fault(format!("step {}: {fault}", at + 1)),
                answer => answer,
            })?;
        }
        Ok(())
    }

    fn step(&mut self, step: &Map<String, Value>, scope: &mut Scope<'_>) -> Result<(), Exit> {
        let kind = |key: &&String| KINDS.contains(&key.as_str());
        let Some(key) = step.keys().find(kind) else {
            let named = step.keys().next().ok_or("it is empty")?;
            return Err(format!("'{named}' is no step; steps are: {}", KINDS.join(", ")).into());
        };
        let (kind, value) = (key, &step[key]);
        let take = |keys: &[&str]| known("it", step, &[&[kind.as_str()], keys].concat());
        match kind.as_str() {
            "say" | "think" => {
                take(&["chunks", "every_ms", "quiet"])?;
                self.say(kind == "think", step, value, scope)
            }
            "call" => {
                take(&["input", "id"])?;
                self.call(step, value, scope)
            }
            "wait_ms" => {
                take(&[])?;
                let millis = number(value, scope)?;
                self.stage.wait(millis);
                Ok(())
            }
            "usage" => {
                take(&[])?;
                self.usage = Some(template::fill(value, scope)?);
                Ok(())
            }
            "stop" => {
                take(&[])?;
                self.stop = Some(text(value, scope)?);
                Ok(())
            }
            "metadata" => {
                take(&[])?;
                for (key, value) in value.as_object().ok_or("'metadata' must be a mapping")? {
                    self.metadata.push((key.clone(), text(value, scope)?));
                }
                Ok(())
            }
            "block" => {
                take(&[])?;
                self.content.push(template::fill(value, scope)?);
                Ok(())
            }
            "error" => {
                take(&["transient", "status"])?;
                Err(self.error(step, value, scope)?)
            }
            "raw" => {
                take(&["status"])?;
                let status = status(step)?.unwrap_or(Status::Passed);
                Err(Exit::Answer(Answer { status, ..Answer::passed(text(value, scope)?) }))
            }
            "let" => {
                take(&[])?;
                for (name, value) in value.as_object().ok_or("'let' must be a mapping")? {
                    let value = template::fill(value, scope)?;
                    scope.own.insert(name.clone(), value);
                }
                Ok(())
            }
            "if" => {
                take(&["then", "else"])?;
                self.branch(step, value, scope)
            }
            "for_each" => {
                take(&["as", "do"])?;
                self.each(step, value, scope)
            }
            "http" => {
                take(&["method", "headers", "body", "as"])?;
                self.http(step, value, scope)
            }
            "count" => {
                take(&["as"])?;
                let count = self.stage.count(&text(value, scope)?)?;
                scope.own.insert(name(step, "count")?, count.into());
                Ok(())
            }
            "ask" => {
                take(&["as"])?;
                let answer = self.stage.ask(&text(value, scope)?);
                scope.own.insert(name(step, "answer")?, answer.into());
                Ok(())
            }
            "trap" => panic!("{}", text(value, scope).unwrap_or_else(|_| "the script says so".to_owned())),
            "spin" => {
                self.stage.spin();
                Ok(())
            }
            "grow_mib" => {
                take(&[])?;
                let mebibytes = number(value, scope)?;
                self.stage.grow(mebibytes);
                Ok(())
            }
            other => Err(format!("'{other}' cannot be played").into()),
        }
    }

    fn say(&mut self, thinking: bool, step: &Map<String, Value>, value: &Value, scope: &Scope<'_>) -> Result<(), Exit> {
        let pieces: Vec<String> = match template::fill(value, scope)? {
            Value::Array(pieces) => pieces.iter().map(template::as_text).collect(),
            whole => {
                let whole = template::as_text(&whole);
                match step.get("chunks").map(|count| number(count, scope)).transpose()? {
                    Some(count) => crate::text::parts(&whole, count.clamp(1, 10_000) as usize),
                    None => vec![whole],
                }
            }
        };
        let pause = step.get("every_ms").map(|millis| number(millis, scope)).transpose()?;
        let quiet = step.get("quiet").and_then(Value::as_bool).unwrap_or(false);
        for (at, piece) in pieces.iter().enumerate() {
            if let Some(millis) = pause
                && at > 0
            {
                self.stage.wait(millis);
            }
            if quiet || piece.is_empty() {
            } else if thinking {
                self.stage.thinking(piece);
            } else {
                self.stage.text(piece);
            }
        }
        let kind = if thinking { "thinking" } else { "text" };
        self.content.push(json!({"type": kind, "text": pieces.concat()}));
        Ok(())
    }

    fn call(&mut self, step: &Map<String, Value>, value: &Value, scope: &Scope<'_>) -> Result<(), Exit> {
        let tool = text(value, scope)?;
        let input = step.get("input").map(|input| template::fill(input, scope)).transpose()?.unwrap_or(json!({}));
        self.calls += 1;
        let id = match step.get("id") {
            Some(id) => text(id, scope)?,
            None => format!("call_{}_{}", self.scene.turns, self.calls),
        };
        self.stage.call_started(&id, &tool);
        self.stage.call_bytes(&id, input.to_string().len() as u64);
        self.content.push(json!({"type": "tool_call", "id": id, "name": tool, "input": input}));
        Ok(())
    }

    fn error(&mut self, step: &Map<String, Value>, value: &Value, scope: &Scope<'_>) -> Result<Exit, Exit> {
        let transient = match step.get("transient") {
            None => None,
            Some(Value::Bool(transient)) => Some(*transient),
            Some(_) => return Err("'transient' must be true or false".into()),
        };
        let failure = Failure { transient, ..Failure::open(text(value, scope)?) };
        let mut answer = failure.answer();
        if let Some(status) = status(step)? {
            answer.status = status;
        }
        answer.metadata.append(&mut self.metadata);
        Ok(Exit::Answer(answer))
    }

    fn branch(&mut self, step: &Map<String, Value>, value: &Value, scope: &mut Scope<'_>) -> Result<(), Exit> {
        let condition = value.as_object().ok_or("'if' must hold a condition")?;
        let mut captures = Map::new();
        let key = if condition::holds(condition, self.scene, scope, &mut captures)? { "then" } else { "else" };
        scope.own.extend(captures);
        match step.get(key) {
            Some(steps) => self.steps(list(key, steps)?, scope),
            None => Ok(()),
        }
    }

    fn each(&mut self, step: &Map<String, Value>, value: &Value, scope: &Scope<'_>) -> Result<(), Exit> {
        let items = match template::fill(value, scope)? {
            Value::Array(items) => items,
            Value::Number(count) => (1..=count.as_u64().unwrap_or(0).min(MAX_STEPS as u64)).map(Value::from).collect(),
            _ => return Err("'for_each' needs a list or a number".into()),
        };
        let steps = list("do", step.get("do").ok_or("'do' is missing")?)?;
        let name = name(step, "it")?;
        let count = items.len();
        for (at, item) in items.into_iter().enumerate() {
            let mut inner = scope.inside();
            inner.own.insert(name.clone(), item);
            inner.own.insert("index".into(), (at + 1).into());
            inner.own.insert("of".into(), count.into());
            self.steps(steps, &mut inner)?;
        }
        Ok(())
    }

    fn http(&mut self, step: &Map<String, Value>, value: &Value, scope: &mut Scope<'_>) -> Result<(), Exit> {
        let url = text(value, scope)?;
        let method = step.get("method").map(|value| text(value, scope)).transpose()?;
        let body = step.get("body").map(|value| text(value, scope)).transpose()?.unwrap_or_default();
        let mut headers = Vec::new();
        if let Some(given) = step.get("headers") {
            for (key, value) in given.as_object().ok_or("'headers' must be a mapping")? {
                headers.push((key.clone(), text(value, scope)?));
            }
        }
        let method = method.as_deref().unwrap_or(if body.is_empty() { "GET" } else { "POST" });
        let outcome = match self.stage.http(method, &url, &headers, &body) {
            Ok((status, body)) => json!({"status": status, "body": body, "error": null}),
            Err(reason) => json!({"status": null, "body": null, "error": reason}),
        };
        scope.own.insert(name(step, "response")?, outcome);
        Ok(())
    }

    fn answer(self, request: &Request) -> Result<Answer, String> {
        let default = if self.calls > 0 { "tool_call" } else { "end_turn" };
        let stop = self.stop.unwrap_or_else(|| default.to_owned());
        let mut reply = json!({"stop_reason": stop, "content": self.content});
        match self.usage {
            None | Some(Value::Null) => {}
            Some(Value::String(word)) if word == "estimate" => reply["usage"] = estimate(request, &reply["content"]),
            Some(usage @ Value::Object(_)) => reply["usage"] = usage,
            Some(other) => return Err(format!("'usage' must be a mapping or 'estimate', not {other}")),
        }
        Ok(Answer { metadata: self.metadata, ..Answer::json(&reply) })
    }
}

/// Four bytes a token, as a rough count that is the same every time.
fn estimate(request: &Request, content: &Value) -> Value {
    let tools: usize = request.tools.iter().map(|tool| tool.to_string().len()).sum();
    let said: usize = request.messages.iter().map(|message| message.text().len()).sum();
    let input = (request.system.len() + said + tools).div_ceil(4);
    json!({"input_tokens": input, "output_tokens": content.to_string().len().div_ceil(4)})
}

fn text(value: &Value, scope: &Scope<'_>) -> Result<String, String> {
    template::fill(value, scope).map(|value| template::as_text(&value))
}

fn number(value: &Value, scope: &Scope<'_>) -> Result<u64, String> {
    let value = template::fill(value, scope)?;
    template::number(&value)
        .filter(|number| *number >= 0.0)
        .map(|number| number as u64)
        .ok_or_else(|| format!("{value} must be a number of zero or more"))
}

fn name(step: &Map<String, Value>, default: &str) -> Result<String, String> {
    match step.get("as") {
        None => Ok(default.to_owned()),
        Some(Value::String(name)) => Ok(name.clone()),
        Some(_) => Err("'as' must be a name".to_owned()),
    }
}

fn list<'a>(key: &str, value: &'a Value) -> Result<&'a [Value], String> {
    value.as_array().map(Vec::as_slice).ok_or_else(|| format!("'{key}' must be a list of steps"))
}

fn status(step: &Map<String, Value>) -> Result<Option<Status>, String> {
    match step.get("status").map(|status| status.as_str()) {
        None => Ok(None),
        Some(Some("passed")) => Ok(Some(Status::Passed)),
        Some(Some("failed")) => Ok(Some(Status::Failed)),
        Some(Some("error")) => Ok(Some(Status::Error)),
        Some(_) => Err("'status' must be passed, failed or error".to_owned()),
    }
}
