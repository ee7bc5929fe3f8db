//! Requests against servers of the test's own.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method};
use http_body_util::{BodyExt, Full};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::manifest::{self, ApiKey, NetworkRule, UpstreamAuth};
use crate::worker::BoxFuture;

/// A server that answers each connection's one request with the next of its answers and keeps what it was sent.
struct Server {
    port: u16,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Server {
    async fn answering(answers: &[&str]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let mut answers: VecDeque<String> = answers.iter().map(|text| (*text).to_owned()).collect();
        tokio::spawn({
            let seen = seen.clone();
            async move {
                while let (Some(answer), Ok((mut stream, _))) = (answers.pop_front(), listener.accept().await) {
                    let request = read_request(&mut stream).await;
                    seen.lock().unwrap().push(request);
                    stream.write_all(answer.as_bytes()).await.unwrap();
                }
                std::future::pending::<()>().await;
            }
        });
        Self { port, seen }
    }

    fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }
}

/// Head and body; the tests' requests say their length or are chunked.
async fn read_request(stream: &mut TcpStream) -> String {
    let mut text = String::new();
    let mut buffer = [0; 4096];
    loop {
        let count = stream.read(&mut buffer).await.unwrap();
        text.push_str(std::str::from_utf8(&buffer[..count]).unwrap());
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let head = head.to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let whole = match length {
            Some(length) => body.len() >= length.parse().unwrap(),
            None => !head.contains("transfer-encoding: chunked") || body.ends_with("0\r\n\r\n"),
        };
        if whole || count == 0 {
            return text;
        }
    }
}

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\nx-kept: 1\r\n\r\nhi";
const UNAUTHORIZED: &str = "HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";

fn request(uri: &str, headers: &[(&'static str, &'static str)], body: &'static str) -> HttpRequest {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.append(*name, value.parse().unwrap());
    }
    HttpRequest {
        method: Method::POST,
        uri: uri.parse().unwrap(),
        headers: map,
        body: Full::new(Bytes::from_static(body.as_bytes())).map_err(|never| match never {}).boxed_unsync(),
        timeouts: Timeouts { first_byte: Some(Duration::from_secs(10)), ..Timeouts::default() },
    }
}

fn sender(rules: &[&str]) -> Sender {
    Sender {
        artifact: "a".into(),
        rules: RuleSet::new(rules.iter().map(|rule| NetworkRule::parse(rule).unwrap())),
        gateway: None,
        trust: TrustClass::Trusted,
        traceparent: Some("00-1-2-01".into()),
    }
}

