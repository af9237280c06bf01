"""Hosts joined by a slow network: namespaces, each with a tun device, and a process that carries
packets between these with a delay and a rate.

Each host has a full-duplex link of that rate. A link carries what Ethernet would: every segment
costs its headers, check sum, preamble and gap. Packets come as large as the kernel makes them
(segmentation offload), so that a Python loop keeps up with a gigabit. Needs root; where the
kernel has `tc ... netem` this does the same without it.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import os
import select
import struct
import subprocess
import sys
import time

if __name__ == "__main__" or not __package__:
    from namespaces import Namespaces, run
else:
    from .namespaces import Namespaces, run

_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0
_IFF_TUN, _IFF_NO_PI, _IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
_OFFLOAD_CHECKSUM, _OFFLOAD_TSO4 = 0x01, 0x02
_OFFLOAD_HEADER = 10  # bytes before each packet
_LARGEST = 1 << 17
# Frame header and check sum, preamble, gap between frames.
_FRAME = 14 + 4 + 8 + 12
_TCP_IP = 52  # with time stamps
_MTU = 1500
# What a switch keeps for one link before it drops packets.
_QUEUE_S = 0.02

# Of the bits on the wire, those of the payload.
PAYLOAD_SHARE = (_MTU - _TCP_IP) / (_MTU + _FRAME)


class SlowNetwork(Namespaces):
    """Hosts behind links of a rate and delay.

    Args:
        hosts: how many.
        bits_per_s: rate of each link, both ways at once.
        delay_s: from any host to any other.

    Raises:
        OSError: no rights, or no tun devices here.
        subprocess.CalledProcessError: no network namespaces here.
    """

    def __init__(self, hosts: int, bits_per_s: float, delay_s: float) -> None:
        super().__init__(hosts, "10.204")
        self._link = [str(bits_per_s), str(delay_s)]
        self._files: list[int] = []
        self._switch: subprocess.Popen[bytes] | None = None

    def open(self) -> None:
        """Makes the hosts, then starts what joins them."""
        super().open()
        numbers = [str(file) for file in self._files]
        self._switch = subprocess.Popen(
            [sys.executable, __file__, *self._link, *numbers], pass_fds=self._files
        )

    def close(self) -> None:
        """Ends the switch and removes the hosts."""
        if self._switch is not None:
            self._switch.kill()
            self._switch.wait()
        for file in self._files:
            os.close(file)
        self._files.clear()
        super().close()

    def _connect(self, host: int) -> str:
        device = f"t{self.name(host)}"
        file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        self._files.append(file)
        flags = _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR
        fcntl.ioctl(file, _TUNSETIFF, struct.pack("16sH22x", device.encode(), flags))
        fcntl.ioctl(file, _TUNSETOFFLOAD, _OFFLOAD_CHECKSUM | _OFFLOAD_TSO4)
        run(f"link set {device} netns {self.name(host)}")
        run(f"-n {self.name(host)} link set {device} mtu {_MTU}")
        return device


class Switch:
    """Carries packets between tun files; file i leads to host i + 1."""

    def __init__(self, files: list[int], bits_per_s: float, delay_s: float) -> None:
        self._files = files
        self._rate = bits_per_s / 8
        self._delay = delay_s
        self._up = [0.0] * len(files)  # when a host's own link is free again
        self._down = [0.0] * len(files)
        self._packets: list[tuple[float, int, int, bytes]] = []  # by time of arrival
        self._count = 0

    def run(self) -> None:
        """Until it is killed."""
        while True:
            now = time.monotonic()
            self._deliver(now)
            # A host whose link is busy keeps its packets, as behind a real network card.
            free = [i for i, at in enumerate(self._up) if at <= now]
            busy = [at for at in self._up if at > now]
            due = self._packets[0][0] if self._packets else now + 1
            timeout = max(0.0, min([due, *busy]) - now)
            ready, _, _ = select.select([self._files[i] for i in free], [], [], timeout)
            for file in ready:
                self._take(self._files.index(file))

    def _take(self, source: int) -> None:
        try:
            packet = os.read(self._files[source], _LARGEST)
        except BlockingIOError:
            return
        target = packet[_OFFLOAD_HEADER + 19] - 1
        if packet[_OFFLOAD_HEADER] >> 4 != 4 or not 0 <= target < len(self._files):
            return
        now = time.monotonic()
        seconds = self._bytes_on_wire(packet) / self._rate
        self._up[source] = max(now - 0.001, self._up[source]) + seconds
        # Through a switch that sends on while it still receives.
        arrival = max(self._up[source] + self._delay, self._down[target] + seconds)
        if arrival > self._up[source] + self._delay + _QUEUE_S:
            return  # its queue is full
        self._down[target] = arrival
        self._count += 1
        heapq.heappush(self._packets, (arrival, self._count, target, packet))

    def _deliver(self, now: float) -> None:
        while self._packets and self._packets[0][0] <= now:
            _, _, target, packet = heapq.heappop(self._packets)
            with contextlib.suppress(BlockingIOError):
                os.write(self._files[target], packet)

    @staticmethod
    def _bytes_on_wire(packet: bytes) -> int:
        size = len(packet) - _OFFLOAD_HEADER
        segment = struct.unpack_from("<H", packet, 4)[0]
        segments = max(1, -(-(size - _TCP_IP) // segment)) if segment else 1
        return size + (segments - 1) * _TCP_IP + segments * _FRAME


if __name__ == "__main__":
    Switch([int(file) for file in sys.argv[3:]], float(sys.argv[1]), float(sys.argv[2])).run()
