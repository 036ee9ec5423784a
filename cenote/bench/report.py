"""Where a measurement was taken and by which command, and its figures as JSON."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cenote.kernels.cpu_features import cpu_name

SECRET_FLAGS = ("--api-key", "--header")


def machine_info() -> dict[str, object]:
    """Where the numbers were taken. A client that needed no torch says nothing of it."""
    torch = sys.modules.get("torch")
    return {
        "processor": cpu_name(),
        "cores": os.cpu_count(),
        **({} if torch is None else {"torch": torch.__version__, "threads": torch.get_num_threads()}),
        "python": platform.python_version(),
        "command": " ".join(mask_secrets(sys.argv)),
    }


def mask_secrets(arguments: Sequence[str]) -> list[str]:
    """A command line that can be shown to anybody."""
    shown: list[str] = []
    hides_next = False
    for word in arguments:
        name, equals, _ = word.partition("=")
        is_secret = name.replace("_", "-") in SECRET_FLAGS
        shown.append("***" if hides_next else f"{name}=***" if is_secret and equals else word)
        hides_next = is_secret and not equals
    return shown


def write_json(path: str, report: dict[str, Any]) -> None:
    Path(path).write_text(json.dumps(report, indent=2, allow_nan=False) + "\n")
