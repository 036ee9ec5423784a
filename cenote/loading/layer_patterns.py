"""Match the regular expressions of a PEFT adapter with the names of its layers, in a process that can be stopped.

An expression can take time that is exponential in the length of a name, and Python's matcher holds the interpreter.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence

from cenote.errors import LoadError

MAX_PATTERNS = 10_000
MAX_CHARS = 1000  # of a pattern, and of the name of a layer
MAX_CPU_S = 3
TIMEOUT_S = 30.0  # the machine may be busy
MAX_MEMORY_BYTES = 1024**3
# As PEFT: the first pattern that matches the end of the name, from the start of one of its parts.
MATCHER = """
import json, re, resource, sys
cpu_s, memory, patterns, names = json.load(sys.stdin)
resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
compiled = []
for pattern in patterns:
    try:
        compiled.append(re.compile(rf"(.*\\.)?({pattern})$"))
    except (re.error, OverflowError, RecursionError) as error:
        sys.exit(f"{pattern!r} is not a regular expression: {error}")
rows = [next((row for row, pattern in enumerate(compiled) if pattern.match(name)), None) for name in names]
json.dump(rows, sys.stdout)
"""


def match_layers(patterns: Sequence[str], names: Sequence[str], field: str) -> list[int | None]:
    """Return for each name the index of the first pattern that matches it; `field` is for errors."""
    if not patterns:
        return [None] * len(names)
    if len(patterns) > MAX_PATTERNS:
        raise LoadError(f"{field} has {len(patterns):,} patterns; the limit is {MAX_PATTERNS:,}")
    for text in (*patterns, *names):
        if len(text) > MAX_CHARS:
            raise LoadError(f"{field}: {text[:50]!r}... has {len(text):,} characters; the limit is {MAX_CHARS:,}")
    # -I and -S: no module of the environment, and a start in milliseconds
    command = [sys.executable, "-I", "-S", "-c", MATCHER]
    request = json.dumps([MAX_CPU_S, MAX_MEMORY_BYTES, list(patterns), list(names)])
    try:
        done = subprocess.run(
            command, input=request, capture_output=True, text=True, timeout=TIMEOUT_S, env={}, check=False
        )
    except subprocess.TimeoutExpired:
        raise LoadError(_describe_limit(field, patterns)) from None
    except OSError as error:
        raise LoadError(f"{field} cannot be matched: a process could not be started ({error}); retry later") from error
    if done.returncode == 1 and "is not a regular expression" in done.stderr:
        raise LoadError(f"{field}: {done.stderr.strip()}")
    if done.returncode != 0:
        raise LoadError(_describe_limit(field, patterns))
    rows: list[int | None] = json.loads(done.stdout)
    return rows


def _describe_limit(field: str, patterns: Sequence[str]) -> str:
    limits = f"{MAX_CPU_S} s or {MAX_MEMORY_BYTES / 1024**3:g} GiB"
    return (
        f"{field}: matching {max(patterns, key=len)[:100]!r} with the names of the layers takes more than {limits}; "
        "expected names of layers, such as 'q_proj' or 'layers.0.mlp.down_proj'"
    )
