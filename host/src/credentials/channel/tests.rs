use std::io::Write as _;
use std::os::fd::{AsRawFd as _, IntoRawFd as _};

use proptest::prelude::*;

use super::*;
use crate::credentials::token::SigningKey;
use crate::process::fds;

struct Formation {
    id: FormationId,
    key: SigningKey,
}

impl Formation {
    fn new() -> Self {
        Self { id: FormationId::mint(), key: SigningKey::mint().unwrap() }
    }

    fn line(&self, member: &str, callees: &[&str]) -> String {
        let member = name(member);
        let names: Vec<MemberName> = callees.iter().map(|callee| name(callee)).collect();
        let tokens: Vec<EdgeToken> = names.iter().map(|to| self.key.sign_edge(&self.id, &member, to)).collect();
        let pairs: Vec<(&MemberName, &EdgeToken)> = names.iter().zip(&tokens).collect();
        first_line(&FirstLine {
            formation: &self.id,
            member: &member,
            entry: false,
            key: &self.key.verifying_key(),
            launcher: &ProcessName { pid: 7, process_start: "12 \"3\"".to_owned() },
            tokens: &pairs,
        })
        .to_string()
    }
}

fn name(text: &str) -> MemberName {
    MemberName::parse(text).unwrap()
}

fn channel(formation: &FormationId) -> (Channel, File) {
    let (read, write) = fds::pipe().unwrap();
    let number = read.as_raw_fd();
    let channel = Channel::new(read, number, formation.clone()).map_err(Fault::diagnostic).unwrap();
    (channel, File::from(write))
}

/// The refusal's reason, or the membership.
async fn join(channel: Channel, wait_ms: u64) -> std::result::Result<Membership, String> {
    channel.join_within(Duration::from_millis(wait_ms)).await.map_err(|fault| fault.diagnostic().message().to_owned())
}

async fn refusal_of(formation: &FormationId, bytes: &[u8]) -> String {
    let (channel, mut write) = channel(formation);
    write.write_all(bytes).unwrap();
    drop(write);
    let refusal = join(channel, 5000).await.err().expect("refused");
    assert!(!refusal.contains("mft1"), "{refusal}");
    refusal
}

#[tokio::test]
async fn a_member_joins_and_learns_addresses_even_those_read_with_the_first_line() {
    let formation = Formation::new();
    let (channel, mut write) = channel(&formation.id);
    let line = formation.line("planner", &["reviewer", "coder"]);
    let urls = urls_line([(&name("coder"), "http://localhost:4001")]);
    // One write: both lines are in the pipe before the first is read.
    write.write_all(format!("{line}{urls}").as_bytes()).unwrap();
    let membership = join(channel, 5000).await.unwrap();
    assert_eq!(membership.member, name("planner"));
    assert_eq!(membership.launcher, ProcessName { pid: 7, process_start: "12 \"3\"".to_owned() });
    let names: Vec<&str> = membership.callees.iter().map(|callee| callee.name.as_str()).collect();
    assert_eq!(names, ["reviewer", "coder"]);
    assert_eq!(
        membership.peers_variable().unwrap(),
        "reviewer=http://reviewer.formation.invalid coder=http://coder.formation.invalid"
    );
    assert_eq!(membership.url_of(&name("coder")).await.unwrap().to_string(), "http://localhost:4001/");
    // Later lines, one of them no line of ours, one naming a member it may not call.
    let (late, other) = (name("reviewer"), name("stranger"));
    write.write_all(b"{\"urls\":[{\"member\":\"reviewer\",\"url\":\"file:///etc\"}]}\n").unwrap();
    write.write_all(urls_line([(&late, "http://127.0.0.1:9"), (&other, "http://localhost:1")]).as_bytes()).unwrap();
    assert_eq!(membership.url_of(&late).await.unwrap().to_string(), "http://127.0.0.1:9/");
    assert!(!membership.urls.borrow().contains_key(&other));
    drop(write);
    assert!(membership.url_of(&other).await.is_none(), "an ended channel is not waited for");
    assert_eq!(membership.url_of(&late).await.unwrap().port_u16(), Some(9));
}

#[tokio::test]
async fn an_address_that_does_not_come_is_waited_for_and_given_up() {
    let formation = Formation::new();
    let (channel, mut write) = channel(&formation.id);
    write.write_all(formation.line("planner", &["coder"]).as_bytes()).unwrap();
    let membership = join(channel, 5000).await.unwrap();
    assert!(membership.url_within(&name("coder"), Duration::from_millis(5)).await.is_none());
}

#[tokio::test]
async fn a_file_is_a_channel_too() {
    let formation = Formation::new();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("channel");
    std::fs::write(&path, formation.line("planner", &[])).unwrap();
    let fd = File::open(&path).unwrap().into();
    let channel = Channel::new(fd, 3, formation.id.clone()).map_err(Fault::diagnostic).unwrap();
    let membership = join(channel, 5000).await.unwrap();
    assert!(membership.callees.is_empty());
    assert!(membership.peers_variable().is_none());
}

