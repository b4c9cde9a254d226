"""Settings of a process: flags over environment over a YAML file over defaults; unknown keys are refused in all."""

from outrider.config.settings import Settings, describe, load

__all__ = ["Settings", "describe", "load"]
