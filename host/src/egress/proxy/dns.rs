//! DNS messages, as far as an allow-list needs them (RFC 1035): one question read, addresses answered, one question
//! asked, addresses read. Whoever sends is not believed: every length is checked before it is used.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Longest query that is read.
pub const MAX_QUERY: usize = 4096;

/// Longest message that is sent back: what every client takes without extensions.
const MAX_REPLY: usize = 512;

/// Longest message that is taken from a server.
pub const MAX_UPSTREAM: usize = 65_535;

/// Longest name in the form messages carry it.
const MAX_NAME: usize = 255;

/// Most pointers followed in one name, and most aliases from a name to its addresses.
const MAX_HOPS: usize = 16;

/// Most addresses kept of one answer.
const MAX_ADDRESSES: usize = 64;

/// How long a client may keep an answer, in seconds.
const TTL: u32 = 60;

const HEADER: usize = 12;
const TYPE_A: u16 = 1;
const TYPE_CNAME: u16 = 5;
const TYPE_AAAA: u16 = 28;
const CLASS_IN: u16 = 1;

const QUERY_OR_REPLY: u16 = 0x8000;
const OPCODE: u16 = 0x7800;
const TRUNCATED: u16 = 0x0200;
const RECURSION_DESIRED: u16 = 0x0100;
const RECURSION_AVAILABLE: u16 = 0x0080;

/// Which addresses are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    A,
    /// IPv6.
    Aaaa,
}

/// A response code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// `NOERROR`.
    NoError = 0,
    /// `FORMERR`.
    FormatError = 1,
    /// `SERVFAIL`.
    ServerFailure = 2,
    /// `NXDOMAIN`.
    NoName = 3,
    /// `REFUSED`.
    Refused = 5,
}

/// A client's query: its one question.
#[derive(Debug, PartialEq, Eq)]
pub struct Query {
    id: u16,
    flags: u16,
    question: Vec<u8>,
    /// The name in lower case without a final dot; `None` when no host can be called so.
    pub name: Option<String>,
    /// What is asked; `None` for anything but addresses.
    pub family: Option<Family>,
}

/// Reads a query. `None` is a message that is none, or asks more than one question.
pub fn parse_query(bytes: &[u8]) -> Option<Query> {
    if bytes.len() > MAX_QUERY || bytes.len() < HEADER {
        return None;
    }
    let flags = u16_at(bytes, 2)?;
    if flags & (QUERY_OR_REPLY | OPCODE) != 0 || u16_at(bytes, 4)? != 1 {
        return None;
    }
    // A name stands at the start of a message for the first time: there is nothing it could point back to.
    let (wire, end) = read_name(bytes, HEADER, 0)?;
    let (kind, class) = (u16_at(bytes, end)?, u16_at(bytes, end + 2)?);
    let family = match kind {
        _ if class != CLASS_IN => None,
        TYPE_A => Some(Family::A),
        TYPE_AAAA => Some(Family::Aaaa),
        _ => None,
    };
    let question = bytes.get(HEADER..end + 4)?.to_vec();
    Some(Query { id: u16_at(bytes, 0)?, flags, question, name: host_name(&wire), family })
}

impl Query {
    /// The reply: addresses only of the family that was asked for, as many as fit.
    pub fn reply(&self, code: Code, addresses: &[IpAddr]) -> Vec<u8> {
        let mut reply = header(self.id, self.flags, code);
        reply[4..6].copy_from_slice(&1_u16.to_be_bytes());
        reply.extend_from_slice(&self.question);
        let mut count = 0_u16;
        for address in addresses {
            let (kind, bytes) = match (address, self.family) {
                (IpAddr::V4(address), Some(Family::A)) => (TYPE_A, address.octets().to_vec()),
                (IpAddr::V6(address), Some(Family::Aaaa)) => (TYPE_AAAA, address.octets().to_vec()),
                _ => continue,
            };
            if reply.len() + 12 + bytes.len() > MAX_REPLY {
                break;
            }
            // The owner is the question's name, by a pointer to it.
            reply.extend_from_slice(&[0xc0, HEADER as u8]);
            reply.extend_from_slice(&kind.to_be_bytes());
            reply.extend_from_slice(&CLASS_IN.to_be_bytes());
            reply.extend_from_slice(&TTL.to_be_bytes());
            reply.extend_from_slice(&(bytes.len() as u16).to_be_bytes());
            reply.extend_from_slice(&bytes);
            count += 1;
        }
        reply[6..8].copy_from_slice(&count.to_be_bytes());
        reply
    }
}

