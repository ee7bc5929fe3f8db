//! The operator's plane.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::*;
use crate::trace::testing::{Kept, trace};

fn house(work: &Path) -> (House, Kept) {
    let (trace, kept) = trace();
    let files = ExportedFiles {
        work: work.to_owned(),
        root: "out/".to_owned(),
        max_bytes: 10,
        containment: "advisory".to_owned(),
        trace,
    };
    (House::exporting(MEMBER, Some(files)), kept)
}

#[tokio::test]
async fn exported_files_are_listed_and_read() {
    let dir = tempfile::tempdir().unwrap();
    let (house, kept) = house(dir.path());
    let operator = house.operator();
    let listed = house.client().await.get("GET /resources/files", &[&operator]).await.json();
    assert_eq!(listed["entries"], json!([]), "a root that is not there holds nothing");
    fs::create_dir_all(dir.path().join("out/a")).unwrap();
    fs::write(dir.path().join("out/a/b c.txt"), "five!").unwrap();
    fs::write(dir.path().join("out/large"), "more than ten").unwrap();
    fs::write(dir.path().join("secret"), "outside").unwrap();
    symlink("../secret", dir.path().join("out/link")).unwrap();
    symlink("..", dir.path().join("out/up")).unwrap();
    let listed = house.client().await.get("GET /resources/files/", &[&operator]).await.json();
    let names: Vec<(&str, u64)> = listed["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| (entry["path"].as_str().unwrap(), entry["size_bytes"].as_u64().unwrap()))
        .collect();
    assert_eq!(names, [("a/b c.txt", 5), ("large", 13)]);
    assert_eq!(
        (&listed["root"], &listed["mode"], &listed["max_bytes"]),
        (&json!("out/"), &json!("read-only"), &json!(10))
    );
    let read = house.client().await.get("GET /resources/files/a/b%20c.txt?x", &[&operator]).await;
    assert_eq!((read.status, read.text()), (200, "five!"));
    let etag = format!("\"sha256:{}\"", listed["entries"][0]["sha256"].as_str().unwrap());
    assert_eq!(read.header("etag"), Some(etag.as_str()));
    assert_eq!(read.header("x-murmur-containment"), Some("advisory"));
    assert_eq!(read.header("x-murmur-generation"), Some("0"));
    for (path, status, error) in [
        ("large", 413, "too_large"),
        ("nothing", 404, "not_found"),
        ("a", 403, "not_a_regular_file"),
        ("link", 403, "symlink_refused"),
        ("up/secret", 403, "symlink_refused"),
        ("../secret", 403, "outside_root"),
        ("%2e%2e/secret", 403, "outside_root"),
        ("/etc/passwd", 403, "outside_root"),
        ("a//b", 403, "outside_root"),
        ("a%00", 403, "outside_root"),
    ] {
        let answer = house.client().await.get(&format!("GET /resources/files/{path}"), &[&operator]).await;
        assert_eq!((answer.status, answer.json()["error"].as_str().unwrap()), (status, error), "{path}");
    }
    for path in ["/resources/other", "/resources/filesx"] {
        let answer = house.client().await.get(&format!("GET {path}"), &[&operator]).await;
        assert_eq!(answer.json()["error"], "not_found", "{path}");
    }
    let records = kept.lines();
    assert_eq!((&records[0]["event_type"], &records[0]["outcome"]), (&json!("resource_list"), &json!("ok")));
    let refused = records.iter().filter(|record| record["event_type"] == "resource_read" && record["outcome"] != "ok");
    assert_eq!(refused.count(), 10);
}

#[tokio::test]
async fn a_root_swapped_for_a_link_is_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let work = dir.path().join("work");
    fs::create_dir_all(dir.path().join("elsewhere")).unwrap();
    fs::create_dir(&work).unwrap();
    fs::write(dir.path().join("elsewhere/secret"), "x").unwrap();
    let (house, _) = house(&work);
    symlink("../elsewhere", work.join("out")).unwrap();
    for path in ["", "/secret"] {
        let answer = house.client().await.get(&format!("GET /resources/files{path}"), &[&house.operator()]).await;
        assert_eq!(answer.status, 403, "{path}: {answer:?}");
    }
}

#[tokio::test]
async fn only_the_scope_opens_the_plane() {
    let dir = tempfile::tempdir().unwrap();
    let (house, kept) = house(dir.path());
    for caller in [house.watcher(), house.member("planner")] {
        assert_eq!(house.client().await.get("GET /resources/files", &[&caller]).await.status, 403);
    }
    assert_eq!(house.client().await.get("POST /resources/files", &[&house.operator()]).await.status, 405);
    assert!(kept.lines().is_empty());
}
