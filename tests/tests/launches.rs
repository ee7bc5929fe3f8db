//! Launches in a row, alone in this process: it adopts whatever a launch leaves behind.

use mur_tests::live::soak::{KEPT, Launches};

#[test]
fn launches_in_a_row_leave_no_process_port_folder_or_mount() {
    let mut launches = Launches::new();
    for number in 0..KEPT + 20 {
        let wrong = launches.launch();
        assert!(wrong.is_empty(), "after launch {number}: {wrong:#?}");
    }
    // What launchers that were killed leave is gone with them, but for their records, which later launches clear away.
    for number in 0..5 {
        let wrong = launches.kill();
        assert!(wrong.is_empty(), "after kill {number}: {wrong:#?}");
    }
    for number in 0..KEPT + 2 {
        let wrong = launches.launch();
        assert!(wrong.is_empty(), "after launch {number} that followed the kills: {wrong:#?}");
    }
}