/// The reply to bytes that are no query; `None` when they are too few to be told from noise.
pub fn format_error(bytes: &[u8]) -> Option<Vec<u8>> {
    if bytes.len() < HEADER {
        return None;
    }
    Some(header(u16_at(bytes, 0)?, u16_at(bytes, 2)?, Code::FormatError))
}

fn header(id: u16, flags: u16, code: Code) -> Vec<u8> {
    let flags = QUERY_OR_REPLY | (flags & (OPCODE | RECURSION_DESIRED)) | RECURSION_AVAILABLE | code as u16;
    let mut header = vec![0; HEADER];
    header[0..2].copy_from_slice(&id.to_be_bytes());
    header[2..4].copy_from_slice(&flags.to_be_bytes());
    header
}

/// A question for a server, or `None` for a name no message can carry.
pub fn ask(id: u16, name: &str, family: Family) -> Option<Vec<u8>> {
    let mut bytes = vec![0; HEADER];
    bytes[0..2].copy_from_slice(&id.to_be_bytes());
    bytes[2..4].copy_from_slice(&RECURSION_DESIRED.to_be_bytes());
    bytes[4..6].copy_from_slice(&1_u16.to_be_bytes());
    bytes.extend(wire_name(name)?);
    bytes.extend_from_slice(&type_of(family).to_be_bytes());
    bytes.extend_from_slice(&CLASS_IN.to_be_bytes());
    Some(bytes)
}

/// What a server answered.
#[derive(Debug, PartialEq, Eq)]
pub struct Reply {
    /// Its response code.
    pub code: u16,
    /// It did not fit; the whole is to be had over TCP.
    pub truncated: bool,
    /// Addresses of the name, aliases followed.
    pub addresses: Vec<IpAddr>,
}

/// Reads the answer to a question asked by [`ask`]. `None` is a message that does not answer it.
pub fn parse_reply(bytes: &[u8], id: u16, name: &str, family: Family) -> Option<Reply> {
    let flags = u16_at(bytes, 2)?;
    if u16_at(bytes, 0)? != id || flags & QUERY_OR_REPLY == 0 || u16_at(bytes, 4)? != 1 {
        return None;
    }
    let wanted = wire_name(name)?;
    let (asked, end) = read_name(bytes, HEADER, 0)?;
    if asked != wanted || u16_at(bytes, end)? != type_of(family) || u16_at(bytes, end + 2)? != CLASS_IN {
        return None;
    }
    let truncated = flags & TRUNCATED != 0;
    let records = answers(bytes, end + 4, u16_at(bytes, 6)?, truncated)?;
    Some(Reply { code: flags & 0xf, truncated, addresses: chase(wanted, &records, family) })
}

enum Data {
    Alias(Vec<u8>),
    Address(IpAddr),
}

/// The records of the answer section that matter, with their owners.
fn answers(bytes: &[u8], mut at: usize, count: u16, truncated: bool) -> Option<Vec<(Vec<u8>, Data)>> {
    let mut records = Vec::new();
    for _ in 0..count {
        match answer(bytes, at) {
            Some((record, end)) => {
                at = end;
                records.extend(record);
            }
            // A message that was cut may end anywhere.
            None if truncated => break,
            None => return None,
        }
    }
    Some(records)
}

