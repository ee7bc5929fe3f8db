//! Reads a file of the work folder.

use mur_guest_kit::Answer;
use mur_guest_kit::input::Input;

const DEFAULT_LIMIT: u64 = 256 * 1024;
const MAX_LIMIT: u64 = 1024 * 1024;

#[cfg(target_family = "wasm")]
mur_guest_kit::artifact!(super::call);

/// Where bytes come from: the host's folders, or a test's.
pub trait Folder {
    /// At most `limit` bytes from `offset`, and the size of the whole.
    fn read(&self, path: &str, offset: u64, limit: u64) -> Result<(Vec<u8>, u64), String>;
    /// The names in a folder.
    fn list(&self, path: &str) -> Result<Vec<String>, String>;
}

#[cfg(target_family = "wasm")]
struct Host;

#[cfg(target_family = "wasm")]
impl Folder for Host {
    fn read(&self, path: &str, offset: u64, limit: u64) -> Result<(Vec<u8>, u64), String> {
        mur_guest_kit::files::read(path, offset, limit)
    }

    fn list(&self, path: &str) -> Result<Vec<String>, String> {
        mur_guest_kit::files::list(path)
    }
}

#[cfg(target_family = "wasm")]
fn call(input: &str) -> Answer {
    run(input, &Host)
}

/// One call.
pub fn run(input: &str, folder: &dyn Folder) -> Answer {
    answer(input, folder).unwrap_or_else(|refusal| refusal)
}

fn answer(input: &str, folder: &dyn Folder) -> Result<Answer, Answer> {
    let input = Input::read(input)?;
    let path = input.text("path")?;
    let offset = input.number("offset")?.unwrap_or(0);
    let limit = input.number("limit")?.unwrap_or(DEFAULT_LIMIT).clamp(1, MAX_LIMIT);
    if path.is_empty() || path == "." || path.ends_with('/') {
        let names = folder.list(path.trim_end_matches('/')).map_err(Answer::failed)?;
        return Ok(noted(Answer::passed(names.join("\n")), path));
    }
    let (bytes, size) = folder.read(path, offset, limit).map_err(Answer::failed)?;
    let end = offset.saturating_add(bytes.len() as u64);
    let text = match String::from_utf8(bytes) {
        Ok(text) => text,
        // A read that stops inside a character gives the whole ones before it.
        Err(fault)
            if fault.utf8_error().error_len().is_none() && end < size && fault.utf8_error().valid_up_to() > 0 =>
        {
            let whole = fault.utf8_error().valid_up_to();
            let mut bytes = fault.into_bytes();
            bytes.truncate(whole);
            String::from_utf8(bytes).unwrap_or_default()
        }
        Err(_) => return Err(Answer::failed(format!("'{path}' is not UTF-8 text from byte {offset}"))),
    };
    let more = offset.saturating_add(text.len() as u64) < size;
    Ok(noted(Answer::passed(text).cut(more), path))
}

fn noted(answer: Answer, path: &str) -> Answer {
    answer.note("state_effect", "read").note("resource_id", format!("file:{path}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct One(&'static [u8]);

    impl Folder for One {
        fn read(&self, path: &str, offset: u64, limit: u64) -> Result<(Vec<u8>, u64), String> {
            if path != "a.txt" {
                return Err(format!("'{path}' does not exist"));
            }
            let rest = self.0.get(offset as usize..).unwrap_or_default();
            Ok((rest[..rest.len().min(limit as usize)].to_vec(), self.0.len() as u64))
        }

        fn list(&self, _: &str) -> Result<Vec<String>, String> {
            Ok(vec!["a.txt".into(), "b/".into()])
        }
    }

    #[test]
    fn a_part_ends_on_a_whole_character_and_says_that_there_is_more() {
        let answer = run(r#"{"path":"a.txt","limit":2}"#, &One("aäb".as_bytes()));
        assert_eq!((answer.data.as_str(), answer.truncated), ("a", true));
        let answer = run(r#"{"path":"a.txt","offset":1}"#, &One("aäb".as_bytes()));
        assert_eq!((answer.data.as_str(), answer.truncated), ("äb", false));
    }

    #[test]
    fn what_is_no_text_is_refused() {
        let answer = run(r#"{"path":"a.txt"}"#, &One(&[0xff, 0xfe, 0]));
        assert_eq!(answer.status, mur_guest_kit::Status::Failed);
        assert!(run(r#"{"path":"a.txt"}"#, &One(&[b'a', 0xc3])).data.contains("not UTF-8"));
    }

    #[test]
    fn a_folder_is_listed() {
        assert_eq!(run(r#"{"path":"./"}"#, &One(b"")).data, "a.txt\nb/");
    }
}
