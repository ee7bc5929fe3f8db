//! A system call filter as the kernel reads it, found by binary search.
//!
//! Calls are grouped into ranges of numbers with one answer, and the program is a tree of comparisons over the ranges'
//! bounds: a dozen steps for any call, where a list would take hundreds, and a fraction of the instructions to check at
//! load. A foreign architecture kills; a number past the table, the x32 variants among them, gets the default answer.

use std::collections::BTreeMap;

use seccompiler::{BpfProgram, sock_filter};

const LOAD: u16 = 0x20;
const EQUAL: u16 = 0x15;
const AT_LEAST: u16 = 0x35;
const ANY_BIT: u16 = 0x45;
const JUMP: u16 = 0x05;
const RETURN: u16 = 0x06;

const OFFSET_NUMBER: u32 = 0;
const OFFSET_ARCHITECTURE: u32 = 4;
/// The low half of the first argument; each argument takes eight bytes. Both supported machines are little-endian.
const OFFSET_ARGUMENTS: u32 = 16;

const RETURN_ALLOW: u32 = 0x7fff_0000;
const RETURN_ERRNO: u32 = 0x0005_0000;
const RETURN_KILL_PROCESS: u32 = 0x8000_0000;

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

/// What a call is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is made.
    Allow,
    /// It fails with this error number.
    Errno(i32),
    /// By the value of an argument; the last answer is for every other value.
    ByValue(u8, Vec<(u32, Answer)>, Box<Answer>),
    /// By bits of an argument: whether any of them is set, or none.
    ByBits {
        /// Which argument.
        argument: u8,
        /// Which bits.
        bits: u32,
        /// When one of them is set.
        any: Box<Answer>,
        /// When none is.
        none: Box<Answer>,
    },
}

/// The program for a table of calls, and the answer for every other number.
pub fn assemble(table: Vec<(i64, Answer)>, otherwise: Answer) -> BpfProgram {
    let numbered = table.into_iter().filter_map(|(number, answer)| Some((u32::try_from(number).ok()?, answer)));
    let table: BTreeMap<u32, Answer> = numbered.collect();
    // Where each range begins, and its answer.
    let mut ranges: Vec<(u32, Answer)> = vec![(0, otherwise.clone())];
    for (number, answer) in table {
        match ranges.last_mut() {
            Some((start, last)) if *start == number => *last = answer,
            _ => ranges.push((number, answer)),
        }
        ranges.push((number + 1, otherwise.clone()));
    }
    ranges.dedup_by(|later, earlier| later.1 == earlier.1);
    let mut program = vec![
        statement(LOAD, OFFSET_ARCHITECTURE),
        branch(EQUAL, ARCHITECTURE, 1, 0),
        statement(RETURN, RETURN_KILL_PROCESS),
        statement(LOAD, OFFSET_NUMBER),
    ];
    program.extend(search(&ranges));
    program
}

fn search(ranges: &[(u32, Answer)]) -> BpfProgram {
    let [(_, only)] = ranges else {
        let (low, high) = ranges.split_at(ranges.len() / 2);
        let (below, above) = (search(low), search(high));
        let mut program = match u8::try_from(below.len()) {
            Ok(past) => vec![branch(AT_LEAST, high[0].0, past, 0)],
            // Conditional jumps reach 255 instructions; an unconditional one reaches any.
            Err(_) => {
                vec![branch(AT_LEAST, high[0].0, 0, 1), statement(JUMP, u32::try_from(below.len()).unwrap_or(u32::MAX))]
            }
        };
        program.extend(below);
        program.extend(above);
        return program;
    };
    answer(only)
}

