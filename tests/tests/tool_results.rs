//! What a tool can return, honest or not: files named as results, attachments, statuses, metadata.

use mur_tests::{Agent, Trace, World, component};
use serde_json::json;

/// A fixed result of a tool.
#[derive(Default)]
struct Fixed<'a> {
    status: u8,
    summary: Option<&'a str>,
    data: Option<&'a str>,
    data_path: Option<&'a str>,
    truncated: bool,
    metadata: &'a [(&'a str, &'a str)],
}

/// Where the result's record lies in the component's memory; texts follow from 1024.
const RECORD: usize = 64;

impl Fixed<'_> {
    /// A component that exports `murmur:tool/run@0.1.0` and always returns this.
    fn component(&self) -> Vec<u8> {
        let mut memory = vec![0_u8; 1024];
        memory[RECORD] = self.status;
        memory[RECORD + 40] = u8::from(self.truncated);
        for (at, text) in [(4, self.summary), (16, self.data), (28, self.data_path)] {
            if let Some(text) = text {
                memory[RECORD + at] = 1;
                put_text(&mut memory, RECORD + at + 4, text);
            }
        }
        let list = memory.len();
        memory.resize(list + 16 * self.metadata.len(), 0);
        put_u32(&mut memory, RECORD + 44, list);
        put_u32(&mut memory, RECORD + 48, self.metadata.len());
        for (index, (key, value)) in self.metadata.iter().enumerate() {
            put_text(&mut memory, list + 16 * index, key);
            put_text(&mut memory, list + 16 * index + 8, value);
        }
        let escaped: String = memory.iter().map(|byte| format!("\\{byte:02x}")).collect();
        let text = component::tool(CORE, "$code")
            .replace("$MEMORY", &escaped)
            .replace("$FREE", &memory.len().next_multiple_of(8).to_string());
        wat::parse_str(text).expect("a component")
    }
}

fn put_u32(memory: &mut [u8], at: usize, value: usize) {
    memory[at..at + 4].copy_from_slice(&u32::try_from(value).expect("a small number").to_le_bytes());
}

fn put_text(memory: &mut Vec<u8>, at: usize, text: &str) {
    let place = memory.len();
    memory.extend_from_slice(text.as_bytes());
    memory.resize(memory.len().next_multiple_of(4), 0);
    put_u32(memory, at, place);
    put_u32(memory, at + 4, text.len());
}

const CORE: &str = r#"    (core module $m
        (memory (export "memory") 4)
        (data (i32.const 0) "$MEMORY")
        (global $free (mut i32) (i32.const $FREE))
        (func (export "realloc") (param i32 i32 i32 i32) (result i32)
            (local $at i32)
            (local.set $at (i32.and (i32.add (global.get $free) (i32.const 7)) (i32.const -8)))
            (global.set $free (i32.add (local.get $at) (local.get 3)))
            (local.get $at))
        (func (export "run") (param i32 i32 i32 i32 i32 i32) (result i32) (i32.const 64)))
    (core instance $code (instantiate $m))"#;

struct Ran {
    world: World,
    trace: Trace,
    told: String,
}

/// Runs a capsule that calls the tool once and answers with exactly what it was told. `prepare` fills the work folder.
fn call(result: &Fixed<'_>, prepare: impl FnOnce(&std::path::Path)) -> Ran {
    let world = World::new();
    let tool = world.install_tool("fixed", &result.component());
    let script = json!({"rules": [{"turns": [[{"call": "fixed"}], [{"say": "{{last}}"}]]}]});
    let agent = Agent::scripted("agent", script);
    let agent = agent.artifact(tool);
    let name = world.install(&agent);
    let work = world.project().join("work");
    std::fs::create_dir(&work).expect("a work folder");
    prepare(&work);
    let done = world
        .mur(["run", "--capsule", &name, "--capsule-version", agent.version(), "--task", "go", "--workdir"])
        .arg(&work)
        .run();
    assert_eq!(done.code(), Some(0), "{}", done.stderr);
    let trace = world.traces().pop().expect("a trace");
    let told = trace.result().expect("a result");
    Ran { world, trace, told }
}

fn fenced(text: &str) -> String {
    format!("<untrusted-content source=tool:fixed>\n{text}\n</untrusted-content>")
}

#[test]
fn data_comes_before_a_file_and_a_file_before_the_summary() {
    let write = |work: &std::path::Path| std::fs::write(work.join("out.txt"), "from the file").expect("a file");
    let all = Fixed { summary: Some("short"), data: Some("whole"), data_path: Some("out.txt"), ..Fixed::default() };
    assert_eq!(call(&all, write).told, fenced("whole"));
    assert_eq!(call(&Fixed { data: None, ..all }, write).told, fenced("from the file"));
    assert_eq!(call(&Fixed { summary: Some("short"), ..Fixed::default() }, |_| {}).told, fenced("short"));
    assert_eq!(call(&Fixed::default(), |_| {}).told, fenced("tool returned no data"));
}

