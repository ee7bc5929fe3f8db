//! Which connections of a session's commands are let through: the capsule's allow-list applied to addresses.
//!
//! A command names a host when it asks for its address, and connects by address afterwards. What the resolver told it is
//! remembered, so that the rule of the name decides about the address.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::dns::Family;
use super::resolver::{Found, Resolver, plain};
use crate::egress::RuleSet;

/// How long a name stays bound to an address it was resolved to.
const BOUND: Duration = Duration::from_secs(300);

/// Addresses bound at once; the oldest makes room. Far more than a list of names resolves to in [`BOUND`].
const MAX_BOUND: usize = 4096;

/// What a session's commands may reach.
#[derive(Debug)]
pub struct Reach {
    rules: RuleSet,
    bound: Mutex<HashMap<Ipv4Addr, Vec<(String, Instant)>>>,
    at_launch: watch::Sender<Option<HashSet<Ipv4Addr>>>,
}

impl Reach {
    /// By the capsule's rules.
    pub fn new(rules: RuleSet) -> Self {
        Self { rules, bound: Mutex::default(), at_launch: watch::Sender::new(None) }
    }

    /// Whether a name is in the list, so that it may be looked up. An address is no name.
    pub fn lists(&self, name: &str) -> bool {
        !is_literal(name) && self.rules.rules().iter().any(|rule| plain(&rule.host) == name)
    }

    /// Remembers that a name was resolved to these addresses.
    pub fn bind(&self, name: &str, addresses: &[IpAddr], now: Instant) {
        let mut bound = self.bound.lock().unwrap_or_else(PoisonError::into_inner);
        for address in addresses {
            // Only IPv4 can be connected to from inside.
            let IpAddr::V4(address) = address else { continue };
            if bound.len() >= MAX_BOUND && !bound.contains_key(address) {
                make_room(&mut bound, now);
            }
            let names = bound.entry(*address).or_default();
            names.retain(|(known, since)| known != name && is_fresh(*since, now));
            names.push((name.to_owned(), now));
        }
    }

    /// Whether a connection to an address and port is let through. Waits for the names of the list to be resolved, which
    /// is bounded, when that alone could let it through.
    pub async fn allows(&self, address: Ipv4Addr, port: u16, now: Instant) -> bool {
        self.allows_by_name(address, port, now) || self.is_of_launch(address).await
    }

    fn allows_by_name(&self, address: Ipv4Addr, port: u16, now: Instant) -> bool {
        let bound = self.bound.lock().unwrap_or_else(PoisonError::into_inner);
        let names = bound.get(&address).map(Vec::as_slice).unwrap_or_default();
        names.iter().any(|(name, since)| is_fresh(*since, now) && self.rules.allow_connection(name, port))
    }

    async fn is_of_launch(&self, address: Ipv4Addr) -> bool {
        let mut known = self.at_launch.subscribe();
        let known = known.wait_for(Option::is_some).await;
        known.is_ok_and(|known| known.as_ref().is_some_and(|known| known.contains(&address)))
    }

    /// Resolves the list, once: what its hosts are at launch may be connected to by address. `say` takes one line for
    /// each host that is not to be resolved.
    pub async fn resolve(&self, resolver: &Resolver, say: impl Fn(&str)) {
        let hosts: Vec<String> = {
            let mut seen = HashSet::new();
            let hosts = self.rules.rules().iter().map(|rule| plain(&rule.host));
            hosts.filter(|host| seen.insert(host.clone())).collect()
        };
        let lookups = hosts.iter().map(|host| addresses_of(resolver, host));
        let found = futures_util::future::join_all(lookups).await;
        let mut all = HashSet::new();
        for (host, found) in hosts.iter().zip(found) {
            match found {
                Ok(addresses) => all.extend(addresses),
                Err(why) => say(&format!(
                    "[capsule-runtime] warning: the network allowlist host '{host}' could not be resolved at launch: \
                     {why} (a subprocess reaching it by literal address is denied for this run)"
                )),
            }
        }
        self.at_launch.send_replace(Some(all));
    }
}

/// The IPv4 addresses of one host of the list.
async fn addresses_of(resolver: &Resolver, host: &str) -> Result<Vec<Ipv4Addr>, &'static str> {
    if let Ok(address) = host.parse() {
        return Ok(vec![address]);
    }
    if is_literal(host) {
        return Ok(Vec::new());
    }
    match resolver.lookup(host, Family::A).await {
        Found::Addresses(addresses) => Ok(addresses
            .into_iter()
            .filter_map(|address| match address {
                IpAddr::V4(address) => Some(address),
                IpAddr::V6(_) => None,
            })
            .collect()),
        Found::NoName => Err("no server knows it"),
        Found::NoAnswer => Err("no server answered"),
    }
}