fn answer(answer_of: &Answer) -> BpfProgram {
    match answer_of {
        Answer::Allow => vec![statement(RETURN, RETURN_ALLOW)],
        Answer::Errno(number) => vec![statement(RETURN, RETURN_ERRNO | number.unsigned_abs())],
        Answer::ByValue(argument, values, otherwise) => {
            let mut program = vec![statement(LOAD, OFFSET_ARGUMENTS + 8 * u32::from(*argument))];
            for (value, found) in values {
                let found = answer(found);
                program.push(branch(EQUAL, *value, 0, u8::try_from(found.len()).unwrap_or(u8::MAX)));
                program.extend(found);
            }
            program.extend(answer(otherwise));
            program
        }
        Answer::ByBits { argument, bits, any, none } => {
            let any = answer(any);
            let mut program = vec![
                statement(LOAD, OFFSET_ARGUMENTS + 8 * u32::from(*argument)),
                branch(ANY_BIT, *bits, 0, u8::try_from(any.len()).unwrap_or(u8::MAX)),
            ];
            program.extend(any);
            program.extend(answer(none));
            program
        }
    }
}

fn statement(code: u16, k: u32) -> sock_filter {
    sock_filter { code, jt: 0, jf: 0, k }
}

fn branch(code: u16, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a program on a call as the kernel would: the answer's word, and how many instructions it took.
    fn run(program: &BpfProgram, architecture: u32, number: u32, arguments: [u32; 2]) -> (u32, usize) {
        let (mut at, mut word, mut steps) = (0_usize, 0_u32, 0);
        loop {
            let step = &program[at];
            steps += 1;
            at += 1;
            let jump = |yes: bool| usize::from(if yes { step.jt } else { step.jf });
            match step.code {
                LOAD => {
                    word = match step.k {
                        OFFSET_NUMBER => number,
                        OFFSET_ARCHITECTURE => architecture,
                        offset => arguments[((offset - OFFSET_ARGUMENTS) / 8) as usize],
                    }
                }
                EQUAL => at += jump(word == step.k),
                AT_LEAST => at += jump(word >= step.k),
                ANY_BIT => at += jump(word & step.k != 0),
                JUMP => at += step.k as usize,
                RETURN => return (step.k, steps),
                other => panic!("{other:#x}"),
            }
        }
    }

    #[test]
    fn every_number_gets_its_own_answer_in_few_steps() {
        // Alternating, so that nothing can be merged: the largest tree there is.
        let table: Vec<(i64, Answer)> =
            (0..460).filter(|number| number % 2 == 0).map(|number| (number, Answer::Allow)).collect();
        let program = assemble(table, Answer::Errno(1));
        for number in (0..500).chain([0x4000_0000, 0x4000_0002, u32::MAX]) {
            let expected = if number < 460 && number % 2 == 0 { RETURN_ALLOW } else { RETURN_ERRNO | 1 };
            let (word, steps) = run(&program, ARCHITECTURE, number, [0, 0]);
            assert_eq!(word, expected, "{number}");
            assert!(steps < 20, "{number}: {steps}");
        }
        assert_eq!(run(&program, 3, 0, [0, 0]).0, RETURN_KILL_PROCESS);
    }

    #[test]
    fn arguments_are_looked_at_by_value_and_by_bits() {
        let by_value = Answer::ByValue(0, vec![(2, Answer::Allow), (1, Answer::Errno(13))], Box::new(Answer::Errno(1)));
        let by_bits =
            Answer::ByBits { argument: 1, bits: 8, any: Box::new(Answer::Allow), none: Box::new(Answer::Errno(1)) };
        let program = assemble(vec![(41, by_value), (42, by_bits), (40, Answer::Allow)], Answer::Errno(38));
        let word = |number, arguments| run(&program, ARCHITECTURE, number, arguments).0;
        assert_eq!(word(41, [2, 0]), RETURN_ALLOW);
        assert_eq!(word(41, [1, 0]), RETURN_ERRNO | 13);
        assert_eq!(word(41, [3, 0]), RETURN_ERRNO | 1);
        assert_eq!(word(42, [0, 9]), RETURN_ALLOW);
        assert_eq!(word(42, [8, 7]), RETURN_ERRNO | 1);
        assert_eq!((word(40, [0, 0]), word(43, [0, 0])), (RETURN_ALLOW, RETURN_ERRNO | 38));
    }

    #[test]
    fn the_later_of_two_entries_of_one_call_counts() {
        let program = assemble(vec![(5, Answer::Allow), (5, Answer::Errno(2))], Answer::Errno(1));
        assert_eq!(run(&program, ARCHITECTURE, 5, [0, 0]).0, RETURN_ERRNO | 2);
    }
}
