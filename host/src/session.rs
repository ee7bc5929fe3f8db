//! One capsule run: staging, agent loop, tools, tasks, lifecycle, outcome.
