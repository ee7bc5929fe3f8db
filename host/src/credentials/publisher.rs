//! The key a plugin's publisher signs libraries with, and verifying what it signed.
//!
//! The secret half is the author's, in a file of theirs; an operator's `mur` has the public half only.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};
use mur_plugin_api::signature::{PublisherKey, Signed, Statement, from_hex};
use zeroize::Zeroizing;

use crate::diagnostics::{Diagnostic, Result, codes};

const FIRST_LINE: &str = "mur-plugin-key 1";
/// The first line, 64 hex digits, and room for nothing else.
const MAX_FILE: u64 = 256;

/// An author's signing key. Wiped when dropped.
pub struct AuthorKey(SigningKey);

impl AuthorKey {
    /// A new random key.
    pub fn mint() -> Result<Self> {
        let mut seed = Zeroizing::new([0_u8; 32]);
        getrandom::fill(seed.as_mut())
            .map_err(|error| Diagnostic::new(codes::E_IO_003, format!("no random bytes for a signing key: {error}")))?;
        Ok(Self(SigningKey::from_bytes(&seed)))
    }

    /// Writes the key to a new file that only its owner can read (`E-PLG-010`).
    pub fn write_new(&self, path: &Path) -> Result<()> {
        let fault = |error: std::io::Error| {
            refused(path, &format!("cannot be written: {error}")).hint("name a file that is not there yet")
        };
        let mut file =
            std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(fault)?;
        let seed = Zeroizing::new(self.0.to_bytes());
        let mut text = Zeroizing::new(String::with_capacity(128));
        text.push_str(FIRST_LINE);
        text.push('\n');
        for byte in seed.iter() {
            for digit in [byte >> 4, byte & 15] {
                text.push(char::from_digit(u32::from(digit), 16).unwrap_or('0'));
            }
        }
        text.push('\n');
        file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(|error| {
            // Half a key is no key.
            let _ = std::fs::remove_file(path);
            fault(error)
        })
    }

    /// Reads a key from a file that nobody else can read (`E-PLG-010`).
    pub fn read(path: &Path) -> Result<Self> {
        let fault = |why: &str| refused(path, why).hint("it is the file that 'mur plugin keygen FILE' wrote");
        // O_NONBLOCK: a fifo in the file's place must not hold the open.
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let mut file = std::fs::OpenOptions::new()
            .read(true)
            .custom_flags(flags)
            .open(path)
            .map_err(|error| fault(&format!("cannot be read: {error}")))?;
        check_private(path, &file)?;
        let mut bytes = Zeroizing::new([0_u8; MAX_FILE as usize]);
        let mut size = 0;
        while let Some(rest) = bytes.get_mut(size..).filter(|rest| !rest.is_empty()) {
            match file.read(rest).map_err(|error| fault(&format!("cannot be read: {error}")))? {
                0 => break,
                read => size += read,
            }
        }
        let text = bytes.get(..size).and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or_default();
        let hex = text.strip_prefix(FIRST_LINE).and_then(|rest| rest.strip_prefix('\n'));
        let seed = hex.and_then(|hex| hex.strip_suffix('\n')).and_then(from_hex::<32>).map(Zeroizing::new);
        let seed = seed.ok_or_else(|| fault("is no signing key of a plugin's author"))?;
        Ok(Self(SigningKey::from_bytes(&seed)))
    }

    /// The half that is given away.
    pub fn public(&self) -> PublisherKey {
        PublisherKey(self.0.verifying_key().to_bytes())
    }

    /// Signs a statement, which must name this key.
    pub fn sign(&self, statement: Statement) -> Signed {
        let signature = self.0.sign(&statement.signed_bytes()).to_bytes();
        Signed { statement, signature }
    }
}

fn check_private(path: &Path, file: &File) -> Result<()> {
    let meta = file.metadata().map_err(|error| refused(path, &format!("cannot be read: {error}")))?;
    let me = nix::unistd::geteuid().as_raw();
    if !meta.is_file() {
        return Err(refused(path, "is no plain file").hint("it is the file that 'mur plugin keygen FILE' wrote"));
    }
    if meta.uid() != me && meta.uid() != 0 {
        return Err(refused(path, &format!("belongs to user {}", meta.uid())).hint("sign with a key of your own"));
    }
    let mode = meta.mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(refused(path, &format!("has mode {mode:04o}, so others may have read it"))
            .hint("if nobody else could, chmod 600 it; otherwise make a new key and have your users trust that one"));
    }
    Ok(())
}

