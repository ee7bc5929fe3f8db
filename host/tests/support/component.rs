//! A tool as a component written as text.

/// A component that exports `murmur:tool/run@0.1.0`, around core code that defines `run` and may import `stream`.
pub fn component(core: &str, with_stream: bool) -> Vec<u8> {
    let (import, lowered, with) = if with_stream {
        (
            r#"(import "murmur:stream/events@0.1.0" (instance $events
                (export "emit-chunk" (func (param "chunk" string)))))
               (core module $libc (memory (export "memory") 1))
               (core instance $libc (instantiate $libc))
               (alias export $events "emit-chunk" (func $emit))
               (core func $emit' (canon lower (func $emit) (memory $libc "memory")))"#,
            r#"(import "host" "emit" (func $emit (param i32 i32))) (import "libc" "memory" (memory 1))"#,
            r#"(with "host" (instance (export "emit" (func $emit')))) (with "libc" (instance $libc))"#,
        )
    } else {
        ("", r#"(memory (export "memory") 1)"#, "")
    };
    let memory = if with_stream { "$libc" } else { "$code" };
    let text = format!(
        r#"(component
            {import}
            (core module $m
                {lowered}
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
            (core instance $code (instantiate $m {with}))
            (type $status (enum "passed" "failed" "error"))
            (type $input (record (field "data" (option string)) (field "log-path" (option string))))
            (type $pair (tuple string string))
            (type $result (record (field "status" $status) (field "summary" (option string))
                (field "data" (option string)) (field "data-path" (option string)) (field "truncated" bool)
                (field "metadata" (list $pair))))
            (func $run (param "input" $input) (result $result)
                (canon lift (core func $code "run") (memory {memory} "memory") (realloc (func $code "realloc"))))
            (component $shim
                (type $status0 (enum "passed" "failed" "error"))
                (import "status" (type $status (eq $status0)))
                (type $input0 (record (field "data" (option string)) (field "log-path" (option string))))
                (import "input" (type $input (eq $input0)))
                (type $pair (tuple string string))
                (type $result0 (record (field "status" $status) (field "summary" (option string))
                    (field "data" (option string)) (field "data-path" (option string)) (field "truncated" bool)
                    (field "metadata" (list $pair))))
                (import "result" (type $result (eq $result0)))
                (import "f" (func $f (param "input" $input) (result $result)))
                (export $es "status" (type $status))
                (export $ei "tool-input" (type $input))
                (type $result1 (record (field "status" $es) (field "summary" (option string))
                    (field "data" (option string)) (field "data-path" (option string)) (field "truncated" bool)
                    (field "metadata" (list $pair))))
                (export $er "tool-result" (type $result1))
                (export "run" (func $f) (func (param "input" $ei) (result $er))))
            (instance $out (instantiate $shim (with "f" (func $run)) (with "status" (type $status))
                (with "input" (type $input)) (with "result" (type $result))))
            (export "murmur:tool/run@0.1.0" (instance $out)))"#
    );
    wat::parse_str(text).unwrap()
}

/// Answers with its input.
pub const ECHO: &str = "(call $answer (local.get 1) (local.get 2))";
