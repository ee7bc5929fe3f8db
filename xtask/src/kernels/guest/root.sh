#!/bin/bash
# What root runs, with nothing else on the machine. Each part is between two lines that the host looks for.
export MUR_DIST=/mur/dist

suite() {
    local name=$1 limit=$2
    shift 2
    [ -x "/mur/tests/$name" ] || return
    echo "@@begin root $name"
    timeout -k 10 "$limit" "/mur/tests/$name" "$@"
    local status=$?
    # A program that was ended breaks off in a line.
    echo
    echo "@@end $status"
}

# The harness, once a class; its record is one line.
harness() {
    local class status record
    [ -x /mur/tests/escape-conformance ] || return
    for class in $(cat /mur/classes); do
        mkdir -p -m 700 "/var/tmp/escape/$class"
        echo "@@begin root escape $class"
        timeout -k 10 1800 /mur/tests/escape-conformance --class "$class" --route wasm-guest \
            --mur /mur/probe/bin/mur --record-dir "/var/tmp/escape/$class" --no-systemd-scope --timeout-secs 900 \
            $(cat /mur/cases)
        status=$?
        echo
        for record in "/var/tmp/escape/$class"/*.json; do
            [ -f "$record" ] && echo "@@record $(tr -d '\n' < "$record")"
        done
        echo "@@end $status"
    done
}

cd /mur
echo "@@fact kernel $(uname -r)"
echo "@@fact modules $(cat /sys/kernel/security/lsm)"
echo "@@begin root probe"
/mur/dist/bin/mur doctor
echo "@@end $?"
suite confined 900
suite lifecycle 900
suite containment 1800 --test-threads 1
suite delegation 900 --test-threads 1
harness
