"""Registry: a mapping from names to objects, filled by a decorator."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn, TypeVar

T = TypeVar("T")


class Registry(dict[str, T]):
    """A mapping whose lookup errors list the registered names."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def register(self, name: str) -> Callable[[T], T]:
        """Return a decorator that registers an object under `name`."""

        def decorate(entry: T) -> T:
            if name in self:
                raise ValueError(f"{self.kind} {name!r} is registered twice")
            self[name] = entry
            return entry

        return decorate

    def __missing__(self, name: str) -> NoReturn:
        raise LookupError(f"unknown {self.kind} {name!r}; available: {', '.join(sorted(self))}")
