"""Locks that processes share: a holder that is stopped ends the wait, one that works does not."""

from __future__ import annotations

import itertools
import threading
import time
from pathlib import Path

import pytest

from cenote.utils.file_lock import lock_file


def test_a_lock_that_another_one_keeps_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"

    with (
        lock_file(path, 1),
        pytest.raises(TimeoutError, match=r"held this lock for 0.05 s .*/lock"),
        lock_file(path, 0.05),
    ):
        pass
    with lock_file(path, 0.05):
        pass


def test_the_wait_goes_on_while_the_holder_works(tmp_path: Path) -> None:
    path, progress = tmp_path / "lock", itertools.count()
    held = threading.Event()

    def hold() -> None:
        with lock_file(path, 1):
            held.set()
            time.sleep(0.3)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()

    with lock_file(path, 0.05, lambda: next(progress)):
        pass
    holder.join()
