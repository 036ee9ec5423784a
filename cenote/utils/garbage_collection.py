"""Pause the collection of garbage while modules are imported."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collections() -> Iterator[None]:
    """Collect no garbage, and exempt from later collections what is made meanwhile: for imports and tables, which stay.

    A tenth of the time of an import would go into looking for garbage among modules and classes.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
