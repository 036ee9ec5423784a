"""Machine description and JSON files of benchmark reports."""

from __future__ import annotations

import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

from cenote.kernels.cpu_features import cpu_name
from cenote.utils.arguments import mask_secrets

SECRET_FLAGS = ("--api-key", "--header")


def machine_info() -> dict[str, object]:
    """Describe the machine and the command; torch is included only if it is imported."""
    torch = sys.modules.get("torch")
    return {
        "processor": cpu_name(),
        "cores": os.cpu_count(),
        **({} if torch is None else {"torch": torch.__version__, "threads": torch.get_num_threads()}),
        "python": platform.python_version(),
        "command": " ".join(mask_secrets(sys.argv, SECRET_FLAGS)),
    }


def write_json(path: str, report: dict[str, Any]) -> None:
    Path(path).write_text(json.dumps(report, indent=2, allow_nan=False) + "\n")
