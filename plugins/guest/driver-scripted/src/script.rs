//! A script: rules, each with the turns it covers.

use serde_json::{Map, Value};

const TOP: &[&str] = &["rules", "usage", "let"];

/// A script.
#[derive(Debug, Default, Clone)]
pub struct Script {
    /// The first that fits is played.
    pub rules: Vec<Rule>,
    /// Token counts of every turn that names none itself.
    pub usage: Option<Value>,
    /// Names for every template.
    pub values: Map<String, Value>,
}

/// One rule.
#[derive(Debug, Clone)]
pub struct Rule {
    /// When it is taken; an empty condition always holds.
    pub when: Map<String, Value>,
    /// What is played at which turn, counted from the last message from outside.
    pub turns: Vec<Vec<Value>>,
    /// Whether its last turn goes on for ever.
    pub repeat: bool,
}

impl Script {
    /// Reads a script's JSON text.
    pub fn read(text: &str) -> Result<Self, String> {
        Self::of(serde_json::from_str(text).map_err(|fault| format!("it is not JSON: {fault}"))?)
    }

    /// Takes a script apart, naming what does not belong.
    pub fn of(value: Value) -> Result<Self, String> {
        let Value::Object(mut top) = value else { return Err("it must be a mapping".to_owned()) };
        known("the script", &top, TOP)?;
        let rules = match top.remove("rules") {
            Some(Value::Array(rules)) => rules,
            _ => return Err("'rules' must be a list".to_owned()),
        };
        let values = match top.remove("let") {
            None => Map::new(),
            Some(Value::Object(values)) => values,
            Some(_) => return Err("'let' must be a mapping".to_owned()),
        };
        let rules = rules
            .into_iter()
            .enumerate()
            .map(|(at, rule)| Rule::of(rule).map_err(|fault| format!("rule {}: {fault}", at + 1)))
            .collect::<Result<_, _>>()?;
        Ok(Self { rules, usage: top.remove("usage"), values })
    }
}

impl Rule {
    fn of(value: Value) -> Result<Self, String> {
        let Value::Object(mut rule) = value else { return Err("it must be a mapping".to_owned()) };
        known("it", &rule, &["when", "turns", "repeat"])?;
        let when = match rule.remove("when") {
            None => Map::new(),
            Some(Value::Object(when)) => when,
            Some(_) => return Err("'when' must be a mapping".to_owned()),
        };
        let turns = match rule.remove("turns") {
            Some(Value::Array(turns)) if !turns.is_empty() => turns,
            _ => return Err("'turns' must be a list of one turn or more".to_owned()),
        };
        let turns = turns
            .into_iter()
            .enumerate()
            .map(|(at, turn)| match turn {
                Value::Array(steps) => Ok(steps),
                // A turn of one step needs no list around it.
                step @ Value::Object(_) => Ok(vec![step]),
                _ => Err(format!("turn {at} must be a list of steps")),
            })
            .collect::<Result<_, _>>()?;
        let repeat = match rule.remove("repeat") {
            None => false,
            Some(Value::Bool(repeat)) => repeat,
            Some(_) => return Err("'repeat' must be true or false".to_owned()),
        };
        Ok(Self { when, turns, repeat })
    }

    /// The steps of a turn, if the rule covers it.
    pub fn turn(&self, turn: usize) -> Option<&[Value]> {
        let last = self.turns.last().filter(|_| self.repeat);
        self.turns.get(turn).or(last).map(Vec::as_slice)
    }
}

/// Refuses a key that would silently do nothing.
pub fn known(what: &str, map: &Map<String, Value>, keys: &[&str]) -> Result<(), String> {
    match map.keys().find(|key| !keys.contains(&key.as_str())) {
        Some(key) => Err(format!("{what} has an unknown key '{key}'; known are: {}", keys.join(", "))),
        None => Ok(()),
    }
}
