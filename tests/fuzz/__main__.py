"""`python -m tests.fuzz SECONDS [TARGET ...]`: fuzz each target for so long; inputs that fail are kept and printed."""

from __future__ import annotations

import logging
import random
import sys
import tempfile
from pathlib import Path

from tests.fuzz.coverage_fuzzer import fuzz
from tests.fuzz.targets import make_targets


def main(seconds: float, names: list[str]) -> int:
    logging.disable()
    seed, num_failures = random.randrange(1 << 32), 0
    with tempfile.TemporaryDirectory() as folder:
        targets = make_targets(Path(folder))
        for name in names or targets:
            report = fuzz(targets[name], seconds, seed)
            print(f"{name}: {report.num_runs:,} inputs, {report.num_edges:,} edges, seed {seed}", flush=True)
            for data, error in report.failures:
                num_failures += 1
                print(f"  {error}\n  {data!r}")
    return 1 if num_failures else 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2:]))
