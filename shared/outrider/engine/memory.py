"""How much memory a device has left, and how many tokens of KV cache fit into it."""

from __future__ import annotations

from pathlib import Path

import torch

GIB = 1 << 30
CPU_KV_BYTES = 4 * GIB
"""Most that a KV cache takes of the machine's own memory unless told otherwise: other processes live there too."""


def free_bytes(device: torch.device) -> int:
    """Memory that can still be allocated on the device; on a CPU within the control group's limit."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return min(_system_bytes(), _control_group_bytes())


def default_kv_bytes(device: torch.device, fraction: float) -> int:
    """What a KV cache gets when no size is set: `fraction` of what is left."""
    bytes_ = int(free_bytes(device) * fraction)
    return bytes_ if device.type == "cuda" else min(bytes_, CPU_KV_BYTES)


def _system_bytes() -> int:
    for line in _read("/proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return 1 << 62  # not Linux: the allocator has the last word


def _control_group_bytes() -> int:
    limit, used = _read("/sys/fs/cgroup/memory.max"), _read("/sys/fs/cgroup/memory.current")
    return int(limit) - int(used) if limit.isdigit() and used.isdigit() else 1 << 62


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
