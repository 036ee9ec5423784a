"""Helpers for the loading tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from cenote.errors import LoadError

SHARED = Path(__file__).parents[2] / ".." / "shared"


@contextmanager
def _refused(*words: str) -> Iterator[None]:
    with pytest.raises(LoadError) as caught:
        yield
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message


@pytest.fixture
def refused() -> Callable[..., AbstractContextManager[None]]:
    """Expect a one-line LoadError that contains these words."""
    return _refused


@pytest.fixture(scope="session")
def shared() -> Path:
    """Return the folder of real tokenizers and checkpoints; skip if there is none."""
    if not SHARED.is_dir():
        pytest.skip("no folder `shared` with real tokenizers and models beside the project")
    return SHARED
