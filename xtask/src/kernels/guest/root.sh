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
