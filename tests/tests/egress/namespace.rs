//! A real network namespace, made as an enclosure makes one, with commands inside and `mur`'s proxy outside.

// A harness starts programs as a shell would.
#![allow(clippy::disallowed_methods)]

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use mur::egress::RuleSet;
use mur::egress::proxy::{Proxy, Resolver, Sockets, ports};
use mur::manifest::NetworkRule;
use mur::process::fds;
use serde::Deserialize;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;

/// How long a command inside may take: far above what any takes.
const PATIENCE: Duration = Duration::from_secs(90);

/// A namespace whose sockets a proxy serves.
pub struct Namespace {
    inside: BufReader<UnixStream>,
    child: Child,
    folder: TempDir,
    /// Taken to end the proxy.
    pub proxy: Option<Proxy>,
}

/// How a command inside ended.
#[derive(Debug, Deserialize)]
pub struct Done {
    pub status: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Namespace {
    /// For an allow-list; names are looked up as the resolver does.
    pub async fn new(allow: &[&str], resolver: Resolver) -> Self {
        let rules = RuleSet::new(allow.iter().map(|entry| NetworkRule::parse(entry).unwrap()));
        let folder = TempDir::new().unwrap();
        let resolv_conf = folder.path().join("resolv.conf");
        // An address of nobody: what answers there can only be the proxy.
        std::fs::write(&resolv_conf, "nameserver 203.0.113.53\noptions timeout:5 attempts:2\n").unwrap();
        let (outside, inside) = StdStream::pair().unwrap();
        let child = Command::new("unshare")
            .args(["--user", "--map-root-user", "--mount", "--net", "--", "python3", "-c"])
            .arg(include_str!("namespace.py"))
            .args(ports(&rules).iter().map(ToString::to_string))
            .env("RESOLV_CONF", &resolv_conf)
            .stdin(OwnedFd::from(inside))
            .stdout(Stdio::null())
            .spawn()
            .expect("unshare (util-linux) starts: the suite needs it");
        let sockets = receive(&outside, ports(&rules).len());
        let proxy = Proxy::start(sockets, rules, Arc::new(resolver), |line| eprintln!("{line}")).unwrap();
        outside.set_nonblocking(true).unwrap();
        let inside = BufReader::new(UnixStream::from_std(outside).unwrap());
        Self { inside, child, folder, proxy: Some(proxy) }
    }

    /// A folder that commands inside see under the same path.
    pub fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }

    /// Runs a command inside to its end.
    pub async fn run(&mut self, argv: &[&str]) -> Done {
        let line = serde_json::to_string(argv).unwrap() + "\n";
        self.inside.write_all(line.as_bytes()).await.unwrap();
        let mut answer = String::new();
        let read = tokio::time::timeout(PATIENCE, self.inside.read_line(&mut answer)).await;
        read.unwrap_or_else(|_| panic!("{argv:?} did not end in {PATIENCE:?}")).unwrap();
        serde_json::from_str(&answer).unwrap_or_else(|_| panic!("{argv:?} could not be run inside: is it installed?"))
    }

    /// Runs a Python program inside that must end well, and takes what it prints.
    pub async fn python(&mut self, program: &str, arguments: &[&str]) -> String {
        let done = self.run(&[&["python3", "-c", program], arguments].concat()).await;
        assert_eq!(done.status, 0, "{}", done.stderr);
        done.stdout.trim_end().to_owned()
    }

    /// Runs curl inside.
    pub async fn curl(&mut self, url: &str) -> Done {
        self.run(&["curl", "-sS", "--max-time", "60", url]).await
    }
}

fn receive(from: &StdStream, listeners: usize) -> Sockets {
    let mut byte = [0];
    let (read, mut found) = fds::receive_with_fds(from.as_fd(), &mut byte).unwrap();
    assert_eq!(
        (read, found.len()),
        (1, listeners + 1),
        "no network namespace could be made here: what went wrong stands above (needs python3 and user namespaces)"
    );
    let names = found.pop();
    Sockets { listeners: found, names }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
