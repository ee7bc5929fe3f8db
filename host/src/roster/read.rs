//! Check 1: the shape of a roster, key by key.

use super::{FILE_NAME, Member, Reachability, Roster, Rule, is_member_name, keys};
use crate::artifacts::name::{ArtifactName, Version};
use crate::diagnostics::{Diagnostic, Result, codes, is_hidden, nearest};
use crate::shape::{self, Keys};
use crate::yaml::{Doc, Entry, Mark, Node};

/// What to do about a fault of the shape.
pub(super) const FIELDS: &str =
    "correct that key; the fields of a roster: https://docs.murmur.nexus/reference/roster/#fields";

/// Longest piece of a value that a message repeats.
const MAX_SHOWN: usize = 80;

pub(super) fn roster(doc: Doc) -> Result<Roster> {
    let (members, reachability) = {
        let reader = Reader { doc: &doc };
        let root = doc.root();
        if root.map().is_none() {
            let fault = format!("the top level must be a mapping, found {}", root.found());
            let hint =
                "a roster begins with roster_version: 1 and a list of members; mur new --roster <NAME> writes one";
            return Err(reader.unpathed(root.mark, &fault).hint(hint));
        }
        reader.known_keys(root, "", "", keys::TOP)?;
        reader.version(root)?;
        (reader.members(root)?, reader.reachability(root)?)
    };
    Ok(Roster { members, reachability, doc })
}

struct Reader<'a> {
    doc: &'a Doc,
}

/// A key of a block, under the reader's hand.
struct Key<'a> {
    path: String,
    /// ` (member '<name>')`, once the entry's own name is usable.
    label: &'a str,
    /// Its value unless null or not written.
    value: Option<&'a Node>,
    mark: Mark,
}

