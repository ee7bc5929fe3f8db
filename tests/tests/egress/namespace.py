"""A network namespace as an enclosure makes it, and commands run inside it.

Descriptor 0 is a socket: the listeners and the name server's socket go out on it, then each line that comes in is a
command, and each line that goes out is how it ended.
"""

import array, fcntl, json, os, socket, struct, subprocess, sys

ports = [int(port) for port in sys.argv[1:]]

# lo up.
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
    request = struct.pack("16sH14x", b"lo", 0)
    flags = struct.unpack("16sH14x", fcntl.ioctl(control, 0x8913, request))[1]
    fcntl.ioctl(control, 0x8914, struct.pack("16sH14x", b"lo", flags | 1))

# ip route add local default dev lo: RTM_NEWROUTE of type local, in table 255, with the scope of this host.
with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as netlink:
    route = struct.pack("=BBBBBBBBI", socket.AF_INET, 0, 0, 0, 255, 3, 254, 2, 0)
    route += struct.pack("=HHI", 8, 4, socket.if_nametoindex("lo"))
    netlink.send(struct.pack("=IHHII", 16 + len(route), 24, 0x605, 1, 0) + route)
    error = struct.unpack("=i", netlink.recv(4096)[16:20])[0]
    assert error == 0, f"the local default route: {os.strerror(-error)}"

# Names are asked of a server that is nowhere.
subprocess.run(["mount", "--bind", os.environ["RESOLV_CONF"], "/etc/resolv.conf"], check=True)

sockets = []
for port in ports:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind(("0.0.0.0", port))
    listener.listen(128)
    sockets.append(listener)
names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
names.bind(("0.0.0.0", 53))
sockets.append(names)

outside = socket.socket(fileno=os.dup(0))
rights = array.array("i", [one.fileno() for one in sockets])
outside.sendmsg([b"\n"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
for one in sockets:
    one.close()

for line in outside.makefile("r"):
    done = subprocess.run(json.loads(line), stdin=subprocess.DEVNULL, capture_output=True, timeout=80)
    text = {"status": done.returncode, "stdout": done.stdout.decode(), "stderr": done.stderr.decode()}
    outside.sendall(json.dumps(text).encode() + b"\n")
