"""Mutate inputs and keep those that run a line of the package after another than before.

Atheris does the same faster, and has no wheel for aarch64.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import cenote
from cenote.errors import PoolingError

PACKAGE = str(Path(cenote.__file__).parent)
MAX_CPU_S = 5.0  # for one input, traced
MAX_BYTES = 1 << 16
NUMBERS = (0, 1, 2, 127, 128, 255, 256, 32767, 65535, 1 << 31, (1 << 32) - 1, (1 << 63) - 1, (1 << 64) - 1)

Edge = tuple[CodeType | None, int, int]


@dataclass
class Target:
    """Code that reads what an attacker sends: it may refuse an input with an error of the package, and nothing else."""

    name: str
    seeds: Sequence[bytes]
    run: Callable[[bytes], object]
    words: Sequence[bytes] = ()  # that the format knows


@dataclass
class Report:
    num_runs: int = 0
    num_edges: int = 0
    failures: list[tuple[bytes, str]] = field(default_factory=list)  # inputs and their errors


def fuzz(target: Target, seconds: float, seed: int = 0, max_failures: int = 3) -> Report:
    """Run the target on its seeds, then on mutations of all inputs that reached something new."""
    rng, report = random.Random(seed), Report()
    corpus: list[bytes] = []
    seen: set[Edge] = set()
    end = time.monotonic() + seconds
    queue = list(target.seeds)
    while (queue or time.monotonic() < end) and len(report.failures) < max_failures:
        data = queue.pop() if queue else mutate(rng.choice(corpus or [b""]), rng, target.words, corpus)
        edges: set[Edge] = set()
        error = run_traced(target.run, data, edges)
        report.num_runs += 1
        if error is not None:
            report.failures.append((data, error))
        elif not edges <= seen:
            seen |= edges
            corpus.append(data)
    report.num_edges = len(seen)
    return report


def run_traced(run: Callable[[bytes], object], data: bytes, edges: set[Edge]) -> str | None:
    """Run the target, add each pair of lines that ran one after the other, and return what went wrong."""
    before: Edge = (None, 0, 0)

    def trace_line(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal before
        before = (frame.f_code, before[2] if before[0] is frame.f_code else 0, frame.f_lineno)
        edges.add(before)
        return trace_line

    def trace_call(frame: FrameType, event: str, argument: Any) -> Any:
        return trace_line if frame.f_code.co_filename.startswith(PACKAGE) else None

    previous, started = sys.gettrace(), time.thread_time()
    sys.settrace(trace_call)
    try:
        run(data)
    except PoolingError:
        pass
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also the panics of libraries in Rust
        return repr(error)
    finally:
        sys.settrace(previous)
    elapsed_s = time.thread_time() - started
    return f"took {elapsed_s:.1f} s of CPU time" if elapsed_s > MAX_CPU_S else None


def mutate(data: bytes, rng: random.Random, words: Sequence[bytes], corpus: Sequence[bytes]) -> bytes:
    for _ in range(rng.choice((1, 1, 2, 4, 8))):
        start = rng.randrange(len(data) + 1)
        end = min(len(data), start + rng.choice((0, 1, 1, 2, 4, 8, 32)))
        number = rng.choice(NUMBERS)
        match rng.randrange(8):
            case 0:
                data = data[:start] + data[end:]
            case 1:
                data = data[:start] + bytes([rng.randrange(256)]) + data[start + 1 :]
            case 2 if data and start < len(data):
                data = data[:start] + bytes([data[start] ^ 1 << rng.randrange(8)]) + data[start + 1 :]
            case 3:
                data = data[:end] + data[start:end] * rng.choice((1, 2, 50)) + data[end:]
            case 4 if words:
                data = data[:start] + rng.choice(words) + data[end:]
            case 5:
                size = rng.choice((1, 2, 4, 8))
                packed = (number % (1 << 8 * size)).to_bytes(size, rng.choice(("little", "big")))
                data = data[:start] + packed + data[start + size :]
            case 6:
                data = data[:start] + str(number).encode() + data[end:]
            case 7 if corpus:
                other = rng.choice(corpus)
                data = data[:start] + other[rng.randrange(len(other) + 1) :]
    return data[:MAX_BYTES]