fn refused(path: &Path, why: &str) -> Diagnostic {
    Diagnostic::new(codes::E_PLG_010, format!("signing key {} {why}", path.display()))
}

/// Whether a public key can be trusted at all: a point of the curve, and none of the few that verify anything.
pub fn is_sound(key: &PublisherKey) -> bool {
    VerifyingKey::from_bytes(&key.0).is_ok_and(|key| !key.is_weak())
}

/// Whether the key a statement names did sign it. Strict: one signature for one statement, no small-order points.
pub fn holds(signed: &Signed) -> bool {
    let Signed { statement, signature } = signed;
    let Ok(key) = VerifyingKey::from_bytes(&statement.publisher.0) else { return false };
    key.verify_strict(&statement.signed_bytes(), &Signature::from_bytes(signature)).is_ok()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use mur_plugin_api::Kind;

    use super::*;

    fn statement(publisher: PublisherKey) -> Statement {
        let (name, version) = ("shelf".to_owned(), "1".to_owned());
        Statement { publisher, sha256: "0".repeat(64), kind: Kind::Store, name, version }
    }

    #[test]
    fn a_key_comes_back_from_its_file_and_signs_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let key = AuthorKey::mint().unwrap();
        key.write_new(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
        assert_eq!(key.write_new(&path).unwrap_err().code(), codes::E_PLG_010);
        let again = AuthorKey::read(&path).unwrap();
        assert_eq!(again.public(), key.public());
        assert!(is_sound(&key.public()));
        let signed = again.sign(statement(key.public()));
        assert!(holds(&signed));
        assert_eq!(signed, key.sign(statement(key.public())));
    }

    #[test]
    fn a_key_that_others_may_read_or_that_is_none_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        AuthorKey::mint().unwrap().write_new(&path).unwrap();
        let refused = |path: &Path| AuthorKey::read(path).err().expect("it is refused");
        for mode in [0o640, 0o604, 0o660] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            let error = refused(&path);
            assert!(error.message().contains(&format!("has mode {mode:04o}")), "{error}");
        }
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        let whole = std::fs::read(&path).unwrap();
        let twice = [whole.clone(), whole.clone(), whole.clone(), whole.clone()].concat();
        for bytes in [&b""[..], &whole[1..], &whole[..whole.len() - 1], &[0xff; 40], &twice] {
            std::fs::write(&path, bytes).unwrap();
            assert!(refused(&path).message().contains("is no signing key"), "{bytes:?}");
        }
        let fifo = dir.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRUSR).unwrap();
        for path in [fifo, dir.path().to_owned(), dir.path().join("absent")] {
            assert_eq!(refused(&path).code(), codes::E_PLG_010, "{}", path.display());
        }
    }

    #[test]
    fn a_signature_of_anything_else_does_not_hold() {
        let key = AuthorKey::mint().unwrap();
        let signed = key.sign(statement(key.public()));
        let changes: [fn(&mut Signed); 6] = [
            |signed| signed.statement.sha256.replace_range(0..1, "1"),
            |signed| signed.statement.kind = Kind::Sink,
            |signed| signed.statement.name.push('x'),
            |signed| signed.statement.version.push('x'),
            |signed| signed.signature[0] ^= 1,
            |signed| signed.statement.publisher = AuthorKey::mint().expect("random bytes").public(),
        ];
        for change in changes {
            let mut other = signed.clone();
            change(&mut other);
            assert!(!holds(&other), "{other:?}");
        }
        // Small-order keys, with which a signature can be had for any text.
        let identity = PublisherKey({
            let mut bytes = [0; 32];
            bytes[0] = 1;
            bytes
        });
        assert!(!is_sound(&identity));
        let mut forged = [0; 64];
        forged[0] = 1;
        assert!(!holds(&Signed { statement: statement(identity), signature: forged }));
    }
}
