"""A run of the suite ends with a table of the seconds of its folders."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_a_run_prints_the_seconds_of_each_folder_the_longest_first(tmp_path: Path) -> None:
    for folder, code in {"slow": "import time; time.sleep(0.3)", "quick": "pass"}.items():
        (tmp_path / "checks" / folder).mkdir(parents=True)
        (tmp_path / "checks" / folder / f"test_{folder}.py").write_text(f"def test_it() -> None:\n    {code}\n")
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", str(tmp_path), "-p", "tests.suite"]
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}

    done = subprocess.run([*command, "checks"], cwd=tmp_path, env=variables, capture_output=True, text=True)

    assert done.returncode == 0, done.stdout + done.stderr
    header, slow, quick, total = re.findall(r"^ +(?:seconds|\d+\.\d) .*$", done.stdout, re.MULTILINE)
    assert header.split() == ["seconds", "tests", "folder"]
    assert re.fullmatch(r" +\d+\.\d +1 +checks/slow", slow)
    assert re.fullmatch(r" +\d+\.\d +1 +checks/quick", quick)
    assert re.fullmatch(r" +\d+\.\d +2 +in all, in \d+ s(; the \d+ cores were idle for \d+% of it)?", total)
