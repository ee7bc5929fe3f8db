//! The one place that configures wasmtime, for compiling (`mur __compile`) and for running (`mur __guest-worker`).
//!
//! Machine code is only taken by an engine whose settings equal those it was compiled with, so everything here is part
//! of the key of a compiled form.

use std::fmt::Write as _;
use std::sync::OnceLock;

use sha2::{Digest, Sha256};
use wasmtime::{Config, Engine, InstanceAllocationStrategy, OptLevel, WasmBacktraceDetails};

/// Raised with every change to [`config`] that changes machine code.
const REVISION: u32 = 2;

/// The wasmtime that compiles and runs. A test compares it with the lock file.
const WASMTIME: &str = "48.0.8";

/// Native stack one call may use.
const WASM_STACK: usize = 512 * 1024;

/// Virtual space of one call's stack: host calls run on it too. Untouched pages cost nothing.
const CALL_STACK: usize = 2 * 1024 * 1024;

/// Address space below which memories are not reserved whole.
const ROOMY: u64 = 64 << 30;

/// How linear memories are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reservation {
    /// Every memory reserves its whole 4 GiB of address space, and no access needs a bounds check.
    Whole,
    /// Memories reserve what they use and may move as they grow: for a host that limits address space
    /// (`RLIMIT_AS`) or never overcommits.
    Small,
}

impl Reservation {
    /// What this process can afford: computed once. A child that is given other limits must be told the answer.
    pub fn of_this_host() -> Self {
        static ANSWER: OnceLock<Reservation> = OnceLock::new();
        *ANSWER.get_or_init(|| if address_space_is_small() { Self::Small } else { Self::Whole })
    }

    /// One word, for a command line or a frame.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Whole => "whole",
            Self::Small => "small",
        }
    }

    /// Reads the word.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Whole, Self::Small].into_iter().find(|one| one.as_str() == text)
    }
}

fn address_space_is_small() -> bool {
    let limit = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_AS);
    let limited = limit.is_ok_and(|(soft, _)| soft < ROOMY);
    // Mode 2 counts every private mapping against the commit limit, reserved or used.
    let strict = std::fs::read_to_string("/proc/sys/vm/overcommit_memory").is_ok_and(|mode| mode.trim() == "2");
    limited || strict
}

/// The configuration of every engine of `mur`.
pub fn config(reservation: Reservation) -> Config {
    let mut config = Config::new();
    config
        .wasm_component_model(true)
        .epoch_interruption(true)
        .allocation_strategy(InstanceAllocationStrategy::OnDemand)
        .cranelift_opt_level(OptLevel::Speed)
        .max_wasm_stack(WASM_STACK)
        .async_stack_size(CALL_STACK)
        .wasm_backtrace_details(WasmBacktraceDetails::Disable)
        // Wasmtime walks frames by frame pointer; unwind tables would only cost load time and registration.
        .native_unwind_info(false)
        // Function names are enough in a trap; byte offsets double the size of a compiled form.
        .generate_address_map(false)
        // Images of initial memory would need memfd_create, which confined workers are denied.
        .memory_init_cow(false);
    if reservation == Reservation::Small {
        config
            .memory_reservation(0)
            .memory_reservation_for_growth(1 << 20)
            .memory_guard_size(1 << 16)
            .guard_before_linear_memory(false);
    }
    config
}

/// An engine for compiling or for tests; workers add their own code memory to [`config`].
pub fn engine(reservation: Reservation) -> wasmtime::Result<Engine> {
    Engine::new(&config(reservation))
}

/// The part of a compiled form's key that is not the component: settings, wasmtime, `mur` and the processor's
/// features, as hex. For the reservation this host can afford.
pub fn settings_hash() -> &'static str {
    static HASH: OnceLock<String> = OnceLock::new();
    HASH.get_or_init(|| settings_hash_for(Reservation::of_this_host()))
}

/// [`settings_hash`] for a given reservation.
pub fn settings_hash_for(reservation: Reservation) -> String {
    let mut text = format!(
        "mur {} engine {REVISION} wasmtime {WASMTIME} {} {} {}",
        env!("CARGO_PKG_VERSION"),
        std::env::consts::ARCH,
        std::env::consts::OS,
        reservation.as_str()
    );
    for feature in processor_features() {
        let _ = write!(text, " {feature}");
    }
    Sha256::digest(text).iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

/// The features cranelift looks for: code compiled with one does not run on a processor without it.
#[cfg(target_arch = "x86_64")]
fn processor_features() -> Vec<&'static str> {
    macro_rules! present {
        ($($name:tt)*) => {
            [$(($name, std::is_x86_feature_detected!($name))),*].into_iter().filter(|(_, has)| *has).map(|(name, _)| name)
        };
    }
    present!(
        "cmpxchg16b" "sse3" "ssse3" "sse4.1" "sse4.2" "popcnt" "avx" "avx2" "fma" "bmi1" "bmi2" "lzcnt" "avx512f"
        "avx512dq" "avx512vl" "avx512bitalg" "avx512vbmi"
    )
    .collect()
}

/// Other processors: the architecture itself is in the key.
#[cfg(not(target_arch = "x86_64"))]
fn processor_features() -> Vec<&'static str> {
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_names_the_wasmtime_of_the_lock_file() {
        let lock = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.lock")).unwrap();
        assert!(lock.contains(&format!("name = \"wasmtime\"\nversion = \"{WASMTIME}\"\n")));
    }

    #[test]
    fn each_reservation_has_an_engine_and_a_key_of_its_own() {
        for reservation in [Reservation::Whole, Reservation::Small] {
            engine(reservation).unwrap();
            assert_eq!(Reservation::parse(reservation.as_str()), Some(reservation));
        }
        assert_ne!(settings_hash_for(Reservation::Whole), settings_hash_for(Reservation::Small));
        assert_eq!(settings_hash().len(), 64);
    }
}
