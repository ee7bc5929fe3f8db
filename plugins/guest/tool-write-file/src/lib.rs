//! Writes a file of the work folder.

use mur_guest_kit::Answer;
use mur_guest_kit::input::Input;

#[cfg(target_family = "wasm")]
mur_guest_kit::artifact!(super::call);

/// Where bytes go: the host's folders, or a test's.
pub trait Folder {
    /// Replaces or extends a file.
    fn write(&self, path: &str, bytes: &[u8], append: bool) -> Result<(), String>;
}

#[cfg(target_family = "wasm")]
struct Host;

#[cfg(target_family = "wasm")]
impl Folder for Host {
    fn write(&self, path: &str, bytes: &[u8], append: bool) -> Result<(), String> {
        if append { mur_guest_kit::files::append(path, bytes) } else { mur_guest_kit::files::write(path, bytes) }
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
    let content = input.text("content")?;
    let append = input.flag("append")?;
    if path.is_empty() || path.ends_with('/') {
        return Err(Answer::error("'path' must name a file"));
    }
    folder.write(path, content.as_bytes(), append).map_err(Answer::failed)?;
    let done = if append { "added" } else { "wrote" };
    Ok(Answer::passed(format!("{done} {} bytes to {path}", content.len()))
        .note("state_effect", "mutate")
        .note("resource_id", format!("file:{path}")))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[derive(Default)]
    struct Kept(RefCell<Vec<(String, Vec<u8>, bool)>>);

    impl Folder for Kept {
        fn write(&self, path: &str, bytes: &[u8], append: bool) -> Result<(), String> {
            self.0.borrow_mut().push((path.into(), bytes.into(), append));
            Ok(())
        }
    }

    #[test]
    fn bytes_go_out_as_they_came_in() {
        let folder = Kept::default();
        let answer = run(r#"{"path":"a/b.txt","content":"hä\n","append":true}"#, &folder);
        assert_eq!(answer.data, "added 4 bytes to a/b.txt");
        assert_eq!(folder.0.borrow()[0], ("a/b.txt".into(), "hä\n".into(), true));
    }

    #[test]
    fn nothing_is_written_for_a_bad_input() {
        let folder = Kept::default();
        for bad in [r#"{"path":"a"}"#, r#"{"path":"a/","content":""}"#, r#"{"path":"a","content":1}"#] {
            assert_eq!(run(bad, &folder).status, mur_guest_kit::Status::Error, "{bad}");
        }
        assert!(folder.0.borrow().is_empty());
    }
}
