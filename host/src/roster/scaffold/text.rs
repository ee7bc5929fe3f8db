//! The files of a scaffold.

use crate::schema::File;

use super::{MEMBER_VERSION, MEMBERS, Provider, Scaffold};

const LEAD_PROMPT: &str = "You lead a team of one. Hand the task to the member 'worker' with the call-member tool: name the member \
     and state the whole task, since it sees nothing else. Then end your turn. The answer comes back into this task: check \
     it, and give it as your own answer.";

const WORKER_PROMPT: &str = "You do the work another member hands you. Do the task you are given, whole, and answer with the result \
     alone.";

/// A string as YAML reads it back.
fn quoted(text: &str) -> String {
    serde_json::Value::String(text.to_owned()).to_string()
}

pub(super) fn roster(scaffold: &Scaffold) -> String {
    let [lead, worker] = MEMBERS;
    let (lead_capsule, worker_capsule) = (scaffold.capsule(lead), scaffold.capsule(worker));
    let modeline = File::Roster.modeline();
    format!(
        "{modeline}
# A formation: its members, the one that receives the task, and who may call whom.
roster_version: 1
members:
  - name: {lead}
    capsule: local/{lead_capsule}
    version: {MEMBER_VERSION}
    entry: true
  - name: {worker}
    capsule: local/{worker_capsule}
    version: {MEMBER_VERSION}
reachability:
  - from: {lead}
    to: [{worker}]
"
    )
}

pub(super) fn manifest(scaffold: &Scaffold, member: &str) -> String {
    let lead = member == MEMBERS[0];
    let Scaffold { driver, version, endpoint, model, provider, .. } = scaffold;
    let key = match provider.key() {
        Some(name) => format!("api_key: ${{{name}}}"),
        None => "keyless: true".to_owned(),
    };
    let script = match provider {
        // Without a config the driver plays what it has built in.
        Provider::Scripted => {
            "# No model is asked: this driver plays a script. Its built-in one hands the task to every member it may call and\n\
             # returns their answers; a member that may call nobody says its task back. Put another under driver.config.\n"
        }
        Provider::Anthropic | Provider::OpenAi => "",
    };
    let prompt = if lead { LEAD_PROMPT } else { WORKER_PROMPT };
    let rest = if lead {
        "capabilities:
  network:
    allow:
      # Doors of other members are on this machine, at ports chosen at launch.
      - localhost
"
    } else {
        "# Takes one task after another, and keeps waiting between them.
lifecycle:
  task_acceptance: queue
  after_task: sleep
exports:
  peer_tasks:
    accept: true
"
    };
    let modeline = File::Manifest.modeline();
    format!(
        "{modeline}
name: {name}
version: \"{MEMBER_VERSION}\"
runtime: capsule
execution: static
artifacts:
  - name: {driver}
    version: {version}
    runtime: driver
    gateway:
      endpoint: {endpoint}
      {key}
{script}inference:
  transport: http
  model: {model}
  driver:
    artifact: {driver}
  system_prompt: {prompt}
# The roster's edges are enforced at the door, so every member's door asks who calls.
network:
  authentication:
    scheme: bearer
{rest}",
        name = scaffold.capsule(member),
        version = quoted(version.as_str()),
        endpoint = quoted(endpoint),
        model = quoted(model),
        prompt = quoted(prompt),
    )
}
