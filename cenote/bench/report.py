"""What a measurement looks like, for people and as JSON."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

SECRETS = ("--api-key", "--header")


@dataclass(frozen=True, slots=True)
class Row:
    """One engine. Ratios are taken within a round, since the machine's clock wanders between rounds."""

    name: str
    tokens_per_s: float  # median
    ours_is_faster: float  # by this factor, median of the rounds
    least: float
    most: float
    agreement: float  # the smallest cosine with the vectors of the reference


def table(rows: Sequence[Row]) -> str:
    width = max(len(row.name) for row in rows)
    lines = [f"{'engine':<{width}}  tokens/s  Cenote is faster by (range)  least cosine"]
    lines += [
        f"{row.name:<{width}}  {row.tokens_per_s:>8,.0f}  "
        f"{f'{row.ours_is_faster:.2f}x ({row.least:.2f}-{row.most:.2f})':>27}  {row.agreement:>12.6f}"
        for row in rows
    ]
    return "\n".join(lines)


def machine() -> dict[str, object]:
    """Where the numbers were taken. A client that needed no torch says nothing of it."""
    try:
        names = (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        )
        processor = next(names, platform.processor())
    except OSError:
        processor = platform.processor()
    torch = sys.modules.get("torch")
    return {
        "processor": processor,
        "cores": os.cpu_count(),
        **({} if torch is None else {"torch": torch.__version__, "threads": torch.get_num_threads()}),
        "python": platform.python_version(),
        "command": " ".join(without_secrets(sys.argv)),
    }


def without_secrets(arguments: Sequence[str]) -> list[str]:
    """A command line that can be shown to anybody."""
    shown: list[str] = []
    hides_next = False
    for word in arguments:
        name, equals, _ = word.partition("=")
        is_secret = name.replace("_", "-") in SECRETS
        shown.append("***" if hides_next else f"{name}=***" if is_secret and equals else word)
        hides_next = is_secret and not equals
    return shown


def save(path: str, workload: str, rows: Sequence[Row]) -> None:
    write_json(path, {"machine": machine(), "workload": workload, "rows": [asdict(row) for row in rows]})


def write_json(path: str, report: dict[str, Any]) -> None:
    Path(path).write_text(json.dumps(report, indent=2, allow_nan=False) + "\n")
