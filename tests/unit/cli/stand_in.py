"""Stands in for a service in tests of processes: says `ready`, logs, obeys signals. It serves nothing.

Copied to PACKAGE/__main__.py, so that `python -m outrider_ROLE` finds it; STAND_IN_<ROLE> says how it behaves.
"""

import json
import os
import signal
import sys

role = sys.modules["__main__"].__package__.removeprefix("outrider_")
behaviour = os.environ.get(f"STAND_IN_{role.upper()}", "ready")


def log(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def stop(number: int, frame: object) -> None:
    log("stopping")
    sys.exit(0)


log("flags " + json.dumps(sys.argv[1:]))
signal.signal(signal.SIGTERM, signal.SIG_IGN if behaviour == "ignores SIGTERM" else stop)
if behaviour == "crashes":
    log("ValueError: there is no such model")
    sys.exit(3)
if behaviour != "hangs":
    listen = sys.argv[sys.argv.index("--listen") + 1]
    print(f"loading {role}", flush=True)
    print(f"ready {role} {listen.replace(':0', f':{os.getpid()}')}", flush=True)
while True:
    signal.pause()
