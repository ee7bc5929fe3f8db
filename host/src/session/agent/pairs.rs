//! Whether a list of messages is a conversation: it begins with a user, and each call is answered right after it.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::wire::Message;

/// Why a list of messages is none that a provider takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// It does not begin with a user's message.
    Beginning,
    /// A call without a result, or a result without its call.
    Unpaired,
}

/// Checks a list of messages.
pub fn check(messages: &[Message]) -> Result<(), Unfit> {
    #[derive(Deserialize)]
    struct Wire<'a> {
        #[serde(borrow)]
        content: Vec<&'a RawValue>,
        tool_call_id: Option<String>,
    }
    if messages.first().is_none_or(|first| !first.is_user()) {
        return Err(Unfit::Beginning);
    }
    // The calls of the last assistant's message that are not answered yet.
    let mut open: Vec<String> = Vec::new();
    for message in messages {
        let wire: Wire<'_> = serde_json::from_str(message.wire.get()).map_err(|_| Unfit::Unpaired)?;
        if let Some(id) = wire.tool_call_id {
            let at = open.iter().position(|call| *call == id).ok_or(Unfit::Unpaired)?;
            open.remove(at);
            continue;
        }
        if !open.is_empty() {
            return Err(Unfit::Unpaired);
        }
        if !message.is_user() {
            open = calls(wire.content.into_iter());
        }
    }
    if open.is_empty() { Ok(()) } else { Err(Unfit::Unpaired) }
}

/// Ids of the calls among an assistant's blocks.
pub fn calls<'a>(blocks: impl Iterator<Item = &'a RawValue>) -> Vec<String> {
    #[derive(Deserialize)]
    struct Block {
        #[serde(rename = "type")]
        kind: String,
        id: Option<String>,
    }
    let blocks = blocks.filter_map(|block| serde_json::from_str::<Block>(block.get()).ok());
    blocks.filter(|block| block.kind == "tool_call").map(|block| block.id.unwrap_or_default()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calling(ids: &[&str]) -> Message {
        let blocks: Vec<_> = ids.iter().map(|id| serde_json::json!({"type": "tool_call", "id": id})).collect();
        let blocks = blocks.iter().map(|block| serde_json::value::to_raw_value(block).unwrap());
        Message::assistant(&blocks.collect::<Vec<_>>())
    }

    #[test]
    fn each_call_is_answered_right_after_it_and_once() {
        let (user, tool) = (|| Message::user("u"), |id| Message::tool(id, false, "r"));
        for (list, expected) in [
            (vec![user()], Ok(())),
            (vec![user(), user(), calling(&["a", "b"]), tool("b"), tool("a"), calling(&[])], Ok(())),
            (vec![], Err(Unfit::Beginning)),
            (vec![calling(&[]), user()], Err(Unfit::Beginning)),
            (vec![tool("a")], Err(Unfit::Beginning)),
            (vec![user(), tool("a")], Err(Unfit::Unpaired)),
            (vec![user(), calling(&["a"])], Err(Unfit::Unpaired)),
            (vec![user(), calling(&["a"]), user(), tool("a")], Err(Unfit::Unpaired)),
            (vec![user(), calling(&["a"]), tool("a"), tool("a")], Err(Unfit::Unpaired)),
            (vec![user(), calling(&["a", "b"]), tool("a"), user()], Err(Unfit::Unpaired)),
        ] {
            assert_eq!(check(&list), expected);
        }
    }
}
