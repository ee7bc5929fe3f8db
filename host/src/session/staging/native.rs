//! A native tool at staging: built for this machine, without what only components can use.

use bytes::Bytes;

use crate::artifacts::archive::Payload;
use crate::artifacts::name::Platform;
use crate::artifacts::store::Verified;
use crate::containment::{Class, closure};
use crate::diagnostics::{Diagnostic, Result, codes};
use crate::manifest::ArtifactEntry;

/// The program of a native tool.
///
/// # Errors
/// `E-CAP-017` for a gateway, `E-RUN-021` for another machine's program.
pub fn program(entry: &ArtifactEntry, verified: &Verified) -> Result<Bytes> {
    let reference = verified.reference();
    if entry.gateway.is_some() {
        return Err(Diagnostic::new(
            codes::E_CAP_017,
            format!("'{reference}' is a native tool, and a gateway serves components only"),
        )
        .hint("remove gateway: from its entry, or use a tool that is built as a component"));
    }
    verified.warn_untagged();
    let bytes = bytes(verified)?;
    match built_elsewhere(&bytes, verified) {
        None => Ok(bytes),
        Some(refusal) => Err(refusal),
    }
}

fn bytes(verified: &Verified) -> Result<Bytes> {
    let reference = verified.reference();
    let Payload::Native(bytes) = verified.payload()? else {
        return Err(Diagnostic::new(codes::E_RUN_001, format!("{reference} holds no program")));
    };
    Ok(bytes)
}

/// `E-RUN-021`, of a program for another machine.
fn built_elsewhere(bytes: &[u8], verified: &Verified) -> Option<Diagnostic> {
    let host = Platform::host();
    let built = image(bytes).or(verified.platform).filter(|built| *built != host)?;
    let message = format!("native tool '{}' is built for {built}, and this machine is {host}", verified.reference());
    Some(
        Diagnostic::new(codes::E_RUN_021, message)
            .hint(format!("install it for this machine: mur install {}", verified.name)),
    )
}

/// What a launch says of a stored native tool under that class: refuses it, or warns of it.
///
/// # Errors
/// `E-RUN-021`, and what its archive is refused for.
pub(crate) fn judge(verified: &Verified, class: Class) -> Result<Option<Diagnostic>> {
    let bytes = bytes(verified)?;
    match built_elsewhere(&bytes, verified) {
        Some(refusal) => Err(refusal),
        None => Ok(hopeless(&verified.reference(), &bytes, class)),
    }
}

/// A program of which every call would fail under that class.
pub(crate) fn hopeless(reference: &str, bytes: &[u8], class: Class) -> Option<Diagnostic> {
    let missing = closure::native_missing(bytes, class >= Class::Scoped)?;
    let (why, hint) = if missing.is_absolute() {
        ("that is not there", format!("install {}, or a build of the tool for this host", missing.display()))
    } else {
        ("a native tool may not start what 'env' finds", "name the interpreter's own path in its first line".to_owned())
    };
    let missing = missing.display();
    let message = format!("native tool '{reference}' is run by {missing}, and {why}: every call of it will fail");
    Some(Diagnostic::new(codes::W_SEC_038, message).hint(hint))
}

/// What of an entry does nothing for a native tool.
pub fn inert(entry: &ArtifactEntry) -> Vec<Diagnostic> {
    let mut warnings = Vec::new();
    if let Some(own) = &entry.capabilities {
        let written = [
            ("network", own.network_allow.is_some()),
            ("filesystem.scope", own.filesystem_scope.is_some()),
            ("state", own.state.is_some()),
            ("shell", own.shell_allow.is_some()),
        ];
        let named: Vec<&str> = written.into_iter().filter(|(_, given)| *given).map(|(key, _)| key).collect();
        if !named.is_empty() {
            warnings.push(Diagnostic::new(
                codes::W_SEC_008,
                format!("capabilities of '{}': {} does nothing on a native tool", entry.name, named.join(", ")),
            ));
        }
    }
    if entry.config.is_some() {
        warnings.push(Diagnostic::new(
            codes::W_SEC_015,
            format!("config of '{}' reaches nobody: a native tool is given none", entry.name),
        ));
    }
    warnings
}

/// The machine an image says it is for; nothing for scripts and what is not known.
fn image(bytes: &[u8]) -> Option<Platform> {
    let half = |at: usize| Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
    let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    if bytes.starts_with(b"\x7fELF\x02\x01") {
        return match half(18)? {
            0x3e => Some(Platform::LinuxX86_64),
            0xb7 => Some(Platform::LinuxAarch64),
            _ => Some(Platform::Unknown),
        };
    }
    // 64-bit Mach-O, little endian.
    if word(0)? == 0xfeed_facf {
        return match word(4)? {
            0x0100_0007 => Some(Platform::DarwinX86_64),
            0x0100_000c => Some(Platform::DarwinAarch64),
            _ => Some(Platform::Unknown),
        };
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_whose_interpreter_is_not_there_or_not_granted_can_only_fail() {
        let of = |bytes: &[u8], class| hopeless("x@1", bytes, class).map(|warning| warning.message().to_owned());
        assert!(of(b"#!/none/at/all\n", Class::Unconfined).unwrap().contains("/none/at/all, and that is not there"));
        let by_env = b"#!/usr/bin/env python3\n";
        assert_eq!(of(by_env, Class::Advisory), None);
        assert!(of(by_env, Class::Scoped).unwrap().contains("may not start what 'env' finds"));
        assert_eq!(of(b"#!/bin/sh\n", Class::Sealed), None);
        assert_eq!(of(&std::fs::read("/bin/sh").unwrap(), Class::Sealed), None);
    }

    #[test]
    fn an_image_tells_its_machine_and_a_script_tells_none() {
        assert_eq!(image(&std::fs::read("/bin/sh").unwrap()), Some(Platform::host()));
        let mut elf = b"\x7fELF\x02\x01".to_vec();
        elf.resize(18, 0);
        elf.extend(0xb7_u16.to_le_bytes());
        assert_eq!(image(&elf), Some(Platform::LinuxAarch64));
        elf[18] = 8;
        assert_eq!(image(&elf), Some(Platform::Unknown));
        let mach = [0xfeed_facf_u32.to_le_bytes(), 0x0100_000c_u32.to_le_bytes()].concat();
        assert_eq!(image(&mach), Some(Platform::DarwinAarch64));
        for none in [&b"#!/bin/sh\n"[..], b"", b"\x7fELF", b"\x7fELF\x02\x01"] {
            assert_eq!(image(none), None, "{none:?}");
        }
    }
}
