//! `cargo xtask soak`: the long form of what the suite does in small. `soak LAUNCHES SECONDS`, in this order.

use std::io::Write as _;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use mur_tests::live::soak::{Held, KEPT, Launches, Stream};

/// How often a long stream is looked at.
const LOOK: Duration = Duration::from_secs(60);
/// Every so many launches one is killed.
const KILL: u64 = 10;
/// The share of a stream's time after which its pools and tables count as full.
const WARM: f64 = 1.0 / 3.0;
/// What a process may hold more of at the end than when it was warm.
const MORE: Held = Held { private: 8 << 10, pss: 8 << 10, descriptors: 8, threads: 8 };

fn main() -> ExitCode {
    let mut numbers = std::env::args().skip(1).map(|argument| argument.parse::<u64>());
    let (Some(Ok(launches)), Some(Ok(seconds)), None) = (numbers.next(), numbers.next(), numbers.next()) else {
        say("usage: soak LAUNCHES SECONDS");
        return ExitCode::from(2);
    };
    let mut sound = true;
    if seconds > 0 {
        sound &= hold(Duration::from_secs(seconds));
    }
    if launches > 0 {
        sound &= launch(launches);
    }
    if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn say(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

fn launch(number: u64) -> bool {
    let mut row = Launches::new();
    let mut times = Vec::new();
    let mut sound = true;
    for at in 1..=number + KEPT as u64 {
        let start = Instant::now();
        let wrong = row.launch();
        times.push(start.elapsed());
        let wrong = if at % KILL == 0 { [wrong, row.kill()].concat() } else { wrong };
        if !wrong.is_empty() {
            say(&format!("launch {at}: {}", wrong.join("; ")));
            sound = false;
        }
    }
    times.sort();
    say(&format!(
        "{number} launches of 1 + 2 members, {KEPT} before them, and one killed after every {KILL}: {} left something \
         behind; median {} ms, longest {} ms",
        if sound { "none" } else { "some" },
        times[times.len() / 2].as_millis(),
        times[times.len() - 1].as_millis()
    ));
    sound
}

fn hold(time: Duration) -> bool {
    let start = Instant::now();
    let mut stream = Stream::new();
    let mut looked = Instant::now();
    let mut warm: Option<Vec<(String, Held)>> = None;
    while start.elapsed() < time {
        stream.give();
        if warm.is_none() && start.elapsed() >= time.mul_f64(WARM) {
            warm = Some(stream.held());
        }
        if looked.elapsed() >= LOOK {
            looked = Instant::now();
            report(&stream, start.elapsed(), &stream.held());
        }
    }
    let after = stream.held();
    report(&stream, start.elapsed(), &after);
    let mut sound = true;
    for ((label, before), (_, after)) in warm.unwrap_or_default().iter().zip(&after) {
        say(&format!(
            "{label:<36} private {:>7} → {:>7} KiB   PSS {:>7} → {:>7} KiB   descriptors {:>3} → {:>3}   threads {:>3} → {:>3}",
            before.private,
            after.private,
            before.pss,
            after.pss,
            before.descriptors,
            after.descriptors,
            before.threads,
            after.threads
        ));
        sound &= after.private <= before.private + MORE.private
            && after.pss <= before.pss + MORE.pss
            && after.descriptors <= before.descriptors + MORE.descriptors
            && after.threads <= before.threads + MORE.threads;
    }
    // Its records are many files, and removing them takes a while.
    stream.close();
    sound
}

fn report(stream: &Stream, elapsed: Duration, held: &[(String, Held)]) {
    let each: Vec<String> = held
        .iter()
        .map(|(label, held)| format!("{label} {}/{}/{}", held.private, held.descriptors, held.threads))
        .collect();
    say(&format!(
        "{:>5} s {:>6} tasks {:>8} KiB on disk; KiB/descriptors/threads: {}",
        elapsed.as_secs(),
        stream.given,
        stream.recorded() >> 10,
        each.join(", ")
    ));
}
