//! What shell commands of a session reach: curl, git and python3 called by a model, local servers outside of the session.

#![allow(clippy::disallowed_methods, reason = "a repository is made with git, as a user would")]

#[path = "egress/servers.rs"]
#[allow(dead_code, reason = "shared with the suite of the proxy alone")]
mod servers;

use std::process::Command;

use mur_tests::commands::{HELD, caller, launch, line, ran};
use mur_tests::{Agent, Invocation, World};
use servers::{ALIAS, at_alias, files, page};

/// On a host whose name server nobody answers for, where one name leads to the alias and another to an address beside it.
fn on_host(world: &World, run: Invocation, listed: &str, other: &str) -> Invocation {
    let hosts = world.write("hosts", format!("127.0.0.1 localhost\n{ALIAS} {listed}\n127.7.7.8 {other}\n"));
    let resolv = world.write("resolv.conf", "nameserver 203.0.113.53\n");
    let script = format!(
        "mount --bind {} /etc/hosts; mount --bind {} /etc/resolv.conf; exec \"$@\"",
        hosts.display(),
        resolv.display()
    );
    run.env("PATH", PATH).through(&["unshare", "--mount", "/bin/sh", "-ec", &script, "sh"])
}

/// Where the programs are: the system's own, as a user's python may be a wrapper, and where git keeps its helpers.
const PATH: &str = "/usr/bin:/bin:/usr/lib/git-core";

/// A capsule that runs these lines with bash.
fn capsule(allow: &[&str], lines: &[String]) -> Agent {
    let calls: Vec<_> = lines.iter().map(|text| ("bash", line(text))).collect();
    caller("netted", &["bash", "curl", "git", "git-remote-http", "python3", "cat"], &calls).network(allow)
}

fn curl(url: &str) -> String {
    format!("curl --silent --show-error --max-time 60 {url}; echo \"[$?]\"")
}

fn connect(address: &str, port: u16) -> String {
    let family = if address.contains(':') { "AF_INET6" } else { "AF_INET" };
    format!(
        "python3 -c \"import errno, socket\ns = socket.socket(socket.{family})\ns.settimeout(60)\ntry:\n    \
         s.connect(('{address}', {port}))\n    s.sendall(b'GET /page HTTP/1.0\\r\\n\\r\\n')\n    \
         print('got', len(s.recv(4096)))\nexcept OSError as e:\n    print(errno.errorcode[e.errno])\""
    )
}

/// Whether curl did not get to a name that is not listed: not resolved, or, where the composed root has the host's own table
/// of names, closed without a byte.
fn unreached(class: &str, said: &str) -> bool {
    let ends: &[&str] = if class == "sealed" { &["[52]", "[56]"] } else { &["[6]"] };
    ends.iter().any(|end| said.contains(end))
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_reach_what_is_listed_and_nothing_else_and_hear_of_what_is_not_resolved() {
    let (_page, here) = page("of this machine").await;
    let (_other, hidden) = page("unlisted").await;
    let named = at_alias(here).await;
    let (by_name, local) = (format!("http://allowed.test:{named}"), format!("localhost:{here}"));
    let lines = [
        curl(&format!("{by_name}/page")),
        curl(&format!("http://other.test:{named}/page")),
        curl(&format!("http://allowed.test:{}/page", named ^ 1)),
        curl(&format!("http://localhost:{here}/page")),
        connect("127.7.7.7", named),
        connect("127.7.7.8", named),
        connect("127.0.0.1", hidden),
        connect("127.0.0.1", 9),
        connect("2001:db8::1", named),
    ];
    for class in HELD {
        let world = World::new();
        let agent = capsule(&[&by_name, &local, "http://nowhere.test"], &lines);
        let run = on_host(&world, launch(&world, &agent, class).args(["--task", "go"]), "allowed.test", "other.test");
        let ran = ran(&world, run);
        let says = |index: usize, words: &str| assert!(ran.text(index).contains(words), "{class}: {}", ran.text(index));
        says(0, "of this machine[0]");
        let other = ran.text(1);
        assert!(unreached(class, other), "{class}: {other}");
        says(2, "[7]");
        says(3, "of this machine[0]");
        says(4, "got ");
        let closed = ran.text(5);
        assert!(closed.contains("got 0") || closed.contains("ECONNRESET"), "{class}: {closed}");
        says(6, "ECONNREFUSED");
        says(7, "ECONNREFUSED");
        says(8, "ENETUNREACH");
        let warned = "warning: the network allowlist host 'nowhere.test' could not be resolved at launch";
        assert!(ran.done.stderr.contains(warned), "{class}: {}", ran.done.stderr);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn git_clones_into_the_work_folder_from_what_is_listed() {
    let folder = tempfile::TempDir::new().unwrap();
    let script = "git init -q work && cd work && echo text > file && git add file \
        && git -c user.name=n -c user.email=e@x.test commit -q -m first && cd .. \
        && git clone -q --bare work repo.git && git -C repo.git update-server-info";
    let made = Command::new("sh").args(["-ec", script]).current_dir(folder.path()).status().unwrap();
    assert!(made.success(), "git is needed: install it");
    let port = at_alias(files(folder.path().to_path_buf()).await).await;
    let lines = [
        format!("export GIT_CONFIG_NOSYSTEM=1; git clone -q http://git.test:{port}/repo.git clone && cat clone/file"),
        format!("export GIT_CONFIG_NOSYSTEM=1; git clone -q http://else.test:{port}/repo.git other"),
    ];
    for class in HELD {
        let world = World::new();
        let agent = capsule(&[&format!("git.test:{port}")], &lines);
        let run = on_host(&world, launch(&world, &agent, class).args(["--task", "go"]), "git.test", "else.test");
        let ran = ran(&world, run);
        assert!(ran.text(0).contains("text\n"), "{class}: {}", ran.text(0));
        assert!(!ran.text(1).contains("Exit code: 0"), "{class}: {}", ran.text(1));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn with_an_empty_list_a_command_reaches_nothing() {
    let (_page, here) = page("unreachable").await;
    for class in HELD {
        let world = World::new();
        let lines = [connect("127.0.0.1", here), curl("http://a.test/"), connect("192.0.2.1", 443)];
        let run = on_host(
            &world,
            launch(&world, &capsule(&[], &lines), class).args(["--task", "go"]),
            "listed.test",
            "a.test",
        );
        let ran = ran(&world, run);
        // The composed root has the host's own table of names; nothing answers at what it says.
        let unknown = if class == "sealed" { "[7]" } else { "[6]" };
        for (index, words) in ["ECONNREFUSED", unknown, "ECONNREFUSED"].iter().enumerate() {
            assert!(ran.text(index).contains(words), "{class}: {}", ran.text(index));
        }
    }
}