#[test]
fn r028_what_is_no_channel_is_refused_each_for_its_own_reason() {
    let formation = FormationId::mint();
    let adopt = |value: &str, formation: Option<&FormationId>| {
        let refusal = Channel::adopt(OsStr::new(value), formation).err().expect("refused");
        assert_eq!(refusal.code(), codes::E_RUN_046);
        refusal.message().to_owned()
    };
    let null = File::open("/dev/null").unwrap().into_raw_fd().to_string();
    let socket = fds::stream_pair().unwrap().0.into_raw_fd().to_string();
    let reasons = [
        adopt("9", None),
        adopt("", Some(&formation)),
        adopt("1000000", Some(&formation)),
        adopt(&null, Some(&formation)),
        adopt(&socket, Some(&formation)),
    ];
    assert!(reasons[0].ends_with("without MURMUR_FORMATION_ID"), "{}", reasons[0]);
    assert!(reasons[1].ends_with("not a descriptor number"), "{}", reasons[1]);
    assert!(reasons[2].contains("not open"), "{}", reasons[2]);
    assert!(reasons[3].ends_with("neither a pipe nor a file"), "{}", reasons[3]);
    assert!(reasons[4].ends_with("neither a pipe nor a file"), "{}", reasons[4]);
    for bad in ["-1", "x", "3.0", "99999999999999999999", "3 "] {
        assert!(adopt(bad, Some(&formation)).ends_with("not a descriptor number"), "{bad}");
    }
}

#[tokio::test]
async fn r028_silence_and_half_a_line_are_waited_for_and_refused() {
    let formation = Formation::new();
    let (silent, _held) = channel(&formation.id);
    let silent = join(silent, 10).await.err().unwrap();
    assert!(silent.ends_with("no first line arrived within 10 seconds"), "{silent}");
    let (half, mut write) = channel(&formation.id);
    write.write_all(&formation.line("planner", &[]).as_bytes()[..40]).unwrap();
    assert_eq!(join(half, 10).await.err().unwrap(), silent);
    let cut = refusal_of(&formation.id, &formation.line("planner", &[]).as_bytes()[..40]).await;
    assert!(cut.ends_with("it ended before a whole first line"), "{cut}");
}

#[tokio::test]
async fn r028_a_line_without_end_is_refused_at_its_bound() {
    let formation = Formation::new();
    let (channel, mut write) = channel(&formation.id);
    // The writer outlives the reader's patience: only the bound ends this.
    let writer = std::thread::spawn(move || {
        let chunk = [b'x'; 4096];
        let mut sent = 0_usize;
        while sent < 100 << 20 && write.write_all(&chunk).is_ok() {
            sent += chunk.len();
        }
        sent
    });
    let refusal = join(channel, 20_000).await.err().unwrap();
    assert!(refusal.ends_with("its first line is longer than 1048576 bytes"), "{refusal}");
    assert!(writer.join().unwrap() < 2 << 20);
}

#[tokio::test]
async fn r028_a_first_line_that_is_no_credentials_is_refused() {
    let formation = Formation::new();
    let good = formation.line("planner", &["coder"]);
    for bad in [
        "\n".to_owned(),
        "\0\0\0\n".to_owned(),
        "{}\n".to_owned(),
        "[]\n".to_owned(),
        good.replace("planner", "Planner"),
        good.replace("\"entry\":false", "\"entry\":0"),
        good.replace("{\"formation\"", "{\"extra\":1,\"formation\""),
        good.replace("\"key\":\"", "\"key\":\"A"),
        good.replace("mft1.", "\\u006dft1."),
    ] {
        let refusal = refusal_of(&formation.id, bad.as_bytes()).await;
        assert!(refusal.ends_with("not a member's credentials"), "{bad}: {refusal}");
    }
}

#[tokio::test]
async fn a_token_that_is_not_this_members_is_refused() {
    let formation = Formation::new();
    let own = formation.line("planner", &["coder"]);
    let theirs = formation.line("reviewer", &["coder"]);
    let token = |line: &str| line.split("\"token\":\"").nth(1).unwrap().split('"').next().unwrap().to_owned();
    let foreign = own.replace(&token(&own), &token(&theirs));
    let refusal = refusal_of(&formation.id, foreign.as_bytes()).await;
    assert!(refusal.ends_with("the token for 'coder' in its first line was not issued to this member"), "{refusal}");
    let elsewhere = own.replace("\"to\":\"coder\"", "\"to\":\"reviewer\"");
    assert!(refusal_of(&formation.id, elsewhere.as_bytes()).await.contains("was not issued to this member"));
    let forged = own.replace(&token(&own), &token(&Formation::new().line("planner", &["coder"])));
    assert!(refusal_of(&formation.id, forged.as_bytes()).await.contains("was not issued to this member"));
    let twice = formation.line("planner", &["coder", "coder"]);
    assert!(refusal_of(&formation.id, twice.as_bytes()).await.contains("two tokens for one member"));
}

#[tokio::test]
async fn another_formation_than_the_variable_is_refused() {
    let (formation, other) = (Formation::new(), Formation::new());
    let refusal = refusal_of(&formation.id, other.line("planner", &["coder"]).as_bytes()).await;
    assert!(refusal.ends_with("another formation than MURMUR_FORMATION_ID"), "{refusal}");
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        fuzz_channel_line(&bytes);
    }

    #[test]
    fn lines_come_out_as_they_went_in_however_they_are_cut(
        lines in prop::collection::vec("[a-z]{0,40}", 0..8),
        cut in 1_usize..50,
    ) {
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        let mut buffer = LineBuffer::default();
        let mut seen = Vec::new();
        for chunk in text.as_bytes().chunks(cut) {
            buffer.push(chunk);
            while let Ok(Some(line)) = buffer.take() {
                seen.push(String::from_utf8(line.to_vec()).unwrap());
            }
        }
        prop_assert_eq!(seen, lines);
    }
}
