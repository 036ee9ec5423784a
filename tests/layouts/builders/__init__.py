"""Functions that write folders which the keys of a layout cannot describe, by area."""

from __future__ import annotations

import pkgutil
from importlib import import_module


def load_builders() -> None:
    """Import every module of this package, so that its builders are registered."""
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        import_module(module.name)
