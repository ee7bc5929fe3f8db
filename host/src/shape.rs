//! What the keys of our files may hold, said once.
//!
//! Every file an operator writes has a table of [`Key`]s beside its reader. The reader takes its keys, words and bounds
//! from there, and the JSON Schema that editors complete by is generated from it ([`object`]).

mod json_schema;

pub use json_schema::object;

/// The keys of a block, in the order they are shown.
pub type Keys = &'static [Key];

/// One key.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// As written.
    pub name: &'static str,
    /// One line for a reader.
    pub about: &'static str,
    /// What it may hold.
    pub shape: Shape,
    /// The block is refused without it.
    pub required: bool,
}

/// A key that may be left out; null counts as absent unless its shape says otherwise.
pub const fn key(name: &'static str, shape: Shape, about: &'static str) -> Key {
    Key { name, about, shape, required: false }
}

impl Key {
    /// The same, required.
    pub const fn required(mut self) -> Self {
        self.required = true;
        self
    }
}

/// What a key may hold.
#[derive(Clone, Copy, Debug)]
pub enum Shape {
    /// Anything.
    Any,
    /// Text as it is written, also where YAML would read a number or a boolean.
    Text,
    /// The same, not blank.
    Filled,
    /// What YAML reads as text.
    String,
    /// Text that matches a regular expression.
    Pattern(&'static str),
    /// An exact version, as its text stands.
    Version,
    /// One of a few words.
    Words(&'static [&'static str]),
    /// `true` or `false`; null is neither.
    Bool,
    /// `true` or `false`, or null for absent.
    Flag,
    /// The integer 1.
    One,
    /// A whole number from the first to the second bound.
    Whole(u64, u64),
    /// A number from 0 to 1; above 0 when the flag is set.
    Fraction(bool),
    /// A whole number, optionally with a unit: `s`, `m`, `h`, `d`.
    Duration,
    /// A whole number of bytes, optionally with a unit: `Ki`, `Mi`, `Gi`.
    Size,
    /// A block of these keys.
    Block(Keys),
    /// A block of nothing but these keys, at least one of them.
    Some(Keys),
    /// A block with keys of any name.
    Map,
    /// A block whose keys match a regular expression and hold this.
    Named(&'static str, &'static Self),
    /// A list of at least so many.
    List(usize, &'static Self),
    /// Any of these.
    Either(&'static [Self]),
}

impl Shape {
    /// The keys of this block, of this list's blocks, or of the blocks under this block's names; none otherwise.
    pub fn keys(&self) -> Keys {
        match self {
            Self::Block(keys) | Self::Some(keys) => keys,
            Self::List(_, of) | Self::Named(_, of) => of.keys(),
            Self::Either(shapes) => shapes.iter().map(Self::keys).find(|keys| !keys.is_empty()).unwrap_or(&[]),
            _ => &[],
        }
    }
}

/// The names of some keys.
pub fn names(keys: Keys) -> Vec<&'static str> {
    keys.iter().map(|key| key.name).collect()
}
