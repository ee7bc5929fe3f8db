//! The shapes as JSON Schema (draft 2020-12).

use serde_json::{Map, Value, json};

use super::{Key, Shape};
use crate::artifacts::name::{MAX_VERSION, RESERVED_VERSIONS};

/// The schema of a file that holds these keys and no others, at any level.
pub fn object(keys: &[Key]) -> Map<String, Value> {
    let mut schema = Map::new();
    block(keys, &mut schema);
    schema
}

fn block(keys: &[Key], schema: &mut Map<String, Value>) {
    schema.insert("type".into(), "object".into());
    let properties: Map<String, Value> = keys.iter().map(|key| (key.name.to_owned(), property(key))).collect();
    schema.insert("properties".into(), properties.into());
    let required: Vec<&str> = keys.iter().filter(|key| key.required).map(|key| key.name).collect();
    if !required.is_empty() {
        schema.insert("required".into(), required.into());
    }
    schema.insert("additionalProperties".into(), false.into());
}

fn property(key: &Key) -> Value {
    let mut schema = Map::new();
    schema.insert("description".into(), key.about.into());
    fill(key.shape, &mut schema);
    if !key.required && !matches!(key.shape, Shape::Bool) {
        or_null(&mut schema);
    }
    Value::Object(schema)
}

fn schema_of(shape: Shape) -> Value {
    let mut schema = Map::new();
    fill(shape, &mut schema);
    Value::Object(schema)
}

/// Scalars that are taken as their text.
const TEXT: [&str; 3] = ["string", "number", "boolean"];

/// What no version holds, within a character class: slashes and control characters.
const FORBIDDEN: &str = r"/\\\x00-\x1f\x7f-\x9f";

fn fill(shape: Shape, schema: &mut Map<String, Value>) {
    let mut put = |name: &str, value: Value| drop(schema.insert(name.to_owned(), value));
    match shape {
        Shape::Any => {}
        Shape::Text => put("type", json!(TEXT)),
        Shape::Filled => {
            put("type", json!(TEXT));
            put("pattern", json!(r"\S"));
        }
        Shape::String => put("type", json!("string")),
        Shape::Pattern(pattern) => {
            put("type", json!("string"));
            put("pattern", json!(pattern));
        }
        Shape::Version => {
            put("type", json!(TEXT));
            put("maxLength", json!(MAX_VERSION));
            put("pattern", json!(format!("^[^{FORBIDDEN}\\s]([^{FORBIDDEN}]*[^{FORBIDDEN}\\s])?$")));
            put("not", json!({"type": "string", "pattern": reserved()}));
        }
        Shape::Words(words) => put("enum", json!(words)),
        Shape::Bool | Shape::Flag => put("type", json!("boolean")),
        Shape::One => {
            put("type", json!("integer"));
            put("const", json!(1));
        }
        Shape::Whole(min, max) => {
            put("type", json!("integer"));
            put("minimum", json!(min));
            if max < u64::MAX {
                put("maximum", json!(max));
            }
        }
        Shape::Fraction(above) => {
            put("type", json!("number"));
            put(if above { "exclusiveMinimum" } else { "minimum" }, json!(0));
            put("maximum", json!(1));
        }
        Shape::Duration | Shape::Size => {
            let unit = if matches!(shape, Shape::Duration) { "[smhd]" } else { "[KMG]i" };
            put("type", json!(["integer", "string"]));
            put("minimum", json!(1));
            put("pattern", json!(format!("^0*[1-9][0-9]*({unit})?$")));
        }
        Shape::Block(keys) => block(keys, schema),
        Shape::Some(keys) => {
            block(keys, schema);
            schema.insert("minProperties".into(), 1.into());
        }
        Shape::Map => put("type", json!("object")),
        Shape::Named(pattern, of) => {
            put("type", json!("object"));
            put("propertyNames", json!({"pattern": pattern}));
            let mut held = Map::new();
            fill(*of, &mut held);
            or_null(&mut held);
            put("additionalProperties", Value::Object(held));
        }
        Shape::List(min, of) => {
            put("type", json!("array"));
            if min > 0 {
                put("minItems", json!(min));
            }
            put("items", schema_of(*of));
        }
        Shape::Either(shapes) => {
            put("anyOf", shapes.iter().map(|shape| schema_of(*shape)).collect());
        }
    }
}

/// Null counts as absent.
fn or_null(schema: &mut Map<String, Value>) {
    if let Some(words) = schema.get_mut("enum").and_then(Value::as_array_mut) {
        words.push(Value::Null);
    }
    if let Some(shapes) = schema.get_mut("anyOf").and_then(Value::as_array_mut) {
        shapes.push(json!({"type": "null"}));
    }
    match schema.get_mut("type") {
        Some(Value::Array(types)) => types.push("null".into()),
        Some(one) => *one = json!([one.clone(), "null"]),
        None => {}
    }
}

/// The reserved versions in any case, since JSON Schema's expressions have no such flag.
fn reserved() -> String {
    let any_case = |word: &str| word.chars().map(|c| format!("[{c}{}]", c.to_ascii_uppercase())).collect::<String>();
    let words: Vec<String> = RESERVED_VERSIONS.iter().map(|word| any_case(word)).collect();
    format!(r"^({}|\.|\.\.)$", words.join("|"))
}
