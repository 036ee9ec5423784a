"""Name to thing, and an error that lists the names there are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Registry(Generic[T]):
    """A table that explains itself when asked for what it does not hold."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """A decorator that files what it decorates under `name`."""

        def file(thing: T) -> T:
            if name in self._entries:
                raise ValueError(f"two things are called {self.kind} {name!r}")
            self._entries[name] = thing
            return thing

        return file

    def __getitem__(self, name: str) -> T:
        try:
            return self._entries[name]
        except KeyError:
            known = ", ".join(sorted(self._entries))
            raise LookupError(f"no {self.kind} is called {name!r}; there are: {known}") from None

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)
