//! When a rule or a branch is taken.

use serde_json::{Map, Value};

use crate::scene::Scene;
use crate::template::{self, Scope};

/// Whether a condition holds; the groups of its pattern are put into `captures`.
pub fn holds(
    condition: &Map<String, Value>,
    scene: &Scene,
    scope: &Scope<'_>,
    captures: &mut Map<String, Value>,
) -> Result<bool, String> {
    let of = match condition.get("of") {
        Some(value) => template::fill(value, scope)?,
        None => scene.text.clone().into(),
    };
    let text = template::as_text(&of);
    for (key, value) in condition {
        let number = || template::fill(value, scope).map(|value| template::number(&value));
        let wanted = || template::fill(value, scope).map(|value| template::as_text(&value));
        let met = match key.as_str() {
            "of" => true,
            "contains" => text.contains(&wanted()?),
            "equals" => text == wanted()?,
            "matches" => capture(&wanted()?, &text, captures)?,
            "less" => template::number(&of).zip(number()?).is_some_and(|(of, than)| of < than),
            "at_least" => template::number(&of).zip(number()?).is_some_and(|(of, than)| of >= than),
            "turn" => number()? == Some(scene.turn as f64),
            "model" => scene.model == wanted()?,
            "has_tool" => {
                let name = wanted()?;
                scene.tools.contains(&name)
            }
            "not" => !holds(map(key, value)?, scene, scope, &mut Map::new())?,
            "any" => {
                let mut any = false;
                for one in value.as_array().ok_or("'any' must be a list of conditions")? {
                    any = any || holds(map(key, one)?, scene, scope, captures)?;
                }
                any
            }
            other => return Err(format!("'{other}' is no condition")),
        };
        if !met {
            return Ok(false);
        }
    }
    Ok(true)
}

fn map<'a>(key: &str, value: &'a Value) -> Result<&'a Map<String, Value>, String> {
    value.as_object().ok_or_else(|| format!("'{key}' must hold a condition"))
}

fn capture(pattern: &str, text: &str, captures: &mut Map<String, Value>) -> Result<bool, String> {
    let pattern = template::pattern(pattern)?;
    let Some(found) = pattern.captures(text) else { return Ok(false) };
    for (at, name) in pattern.capture_names().enumerate() {
        let group = Value::from(found.get(at).map(|group| group.as_str()));
        if let Some(name) = name {
            captures.insert(name.to_owned(), group.clone());
        }
        captures.insert(at.to_string(), group);
    }
    Ok(true)
}