async fn text(response: HttpResponse) -> String {
    String::from_utf8(response.body.collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

fn header_count(request: &str, name: &str) -> usize {
    request.lines().filter(|line| line.to_ascii_lowercase().starts_with(&format!("{name}:"))).count()
}

#[tokio::test]
async fn a_listed_host_is_reached_and_connection_headers_stay_behind() {
    let server = Server::answering(&[OK]).await;
    let uri = format!("http://127.0.0.1:{}/x?y=1", server.port);
    let headers =
        [("connection", "x-mine"), ("x-mine", "1"), ("proxy-authorization", "no"), ("te", "gzip"), ("x-other", "2")];
    let response = Egress::new(None).send(&sender(&["127.0.0.1"]), request(&uri, &headers, "body")).await.unwrap();
    assert!(response.headers.contains_key("x-kept") && !response.headers.contains_key("connection"));
    assert_eq!(text(response).await, "hi");
    let seen = server.seen().remove(0);
    assert!(seen.starts_with("POST /x?y=1 HTTP/1.1\r\n") && seen.ends_with("body"), "{seen}");
    assert_eq!(header_count(&seen, "host"), 1);
    assert_eq!(header_count(&seen, "x-other"), 1);
    for gone in ["connection", "x-mine", "proxy-authorization", "te"] {
        assert_eq!(header_count(&seen, gone), 0, "{gone}: {seen}");
    }
}

#[tokio::test]
async fn what_is_not_listed_is_refused_and_nothing_connects() {
    let server = Server::answering(&[OK]).await;
    let port = server.port;
    let egress = Egress::new(None);
    let other_scheme = format!("https://127.0.0.1:{port}");
    let other_port = format!("127.0.0.1:{}", port.wrapping_add(1));
    for rules in [vec![], vec!["localhost"], vec![other_scheme.as_str()], vec![other_port.as_str()], vec!["*"]] {
        let uri = format!("http://127.0.0.1:{port}/");
        let error = egress.send(&sender(&rules), request(&uri, &[], "")).await.err().unwrap();
        assert_eq!(error, HttpError::Denied(format!("http://127.0.0.1:{port}")), "{rules:?}");
    }
    assert!(server.seen().is_empty());
}

#[tokio::test]
async fn an_address_that_hides_its_host_is_no_request() {
    let egress = Egress::new(None);
    for uri in ["http://127.0.0.1@evil.example/", "http://u:p@127.0.0.1/", "ftp://127.0.0.1/", "/only/path"] {
        let error = egress.send(&sender(&["127.0.0.1", "evil.example"]), request(uri, &[], "")).await.err().unwrap();
        assert!(matches!(error, HttpError::InvalidRequest(_)), "{uri}: {error:?}");
    }
    let mut tunnel = request("http://127.0.0.1/", &[], "");
    tunnel.method = Method::CONNECT;
    assert!(matches!(egress.send(&sender(&["127.0.0.1"]), tunnel).await, Err(HttpError::InvalidRequest(_))));
}

#[tokio::test]
async fn a_redirect_is_returned_and_not_followed() {
    let redirect =
        "HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    let server = Server::answering(&[redirect]).await;
    let uri = format!("http://127.0.0.1:{}/", server.port);
    let response = Egress::new(None).send(&sender(&["127.0.0.1"]), request(&uri, &[], "")).await.unwrap();
    assert_eq!(response.status.as_u16(), 302);
}

#[tokio::test]
async fn faults_are_told_apart() {
    let egress = Egress::new(None);
    let send = async |uri: &str| {
        let mut sent = request(uri, &[], "");
        sent.timeouts.first_byte = Some(Duration::from_millis(200));
        egress.send(&sender(&["127.0.0.1", "no.such.host.invalid"]), sent).await.err().unwrap()
    };
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    assert_eq!(send(&format!("http://127.0.0.1:{closed}/")).await, HttpError::ConnectionRefused);
    let dropped = Server::answering(&[""]).await;
    assert_eq!(send(&format!("http://127.0.0.1:{}/", dropped.port)).await, HttpError::ConnectionLost);
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = silent.local_addr().unwrap().port();
    assert_eq!(send(&format!("http://127.0.0.1:{port}/")).await, HttpError::ReadTimeout);
    let other = Server::answering(&["SSH-2.0-server\r\n\r\n"]).await;
    assert!(matches!(send(&format!("http://127.0.0.1:{}/", other.port)).await, HttpError::Protocol(_)));
}

fn gateway(port: u16, source: KeySource) -> Arc<Gateway> {
    let endpoint = manifest::Gateway {
        scheme: "http".into(),
        host: "127.0.0.1".into(),
        port,
        path: "/v1".into(),
        endpoint: format!("http://127.0.0.1:{port}/v1"),
        api_key: ApiKey::Named("KEY".into()),
    };
    let auth = UpstreamAuth { header: "authorization".into(), value: "Bearer {key}".into() };
    Arc::new(Gateway::new("a", endpoint, Some(&auth), source).unwrap())
}

#[tokio::test]
async fn the_gateway_serves_its_own_artifact_without_consulting_the_rules() {
    let server = Server::answering(&[OK]).await;
    let own = Sender {
        gateway: Some(gateway(server.port, KeySource::Literal(Secret::new("sk-live".into())))),
        ..sender(&[])
    };
    let egress = Egress::new(None);
    let sent = request("http://127.0.0.1:9/v1/chat", &[("authorization", "Bearer mine")], "{}");
    assert_eq!(text(egress.send(&own, sent).await.unwrap()).await, "hi");
    let seen = server.seen().remove(0);
    assert!(seen.starts_with("POST /v1/chat ") && seen.contains("authorization: Bearer sk-live\r\n"), "{seen}");
    assert_eq!(header_count(&seen, "authorization"), 1);
    // For any other artifact the address is an ordinary one.
    let sent = request("http://127.0.0.1:9/v1/chat", &[], "{}");
    let error = egress.send(&sender(&[]), sent).await.err().unwrap();
    assert_eq!(error, HttpError::Denied("http://127.0.0.1:9".into()));
    let sent = request("http://127.0.0.1:9/v1/chat", &[], "{}");
    assert_eq!(egress.send(&sender(&["127.0.0.1:9"]), sent).await.err().unwrap(), HttpError::ConnectionRefused);
    // Another port or scheme of the same host is not the gateway.
    for uri in ["http://127.0.0.1:10/", "https://127.0.0.1:9/", "http://localhost:9/"] {
        assert!(matches!(egress.send(&own, request(uri, &[], "")).await, Err(HttpError::Denied(_))), "{uri}");
    }
}

fn rotating(keys: &'static [&'static str]) -> KeySource {
    let next = Mutex::new(keys.iter());
    let last = Secret::new("first".into());
    let read: ReadKey = Arc::new(move |_| next.lock().unwrap().next().map(|key| Secret::new((*key).to_owned())));
    KeySource::Configured { name: "KEY".into(), last, read }
}

#[tokio::test]
async fn a_rejected_key_is_read_again_and_the_request_sent_once_more() {
    let server = Server::answering(&[UNAUTHORIZED, OK]).await;
    // Read by the gateway's own check, before the request, and after the rejection.
    let gateway = gateway(server.port, rotating(&["old", "old", "new"]));
    let own = Sender { gateway: Some(gateway.clone()), ..sender(&[]) };
    let sent = request("http://127.0.0.1:9/v1", &[], "the whole body");
    let response = Egress::new(None).send(&own, sent).await.unwrap();
    assert_eq!((response.status.as_u16(), response.credential_rejected), (200, false));
    let seen = server.seen();
    assert!(seen[0].contains("Bearer old") && seen[1].contains("Bearer new"), "{seen:?}");
    assert!(seen.iter().all(|request| request.ends_with("the whole body")), "{seen:?}");
    assert_eq!(redact("Bearer old-new new", &gateway.secrets()), "Bearer old-new new", "short ones stay");
}

#[tokio::test]
async fn a_key_that_stays_rejected_is_told() {
    let server = Server::answering(&[UNAUTHORIZED]).await;
    let gateway = gateway(server.port, rotating(&["old", "old", "old"]));
    let own = Sender { gateway: Some(gateway.clone()), ..sender(&[]) };
    let response = Egress::new(None).send(&own, request("http://127.0.0.1:9/v1", &[], "")).await.unwrap();
    assert_eq!((response.status.as_u16(), response.credential_rejected), (401, true));
    assert_eq!(server.seen().len(), 1);
    let told = gateway.rejected("a").to_string();
    assert!(told.contains("E-RUN-027") && told.contains("credentials.KEY") && !told.contains("old"), "{told}");
}

/// One callable member, `coder`.
struct OnePeer(String);

impl Peers for OnePeer {
    fn door<'a>(&'a self, member: &'a str, _: Duration) -> BoxFuture<'a, Option<PeerDoor>> {
        let door = PeerDoor { url: self.0.clone(), token: Secret::new("mft1.x".into()) };
        Box::pin(async move { (member == "coder").then_some(door) })
    }
}

#[tokio::test]
async fn a_member_is_reached_at_its_virtual_address_with_token_origin_and_trust() {
    let server = Server::answering(&[OK]).await;
    let egress = Egress::new(Some(Arc::new(OnePeer(format!("http://localhost:{}", server.port)))));
    let headers = [
        ("authorization", "Bearer mine"),
        ("x-murmur-task-origin", "user"),
        ("x-murmur-task-trust", "trusted"),
        ("x-murmur-task-trust", "trusted"),
    ];
    let from = Sender { trust: TrustClass::Untrusted, ..sender(&["localhost"]) };
    let sent = request("http://Coder.formation.invalid/a", &headers, "{}");
    assert_eq!(text(egress.send(&from, sent).await.unwrap()).await, "hi");
    let seen = server.seen().remove(0);
    for line in [
        "POST /a HTTP/1.1",
        "authorization: Bearer mft1.x",
        "x-murmur-task-origin: peer",
        "x-murmur-task-trust: untrusted",
        "traceparent: 00-1-2-01",
        &format!("host: localhost:{}", server.port),
    ] {
        assert!(seen.lines().any(|found| found == line), "{line}: {seen}");
    }
    for name in ["authorization", "x-murmur-task-origin", "x-murmur-task-trust", "host"] {
        assert_eq!(header_count(&seen, name), 1, "{name}: {seen}");
    }
}

#[tokio::test]
async fn a_request_to_a_member_streams() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (go_on, first_arrived) = tokio::sync::oneshot::channel();
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let (mut text, mut buffer, mut go_on) = (String::new(), [0; 4096], Some(go_on));
        while !text.ends_with("0\r\n\r\n") {
            let count = stream.read(&mut buffer).await.unwrap();
            assert!(count > 0, "{text}");
            text.push_str(std::str::from_utf8(&buffer[..count]).unwrap());
            if text.contains("first")
                && let Some(go_on) = go_on.take()
            {
                go_on.send(()).unwrap();
            }
        }
        stream.write_all(OK.as_bytes()).await.unwrap();
        text
    });
    // The second part is made only when the first has arrived.
    let parts = futures_util::stream::unfold((0, Some(first_arrived)), |(at, mut arrived)| async move {
        let text = match at {
            0 => "first",
            1 => {
                arrived.take().unwrap().await.unwrap();
                "second"
            }
            _ => return None,
        };
        Some((Ok(http_body::Frame::data(Bytes::from_static(text.as_bytes()))), (at + 1, arrived)))
    });
    let egress = Egress::new(Some(Arc::new(OnePeer(format!("http://localhost:{port}")))));
    let mut sent = request("http://coder.formation.invalid/", &[], "");
    sent.body = http_body_util::StreamBody::new(parts).boxed_unsync();
    assert_eq!(text(egress.send(&sender(&["localhost"]), sent).await.unwrap()).await, "hi");
    assert!(server.await.unwrap().contains("second"));
}

