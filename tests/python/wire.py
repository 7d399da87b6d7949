# SPDX-License-Identifier: Apache-2.0
"""A wire between two TUN interfaces: late, lossy, or stopped after so many bytes.

The kernel's own netem is not in every kernel, and does not say what it has dropped.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import os
import random
import select
import struct
import threading
import time

TUNSETIFF = 0x400454CA
IFF_TUN = 0x0001
IFF_NO_PI = 0x1000
LARGEST = 65536
BURST = 64  # packets that are read of one end before the other has its turn


def open_tun(name: str) -> int:
    """Make a TUN interface; it lives as long as the descriptor."""
    end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.ioctl(end, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
    except OSError:
        os.close(end)
        raise
    return end


def tcp_ports(packet) -> tuple[int, int]:
    """The two ports of a TCP packet."""
    header = (packet[0] & 15) * 4 if packet[0] >> 4 == 4 else 40
    return struct.unpack_from("!HH", packet, header)


class Wire:
    """Carries packets between two descriptors, in a thread, until it is closed."""

    def __init__(self, ends, delay=0.0, loss=0.0) -> None:
        """delay: seconds, one way. loss: of 1, both ways."""
        self.ends = ends
        self.delay = delay
        self.loss = loss
        self.lost = 0  # packets
        self.firewall = None  # packets for which it returns False are dropped
        self.stopped = threading.Event()
        self._left = None  # bytes that may pass before it stops; None: any number
        self._lock = threading.Lock()
        self._random = random.Random(1)
        self._late = []  # heap of (when, number, where to, packet)
        self._number = 0
        self._wake, self._woken = os.pipe()
        self._thread = threading.Thread(target=self._run, name="wire", daemon=True)
        self._thread.start()

    def stop_after(self, count: int) -> None:
        """Let that many bytes pass and then nothing: `stopped` is set."""
        with self._lock:
            self.stopped.clear()
            self._left = count

    def go_on(self) -> None:
        with self._lock:
            self._left = None
            self.stopped.clear()

    def _take(self, packet) -> bool:
        """Whether a packet gets through."""
        with self._lock:
            if self._left is not None:
                self._left -= len(packet)
                if self._left <= 0:
                    self.stopped.set()
                    return False
        if self.firewall and not self.firewall(packet):
            return False
        if self._random.random() < self.loss:
            self.lost += 1
            return False
        return True

    def _run(self) -> None:
        poller = select.poll()
        for end in (*self.ends, self._wake):
            poller.register(end, select.POLLIN)
        while True:
            wait = max(0.0, self._late[0][0] - time.monotonic()) * 1000 if self._late else None
            ready = [end for end, _ in poller.poll(wait)]
            if self._wake in ready:
                return
            for end in ready:
                self._read(end)
            self._deliver()

    def _read(self, end) -> None:
        other = self.ends[1 - self.ends.index(end)]
        # An interface that is down refuses both ways; its packets are lost, as on a wire.
        with contextlib.suppress(OSError):
            for _ in range(BURST):
                packet = os.read(end, LARGEST)
                if self._take(packet):
                    self._number += 1
                    when = time.monotonic() + self.delay
                    heapq.heappush(self._late, (when, self._number, other, packet))

    def _deliver(self) -> None:
        now = time.monotonic()
        while self._late and self._late[0][0] <= now:
            _, _, end, packet = heapq.heappop(self._late)
            with contextlib.suppress(OSError):
                os.write(end, packet)

    def close(self) -> None:
        os.write(self._woken, b"x")
        self._thread.join()
        for descriptor in (*self.ends, self._wake, self._woken):
            os.close(descriptor)
