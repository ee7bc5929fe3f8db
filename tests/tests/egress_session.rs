//! What is reached from inside a session's network: real programs in the namespace of a running session, local servers
//! outside of it.

#![allow(clippy::disallowed_methods, reason = "programs are started in the namespaces of a session")]

#[path = "egress/servers.rs"]
#[allow(dead_code, reason = "shared with the suite of the proxy alone")]
mod servers;

use std::fs;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::path::PathBuf;
use std::process::Command;

use mur_tests::live::proc;
use mur_tests::{Agent, Running, World, wait_until};
use serde_json::json;
use servers::{CONNECT, at_alias, files, page};

/// The classes that hold a session's network.
const CLASSES: [Option<&str>; 2] = [None, Some("sealed")];

/// Sends a datagram and says what comes back: bytes' count, or the name of the error.
const DATAGRAM: &str = r#"
import errno, socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
    udp.settimeout(60)
    udp.connect((sys.argv[1], int(sys.argv[2])))
    name = b"".join(bytes([len(part)]) + part.encode() for part in sys.argv[3].split("."))
    try:
        udp.send(b"\0\7\1\0\0\1\0\0\0\0\0\0" + name + b"\0\0\1\0\1")
        print("code", udp.recv(4096)[3] & 15)
    except OSError as error:
        print(errno.errorcode[error.errno])
"#;

/// A running session and a place for files of the test's.
struct Session {
    world: World,
    running: Running,
    worker: i32,
    resolv: PathBuf,
}

/// How a program inside ended.
#[derive(Debug)]
struct Done {
    status: Option<i32>,
    out: String,
    err: String,
}

impl Session {
    /// One that may reach `allow`; on its host the names of `hosts` lead to 127.7.7.7.
    fn start(class: Option<&str>, allow: &[&str], hosts: &[&str]) -> Self {
        let world = World::new();
        let script = json!({"rules": [{"turns": [[{"wait_ms": 60000}, {"say": "done"}]]}]});
        let agent = Agent::scripted("netted", script).network(allow);
        let name = world.install(&agent);
        let hosts = world.write("hosts", format!("127.0.0.1 localhost\n127.7.7.7 {}\n", hosts.join(" ")));
        // An address of nobody: what answers there can only be mur.
        let resolv = world.write("resolv.conf", "nameserver 203.0.113.53\n");
        let script = format!("mount --bind {} /etc/hosts; exec \"$@\"", hosts.display());
        let mut command = world.mur(["run", "--capsule", &name, "--capsule-version", agent.version(), "--task", "x"]);
        if let Some(class) = class {
            command = command.args(["--containment", class]);
        }
        let running = command.through(&["unshare", "--mount", "/bin/sh", "-ec", &script, "sh"]).start();
        wait_until("the driver's worker runs its first call", || {
            world.traces().first().is_some_and(|trace| trace.kinds().contains(&"task_start"))
        });
        let parents = proc::parents();
        let child = |of: i32, word: &str| {
            let mut children = parents.iter().filter(|(_, parent)| *parent == of).map(|(pid, _)| *pid);
            children.find(|pid| proc::command_line(*pid).contains(word)).expect("a process of the session")
        };
        let relay = child(i32::try_from(running.pid()).unwrap(), "__guest-worker driver");
        let worker = child(relay, "");
        Self { world, running, worker, resolv }
    }

    /// Runs a program in the session's network, with the name server of its `resolv.conf` and no names of the host's.
    fn run(&self, line: &[&str]) -> Done {
        let worker = self.worker.to_string();
        let mut command = Command::new("nsenter");
        command.args(["--target", &worker, "--user", "--net", "--preserve-credentials", "unshare", "--mount"]);
        command.args(["/bin/sh", "-ec", "mount --bind \"$0\" /etc/resolv.conf; exec \"$@\""]).arg(&self.resolv);
        command.args(line).env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin").env("HOME", self.world.home());
        let output = command.current_dir("/").output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).trim_end().to_owned();
        Done { status: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }

    fn python(&self, program: &str, arguments: &[&str]) -> String {
        let done = self.run(&[&["/usr/bin/python3", "-c", program], arguments].concat());
        assert_eq!(done.status, Some(0), "{}", done.err);
        done.out
    }