#[tokio::test]
async fn every_other_formation_address_is_refused_alike_and_nothing_connects() {
    let server = Server::answering(&[OK]).await;
    let door = || Arc::new(OnePeer(format!("http://localhost:{}", server.port)));
    let inside = Egress::new(Some(door()));
    let outside = Egress::new(None);
    let wide = ["localhost", "nobody.formation.invalid", "coder.formation.invalid", "formation.invalid"];
    let cases: [(&Egress, &[&str], &str, &str); 9] = [
        (&inside, &wide, "http://nobody.formation.invalid/", "http://nobody.formation.invalid"),
        (&outside, &wide, "http://coder.formation.invalid/", "http://coder.formation.invalid"),
        (
            &inside,
            &["127.0.0.1", "https://localhost"],
            "http://coder.formation.invalid/",
            "http://coder.formation.invalid",
        ),
        (&inside, &wide, "https://coder.formation.invalid/", "https://coder.formation.invalid"),
        (&inside, &wide, "http://coder.formation.invalid:81/", "http://coder.formation.invalid:81"),
        (&inside, &wide, "http://formation.invalid/", "http://formation.invalid"),
        (&inside, &wide, "http://nobody.formation.invalid./", "http://nobody.formation.invalid."),
        (&inside, &wide, "http://coder.formation.invalid../", "http://coder.formation.invalid.."),
        (&inside, &wide, "http://a.coder.formation.invalid/", "http://a.coder.formation.invalid"),
    ];
    for (egress, rules, uri, shown) in cases {
        let error = egress.send(&sender(rules), request(uri, &[], "")).await.err().unwrap();
        assert_eq!(error, HttpError::Denied(shown.into()), "{uri}");
    }
    assert!(server.seen().is_empty());
}

