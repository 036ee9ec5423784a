"""Servers with a tiny model, and how much of each fault is injected."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lab.chaos.session import ChaosOptions
from tests.tiny import tiny_bert

# FAULT_TESTS=full injects as many faults as the promises say; by default a few of each
IS_FULL = os.environ.get("FAULT_TESTS") == "full"


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faults")
    tiny_bert(folder)
    return folder


@pytest.fixture
def options(folder: Path, tmp_path: Path) -> ChaosOptions:
    return ChaosOptions(
        model=str(folder),
        serve_args=("--dtype", "float32"),
        environment={"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        log=tmp_path / "server.log",
        max_fault_s=2.0,
        step_timeout_s=4.0,
    )
