//! Frames between the launcher and `mur __admit`: a length, then that many bytes.

use std::io::{self, Read, Write};

/// Reads one frame of at most `max` bytes. Nothing is allocated for what has not arrived.
pub(super) fn read(from: &mut impl Read, max: usize) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let length = checked(length, max)?;
    let mut bytes = Vec::new();
    from.take(length as u64).read_to_end(&mut bytes)?;
    if bytes.len() < length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(bytes)
}

/// Writes one frame.
pub(super) fn write(to: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    let length = u32::try_from(bytes.len()).map_err(|_| io::Error::other("the frame is too long"))?;
    to.write_all(&length.to_le_bytes())?;
    to.write_all(bytes)
}

/// A length that keeps the bound.
pub(super) fn checked(length: [u8; 4], max: usize) -> io::Result<usize> {
    let length = u32::from_le_bytes(length) as usize;
    if length == 0 || length > max {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a frame of {length} bytes")));
    }
    Ok(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_bounded_before_it_is_read() {
        let mut frame = Vec::new();
        write(&mut frame, b"abc").unwrap();
        assert_eq!(read(&mut frame.as_slice(), 10).unwrap(), b"abc");
        assert!(read(&mut frame.as_slice(), 2).is_err());
        assert!(read(&mut &frame[..5], 10).is_err());
        assert!(read(&mut &[0_u8; 4][..], 10).is_err());
        assert!(read(&mut &[0xff_u8; 4][..], 10).is_err());
    }
}
