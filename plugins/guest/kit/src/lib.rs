//! What the artifacts that come with mur share.
//!
//! Everything that decides is plain code that runs on any target, so that it can be tested without a host; the parts
//! that touch a host (`guest`, `http`, `files`) exist for WASM only.

pub mod answer;
pub mod fence;
pub mod input;
pub mod provider;
pub mod sse;

#[cfg(target_family = "wasm")]
pub mod files;
#[cfg(target_family = "wasm")]
pub mod guest;
#[cfg(target_family = "wasm")]
pub mod http;

pub use answer::{Answer, Status};

/// Makes a crate an artifact: `artifact!(function)`, where the function takes the call's input as JSON text and returns
/// an [`Answer`].
#[macro_export]
macro_rules! artifact {
    ($call:path) => {
        #[cfg(target_family = "wasm")]
        mod component {
            use $crate::guest::bindings;

            struct Artifact;

            impl bindings::exports::murmur::tool::run::Guest for Artifact {
                fn run(
                    input: bindings::exports::murmur::tool::run::ToolInput,
                ) -> bindings::exports::murmur::tool::run::ToolResult {
                    $crate::guest::report_panics();
                    $call(input.data.as_deref().unwrap_or("{}")).into()
                }
            }

            bindings::export!(Artifact with_types_in bindings);
        }
    };
}
