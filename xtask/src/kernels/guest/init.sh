#!/bin/bash
# The machine's first process: mounts, the suites of root with nothing else running, then systemd for those of a user.
export PATH=/usr/sbin:/usr/bin HOME=/root LANG=C.UTF-8 TERM=dumb

if [ "$1" != moved ]; then
    # The first root cannot be left by pivot_root(2), which class `sealed` needs: go on in a mount of it.
    mkdir -p /mnt
    mount --bind / /mnt && cd /mnt && mount --move . / && exec chroot . /init moved
    exit 1
fi

cd /
mkdir -p /proc /sys /dev /run /tmp /var/tmp /home/operator /root
chmod 1777 /tmp /var/tmp
chmod 700 /root /home/operator
chown operator:operator /home/operator
mount -t proc -o nosuid,nodev,noexec proc /proc
mount -t sysfs -o nosuid,nodev,noexec sysfs /sys
mount -t devtmpfs -o nosuid devtmpfs /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts -o nosuid,noexec,mode=620,ptmxmode=666 devpts /dev/pts
mount -t tmpfs -o nosuid,nodev tmpfs /dev/shm
mount -t tmpfs -o nosuid,nodev,mode=755 tmpfs /run
mount -t securityfs -o nosuid,nodev,noexec securityfs /sys/kernel/security
mount -t cgroup2 -o nosuid,nodev,noexec cgroup2 /sys/fs/cgroup
ln -sf /proc/self/fd /dev/fd
ln -sf /proc/self/mounts /etc/mtab
ip link set lo up
echo "root:!:1::::::" > /etc/shadow
chmod 600 /etc/shadow
# Whoever runs a suite says what it finds there.
chmod 666 /dev/ttyS1
stty -F /dev/ttyS1 raw

/mur/root.sh < /dev/null > /dev/ttyS1 2>&1

exec /usr/lib/systemd/systemd --unit=suites.target --show-status=0 --log-target=console
