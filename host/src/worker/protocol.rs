//! Frames between `mur` and a worker.
