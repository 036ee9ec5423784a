"""`make test-ray`, as a test: a cluster waits more than it computes, so it shares the cores with the other tests.

Needs the package index, from which the environment with Ray is made.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.suite import CERTIFICATES

ROOT = Path(__file__).parents[1]


@pytest.mark.timeout(2400)
def test_ray_data_and_ray_serve_run_on_a_cluster_of_two_nodes(tmp_path: Path) -> None:
    hidden = ("PYTEST_", "MAKE", "SSL_CERT_DIR")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(hidden)} | CERTIFICATES
    output = tmp_path / "output.txt"

    try:
        with output.open("wb") as file:
            done = subprocess.run(["make", "test-ray"], cwd=ROOT, env=environment, stdout=file, stderr=file)
    finally:  # also if the time is over
        print(output.read_text(errors="replace"), file=sys.stderr)

    assert done.returncode == 0
