"""Name to thing, and an error that lists the names there are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

Thing = TypeVar("Thing")


class Registry(Generic[Thing]):
    """A table that explains itself when asked for what it does not hold."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._things: dict[str, Thing] = {}

    def register(self, name: str) -> Callable[[Thing], Thing]:
        """A decorator that files what it decorates under `name`."""

        def file(thing: Thing) -> Thing:
            if name in self._things:
                raise ValueError(f"two things are called {self.kind} {name!r}")
            self._things[name] = thing
            return thing

        return file

    def __getitem__(self, name: str) -> Thing:
        try:
            return self._things[name]
        except KeyError:
            known = ", ".join(sorted(self._things))
            raise LookupError(f"no {self.kind} is called {name!r}; there are: {known}") from None

    def __contains__(self, name: object) -> bool:
        return name in self._things

    def __iter__(self) -> Iterator[str]:
        return iter(self._things)
