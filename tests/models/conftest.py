"""Fixtures of the tests of model families."""

from __future__ import annotations

import pytest


@pytest.fixture
def plain_linears(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the linear layers of a float32 model as torch modules, whose weights the test reads."""
    monkeypatch.setenv("CENOTE_CPU_LEVEL", "baseline")
