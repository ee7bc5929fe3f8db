//! A tool as a component written as text.

// What every tool's text has in common; the suites of the built binary use it too.
#[path = "../../../tests/src/component.rs"]
mod text;

/// A component that exports `murmur:tool/run@0.1.0`, around core code that defines `run` and may import `stream`.
pub fn component(core: &str, with_stream: bool) -> Vec<u8> {
    let (import, memory, with) = if with_stream {
        (
            r#"(import "murmur:stream/events@0.1.0" (instance $events
                (export "emit-chunk" (func (param "chunk" string)))))
               (core module $libc (memory (export "memory") 1))
               (core instance $libc (instantiate $libc))
               (alias export $events "emit-chunk" (func $emit))
               (core func $emit' (canon lower (func $emit) (memory $libc "memory")))"#,
            r#"(import "host" "emit" (func $emit (param i32 i32))) (import "libc" "memory" (memory 1))
               (export "memory" (memory 0))"#,
            r#"(with "host" (instance (export "emit" (func $emit')))) (with "libc" (instance $libc))"#,
        )
    } else {
        ("", r#"(memory (export "memory") 1)"#, "")
    };
    let code = format!(
        r#" {import}
            (core module $m
                {memory}
                (global $free (mut i32) (i32.const 1024))
                (func (export "realloc") (param i32 i32 i32 i32) (result i32)
                    (local $at i32)
                    (local.set $at (i32.and (i32.add (global.get $free) (i32.const 7)) (i32.const -8)))
                    (global.set $free (i32.add (local.get $at) (local.get 3)))
                    (local.get $at))
                ;; The input's data is parameters 1 and 2; the result lies at 64.
                (func $answer (param $ptr i32) (param $len i32) (result i32)
                    (i32.store (i32.const 80) (i32.const 1))
                    (i32.store (i32.const 84) (local.get $ptr))
                    (i32.store (i32.const 88) (local.get $len))
                    (i32.const 64))
                (func (export "run") (param i32 i32 i32 i32 i32 i32) (result i32) {core}))
            (core instance $code (instantiate $m {with}))"#
    );
    wat::parse_str(text::tool(&code, "$code")).unwrap()
}

/// Answers with its input.
pub const ECHO: &str = "(call $answer (local.get 1) (local.get 2))";
