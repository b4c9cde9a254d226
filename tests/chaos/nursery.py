"""A process that has imported what services need, and forks one whenever it is told to: a start without the imports.

    python -m tests.chaos.nursery REAPER_PID

Reads one JSON object a line, {"space": network namespace, "log": file, "arguments": those of tests.chaos.service}, and
writes the new process's id. That becomes a child of REAPER, a subreaper, because its parent here ends at once.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from typing import Any

import outrider_coordinator.main
import outrider_draft.process
import outrider_verifier.process
from tests.chaos import service

IMPORTED = (outrider_coordinator.main, outrider_draft.process, outrider_verifier.process)
CLONE_NEWNET = 0x40000000


def main() -> None:
    reaper = int(sys.argv[1])
    print("ready", flush=True)
    for line in sys.stdin:
        reading, writing = os.pipe()
        between = os.fork()
        if between == 0:
            pid = os.fork()
            if pid:
                os.write(writing, str(pid).encode())
                os._exit(0)
            _become(json.loads(line), reaper)
        os.waitpid(between, 0)
        print(os.read(reading, 32).decode(), flush=True)
        os.close(reading)
        os.close(writing)


def _become(order: dict[str, Any], reaper: int) -> None:
    """The forked process: a service on its machine."""
    while os.getppid() != reaper:
        time.sleep(0.001)
    space = os.open(f"/run/netns/{order['space']}", os.O_RDONLY | os.O_CLOEXEC)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(space, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns failed")
    log = os.open(order["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    nothing = os.open("/dev/null", os.O_RDONLY)
    for number, to in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(number, to)
    os.closerange(3, 256)
    status = 1
    try:
        sys.argv[1:] = order["arguments"]
        service.main()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main()
