//! What commands in a session's network namespace reach: real programs, a real namespace, local servers outside it.

// Repositories are made with git, as a user would.
#![allow(clippy::disallowed_methods)]

#[path = "egress/namespace.rs"]
mod namespace;
#[path = "egress/servers.rs"]
#[allow(dead_code, reason = "shared with the suites of a session")]
mod servers;

use std::process::Command;
use std::sync::atomic::Ordering;

use mur::egress::proxy::{MAX_CONNECTIONS, Resolver};
use namespace::Namespace;
use servers::{CONNECT, echo_at_end, files, greeting, names, page};

/// A hosts file that puts names on this machine.
fn hosts(names: &[&str]) -> Resolver {
    Resolver::new(&format!("127.0.0.1 {}\n", names.join(" ")), Vec::new())
}

/// Waits for what nothing announces, while the servers of the test go on.
async fn until(what: &str, condition: impl Fn() -> bool) {
    let waiting = async {
        while !condition() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(mur_tests::PATIENCE, waiting).await.unwrap_or_else(|_| panic!("waited for: {what}"));
}

#[tokio::test]
async fn curl_reaches_a_listed_name_and_no_other() {
    let (_folder, port) = page("hello from outside").await;
    let resolver = hosts(&["allowed.test", "other.test"]);
    let mut inside = Namespace::new(&[&format!("http://Allowed.test:{port}")], resolver).await;
    let done = inside.curl(&format!("http://allowed.test:{port}/page")).await;
    assert_eq!((done.status, done.stdout.as_str()), (0, "hello from outside"), "{}", done.stderr);
    // 6: could not resolve host. It has an address, and is never looked up.
    assert_eq!(inside.curl(&format!("http://other.test:{port}/page")).await.status, 6);
    assert_eq!(inside.curl(&format!("http://sub.allowed.test:{port}/page")).await.status, 6);
    // 7: connection refused, by the namespace itself.
    assert_eq!(inside.curl(&format!("http://allowed.test:{}/page", port ^ 1)).await.status, 7);
}

#[tokio::test]
async fn git_clones_over_http() {
    let folder = tempfile::TempDir::new().unwrap();
    let script = "git init -q work && cd work && echo text > file && git add file \
        && git -c user.name=n -c user.email=e@x.test commit -q -m first && cd .. \
        && git clone -q --bare work repo.git && git -C repo.git update-server-info";
    let made = Command::new("sh").args(["-ec", script]).current_dir(folder.path()).status().unwrap();
    assert!(made.success(), "git is needed: install it");
    let port = files(folder.path().to_path_buf()).await;
    let mut inside = Namespace::new(&[&format!("git.test:{port}")], hosts(&["git.test", "else.test"])).await;
    let target = inside.folder().join("clone").to_string_lossy().into_owned();
    let done = inside.run(&["git", "clone", "-q", &format!("http://git.test:{port}/repo.git"), &target]).await;
    assert_eq!(done.status, 0, "{}", done.stderr);
    assert_eq!(std::fs::read_to_string(format!("{target}/file")).unwrap(), "text\n");
    let done = inside.run(&["git", "clone", "-q", &format!("http://else.test:{port}/repo.git"), "/nowhere"]).await;
    assert!(done.status != 0 && done.stderr.contains("Could not resolve host"), "{}", done.stderr);
}

#[tokio::test]
async fn an_address_is_let_through_when_the_list_names_it_and_closed_without_a_byte_when_not() {
    let (_folder, port) = page("by address").await;
    let listed = port.to_string();
    let mut inside = Namespace::new(&[&format!("127.0.0.1:{port}")], Resolver::new("", Vec::new())).await;
    assert_eq!(inside.python(CONNECT, &["127.0.0.1", &listed]).await, "by address");
    for address in ["127.0.0.2", "192.0.2.1", "10.0.0.1", "169.254.169.254"] {
        let got = inside.python(CONNECT, &[address, &listed]).await;
        assert!(["nothing", "ECONNRESET"].contains(&got.as_str()), "{address}: {got}");
    }
    for (address, port) in [("127.0.0.1", "1"), ("192.0.2.1", "443"), ("203.0.113.53", "53")] {
        assert_eq!(inside.python(CONNECT, &[address, port]).await, "ECONNREFUSED", "{address}:{port}");
    }
    assert_eq!(inside.python(CONNECT, &["2001:db8::1", &listed]).await, "ENETUNREACH");
    assert_eq!(inside.python(CONNECT, &["::1", &listed]).await, "ECONNREFUSED");
}

#[tokio::test]
async fn localhost_reaches_this_machine_on_the_ports_the_list_opens_and_on_no_other() {
    let (_folder, port) = page("of this machine").await;
    let named = port.to_string();
    let mut bare = Namespace::new(&["localhost"], Resolver::new("", Vec::new())).await;
    assert_eq!(bare.python(CONNECT, &["127.0.0.1", &named]).await, "ECONNREFUSED");
    let mut inside = Namespace::new(&[&format!("localhost:{port}")], Resolver::new("", Vec::new())).await;
    let done = inside.curl(&format!("http://localhost:{port}/page")).await;
    assert_eq!((done.status, done.stdout.as_str()), (0, "of this machine"), "{}", done.stderr);
}

#[tokio::test]
async fn an_empty_list_reaches_nothing() {
    let (_folder, port) = page("unreachable").await;
    let mut inside = Namespace::new(&[], hosts(&["a.test"])).await;
    assert_eq!(inside.python(CONNECT, &["127.0.0.1", &port.to_string()]).await, "ECONNREFUSED");
    assert_eq!(inside.curl("http://a.test/").await.status, 6);
}

#[tokio::test]
async fn one_direction_may_end_before_the_other_and_every_byte_arrives() {
    let port = echo_at_end().await;
    let mut inside = Namespace::new(&[&format!("echo.test:{port}")], hosts(&["echo.test"])).await;
    let program = r#"
import socket, sys
data = bytes(range(256)) * 4096
stream = socket.create_connection((sys.argv[1], int(sys.argv[2])), 60)
stream.sendall(data)
stream.shutdown(socket.SHUT_WR)
back = b"".join(iter(lambda: stream.recv(65536), b""))
print(back == data)
"#;
    assert_eq!(inside.python(program, &["echo.test", &port.to_string()]).await, "True");
}

#[tokio::test]
async fn the_connection_past_the_limit_is_closed_and_its_place_is_free_again_later() {
    let (port, open) = greeting().await;
    let mut inside = Namespace::new(&[&format!("many.test:{port}")], hosts(&["many.test"])).await;
    let program = r#"
import socket, sys, time
address, limit = (sys.argv[1], int(sys.argv[2])), int(sys.argv[3])
def greeted():
    stream = socket.create_connection(address, 60)
    try:
        return stream, stream.recv(1)
    except ConnectionResetError:
        return stream, b""
held = [greeted() for _ in range(limit)]
print(sum(byte == b"x" for _, byte in held))
print(greeted()[1] == b"")
held.pop()[0].close()
end = time.monotonic() + 60
while time.monotonic() < end and greeted()[1] != b"x":
    pass
print(time.monotonic() < end)
"#;
    let arguments = ["many.test", &port.to_string(), &MAX_CONNECTIONS.to_string()];
    let said = inside.python(program, &arguments).await;
    assert_eq!(said, format!("{MAX_CONNECTIONS}\nTrue\nTrue"));
    // What the command held ended with it.
    until("the server's connections end", || open.load(Ordering::SeqCst) == 0).await;
}

#[tokio::test]
async fn names_are_answered_as_the_table_says_from_whatever_address_was_asked() {
    let (server, asked) = names(&["127.0.0.1", "2001:db8::7"]).await;
    let resolver = Resolver::new("192.0.2.8 filed.test", vec![server]);
    let allow = ["live.test:1234", "gone.test", "silent.test", "filed.test", "192.0.2.9"];
    let mut inside = Namespace::new(&allow, resolver).await;
    let program = r#"
import socket, struct
def ask(payload, server="198.51.100.77"):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.settimeout(60)
        udp.sendto(payload, (server, 53))
        reply, source = udp.recvfrom(4096)
        assert source == (server, 53), source
        return reply
def query(name, kind=1):
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
    return struct.pack(">HHHHHH", 7, 0x100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">HH", kind, 1)
def show(name, kind=1, server="198.51.100.77"):
    sent = query(name, kind)
    reply = ask(sent, server)
    identity, flags, questions, answers = struct.unpack(">HHHH", reply[:8])
    assert identity == 7 and questions == 1 and reply[12:len(sent)] == sent[12:], reply
    ttl = struct.unpack(">I", reply[len(sent) + 6:len(sent) + 10])[0] if answers else None
    print(name, kind, flags & 15, answers, ttl)
show("live.test")
show("LIVE.test", 28, "127.0.0.53")
show("live.test", 16)
show("filed.test")
show("filed.test", 28)
show("gone.test")
show("silent.test")
show("other.test")
show("192.0.2.9")
print(ask(b"\0\7" + bytes(10))[3] & 15)
print(ask(query("live.test") + bytes(5000))[3] & 15)
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
    udp.settimeout(60)
    udp.sendto(b"short", ("198.51.100.77", 53))
    udp.sendto(query("other.test"), ("198.51.100.77", 53))
    print(udp.recvfrom(4096)[0][3] & 15)
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
    udp.settimeout(60)
    udp.connect(("192.0.2.1", 9999))
    udp.send(b"x")
    try:
        udp.recv(1)
    except ConnectionRefusedError:
        print("nowhere")
"#;
    let expected = "live.test 1 0 1 60\nLIVE.test 28 0 1 60\nlive.test 16 0 0 None\nfiled.test 1 0 1 60\n\
        filed.test 28 0 0 None\ngone.test 1 3 0 None\nsilent.test 1 2 0 None\nother.test 1 5 0 None\n\
        192.0.2.9 1 5 0 None\n1\n1\n5\nnowhere";
    assert_eq!(inside.python(program, &[]).await, expected);
    let asked = asked.lock().unwrap();
    assert!(asked.iter().all(|name| ["live.test", "gone.test", "silent.test"].contains(&name.as_str())), "{asked:?}");
}

#[tokio::test]
async fn an_address_may_be_reached_once_its_name_was_resolved_and_on_that_names_ports() {
    let (_folder, port) = page("by name").await;
    let (_other_folder, other) = page("of another name").await;
    // At launch nobody answers for the first name, so its address is known only once a command has asked.
    let (server, asked) = names(&["127.0.0.1"]).await;
    let resolver = Resolver::new("127.0.0.9 second.test", vec![server]);
    let allow = [format!("late.test:{port}"), format!("second.test:{other}")];
    let mut inside = Namespace::new(&[&allow[0], &allow[1]], resolver).await;
    until("the list is resolved", || asked.lock().unwrap().len() == 2).await;
    let (port, other) = (port.to_string(), other.to_string());
    let closed = |got: String| assert!(["nothing", "ECONNRESET"].contains(&got.as_str()), "{got}");
    closed(inside.python(CONNECT, &["127.0.0.1", &port]).await);
    let done = inside.curl(&format!("http://late.test:{port}/page")).await;
    assert_eq!((done.status, done.stdout.as_str()), (0, "by name"), "{}", done.stderr);
    assert_eq!(inside.python(CONNECT, &["127.0.0.1", &port]).await, "by name");
    closed(inside.python(CONNECT, &["127.0.0.1", &other]).await);
    closed(inside.python(CONNECT, &["127.0.0.8", &port]).await);
}

#[tokio::test]
async fn the_end_of_the_proxy_ends_its_connections_and_listeners() {
    let (port, open) = greeting().await;
    let mut inside = Namespace::new(&[&format!("end.test:{port}")], hosts(&["end.test"])).await;
    let program = "import socket, sys\ns = socket.create_connection((sys.argv[1], int(sys.argv[2])), 60)\n\
        s.recv(1)\nopen(sys.argv[3], 'w').close()\n\
        try:\n    print(s.recv(1))\nexcept ConnectionResetError:\n    print(b'')";
    let marker = inside.folder().join("connected");
    let proxy = inside.proxy.take();
    let ending = async {
        until("the command connects", || marker.exists()).await;
        drop(proxy);
    };
    let (name, path) = (port.to_string(), marker.to_string_lossy().into_owned());
    let arguments = ["end.test", name.as_str(), path.as_str()];
    let (said, ()) = tokio::join!(inside.python(program, &arguments), ending);
    assert_eq!(said, "b''");
    assert_eq!(inside.python(CONNECT, &["127.0.0.1", &name]).await, "ECONNREFUSED");
    until("the server's connections end", || open.load(Ordering::SeqCst) == 0).await;
}
