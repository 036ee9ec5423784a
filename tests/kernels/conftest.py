"""Fixtures of the tests of kernels."""

from __future__ import annotations

import pytest

from cenote.kernels.cpu import packed_linear, threads


@pytest.fixture(autouse=True)
def use_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the small layers of tests use all threads that torch has: results must not depend on their number."""
    monkeypatch.setattr(threads, "ROWS_AT_ONCE", 1 << 40)
    monkeypatch.setattr(packed_linear, "MIN_WORK_OF_LINEAR", 0)
