//! How values lie in a frame: little-endian integers, counted texts and lists, one byte before an option.
//!
//! Reading never panics and never allocates more than the bytes it was given: a count is compared with what is left
//! before anything is reserved.

use bytes::Bytes;

/// Most values of one list. A list of empty texts takes ten times its bytes once read, so bytes alone bound it badly.
pub const MAX_LIST: usize = 16 << 10;

/// The bytes are not what the frame's kind calls for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed(pub String);

impl Malformed {
    pub(super) fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }
}

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// A value of the protocol.
pub trait Wire: Sized {
    /// Appends the value.
    fn put(&self, out: &mut Vec<u8>);
    /// Takes a value from the front.
    fn get(from: &mut Bytes) -> Result<Self, Malformed>;
}

fn take(from: &mut Bytes, count: usize) -> Result<Bytes, Malformed> {
    if from.len() < count {
        return Err(Malformed::new(format!("{count} bytes are called for and {} are left", from.len())));
    }
    Ok(from.split_to(count))
}

macro_rules! integers {
    ($($ty:ty)*) => {$(
        impl Wire for $ty {
            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
            fn get(from: &mut Bytes) -> Result<Self, Malformed> {
                let bytes = take(from, size_of::<$ty>())?;
                // The slice has exactly the integer's size.
                bytes.as_ref().try_into().map(<$ty>::from_le_bytes).map_err(|_| Malformed::new("integer"))
            }
        }
    )*};
}

integers!(u8 u16 u32 u64 i32);

impl Wire for f64 {
    fn put(&self, out: &mut Vec<u8>) {
        self.to_bits().put(out);
    }
    fn get(from: &mut Bytes) -> Result<Self, Malformed> {
        u64::get(from).map(Self::from_bits)
    }
}

impl Wire for bool {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
    fn get(from: &mut Bytes) -> Result<Self, Malformed> {
        match u8::get(from)? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(Malformed::new(format!("{other} is no truth value"))),
        }
    }
}

/// Lengths are `u32`: the bound of every frame is far below.
fn put_len(len: usize, out: &mut Vec<u8>) {
    u32::try_from(len).unwrap_or(u32::MAX).put(out);
}

fn get_len(from: &mut Bytes) -> Result<usize, Malformed> {
    u32::get(from).map(|len| len as usize)
}

impl Wire for Bytes {
    fn put(&self, out: &mut Vec<u8>) {
        put_len(self.len(), out);
        out.extend_from_slice(self);
    }
    fn get(from: &mut Bytes) -> Result<Self, Malformed> {
        let len = get_len(from)?;
        take(from, len)
    }
}

impl Wire for String {
    fn put(&self, out: &mut Vec<u8>) {
        put_len(self.len(), out);
        out.extend_from_slice(self.as_bytes());
    }
    fn get(from: &mut Bytes) -> Result<Self, Malformed> {
        let bytes = Bytes::get(from)?;
        String::from_utf8(bytes.into()).map_err(|_| Malformed::new("a text is not UTF-8"))
    }
}

impl<T: Wire> Wire for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }
    fn get(from: &mut Bytes) -> Result<Self, Malformed> {
        bool::get(from)?.then(|| T::get(from)).transpose()
    }
}

impl<T: Wire> Wire for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        put_len(self.len(), out);
        for value in self {
            value.put(out);
        }
    }
    fn get(from: &mut Bytes) -> Result<Self, Malformed> {
        let len = get_len(from)?;
        // Every value takes a byte at least, so a count past what is left is a lie.
        if len > from.len() || len > MAX_LIST {
            return Err(Malformed::new(format!("a list of {len} in {} bytes", from.len())));
        }
        let mut list = Vec::with_capacity(len.min(64));
        for _ in 0..len {
            list.push(T::get(from)?);
        }
        Ok(list)
    }
}

impl<A: Wire, B: Wire> Wire for (A, B) {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
        self.1.put(out);
    }
    fn get(from: &mut Bytes) -> Result<Self, Malformed> {
        Ok((A::get(from)?, B::get(from)?))
    }
}

impl<T: Wire, E: Wire> Wire for Result<T, E> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_ok().put(out);
        match self {
            Ok(value) => value.put(out),
            Err(error) => error.put(out),
        }
    }
    fn get(from: &mut Bytes) -> Result<Self, Malformed> {
        Ok(if bool::get(from)? { Ok(T::get(from)?) } else { Err(E::get(from)?) })
    }
}

/// Gives a struct its wire form: its fields in order.
macro_rules! wire_struct {
    ($name:ident { $($field:ident),* $(,)? }) => {
        impl $crate::worker::protocol::wire::Wire for $name {
            fn put(&self, out: &mut Vec<u8>) {
                $($crate::worker::protocol::wire::Wire::put(&self.$field, out);)*
            }
            fn get(from: &mut bytes::Bytes) -> Result<Self, $crate::worker::protocol::wire::Malformed> {
                Ok(Self { $($field: $crate::worker::protocol::wire::Wire::get(from)?),* })
            }
        }
    };
}

/// Gives an enum its wire form: a tag byte, then the fields of the variant.
macro_rules! wire_enum {
    ($name:ident { $($tag:literal $variant:ident $(( $($field:ident),* ))?),* $(,)? }) => {
        impl $crate::worker::protocol::wire::Wire for $name {
            fn put(&self, out: &mut Vec<u8>) {
                match self {
                    $(Self::$variant $(( $($field),* ))? => {
                        out.push($tag);
                        $($($crate::worker::protocol::wire::Wire::put($field, out);)*)?
                    })*
                }
            }
            fn get(from: &mut bytes::Bytes) -> Result<Self, $crate::worker::protocol::wire::Malformed> {
                match <u8 as $crate::worker::protocol::wire::Wire>::get(from)? {
                    $($tag => {
                        $($(let $field = $crate::worker::protocol::wire::Wire::get(from)?;)*)?
                        Ok(Self::$variant $(( $($field),* ))?)
                    })*
                    other => Err($crate::worker::protocol::wire::Malformed(
                        format!("{other} is no {}", stringify!($name)),
                    )),
                }
            }
        }
    };
}

pub(crate) use {wire_enum, wire_struct};
