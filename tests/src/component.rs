//! Tools as components written as text, for results and calls no honest guest would make.

/// The text of a component that exports `murmur:tool/run@0.1.0`. `core` defines the core instance `$code` with `run`, which
/// takes the flattened input and returns where the result's record lies; the instance `memory` has `memory` and `realloc`.
pub fn tool(core: &str, memory: &str) -> String {
    format!("(component\n{core}{}", TOOL.replace("$MEM", memory))
}

const TOOL: &str = r#"
    (type $status (enum "passed" "failed" "error"))
    (type $input (record (field "data" (option string)) (field "log-path" (option string))))
    (type $pair (tuple string string))
    (type $result (record (field "status" $status) (field "summary" (option string))
        (field "data" (option string)) (field "data-path" (option string)) (field "truncated" bool)
        (field "metadata" (list $pair))))
    (func $run (param "input" $input) (result $result)
        (canon lift (core func $code "run") (memory $MEM "memory") (realloc (func $MEM "realloc"))))
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
    (export "murmur:tool/run@0.1.0" (instance $out)))"#;
