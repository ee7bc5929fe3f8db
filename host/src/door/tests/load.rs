//! What one request costs. Ignored: it measures, and asserts nothing a busy machine could break.

use std::io::{Read as _, Write as _};
use std::time::Instant;

use super::client::request;
use super::*;

/// CPU time of this thread.
fn busy() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(stat.split(' ').next().unwrap().parse().unwrap())
}

/// One connection that asks again as soon as it is answered; returns each answer's time.
fn ask(port: u16, bytes: &[u8], count: usize) -> Vec<Duration> {
    let mut socket = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    socket.set_nodelay(true).unwrap();
    let mut chunk = [0; 4096];
    let mut times = Vec::with_capacity(count);
    for _ in 0..count {
        let asked = Instant::now();
        socket.write_all(bytes).unwrap();
        let read = socket.read(&mut chunk).unwrap();
        assert!(chunk[..read].starts_with(b"HTTP/1.1 200") && chunk[..read].ends_with(b"}"));
        times.push(asked.elapsed());
    }
    times
}

#[tokio::test]
#[ignore = "a measurement"]
async fn get_task_under_a_formation_token() {
    const CONNECTIONS: usize = 8;
    const EACH: usize = 20_000;
    let house = House::open(MEMBER);
    let member = house.member("planner");
    let id = house.submit(&[&member], "x").await;
    house.start().await;
    house.finish(&id, "42");
    let bytes = request(&[&member], "GetTask", &json!({ "id": id }));
    let port = house.door.port();
    let (started, busy_before) = (Instant::now(), busy());
    let askers: Vec<_> = (0..CONNECTIONS)
        .map(|_| {
            let bytes = bytes.clone();
            tokio::task::spawn_blocking(move || ask(port, &bytes, EACH))
        })
        .collect();
    let mut times = Vec::new();
    for asker in askers {
        times.extend(asker.await.unwrap());
    }
    let (elapsed, spent) = (started.elapsed(), busy() - busy_before);
    times.sort();
    let total = times.len();
    println!(
        "{:.0} answers a second, median {:?}, p99 {:?}; the door's thread {:.2} µs a request",
        total as f64 / elapsed.as_secs_f64(),
        times[total / 2],
        times[total * 99 / 100],
        spent.as_secs_f64() * 1e6 / total as f64
    );
}