#[test]
fn a_status_that_is_not_passed_is_an_error_to_the_model_and_in_the_trace() {
    for status in [1, 2] {
        let ran = call(&Fixed { status, data: Some("no"), ..Fixed::default() }, |_| {});
        assert_eq!(ran.told, fenced("no"));
        assert_eq!(ran.trace.one("tool_call")["status"], "error");
    }
}

#[test]
fn reserved_metadata_is_recorded_and_the_first_of_a_key_wins() {
    let metadata = [("state_effect", "mutate"), ("state_effect", "read"), ("resource_id", "db/7"), ("other", "x")];
    let ran = call(&Fixed { data: Some("ok"), metadata: &metadata, ..Fixed::default() }, |_| {});
    let call_record = ran.trace.one("tool_call");
    assert_eq!((&call_record["state_effect"], &call_record["resource_id"]), (&json!("mutate"), &json!("db/7")));

    let metadata = [("state_effect", "maybe"), ("resource_id", "")];
    let ran = call(&Fixed { data: Some("ok"), metadata: &metadata, ..Fixed::default() }, |_| {});
    let call_record = ran.trace.one("tool_call");
    assert!(call_record["state_effect"].is_null() && call_record["resource_id"].is_null(), "{call_record:?}");
}

#[test]
fn a_result_file_is_never_read_through_a_link_or_out_of_the_work_folder() {
    for path in ["link", "up/secret.txt", "../secret.txt", "/etc/hostname", "hard", "pipe", "folder", "absent", ""] {
        let ran = call(&Fixed { data_path: Some(path), summary: Some("summary"), ..Fixed::default() }, |work| {
            let outside = work.parent().expect("a project");
            std::fs::write(outside.join("secret.txt"), "SECRET").expect("a file");
            std::os::unix::fs::symlink("../secret.txt", work.join("link")).expect("a link");
            std::os::unix::fs::symlink("..", work.join("up")).expect("a link");
            std::fs::hard_link(outside.join("secret.txt"), work.join("hard")).expect("a link");
            nix::unistd::mkfifo(&work.join("pipe"), nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
            std::fs::create_dir(work.join("folder")).expect("a folder");
        });
        assert!(!ran.told.contains("SECRET"), "{path}: {}", ran.told);
        assert!(ran.told.starts_with("[E-RUN-001] tool 'fixed' named "), "{path}: {}", ran.told);
        assert_eq!(ran.trace.one("tool_call")["status"], "error", "{path}");
        assert_eq!(ran.trace.one("session_end")["exit_status"], "ok", "the session goes on");
    }
}

#[test]
fn an_attachment_that_leads_out_is_refused_and_an_honest_one_is_served() {
    let attach = [("attachment", "report.csv")];
    let result = Fixed { data: Some("ok"), metadata: &attach, ..Fixed::default() };
    let ran = call(&result, |work| {
        std::fs::write(work.parent().expect("a project").join("secret.txt"), "SECRET").expect("a file");
        std::os::unix::fs::symlink("../secret.txt", work.join("report.csv")).expect("a link");
    });
    assert!(ran.told.starts_with("[E-RUN-001] tool 'fixed' attached 'report.csv'"), "{}", ran.told);

    let world = World::new();
    let tool = world.install_tool("fixed", &result.component());
    let script = json!({"rules": [{"turns": [[{"call": "fixed"}], [{"say": "done"}]], "repeat": true}]});
    let agent = Agent::scripted("agent", script)
        .with(&["lifecycle", "task_acceptance"], "queue")
        .with(&["lifecycle", "after_task"], "sleep");
    let agent = agent.artifact(tool);
    let name = world.install(&agent);
    let work = world.project().join("work");
    std::fs::create_dir(&work).expect("a work folder");
    std::fs::write(work.join("report.csv"), "a,b\n").expect("a file");
    let running = world
        .mur(["run", "--json", "--capsule", &name, "--capsule-version", agent.version(), "--workdir"])
        .arg(&work)
        .start();
    let door = mur_tests::Door::ready(&running.json_line(0));
    let task = door.ask("go");
    let artifacts = task["artifacts"].as_array().cloned().unwrap_or_default();
    assert_eq!(artifacts[0]["name"], "response");
    assert_eq!(artifacts[1]["parts"], json!([{"raw": "YSxiCg==", "filename": "report.csv", "mediaType": "text/csv"}]));
    drop(ran.world);
}
