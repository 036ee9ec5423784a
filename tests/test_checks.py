"""`make check`, as tests."""

from __future__ import annotations

import pytest

from tests import checks


@pytest.mark.parametrize("name", checks.CHECKS)
def test_the_code_passes_the_check_of(name: str) -> None:
    status, printed = checks.run(name)

    assert status == 0, printed


def test_a_check_that_was_started_early_has_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(checks.CHECKS, "version", ["python"])
    monkeypatch.setattr(checks, "RUN_AND_TELL", checks.RUN_AND_TELL.replace('"$0"', '"$0" -c "print(7); exit(3)"'))
    monkeypatch.setattr(checks, "started", {})

    checks.start("version")
    try:
        assert checks.run("version") == (3, "7\n")
    finally:
        checks.stop()
