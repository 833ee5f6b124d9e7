"""A server in a network namespace of its own, where nobody but this program reaches it; run as a program, stdlib only.

The sockets that clients connect to were opened outside, on loopback, and are inherited; the server's own are inside,
where there is nothing but a loopback of its own. This program passes bytes from the first to the second. It ends with
the server, and the server with it.

    unshare --net -- python -I weaviate_isolated.py FD=PORT FD=PORT -- PROGRAM ARGUMENT ...
"""

import ctypes
import fcntl
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from contextlib import suppress
from types import FrameType

_SET_FLAGS, _UP = 0x8914, 0x1
_DIE_WITH_PARENT = 1
_CHUNK = 1 << 18


def main(arguments: list[str]) -> int:
    """Start the server, pass on what comes, and return the server's exit code."""
    doors, command = arguments[: arguments.index("--")], arguments[arguments.index("--") + 1 :]
    _loopback_up()
    parent = os.getpid()
    inherited = [int(one) for one in os.listdir("/proc/self/fd") if int(one) > 2]  # noqa: PTH208 - numbers
    doors_by_number = {int(one.split("=")[0]): int(one.split("=")[1]) for one in doors}
    kept = [one for one in inherited if one not in doors_by_number and _there(one)]
    server = subprocess.Popen(command, pass_fds=kept, preexec_fn=lambda: _die_with(parent))  # noqa: S603, PLW1509 - one thread so far

    def ended(number: int, frame: FrameType | None) -> None:
        del number, frame
        server.terminate()

    signal.signal(signal.SIGTERM, ended)
    for number, port in doors_by_number.items():
        threading.Thread(target=_serve, args=(socket.socket(fileno=number), port), daemon=True).start()
    return server.wait()


def _loopback_up() -> None:
    """A new namespace's loopback is down."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sh14x", b"lo", _UP))


def _there(number: int) -> bool:
    """Whether a descriptor is open; the one that listed them is not any more."""
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _die_with(parent: int) -> None:
    """In the server, before it begins: it is killed when its parent is."""
    ctypes.CDLL(None, use_errno=True).prctl(_DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _serve(door: socket.socket, port: int) -> None:
    while True:
        try:
            client, _ = door.accept()
        except OSError:
            return
        try:
            server = socket.create_connection(("127.0.0.1", port), 5)
        except OSError:
            client.close()
            continue
        server.settimeout(None)
        for one in (client, server):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for source, target in ((client, server), (server, client)):
            threading.Thread(target=_pass_on, args=(source, target), daemon=True).start()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    """Until one side ends; then the other is told."""
    try:
        while chunk := source.recv(_CHUNK):
            target.sendall(chunk)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        # Both directions of a broken connection end; each thread closes the side that it reads.
        for one in (source, target):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
