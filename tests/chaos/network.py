"""Machines on a network of their own: one namespace each, joined by a bridge in another, with cables to be cut."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from types import TracebackType
from typing import Self

HERE = "here"
"""This process's own place on the network."""

_NOWHERE = "02:00:00:00:de:ad"


def why_not() -> str:
    """Why networks cannot be made here; empty if they can."""
    if shutil.which("ip") is None:
        return "there is no ip command (iproute2)"
    name = f"outrider-{os.getpid()}-try"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        return f"network namespaces cannot be made: {made.stderr.strip() or 'ip netns add failed'}"
    bridge = subprocess.run(
        ["ip", "-n", name, "link", "add", "name", "bridge", "type", "bridge"],
        capture_output=True,
        text=True,
        check=False,
    )
    subprocess.run(["ip", "netns", "delete", name], check=False)
    return f"the kernel makes no bridges: {bridge.stderr.strip()}" if bridge.returncode != 0 else ""


class Network:
    """Context manager: the machines `names`, and this process as `HERE`, reach each other by `address`.

    `cut` loses what two of them send each other, without a word to either: frames leave for a hardware address that
    nobody has. Whatever a network was made of is gone on exit.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._id = os.getpid()
        self._hub = self.space("hub")
        self._link = f"or{self._id}"
        # A block that is set aside for benchmarks of networks (RFC 2544), so nothing else here has it.
        self._subnet = f"198.18.{self._id % 256}"
        self._places = {HERE: 1} | {name: number for number, name in enumerate(names, start=2)}
        self._hardware: dict[str, str] = {}

    def __enter__(self) -> Self:
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def address(self, name: str) -> str:
        """A machine's IP address."""
        return f"{self._subnet}.{self._places[name]}"

    def space(self, name: str) -> str:
        """The name of a machine's network namespace."""
        return f"outrider-{self._id}-{name}"

    def on(self, name: str, command: Sequence[str]) -> list[str]:
        """The command that runs `command` on a machine; the process keeps its id."""
        return ["ip", "netns", "exec", self.space(name), *command]

    def cut(self, sender: str, receiver: str) -> None:
        """Lose whatever `sender` sends to `receiver` from now on."""
        self._neighbour(sender, receiver, _NOWHERE)

    def mend(self, sender: str, receiver: str) -> None:
        """Undo `cut`."""
        self._neighbour(sender, receiver, self._hardware[receiver])

    def _neighbour(self, of: str, name: str, hardware: str) -> None:
        device = self._link if of == HERE else "eth0"
        entry = ["neigh", "replace", self.address(name), "lladdr", hardware, "dev", device, "nud", "permanent"]
        _ip(*([] if of == HERE else ["-n", self.space(of)]), *entry)

    def _make(self) -> None:
        _ip("netns", "add", self._hub)
        _ip("-n", self._hub, "link", "add", "bridge", "type", "bridge")
        _ip("-n", self._hub, "link", "set", "bridge", "up")
        for name in self._places:
            self._join(name)
        for name in self._places:
            for other in self._places:
                if other != name:
                    self.mend(name, other)

    def _join(self, name: str) -> None:
        place, port = f"{self.address(name)}/24", f"p{self._places[name]}"
        at: list[str] = []
        if name == HERE:
            device = self._link
            _ip("link", "add", device, "type", "veth", "peer", "name", port, "netns", self._hub)
        else:
            device, at = "eth0", ["-n", self.space(name)]
            _ip("netns", "add", self.space(name))
            _ip(*at, "link", "set", "lo", "up")
            _ip(*at, "link", "add", device, "type", "veth", "peer", "name", port, "netns", self._hub)
        hardware = f"02:00:00:00:00:{self._places[name]:02x}"
        _ip(*at, "link", "set", device, "address", hardware)
        _ip(*at, "address", "add", place, "dev", device)
        _ip(*at, "link", "set", device, "up")
        _ip("-n", self._hub, "link", "set", port, "master", "bridge", "up")
        self._hardware[name] = hardware

    def _remove(self) -> None:
        for name in ("hub", *self.names):
            subprocess.run(["ip", "netns", "delete", self.space(name)], capture_output=True, check=False)
        subprocess.run(["ip", "link", "delete", self._link], capture_output=True, check=False)


def _ip(*arguments: str) -> None:
    run = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False, timeout=20)
    if run.returncode != 0:
        raise OSError(f"ip {' '.join(arguments)}: {run.stderr.strip()}")