fn answer(bytes: &[u8], at: usize) -> Option<(Option<(Vec<u8>, Data)>, usize)> {
    let (owner, at) = read_name(bytes, at, MAX_HOPS)?;
    let (kind, class) = (u16_at(bytes, at)?, u16_at(bytes, at + 2)?);
    let start = at + 10;
    let end = start + usize::from(u16_at(bytes, at + 8)?);
    let data = bytes.get(start..end)?;
    let data = match kind {
        _ if class != CLASS_IN => None,
        TYPE_A => <[u8; 4]>::try_from(data).ok().map(|octets| Data::Address(Ipv4Addr::from(octets).into())),
        TYPE_AAAA => <[u8; 16]>::try_from(data).ok().map(|octets| Data::Address(Ipv6Addr::from(octets).into())),
        TYPE_CNAME => Some(Data::Alias(read_name(bytes, start, MAX_HOPS)?.0)),
        _ => None,
    };
    Some((data.map(|data| (owner, data)), end))
}

/// The addresses of a name or of what it is an alias of. Records of other names are no answer.
fn chase(mut name: Vec<u8>, records: &[(Vec<u8>, Data)], family: Family) -> Vec<IpAddr> {
    for _ in 0..MAX_HOPS {
        let own = |(owner, data): &&(Vec<u8>, Data)| *owner == name && !matches!(data, Data::Alias(_));
        let addresses = records.iter().filter(own).filter_map(|(_, data)| match (data, family) {
            (Data::Address(address @ IpAddr::V4(_)), Family::A) => Some(*address),
            (Data::Address(address @ IpAddr::V6(_)), Family::Aaaa) => Some(*address),
            _ => None,
        });
        let addresses: Vec<IpAddr> = addresses.take(MAX_ADDRESSES).collect();
        if !addresses.is_empty() {
            return addresses;
        }
        let alias = records.iter().find_map(|(owner, data)| match data {
            Data::Alias(target) if *owner == name => Some(target.clone()),
            _ => None,
        });
        let Some(alias) = alias else { break };
        name = alias;
    }
    Vec::new()
}

fn type_of(family: Family) -> u16 {
    match family {
        Family::A => TYPE_A,
        Family::Aaaa => TYPE_AAAA,
    }
}

/// A name as messages carry it, lower-cased and whole, and where the reading goes on. At most `hops` pointers are
/// followed, each to a place before the one it stands at.
fn read_name(bytes: &[u8], start: usize, hops: usize) -> Option<(Vec<u8>, usize)> {
    let (mut name, mut at, mut end, mut left) = (Vec::new(), start, None, hops);
    loop {
        let length = usize::from(*bytes.get(at)?);
        match length {
            0 => {
                name.push(0);
                return (name.len() <= MAX_NAME).then(|| (name, end.unwrap_or(at + 1)));
            }
            1..=63 => {
                name.push(length as u8);
                name.extend(bytes.get(at + 1..at + 1 + length)?.iter().map(u8::to_ascii_lowercase));
                at += 1 + length;
            }
            0xc0.. => {
                let target = usize::from(u16_at(bytes, at)? & 0x3fff);
                left = left.checked_sub(1)?;
                end = end.or(Some(at + 2));
                if target >= at {
                    return None;
                }
                at = target;
            }
            _ => return None,
        }
        if name.len() > MAX_NAME {
            return None;
        }
    }
}

/// The name as text, when every part of it could be one of a host's.
fn host_name(wire: &[u8]) -> Option<String> {
    let (mut text, mut at) = (String::new(), 0);
    while let Some(length) = wire.get(at).map(|length| usize::from(*length)).filter(|length| *length > 0) {
        let label = wire.get(at + 1..at + 1 + length)?;
        if !label.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')) {
            return None;
        }
        if !text.is_empty() {
            text.push('.');
        }
        text.extend(label.iter().map(|byte| char::from(*byte)));
        at += 1 + length;
    }
    (!text.is_empty()).then_some(text)
}

/// A host's name as messages carry it.
fn wire_name(name: &str) -> Option<Vec<u8>> {
    let name = name.strip_suffix('.').unwrap_or(name);
    let mut wire = Vec::with_capacity(name.len() + 2);
    for label in name.split('.') {
        if label.is_empty() || label.len() > 63 || !label.is_ascii() {
            return None;
        }
        wire.push(label.len() as u8);
        wire.extend(label.bytes().map(|byte| byte.to_ascii_lowercase()));
    }
    wire.push(0);
    (wire.len() <= MAX_NAME).then_some(wire)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let pair = bytes.get(at..at.checked_add(2)?)?;
    Some(u16::from_be_bytes([pair[0], pair[1]]))
}

