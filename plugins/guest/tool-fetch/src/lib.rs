//! Fetches a URL.

use mur_guest_kit::Answer;
use mur_guest_kit::input::Input;

const DEFAULT_LIMIT: u64 = 256 * 1024;
const MAX_LIMIT: u64 = 1024 * 1024;

#[cfg(target_family = "wasm")]
mur_guest_kit::artifact!(super::call);

/// What a server answered.
pub struct Fetched {
    /// Its status code.
    pub status: u16,
    /// Its `Content-Type`, empty for none.
    pub kind: String,
    /// Where it sends the client instead.
    pub location: Option<String>,
    /// The body, up to the limit.
    pub body: Vec<u8>,
    /// Whether there was more.
    pub more: bool,
}

#[cfg(target_family = "wasm")]
fn call(input: &str) -> Answer {
    run(input, |url, accept, limit| {
        let request = mur_guest_kit::http::Request {
            method: "GET",
            url,
            headers: &[("accept", accept), ("user-agent", concat!("mur-fetch/", env!("CARGO_PKG_VERSION")))],
            body: &[],
            patience_secs: 0,
        };
        let mut response = mur_guest_kit::http::send(&request)?;
        let (body, more) = response.read_up_to(limit)?;
        Ok(Fetched {
            status: response.status,
            kind: response.header("content-type").unwrap_or_default().to_owned(),
            location: response.header("location").map(str::to_owned),
            body,
            more,
        })
    })
}

/// One call.
pub fn run(input: &str, fetch: impl FnOnce(&str, &str, usize) -> Result<Fetched, String>) -> Answer {
    answer(input, fetch).unwrap_or_else(|refusal| refusal)
}

fn answer(input: &str, fetch: impl FnOnce(&str, &str, usize) -> Result<Fetched, String>) -> Result<Answer, Answer> {
    let input = Input::read(input)?;
    let url = input.text("url")?;
    if !(url.starts_with("http://") || url.starts_with("https://")) {
        return Err(Answer::error(format!("'{url}' is no http or https URL")));
    }
    let accept = input.optional_text("accept")?.unwrap_or("*/*");
    let limit = input.number("limit")?.unwrap_or(DEFAULT_LIMIT).clamp(1, MAX_LIMIT);
    let fetched =
        fetch(url, accept, limit as usize).map_err(|reason| Answer::failed(format!("fetching {url}: {reason}")))?;
    let body = match String::from_utf8(fetched.body) {
        Ok(text) => text,
        Err(fault) if fetched.more && fault.utf8_error().error_len().is_none() => {
            let whole = fault.utf8_error().valid_up_to();
            String::from_utf8_lossy(&fault.into_bytes()[..whole]).into_owned()
        }
        Err(fault) => {
            let length = fault.into_bytes().len();
            return Err(Answer::failed(format!("{url} is no text: {length} bytes of '{}'", fetched.kind)));
        }
    };
    let answer = match fetched.status {
        200..=299 => Answer::passed(body),
        300..=399 => {
            let place = fetched.location.as_deref().unwrap_or("no place it names");
            Answer::failed(format!("{url} answered {}, and leads to {place}", fetched.status))
        }
        status => Answer::failed(format!("{url} answered {status}\n{body}")),
    };
    Ok(answer.cut(fetched.more).note("state_effect", "read").note("resource_id", url))
}

#[cfg(test)]
mod tests {
    use mur_guest_kit::Status;

    use super::*;

    fn with(status: u16, body: &[u8], more: bool) -> Answer {
        let fetched =
            Fetched { status, kind: "text/plain".into(), location: Some("/b".into()), body: body.into(), more };
        run(r#"{"url":"http://a/"}"#, |_, _, _| Ok(fetched))
    }

    #[test]
    fn only_a_success_passes() {
        assert_eq!(with(200, b"ok", false).status, Status::Passed);
        assert_eq!(with(404, b"none", false).data, "http://a/ answered 404\nnone");
        assert_eq!(with(302, b"", false).data, "http://a/ answered 302, and leads to /b");
    }

    #[test]
    fn a_cut_body_keeps_whole_characters_and_bytes_that_are_no_text_are_refused() {
        assert_eq!(with(200, &"aä".as_bytes()[..2], true).data, "a");
        assert_eq!(with(200, &[0, 0xff], false).status, Status::Failed);
    }

    #[test]
    fn other_schemes_are_refused_before_anything_is_sent() {
        let answer = run(r#"{"url":"file:///etc/passwd"}"#, |_, _, _| panic!("sent"));
        assert_eq!(answer.status, Status::Error);
    }
}
