//! Names to addresses, from the hosts file and the servers of `/etc/resolv.conf` and from nowhere else: no library of
//! the system's is asked, so no module of it can answer for a name.

use std::collections::HashMap;
use std::io::{self, Read as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::{Instant, timeout, timeout_at};

use super::dns::{self, Code, Family, Reply};

/// How long one name may take.
pub const LOOKUP: Duration = Duration::from_secs(5);

/// How long one server is waited for, each time it is asked.
const ATTEMPT: Duration = Duration::from_secs(2);

/// How often each server is asked.
const ATTEMPTS: usize = 2;

/// Servers that are asked; more are not read, as by every resolver.
const MAX_SERVERS: usize = 3;

/// Most bytes of a hosts file or a `resolv.conf`.
const MAX_FILE: u64 = 8 << 20;

const PORT: u16 = 53;

/// Where names are looked up.
#[derive(Debug)]
pub struct Resolver {
    hosts: HashMap<String, Vec<IpAddr>>,
    servers: Vec<SocketAddr>,
}

/// What came of looking a name up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Its addresses of the family asked for; possibly none.
    Addresses(Vec<IpAddr>),
    /// There is no such name.
    NoName,
    /// Nobody answered.
    NoAnswer,
}

impl Resolver {
    /// This host's, its files read once per process.
    pub fn of_host() -> Arc<Self> {
        static HOST: OnceLock<Arc<Resolver>> = OnceLock::new();
        let read = || {
            let (hosts, servers) = (text_of("/etc/hosts"), text_of("/etc/resolv.conf"));
            Arc::new(Self::new(&hosts, servers_of(&servers)))
        };
        Arc::clone(HOST.get_or_init(read))
    }

    /// From a hosts file's text and the servers to ask.
    pub fn new(hosts: &str, servers: Vec<SocketAddr>) -> Self {
        let mut table: HashMap<String, Vec<IpAddr>> = HashMap::new();
        for line in hosts.lines() {
            let line = line.split('#').next().unwrap_or_default();
            let mut words = line.split_whitespace();
            let Some(address) = words.next().and_then(|word| word.parse().ok()) else { continue };
            for name in words {
                let addresses = table.entry(plain(name)).or_default();
                if !addresses.contains(&address) {
                    addresses.push(address);
                }
            }
        }
        // What the name means where no file says so (RFC 6761).
        table
            .entry("localhost".to_owned())
            .or_insert_with(|| vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
        Self { hosts: table, servers }
    }

    /// Looks a name up, within [`LOOKUP`].
    pub async fn lookup(&self, name: &str, family: Family) -> Found {
        let name = plain(name);
        if let Some(addresses) = self.hosts.get(&name) {
            let of_family = |address: &IpAddr| address.is_ipv4() == (family == Family::A);
            return Found::Addresses(addresses.iter().copied().filter(of_family).collect());
        }
        let deadline = Instant::now() + LOOKUP;
        timeout_at(deadline, self.ask_all(&name, family)).await.unwrap_or(Found::NoAnswer)
    }

    async fn ask_all(&self, name: &str, family: Family) -> Found {
        for _ in 0..ATTEMPTS {
            for server in &self.servers {
                match timeout(ATTEMPT, ask(*server, name, family)).await {
                    Ok(Ok(reply)) if reply.code == Code::NoError as u16 => return Found::Addresses(reply.addresses),
                    Ok(Ok(reply)) if reply.code == Code::NoName as u16 => return Found::NoName,
                    // Any other code is this server's trouble; another may do better.
                    _ => {}
                }
            }
        }
        Found::NoAnswer
    }
}

/// A name in the form it is compared in.
pub(super) fn plain(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

/// The servers a `resolv.conf` names; the local one where it names none.
pub fn servers_of(text: &str) -> Vec<SocketAddr> {
    let named = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let address = words.next().filter(|word| *word == "nameserver").and_then(|_| words.next())?;
        address.parse::<IpAddr>().ok().map(|address| SocketAddr::new(address, PORT))
    });
    let servers: Vec<SocketAddr> = named.take(MAX_SERVERS).collect();
    if servers.is_empty() { vec![SocketAddr::new(Ipv4Addr::LOCALHOST.into(), PORT)] } else { servers }
}

async fn ask(server: SocketAddr, name: &str, family: Family) -> io::Result<Reply> {
    let mut id = [0; 2];
    getrandom::fill(&mut id).map_err(|_| io::ErrorKind::Other)?;
    let id = u16::from_be_bytes(id);
    let question = dns::ask(id, name, family).ok_or(io::ErrorKind::InvalidInput)?;
    // A new socket each time: its port, chosen by the kernel, has to be guessed along with the id.
    let local: IpAddr = if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((local, 0)).await?;
    socket.connect(server).await?;
    socket.send(&question).await?;
    let mut buffer = vec![0; dns::MAX_QUERY];
    loop {
        let length = socket.recv(&mut buffer).await?;
        // What does not answer the question is not from the server that was asked.
        let Some(reply) = dns::parse_reply(&buffer[..length], id, name, family) else { continue };
        if !reply.truncated {
            return Ok(reply);
        }
        // The part that came serves where the whole cannot be had.
        return Ok(over_tcp(server, &question, id, name, family).await.unwrap_or(reply));
    }
}