impl Reader<'_> {
    fn fault(&self, key: &Key<'_>, fault: &str) -> Diagnostic {
        self.at(&key.path, key.label, key.mark, fault)
    }

    fn at(&self, path: &str, label: &str, mark: Mark, fault: &str) -> Diagnostic {
        Diagnostic::new(codes::E_ROS_001, format!("{FILE_NAME}: {path}{label}: {fault}"))
            .at(self.doc.place(mark))
            .hint(FIELDS)
    }

    fn unpathed(&self, mark: Mark, fault: &str) -> Diagnostic {
        Diagnostic::new(codes::E_ROS_001, format!("{FILE_NAME}: {fault}")).at(self.doc.place(mark)).hint(FIELDS)
    }

    /// Refuses the alphabetically first key a block does not have.
    fn known_keys(&self, node: &Node, path: &str, label: &str, known: Keys) -> Result<()> {
        let known = shape::names(known);
        let entries = node.map().unwrap_or_default();
        let unknown = entries.iter().filter(|entry| !known.contains(&&*entry.key)).min_by(|a, b| a.key.cmp(&b.key));
        let Some(Entry { key, mark, .. }) = unknown else { return Ok(()) };
        let key = shown(key);
        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        let near = nearest(&key, known.iter().copied());
        let refusal = self.at(&path, label, *mark, &format!("unknown key; expected: {}", known.join(", ")));
        Err(match near {
            Some(near) => refusal.hint(format!("did you mean '{near}'?")),
            None => refusal.hint(format!("remove it, or {FIELDS}")),
        })
    }

    fn version(&self, root: &Node) -> Result<()> {
        let key = key(root, "", "", "roster_version");
        match key.value {
            None => Err(self.fault(&key, "missing; it must be 1").hint("add it: roster_version: 1")),
            Some(node) if node.integer() == Some(1) => Ok(()),
            Some(node) => match node.text() {
                Some(text) => {
                    Err(self.fault(&key, &format!("must be the integer 1, found {} '{}'", node.found(), shown(text))))
                }
                None => Err(self.fault(&key, &format!("must be the integer 1, found {}", node.found()))),
            },
        }
    }

    fn members(&self, root: &Node) -> Result<Vec<Member>> {
        let key = key(root, "", "", "members");
        let items = self.list(&key, "members")?;
        if items.is_empty() {
            return Err(self.fault(&key, "must list at least one member"));
        }
        items.iter().enumerate().map(|(index, node)| self.member(&format!("members[{index}]"), node)).collect()
    }

    /// A list that must be there.
    fn list<'n>(&self, key: &Key<'n>, what: &str) -> Result<&'n [Node]> {
        match key.value {
            None => Err(self.fault(key, &format!("missing; it must be a list of {what}"))),
            Some(node) => node.list().ok_or_else(|| {
                let refusal = self.fault(key, &format!("must be a list of {what}, found {}", node.found()));
                match (node.string(), key.path.rsplit('.').next()) {
                    (Some(one), Some(name)) if is_member_name(one) => {
                        refusal.hint(format!("one is a list too: {name}: [{one}]"))
                    }
                    _ => refusal,
                }
            }),
        }
    }

    fn member(&self, path: &str, node: &Node) -> Result<Member> {
        if node.map().is_none() {
            return Err(self.at(path, "", node.mark, &format!("must be a mapping, found {}", node.found())));
        }
        let usable = node.get("name").and_then(Node::string).filter(|name| is_member_name(name));
        let label = usable.map(|name| format!(" (member '{name}')")).unwrap_or_default();
        self.known_keys(node, path, &label, keys::MEMBER)?;
        let name_key = key(node, path, "", "name");
        let name = self.string(&name_key)?;
        if !is_member_name(name) {
            let fault = format!("'{}' does not match {}", shown(name), keys::MEMBER_NAME);
            return Err(self.fault(&name_key, &fault));
        }
        let capsule_key = key(node, path, &label, "capsule");
        let capsule = ArtifactName::parse(self.string(&capsule_key)?).map_err(|fault| {
            let refusal = self.fault(&capsule_key, &fault.message());
            match fault.hint() {
                Some(hint) => refusal.hint(hint),
                None => without_hint(&refusal),
            }
        })?;
        let version_key = key(node, path, &label, "version");
        let entry_key = key(node, path, &label, "entry");
        Ok(Member {
            name: name.to_owned(),
            capsule,
            version: self.member_version(&version_key)?,
            entry: match entry_key.value {
                None => false,
                Some(node) => node.boolean().ok_or_else(|| {
                    let refusal = self.fault(&entry_key, &format!("must be true or false, found {}", described(node)));
                    match node.text().map(str::to_lowercase).as_deref() {
                        Some("true" | "yes" | "on" | "y" | "1") => refusal.hint("write entry: true, without quotes"),
                        _ => refusal.hint("write entry: true on the one entry member, and no entry: on the others"),
                    }
                })?,
            },
            mark: name_key.mark,
            version_mark: version_key.mark,
            entry_mark: entry_key.mark,
        })
    }

    /// A string that must be there. A plain word that reads as something else is one quote away.
    fn string<'n>(&self, key: &Key<'n>) -> Result<&'n str> {
        let Some(node) = key.value else { return Err(self.fault(key, "missing")) };
        node.string().ok_or_else(|| {
            let refusal = self.fault(key, &format!("must be a string, found {}", described(node)));
            match node.text() {
                Some(text) if text.len() <= MAX_SHOWN => refusal.hint(format!("put it in quotes: \"{text}\"")),
                _ => refusal,
            }
        })
    }

    /// Text as written, whatever it would read as.
    fn member_version(&self, key: &Key<'_>) -> Result<Version> {
        let Some(node) = key.value else { return Err(self.fault(key, "missing; name the exact version")) };
        let Some(text) = node.text() else {
            return Err(self.fault(key, &format!("must be a version, found {}", node.found())));
        };
        Version::parse(text).map_err(|fault| self.fault(key, &fault.message()))
    }

    fn reachability(&self, root: &Node) -> Result<Reachability> {
        let key = key(root, "", "", "reachability");
        let Some(node) = key.value else { return Ok(Reachability::Rules(Vec::new())) };
        if node.string() == Some("all") {
            return Ok(Reachability::All);
        }
        let Some(items) = node.list() else {
            let fault = format!("must be all or a list of rules, found {}", described(node));
            let near = node.text().and_then(|text| nearest(&text.to_lowercase(), ["all"].into_iter()));
            let hint = near.map_or(FIELDS.to_owned(), |near| format!("did you mean '{near}'?"));
            return Err(self.fault(&key, &fault).hint(hint));
        };
        let rule = |(index, node): (usize, &Node)| self.rule(&format!("reachability[{index}]"), node);
        Ok(Reachability::Rules(items.iter().enumerate().map(rule).collect::<Result<_>>()?))
    }

    fn rule(&self, path: &str, node: &Node) -> Result<Rule> {
        if node.map().is_none() {
            return Err(self.at(path, "", node.mark, &format!("must be a mapping, found {}", node.found())));
        }
        self.known_keys(node, path, "", keys::RULE)?;
        let from_key = key(node, path, "", "from");
        let from = self.string(&from_key)?;
        let to_key = key(node, path, "", "to");
        let items = self.list(&to_key, "member names")?;
        if items.is_empty() {
            return Err(self.fault(&to_key, "must list at least one member"));
        }
        let mut to = Vec::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            // A large roster has a hundred thousand of these: its path is spelt out for a fault only.
            match item.string() {
                Some(name) if name != from => to.push(name.to_owned()),
                _ => return Err(self.callee(path, index, item, from)),
            }
        }
        Ok(Rule {
            from: from.to_owned(),
            to,
            from_mark: from_key.mark,
            to_marks: items.iter().map(|item| item.mark).collect(),
        })
    }

    /// What is wrong with an item of a rule's `to`.
    fn callee(&self, path: &str, index: usize, item: &Node, from: &str) -> Diagnostic {
        let key = Key {
            path: format!("{path}.to[{index}]"),
            label: "",
            value: Some(item).filter(|item| !item.is_null()),
            mark: item.mark,
        };
        match self.string(&key) {
            Ok(_) => self.fault(&key, &format!("'{}' is the rule's own from: no member calls itself", shown(from))),
            Err(refusal) => refusal,
        }
    }
}