    fn curl(&self, url: &str) -> Done {
        self.run(&["curl", "--silent", "--show-error", "--max-time", "60", url])
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_s_programs_reach_what_is_listed_and_nothing_else() {
    let (_page, here) = page("of this machine").await;
    let (_other, hidden) = page("unlisted").await;
    let named = at_alias(here).await;
    for class in CLASSES {
        let (by_name, local) = (format!("http://allowed.test:{named}"), format!("localhost:{here}"));
        let session = Session::start(class, &[&by_name, &local], &["allowed.test", "other.test"]);
        let done = session.curl(&format!("{by_name}/page"));
        assert_eq!((done.status, done.out.as_str()), (Some(0), "of this machine"), "{}", done.err);
        // 6: no address. The name has one on the host, and is never looked up.
        assert_eq!(session.curl(&format!("http://other.test:{named}/page")).status, Some(6));
        assert_eq!(session.python(DATAGRAM, &["203.0.113.53", "53", "other.test"]), "code 5");
        assert_eq!(session.python(DATAGRAM, &["198.51.100.1", "53", "allowed.test"]), "code 0");
        // 7: refused, by the namespace itself.
        assert_eq!(session.curl(&format!("http://allowed.test:{}/page", named ^ 1)).status, Some(7));
        let connect = |address: &str, port: u16| session.python(CONNECT, &[address, &port.to_string()]);
        assert_eq!(connect("127.7.7.7", named), "of this machine", "what the list led to at launch");
        assert_eq!(connect("127.0.0.1", here), "of this machine", "localhost is this machine");
        for (address, port) in [("127.7.7.8", named), ("192.0.2.1", named), ("169.254.169.254", here)] {
            let got = connect(address, port);
            assert!(["nothing", "ECONNRESET"].contains(&got.as_str()), "{address}: {got}");
        }
        let door = session.running.stdout_line(|line| line.starts_with("murmur: url"));
        let door = door.rsplit(':').next().unwrap().parse().unwrap();
        for port in [hidden, door, 9, 1] {
            assert_eq!(connect("127.0.0.1", port), "ECONNREFUSED", "127.0.0.1:{port}");
        }
        assert_eq!(connect("2001:db8::1", named), "ENETUNREACH");
        assert_eq!(connect("::1", here), "ECONNREFUSED");
        assert_eq!(session.python(DATAGRAM, &["192.0.2.1", "5353", "allowed.test"]), "ECONNREFUSED");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn git_clones_from_what_is_listed() {
    let folder = tempfile::TempDir::new().unwrap();
    let script = "git init -q work && cd work && echo text > file && git add file \
        && git -c user.name=n -c user.email=e@x.test commit -q -m first && cd .. \
        && git clone -q --bare work repo.git && git -C repo.git update-server-info";
    let made = Command::new("sh").args(["-ec", script]).current_dir(folder.path()).status().unwrap();
    assert!(made.success(), "git is needed: install it");
    let port = at_alias(files(folder.path().to_path_buf()).await).await;
    let session = Session::start(None, &[&format!("git.test:{port}")], &["git.test", "else.test"]);
    let target = session.world.project().join("clone");
    let target = target.to_str().unwrap();
    let done = session.run(&["git", "clone", "-q", &format!("http://git.test:{port}/repo.git"), target]);
    assert_eq!(done.status, Some(0), "{}", done.err);
    assert_eq!(fs::read_to_string(format!("{target}/file")).unwrap(), "text\n");
    let done = session.run(&["git", "clone", "-q", &format!("http://else.test:{port}/repo.git"), "/nowhere"]);
    assert!(done.status != Some(0) && done.err.contains("Could not resolve host"), "{}", done.err);
}

#[test]
fn with_an_empty_list_nothing_listens_and_nothing_is_reached() {
    let listener = StdListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    for class in CLASSES {
        let session = Session::start(class, &[], &["a.test"]);
        for table in ["tcp", "tcp6", "udp", "udp6"] {
            let text = fs::read_to_string(format!("/proc/{}/net/{table}", session.worker)).unwrap();
            assert_eq!(text.lines().count(), 1, "{table}: {text}");
        }
        for address in ["127.0.0.1", "192.0.2.1"] {
            assert_eq!(session.python(CONNECT, &[address, &port]), "ECONNREFUSED");
        }
        assert_eq!(session.python(DATAGRAM, &["203.0.113.53", "53", "a.test"]), "ECONNREFUSED");
        assert_eq!(session.curl("http://a.test/").status, Some(6));
    }
}

#[test]
fn two_sessions_share_no_network() {
    let sessions = [Session::start(None, &["a.test"], &["a.test"]), Session::start(None, &["a.test"], &["a.test"])];
    let network = |session: &Session| fs::read_link(format!("/proc/{}/ns/net", session.worker)).unwrap();
    assert_ne!(network(&sessions[0]), network(&sessions[1]));
}