#[tokio::test]
async fn a_message_to_a_peer_is_refused_in_the_contracts_words() {
    let egress = Egress::new(None);
    let message = PeerMessage { message_id: "m".into(), context_id: None, text: "t".into() };
    let error = egress.message_send(&sender(&[]), "http://coder.formation.invalid", message).await.unwrap_err();
    assert_eq!(error, "network policy: 'http://coder.formation.invalid' not in capabilities.network.allow");
}

#[test]
fn an_entrys_list_only_narrows() {
    let text = "name: c\nversion: 0.1.0\nruntime: capsule\nexecution: static\nartifacts:\n  - name: s/t\n    version: 0.1.0\n    \
                runtime: tool\n    capabilities:\n      network:\n        allow: [https://api.x, \
                other.example]\ncapabilities:\n  network:\n    allow: [api.x]\n";
    let (capsule, _) = manifest::read_capsule(text.as_bytes(), "murmur.yaml").unwrap();
    let (rules, warnings) = RuleSet::of_entry(&capsule.capabilities, &capsule.artifacts[0]).unwrap();
    assert!(rules.allow("https", "api.x", 443) && !rules.allow("http", "api.x", 80));
    assert!(!rules.allow("https", "other.example", 443));
    assert_eq!(warnings.len(), 1);
    assert!(warnings[0].message().contains("other.example"), "{}", warnings[0]);
}
