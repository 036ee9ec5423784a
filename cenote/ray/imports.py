"""Import Ray, an optional dependency."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from cenote.errors import BadRequest
from cenote.utils.install_commands import install_command


def import_ray(module: str = "ray") -> Any:
    """Return Ray, or one of its modules; the error names the packages."""
    try:
        return import_module(module)
    except ImportError as error:
        raise BadRequest(f"{module} cannot be imported ({error}): {install_command('ray')}") from None


def connect(address: str | None = None) -> Any:
    """Connect to a cluster unless this process is connected; without an address or RAY_ADDRESS, start one here."""
    ray = import_ray()
    if not ray.is_initialized():
        # not None: Ray would look for a cluster that an earlier process has left behind
        address = address or os.environ.get("RAY_ADDRESS") or "local"
        ray.init(address=address, log_to_driver=False, include_dashboard=False if address == "local" else None)
    return ray
