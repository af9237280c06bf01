"""The way to another host: an agent started through ssh."""

from __future__ import annotations

import re
import shlex
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# Reads the agent's text from standard input and runs it: the other host needs a Python
# only, of any environment, and what the agent is told never shows in a process list.
_BOOTSTRAP = "exec({!r})".format(
    "import os\n"
    "n = s = b''\n"
    "while not n.endswith(b'\\n'): n += os.read(0, 1) or os._exit(1)\n"
    "while len(s) < int(n): s += os.read(0, int(n) - len(s)) or os._exit(1)\n"
    "exec(compile(s, 'tfring/launch/agent.py', 'exec'))"
)

# Describe the launcher's machine or session, not the job.
_HOST_VARIABLES = re.compile(
    "_|HOME|HOST|HOSTNAME|LOGNAME|MAIL|OLDPWD|PWD|SHELL|SHLVL|TERM|TMPDIR|TMUX.*|USER"
    "|DBUS_SESSION_BUS_ADDRESS|DISPLAY|WAYLAND_DISPLAY|XAUTHORITY|XDG_RUNTIME_DIR|XDG_SESSION_ID"
    "|SSH_(AGENT_PID|AUTH_SOCK|CLIENT|CONNECTION|TTY)"
)


@dataclass(frozen=True)
class SshOptions:
    """How to reach the other hosts; everything else is ssh's own configuration."""

    port: int | None = None
    identity_file: str | None = None
    connect_timeout_s: float = 30.0


def command(host: str, python: str, options: SshOptions) -> list[str]:
    """The ssh command line that starts an agent on `host`.

    ssh never asks for anything: it fails where a password or a host key would need a
    person. It notices a dead connection within 15 s.
    """
    words = ["ssh", "-T", "-o", "BatchMode=yes", "-o", "ServerAliveInterval=5"]
    words += ["-o", f"ConnectTimeout={max(1, round(options.connect_timeout_s))}"]
    if options.port is not None:
        words += ["-p", str(options.port)]
    if options.identity_file is not None:
        words += ["-i", options.identity_file]
    return [*words, "--", host, shlex.join(["exec", python, "-I", "-S", "-c", _BOOTSTRAP])]


def exportable(env: Mapping[str, str]) -> dict[str, str]:
    """The part of the launcher's environment that makes sense on another host."""
    return {name: value for name, value in env.items() if not _HOST_VARIABLES.fullmatch(name)}


def own_addresses(hosts: Sequence[str]) -> list[str]:
    """Addresses of this machine under which `hosts` may reach it, the likely ones first."""
    found = []
    for host in dict.fromkeys(hosts):
        try:
            family, _, _, _, address = socket.getaddrinfo(
                host.rpartition("@")[2], 9, type=socket.SOCK_DGRAM
            )[0]
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(address)  # sends nothing, but picks the way out
                found.append(probe.getsockname()[0])
        except OSError:
            continue  # an alias that only ssh knows, or no way there
    return list(dict.fromkeys([*found, socket.gethostname()]))


def interface_address(names: str) -> str:
    """The IPv4 address of the first network interface in the comma list `names`.

    Raises:
        ValueError: No interface of the list has an address here.
    """
    import fcntl
    import struct

    siocgifaddr = 0x8915
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for name in names.split(","):
            request = struct.pack("256s", name.strip().encode()[:15])
            try:
                reply = fcntl.ioctl(probe.fileno(), siocgifaddr, request)
            except OSError:
                continue
            return socket.inet_ntoa(reply[20:24])
    known = ", ".join(name for _, name in socket.if_nameindex())
    raise ValueError(
        f"--network-interfaces must name an interface of this machine with an IPv4 address "
        f"(there are: {known}). Received: {names!r}"
    )
