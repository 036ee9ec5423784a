"""The commands of examples/corpus/README.md, on the cluster of the tests: another one would start a dozen processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.docs.code_blocks import ROOT, read_blocks

PAGE = "examples/corpus/README.md"


def test_the_first_block_of_the_readme_finds_chunks_of_the_pages(cluster: Any, tmp_path: Path) -> None:
    lines = read_blocks(PAGE)[0].code.replace("/tmp/store", str(tmp_path)).splitlines()
    commands = [line for line in lines if line.startswith("python ")]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # instead of the environment of the reader
    variables = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "RAY_ADDRESS": cluster.address}

    done = subprocess.run(
        ["bash", "-ec", "\n".join(commands)], cwd=(ROOT / PAGE).parent, env=variables, capture_output=True, text=True
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert len(commands) == 2
    assert " chunks embedded, 0 failed" in done.stdout
    scores = [float(score) for score in re.findall(r"^(\d\.\d+)  \w+\.md#\d+$", done.stdout, re.MULTILINE)]
    assert len(scores) == 5 and scores == sorted(scores, reverse=True) and scores[0] > 0.4
    assert (tmp_path / "throughput.svg").read_text().startswith("<svg")