/// Every reader of this module on arbitrary bytes.
pub fn fuzz(bytes: &[u8]) {
    if let Some(query) = parse_query(bytes) {
        let reply = query.reply(Code::NoError, &[Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
        assert!(reply.len() <= MAX_REPLY && reply[0..2] == bytes[0..2]);
    } else if let Some(reply) = format_error(bytes) {
        assert_eq!(reply.len(), HEADER);
    }
    let id = u16_at(bytes, 0).unwrap_or_default();
    for (name, family) in [("a.test", Family::A), ("a.test", Family::Aaaa)] {
        if let Some(reply) = parse_reply(bytes, id, name, family) {
            assert!(reply.addresses.len() <= MAX_ADDRESSES);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(name: &str, family: Family) -> Query {
        parse_query(&ask(7, name, family).unwrap()).unwrap()
    }

    fn record(owner: &[u8], kind: u16, data: &[u8]) -> Vec<u8> {
        let mut record = owner.to_vec();
        record.extend_from_slice(&kind.to_be_bytes());
        record.extend_from_slice(&[0, 1, 0, 0, 0, 9]);
        record.extend_from_slice(&(data.len() as u16).to_be_bytes());
        record.extend_from_slice(data);
        record
    }

    fn answered(name: &str, records: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = ask(7, name, Family::A).unwrap();
        bytes[2] |= 0x80;
        bytes[7] = records.len() as u8;
        bytes.extend(records.concat());
        bytes
    }

    #[test]
    fn a_question_is_read_without_case_and_answered_with_its_own_bytes() {
        let mut bytes = ask(7, "API.Example.COM.", Family::A).unwrap();
        assert_eq!(parse_query(&bytes).unwrap().name.as_deref(), Some("api.example.com"));
        bytes[13] = b'A';
        let query = parse_query(&bytes).unwrap();
        let reply = query.reply(Code::NoError, &["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()]);
        assert_eq!(reply[..HEADER], [0, 7, 0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0]);
        assert_eq!(reply[HEADER..bytes.len()], bytes[HEADER..]);
        assert_eq!(reply[bytes.len()..], [0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, 1]);
        let six = query_of("x.test", Family::Aaaa, &["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()]);
        assert_eq!(six[6..8], [0, 1]);
        assert_eq!(six[six.len() - 16..], "2001:db8::1".parse::<Ipv6Addr>().unwrap().octets());
    }

    fn query_of(name: &str, family: Family, addresses: &[IpAddr]) -> Vec<u8> {
        query(name, family).reply(Code::NoError, addresses)
    }

    #[test]
    fn a_reply_never_outgrows_what_every_client_takes() {
        let long = ["a".repeat(63), "b".repeat(63), "c".repeat(63), "d".repeat(61)].join(".");
        let addresses: Vec<IpAddr> = (0..200).map(|n| Ipv4Addr::new(192, 0, 2, n).into()).collect();
        for name in ["x.test", &long] {
            let reply = query_of(name, Family::A, &addresses);
            assert!(reply.len() <= MAX_REPLY && u16_at(&reply, 6).unwrap() > 10, "{}", reply.len());
        }
        assert!(ask(1, &format!("{long}d"), Family::A).is_none());
    }

    #[test]
    fn what_is_no_query_is_no_query() {
        let good = ask(7, "a.test", Family::A).unwrap();
        for cut in 0..good.len() {
            assert!(parse_query(&good[..cut]).is_none(), "{cut}");
            assert_eq!(format_error(&good[..cut]).is_some(), cut >= HEADER);
        }
        let changed = |at: usize, value: u8| {
            let mut bytes = good.clone();
            bytes[at] = value;
            parse_query(&bytes).is_none()
        };
        assert!(changed(2, 0x80), "a reply");
        assert!(changed(2, 0x10), "another operation");
        assert!(changed(5, 0) && changed(5, 2), "no question, two questions");
        assert!(changed(12, 0xc0), "a pointer where nothing was said before");
        assert!(changed(12, 0x40), "a length of an unknown kind");
        let mut extended = good.clone();
        extended.resize(MAX_QUERY, 0);
        assert!(parse_query(&extended).is_some());
        extended.push(0);
        assert!(parse_query(&extended).is_none());
    }

    #[test]
    fn a_label_that_hides_a_dot_is_no_name() {
        let mut bytes = ask(7, "a.test", Family::A).unwrap();
        bytes.splice(12..20, *b"\x06a.test\x00");
        assert_eq!(parse_query(&bytes).unwrap().name, None);
        let mut root = ask(7, "a", Family::A).unwrap();
        root.splice(12..15, [0]);
        assert_eq!(parse_query(&root).unwrap().name, None);
    }

    #[test]
    fn other_types_and_classes_ask_for_no_address() {
        let mut bytes = ask(7, "a.test", Family::A).unwrap();
        let at = bytes.len();
        bytes[at - 3] = 16;
        assert_eq!(parse_query(&bytes).unwrap().family, None);
        bytes[at - 3] = 1;
        bytes[at - 1] = 3;
        let query = parse_query(&bytes).unwrap();
        assert_eq!(query.family, None);
        assert_eq!(u16_at(&query.reply(Code::NoError, &[Ipv4Addr::LOCALHOST.into()]), 6), Some(0));
    }

    #[test]
    fn an_answer_is_followed_through_aliases_and_only_through_them() {
        let pointer = [0xc0, 12];
        let alias = wire_name("real.test").unwrap();
        let bytes = answered(
            "a.test",
            &[
                record(&wire_name("evil.test").unwrap(), TYPE_A, &[6, 6, 6, 6]),
                record(&pointer, TYPE_CNAME, &alias),
                record(&alias, TYPE_A, &[192, 0, 2, 1]),
                record(&alias, TYPE_A, &[192, 0, 2]),
                record(&alias, TYPE_AAAA, &[0; 16]),
            ],
        );
        let reply = parse_reply(&bytes, 7, "A.test.", Family::A).unwrap();
        assert_eq!(reply.addresses, ["192.0.2.1".parse::<IpAddr>().unwrap()]);
        assert!(parse_reply(&bytes, 8, "a.test", Family::A).is_none(), "another id");
        assert!(parse_reply(&bytes, 7, "b.test", Family::A).is_none(), "another name");
        assert!(parse_reply(&bytes, 7, "a.test", Family::Aaaa).is_none(), "another type");
        assert!(parse_reply(&bytes[..bytes.len() - 1], 7, "a.test", Family::A).is_none(), "cut short");
    }

    #[test]
    fn loops_of_aliases_and_pointers_end() {
        let (a, b) = (wire_name("a.test").unwrap(), wire_name("b.test").unwrap());
        let bytes = answered("a.test", &[record(&a, TYPE_CNAME, &b), record(&b, TYPE_CNAME, &a)]);
        assert_eq!(parse_reply(&bytes, 7, "a.test", Family::A).unwrap().addresses, Vec::<IpAddr>::new());
        let question = ask(7, "a.test", Family::A).unwrap().len();
        let own = [0xc0, question as u8];
        assert!(
            parse_reply(&answered("a.test", &[record(&own, TYPE_A, &[1, 2, 3, 4])]), 7, "a.test", Family::A).is_none()
        );
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..700)) {
            fuzz(&bytes);
        }

        #[test]
        fn damage_anywhere_in_an_answer_is_survived(at in 0_usize..90, value in proptest::num::u8::ANY) {
            let alias = wire_name("real.test").unwrap();
            let records = [record(&[0xc0, 12], TYPE_CNAME, &alias), record(&alias, TYPE_A, &[192, 0, 2, 1])];
            let mut bytes = answered("a.test", &records);
            let at = at % bytes.len();
            bytes[at] = value;
            fuzz(&bytes);
        }
    }
}
