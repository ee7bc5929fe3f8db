#!/bin/bash
# What an ordinary user runs under systemd, whose own manager it asks for a scope.
export MUR_DIST=/mur/dist HOME=/home/operator PATH=/usr/sbin:/usr/bin LANG=C.UTF-8
export XDG_RUNTIME_DIR=/run/user/1000 DBUS_SESSION_BUS_ADDRESS=unix:path=/run/user/1000/bus

# The user's manager says when its session has begun; until then there is no bus.
busctl --user --timeout 60 status > /dev/null

cd /mur
echo "@@begin user probe"
/mur/dist/bin/mur doctor
echo "@@end $?"
if [ -x /mur/tests/delegation ]; then
    echo "@@begin user delegation"
    timeout -k 10 900 /mur/tests/delegation --ignored --test-threads 1
    status=$?
    echo
    echo "@@end $status"
fi
echo "@@whole"
