"""The CPU levels that this machine has, to run tests under each of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cenote.kernels.cpu.library import CPULevel, load_level
from cenote.kernels.cpu_features import CPU_LEVEL, ISA_LEVELS, cpu_features


@contextmanager
def use_level(name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[CPULevel | None]:
    monkeypatch.setenv(CPU_LEVEL, name)
    yield load_level()
    monkeypatch.delenv(CPU_LEVEL)


def list_levels() -> list[str]:
    """Return the names of the levels of this CPU that the compiled library has."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        names = []
        for name in ISA_LEVELS[cpu_features().architecture]:
            with use_level(name, monkeypatch) as level:
                if level is not None and level.name == name:
                    names.append(name)
    return names


LEVELS = list_levels()
needs_level = pytest.mark.skipif(not LEVELS, reason="needs the compiled C library on aarch64 or x86-64")
