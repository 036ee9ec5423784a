"""Import Ray, an optional dependency."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from cenote.errors import BadRequest


def import_ray(module: str = "ray") -> Any:
    """Return Ray, or one of its modules; the error names the extra."""
    try:
        return import_module(module)
    except ImportError as error:
        raise BadRequest(f"{module} cannot be imported ({error}); pip install 'cenote[ray]'") from None


def connect(address: str | None = None) -> Any:
    """Connect to a cluster unless this process is connected; without an address, start one on this machine."""
    ray = import_ray()
    if not ray.is_initialized():
        ray.init(address=address, log_to_driver=False, include_dashboard=None if address else False)
    return ray
