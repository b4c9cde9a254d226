"""How every service's main begins and ends: settings, logs, one clear line for an error that has a name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

from outrider.config import Settings, describe, load
from outrider.config.tls import ServerTlsSettings
from outrider.errors import ConfigError, OutriderError
from outrider.telemetry import logs

S = TypeVar("S", bound=Settings)

log = logs.get_logger(__name__)


def run_service(prog: str, settings_type: type[S], run: Callable[[S], None], argv: Sequence[str]) -> int:
    """Load the settings, log them, run; the process's exit status: 0 ended well, 1 could not go on, 2 bad settings."""
    try:
        settings = load(settings_type, argv, prog)
        logs.configure(settings.log_level)
        log.info("settings: %s", describe(settings))
        if isinstance(settings, ServerTlsSettings):
            settings.check_files()  # before a model loads for minutes
        run(settings)
    except OutriderError as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    except KeyboardInterrupt:
        return 130
    return 0
