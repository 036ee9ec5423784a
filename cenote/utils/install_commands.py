"""The pip commands that messages name: for optional packages, and to build the native code again."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

SOURCES = Path(__file__).parents[2]
TORCH_COMMAND_VARIABLE = "TORCH_COMMAND"  # which `make serve` sets


def install_command(extra: str) -> str:
    """Return the command that installs the packages of an extra.

    It names the packages, so that it is the same for a clone and for a wheel, and no index has to know Cenote.
    """
    from importlib.metadata import PackageNotFoundError, requires  # takes long, and only errors need it

    try:
        requirements = [requirement.partition(";") for requirement in requires("cenote") or ()]
    except PackageNotFoundError:  # sources on PYTHONPATH
        requirements = []
    packages = [name.strip() for name, _, marker in requirements if marker.strip() == f'extra == "{extra}"']
    return shlex.join(["pip", "install", *(packages or ["-e", f"{SOURCES}[{extra}]"])])


def torch_command() -> str:
    """Return the command that adds torch, which is that of the Makefile if `make serve` has started the server."""
    return os.environ.get(TORCH_COMMAND_VARIABLE) or install_command("torch")


def reinstall_command() -> str:
    """Return the command that builds Cenote again from its sources."""
    options = ["-e", str(SOURCES)] if (SOURCES / "pyproject.toml").is_file() else ["FOLDER_OF_THE_SOURCES"]
    return shlex.join(["pip", "install", "--force-reinstall", "--no-deps", *options])