fn is_literal(host: &str) -> bool {
    host.starts_with('[') || host.parse::<IpAddr>().is_ok()
}

fn is_fresh(since: Instant, now: Instant) -> bool {
    now.saturating_duration_since(since) < BOUND
}

/// Forgets what is stale, or else the address bound longest ago.
fn make_room(bound: &mut HashMap<Ipv4Addr, Vec<(String, Instant)>>, now: Instant) {
    bound.retain(|_, names| {
        names.retain(|(_, since)| is_fresh(*since, now));
        !names.is_empty()
    });
    if bound.len() >= MAX_BOUND {
        let newest = |names: &[(String, Instant)]| names.iter().map(|(_, since)| *since).max();
        let oldest = bound.iter().min_by_key(|(_, names)| newest(names)).map(|(address, _)| *address);
        oldest.map(|address| bound.remove(&address));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::NetworkRule;

    fn reach(rules: &[&str]) -> Reach {
        Reach::new(RuleSet::new(rules.iter().map(|rule| NetworkRule::parse(rule).unwrap())))
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[tokio::test]
    async fn a_bound_name_lets_its_own_ports_through_and_no_longer_than_it_is_bound() {
        let reach = reach(&["https://api.test", "git.test:9418", "any.test."]);
        reach.resolve(&Resolver::new("", Vec::new()), |_| {}).await;
        let start = Instant::now();
        reach.bind("api.test", &[ip("192.0.2.1"), ip("2001:db8::1")], start);
        reach.bind("git.test", &[ip("192.0.2.1")], start);
        reach.bind("any.test", &[ip("192.0.2.2")], start);
        let four = |text: &str| text.parse::<Ipv4Addr>().unwrap();
        for (address, port, after, expected) in [
            ("192.0.2.1", 443, 0, true),
            ("192.0.2.1", 9418, 299, true),
            ("192.0.2.1", 80, 0, false),
            ("192.0.2.1", 443, 300, false),
            ("192.0.2.2", 1, 0, true),
            ("192.0.2.3", 443, 0, false),
        ] {
            let now = start + Duration::from_secs(after);
            assert_eq!(reach.allows(four(address), port, now).await, expected, "{address}:{port} after {after} s");
        }
        // Asked for again, a name is bound anew.
        reach.bind("api.test", &[ip("192.0.2.1")], start + Duration::from_secs(200));
        assert!(reach.allows(four("192.0.2.1"), 443, start + Duration::from_secs(400)).await);
    }

    #[tokio::test]
    async fn addresses_of_the_list_are_let_through_by_address_and_unknown_hosts_are_named() {
        let reach = reach(&["localhost", "192.0.2.9:8080", "http://gone.test", "gone.test", "[2001:db8::1]:80"]);
        let said = Mutex::new(Vec::new());
        reach.resolve(&Resolver::new("", Vec::new()), |line| said.lock().unwrap().push(line.to_owned())).await;
        let now = Instant::now();
        assert!(reach.allows(Ipv4Addr::LOCALHOST, 8080, now).await);
        assert!(reach.allows("192.0.2.9".parse().unwrap(), 80, now).await);
        assert!(!reach.allows("192.0.2.10".parse().unwrap(), 8080, now).await);
        let said = said.into_inner().unwrap();
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].contains("'gone.test' could not be resolved at launch: no server answered"), "{said:?}");
    }

    #[test]
    fn only_names_of_the_list_may_be_looked_up() {
        let reach = reach(&["API.test", "https://a.test:8443", "192.0.2.9", "*"]);
        assert!(reach.lists("api.test") && reach.lists("a.test"));
        for name in ["b.api.test", "test", "192.0.2.9", "xapi.test", ""] {
            assert!(!reach.lists(name), "{name}");
        }
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let reach = reach(&["a.test"]);
        let start = Instant::now();
        for n in 0..MAX_BOUND as u32 + 10 {
            reach.bind("a.test", &[Ipv4Addr::from(n).into()], start + Duration::from_millis(u64::from(n)));
        }
        let now = start + Duration::from_millis(MAX_BOUND as u64 + 10);
        assert_eq!(reach.bound.lock().unwrap().len(), MAX_BOUND);
        assert!(!reach.allows_by_name(Ipv4Addr::from(0), 80, now));
        assert!(reach.allows_by_name(Ipv4Addr::from(MAX_BOUND as u32), 80, now));
    }
}
