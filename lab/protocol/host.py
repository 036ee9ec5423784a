"""Host: the simulated machine as its processes see it."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Protocol

from lab.protocol.connection import End
from lab.protocol.device import Batch, Tokens
from lab.protocol.virtual_loop import VirtualLoop


class Host(Protocol):
    loop: VirtualLoop
    random: Random
    channels: list[End]  # of front-ends to the supervisor
    accepted: set[Tokens]  # inputs that an engine process had

    @property
    def process_ids(self) -> Iterator[int]: ...

    def check_batch(self, batch: Batch, /) -> None: ...
