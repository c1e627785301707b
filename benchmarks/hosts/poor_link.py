"""Carries frames between a host and the bridge, late, and loses some of them: what `tc netem` does.

    python poor_link.py NAMESPACE DEVICE MAC BRIDGE DELAY_S LOSS

It makes a device in the namespace and one at the bridge, says "ready", and passes frames on until it is
ended. A kernel without netem needs no more than /dev/net/tun for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import sys
import time

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
CLONE_NEWNET = 0x40000000
LONGEST_FRAME = 65_536


def open_device(name: str) -> int:
    """Make a device in the namespace of this process; return what reads and writes its frames."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TAP | IFF_NO_PI))
    return device


def enter(namespace: str) -> None:
    """Move this process into a network namespace, given by its path."""
    opened = os.open(namespace, os.O_RDONLY)
    if ctypes.CDLL(None, use_errno=True).setns(opened, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
    os.close(opened)


def carry(first: int, second: int, delay_s: float, loss: float) -> None:
    """Pass frames on, each way."""
    waiting: list[tuple[float, int, int, bytes]] = []
    number = 0
    while True:
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, _, target, frame = heapq.heappop(waiting)
            with contextlib.suppress(OSError):  # a device that is down, or full, loses frames
                os.write(target, frame)
        pause = waiting[0][0] - now if waiting else None
        for source in select.select([first, second], [], [], pause)[0]:
            frame = os.read(source, LONGEST_FRAME)
            if random.random() >= loss:
                target = second if source == first else first
                number += 1
                heapq.heappush(waiting, (time.monotonic() + delay_s, number, target, frame))


def main() -> None:
    name, device, mac, bridge, delay_s, loss = sys.argv[1:]
    outside = open_device(f"{name}-p")
    for words in (("master", bridge), ("up",)):
        subprocess.run(["ip", "link", "set", f"{name}-p", *words], check=True)
    enter(f"/var/run/netns/{name}")
    inside = open_device(device)
    subprocess.run(["ip", "link", "set", device, "address", mac], check=True)
    print("ready", flush=True)
    carry(inside, outside, float(delay_s), float(loss))


if __name__ == "__main__":
    main()
