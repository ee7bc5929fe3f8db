//! Launches in a row, alone in this process: it adopts whatever a launch leaves behind.

use mur_tests::live::soak::{KEPT, Launches};

#[test]
fn launches_in_a_row_leave_no_process_port_folder_or_mount() {
    let mut launches = Launches::new();
    for number in 0..KEPT + 20 {
        let wrong = launches.launch();
        assert!(wrong.is_empty(), "after launch {number}: {wrong:#?}");
    }
}
