"""The directory in which the command keeps what it fetched, and how several processes share it."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from outrider.errors import OutriderError, Unavailable

POLL_S = 0.2


class CacheError(OutriderError):
    """The cache directory cannot be written; the message says why and how to choose another."""


def cache_directory() -> Path:
    """$OUTRIDER_CACHE, or `outrider` in the user's cache directory ($XDG_CACHE_HOME, ~/.cache)."""
    if chosen := os.environ.get("OUTRIDER_CACHE"):
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "outrider"


@contextmanager
def errors_of(directory: Path) -> Iterator[None]:
    """What the operating system refuses in `directory` becomes a CacheError that says what to do."""
    try:
        yield
    except OSError as error:
        why = "the disk is full" if is_full(error) else error.strerror or str(error)
        raise CacheError(f"cannot write to {directory}: {why}; OUTRIDER_CACHE chooses another directory") from error


def is_full(error: Exception) -> bool:
    """True if `error` says that the disk, or the user's share of it, is used up."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def require_space(directory: Path, size: int) -> None:
    """Raise CacheError unless `directory` has room for `size` bytes."""
    free = shutil.disk_usage(directory).free
    if free < size:
        raise CacheError(
            f"{directory} has {free / 1e9:.1f} GB left, but {size / 1e9:.1f} GB are needed;"
            " OUTRIDER_CACHE chooses another directory"
        )


@contextmanager
def locked(path: Path, timeout_s: float, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the lock file at `path`, for one process at a time; the kernel frees it if its holder dies.

    Calls `on_wait` once if another process has it; raises Unavailable when that lasts longer than `timeout_s` seconds.
    """
    deadline = time.monotonic() + timeout_s
    with path.open("a") as file:
        waited = False
        while not _try_lock(file.fileno()):
            if not waited:
                on_wait()
            waited = True
            if time.monotonic() > deadline:
                raise Unavailable(f"another process has held {path} for more than {timeout_s:g} s")
            time.sleep(POLL_S)
        yield


@contextmanager
def staged(final: Path) -> Iterator[Path]:
    """A new directory beside `final` that becomes `final` at once if the body succeeds, and vanishes if it does not.

    To be called by one process at a time: what killed processes left behind is removed first.
    """
    for leftover in final.parent.glob(f".{final.name}-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix=f".{final.name}-", dir=final.parent))
    try:
        yield work
        work.chmod(0o755)
        work.rename(final)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def directory_size(directory: Path) -> int:
    """Bytes in the files below `directory`, which may be changing."""
    size = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            try:
                size += os.stat(os.path.join(parent, name)).st_size
            except FileNotFoundError:
                continue
    return size


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