fn key<'a>(block: &'a Node, path: &str, label: &'a str, name: &str) -> Key<'a> {
    let entry = block.entry(name);
    let path = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    let value = entry.map(|entry| &entry.value).filter(|value| !value.is_null());
    let mark = entry.map_or(block.mark, |entry| if value.is_some() { entry.value.mark } else { entry.mark });
    Key { path, label, value, mark }
}

/// What was found, with its text when it has one.
fn described(node: &Node) -> String {
    match node.text() {
        Some(text) => format!("{} '{}'", node.found(), shown(text)),
        None => node.found().to_owned(),
    }
}

/// A text of the file as a message repeats it: cut, and with what cannot be seen spelt out.
fn shown(text: &str) -> String {
    let mut out = String::new();
    for (index, c) in text.chars().enumerate() {
        if index == MAX_SHOWN {
            out.push('…');
            break;
        }
        if is_hidden(c) || c == '\u{a0}' {
            out.extend(c.escape_unicode());
        } else {
            out.push(c);
        }
    }
    out
}

fn without_hint(diagnostic: &Diagnostic) -> Diagnostic {
    let bare = Diagnostic::new(diagnostic.code(), diagnostic.message());
    match diagnostic.place() {
        Some(place) => bare.at(place.clone()),
        None => bare,
    }
}

#[cfg(test)]
mod tests {
    use super::FIELDS;
    use crate::diagnostics::DOCS_BASE;

    #[test]
    fn the_hint_links_to_the_reference() {
        assert!(FIELDS.contains(DOCS_BASE));
    }
}