async fn over_tcp(server: SocketAddr, question: &[u8], id: u16, name: &str, family: Family) -> io::Result<Reply> {
    let mut stream = TcpStream::connect(server).await?;
    let mut framed = (question.len() as u16).to_be_bytes().to_vec();
    framed.extend_from_slice(question);
    stream.write_all(&framed).await?;
    let length = usize::from(stream.read_u16().await?).min(dns::MAX_UPSTREAM);
    let mut bytes = vec![0; length];
    stream.read_exact(&mut bytes).await?;
    dns::parse_reply(&bytes, id, name, family).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// A file's text; one that cannot be read says nothing.
fn text_of(path: &str) -> String {
    let mut bytes = Vec::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(MAX_FILE).read_to_end(&mut bytes));
    read.map(|_| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resolv_conf_names_its_first_three_servers() {
        let text = "# x\nnameserver 192.0.2.1\nsearch nameserver\n nameserver\t2001:db8::1 \nnameserver fe80::1%eth0\n\
            nameserver 192.0.2.3\nnameserver 192.0.2.4\n";
        let found: Vec<String> = servers_of(text).iter().map(ToString::to_string).collect();
        assert_eq!(found, ["192.0.2.1:53", "[2001:db8::1]:53", "192.0.2.3:53"]);
        assert_eq!(servers_of("search x\n"), ["127.0.0.1:53".parse().unwrap()]);
    }

    #[tokio::test]
    async fn the_hosts_file_is_asked_first_and_alone() {
        let resolver = Resolver::new("192.0.2.7 One two # three\n::7 one\nnonsense four\n", Vec::new());
        let found = |name: &'static str, family| {
            let resolver = &resolver;
            async move { resolver.lookup(name, family).await }
        };
        assert_eq!(found("ONE.", Family::A).await, Found::Addresses(vec!["192.0.2.7".parse().unwrap()]));
        assert_eq!(found("one", Family::Aaaa).await, Found::Addresses(vec!["::7".parse().unwrap()]));
        assert_eq!(found("two", Family::Aaaa).await, Found::Addresses(Vec::new()));
        assert_eq!(found("localhost", Family::A).await, Found::Addresses(vec!["127.0.0.1".parse().unwrap()]));
        assert_eq!(found("three", Family::A).await, Found::NoAnswer);
        assert_eq!(found("four", Family::A).await, Found::NoAnswer);
    }

    /// A server that answers each query by what it is told, and does nothing where that is nothing.
    async fn server(answer: impl Fn(&[u8]) -> Vec<Vec<u8>> + Send + 'static) -> SocketAddr {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = socket.local_addr().unwrap();
        tokio::spawn(async move {
            let mut buffer = [0; 512];
            while let Ok((length, from)) = socket.recv_from(&mut buffer).await {
                for reply in answer(&buffer[..length]) {
                    socket.send_to(&reply, from).await.unwrap();
                }
            }
        });
        address
    }

    fn with(code: Code, addresses: &'static [&'static str]) -> impl Fn(&[u8]) -> Vec<Vec<u8>> + Send + 'static {
        move |query| {
            let query = dns::parse_query(query).unwrap();
            let addresses: Vec<IpAddr> = addresses.iter().map(|address| address.parse().unwrap()).collect();
            vec![query.reply(code, &addresses)]
        }
    }

    #[tokio::test]
    async fn a_server_in_trouble_is_passed_over_and_a_forged_answer_is_no_answer() {
        let broken = server(with(Code::ServerFailure, &[])).await;
        let forged = server(|query| {
            let mut other = query.to_vec();
            other[1] ^= 1;
            let wrong_id = dns::parse_query(&other).unwrap().reply(Code::NoError, &["6.6.6.6".parse().unwrap()]);
            let right = dns::parse_query(query).unwrap().reply(Code::NoError, &["192.0.2.1".parse().unwrap()]);
            vec![b"noise".to_vec(), wrong_id, right]
        })
        .await;
        let resolver = Resolver::new("", vec![broken, forged]);
        let found = resolver.lookup("a.test", Family::A).await;
        assert_eq!(found, Found::Addresses(vec!["192.0.2.1".parse().unwrap()]));
        let none = Resolver::new("", vec![server(with(Code::NoName, &[])).await, forged]);
        assert_eq!(none.lookup("a.test", Family::A).await, Found::NoName);
        let failing = Resolver::new("", vec![broken]);
        assert_eq!(failing.lookup("a.test", Family::A).await, Found::NoAnswer);
        assert_eq!(failing.lookup("a..test", Family::A).await, Found::NoAnswer);
    }

    #[tokio::test]
    async fn an_answer_that_was_cut_is_fetched_whole() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let socket = UdpSocket::bind(address).await.unwrap();
        tokio::spawn(async move {
            let mut buffer = [0; 512];
            let (length, from) = socket.recv_from(&mut buffer).await.unwrap();
            let mut cut = dns::parse_query(&buffer[..length]).unwrap().reply(Code::NoError, &[]);
            cut[2] |= 2;
            socket.send_to(&cut, from).await.unwrap();
            let (mut stream, _) = listener.accept().await.unwrap();
            let length = usize::from(stream.read_u16().await.unwrap());
            let mut query = vec![0; length];
            stream.read_exact(&mut query).await.unwrap();
            let whole = dns::parse_query(&query).unwrap().reply(Code::NoError, &["192.0.2.9".parse().unwrap()]);
            stream.write_u16(whole.len() as u16).await.unwrap();
            stream.write_all(&whole).await.unwrap();
        });
        let resolver = Resolver::new("", vec![address]);
        let found = resolver.lookup("big.test", Family::A).await;
        assert_eq!(found, Found::Addresses(vec!["192.0.2.9".parse().unwrap()]));
    }
}
