"""Network namespaces as hosts, and an `ssh` that enters them. Needs root and iproute2."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

_SSH = """#!{python}
import os, subprocess, sys
words = sys.argv[1:]
host, command = words[words.index("--") + 1], words[words.index("--") + 2]
kept = ["PATH", *{kept}]
env = {{name: os.environ[name] for name in kept if name in os.environ}}
env |= {{"HOME": "/", "SSH_CONNECTION": "{network}.254 1 {network}." + host[-1] + " 22"}}
sys.exit(subprocess.call(["ip", "netns", "exec", host, "sh", "-c", command], env=env))
"""


def run(command: str, program: str = "ip") -> None:
    """Runs one command of iproute2.

    Raises:
        subprocess.CalledProcessError: it failed; `stderr` says why.
    """
    subprocess.run([program, *command.split()], check=True, capture_output=True)


class Namespaces:
    """Hosts 1 to n (at most 9), each a namespace. Empty until `open`; `with` opens and closes it.

    Args:
        hosts: how many.
        network: the first two numbers of their addresses; nobody else's.
    """

    def __init__(self, hosts: int, network: str) -> None:
        self.tag = uuid.uuid4().hex[:5]
        self.numbers = range(1, hosts + 1)
        self.network = f"{network}.{int(self.tag[:2], 16)}"

    def name(self, host: int) -> str:
        """The namespace of a host."""
        return f"{self.tag}h{host}"

    def address(self, host: int) -> str:
        """The address of a host."""
        return f"{self.network}.{host}"

    def inside(self, host: int, *argv: str) -> list[str]:
        """The command line that runs `argv` on a host."""
        return ["ip", "netns", "exec", self.name(host), *argv]

    def open(self) -> None:
        """Makes the hosts and joins them; closes what there is if that fails."""
        try:
            self._join()
            for host in self.numbers:
                name = self.name(host)
                run(f"netns add {name}")
                device = self._connect(host)
                run(f"-n {name} addr add {self.address(host)}/24 dev {device}")
                run(f"-n {name} link set {device} up")
                run(f"-n {name} link set lo up")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Removes them."""
        for host in self.numbers:
            subprocess.run(["ip", "netns", "del", self.name(host)], capture_output=True)

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _join(self) -> None:
        """What all hosts are connected to."""

    def _connect(self, host: int) -> str:
        """Gives a new namespace its device; returns that one's name inside."""
        raise NotImplementedError


class Bridge(Namespaces):
    """Hosts on a bridge at `network`.254.

    Args:
        hosts: how many.
        rate: of each host's link, both ways, as `tc` takes it ("1gbit"); None: as fast as it goes.
    """

    def __init__(self, hosts: int, rate: str | None = None) -> None:
        super().__init__(hosts, "10.203")
        self._bridge = f"b{self.tag}"
        # A queue that is long enough to lose nothing.
        self._limit = f"tbf rate {rate} burst 256kb limit 64mb" if rate else ""

    @property
    def names(self) -> list[str]:
        """All hosts' namespaces."""
        return [self.name(host) for host in self.numbers]

    def cut(self, host: int) -> None:
        """Takes the host off the network without a word to anybody."""
        run(f"link set v{self.name(host)} down")

    def close(self) -> None:
        """Removes the hosts and the bridge."""
        super().close()
        subprocess.run(["ip", "link", "del", self._bridge], capture_output=True)

    def put_ssh(self, folder: Path, kept: list[str]) -> str:
        """Writes an `ssh` into the folder, which keeps these variables; returns a PATH with it."""
        path = folder / "ssh"
        path.write_text(_SSH.format(python=sys.executable, kept=kept, network=self.network))
        path.chmod(0o755)
        return f"{folder}{os.pathsep}{os.environ['PATH']}"

    def _join(self) -> None:
        run(f"link add {self._bridge} type bridge")
        run(f"addr add {self.network}.254/24 dev {self._bridge}")
        run(f"link set {self._bridge} up")

    def _connect(self, host: int) -> str:
        name = self.name(host)
        run(f"link add v{name} type veth peer name eth0 netns {name}")
        run(f"link set v{name} master {self._bridge} up")
        if self._limit:
            run(f"qdisc add dev v{name} root {self._limit}", "tc")
            run(f"-n {name} qdisc add dev eth0 root {self._limit}", "tc")
        return "eth0"
