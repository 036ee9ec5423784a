"""One tokenized input, and the request that waits for its answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

from torch import Tensor

from cenote.errors import PoolingError
from cenote.inputs.render import Rendered
from cenote.pooling.pooler import Ask

# one tensor for each thing that was asked
Answer: TypeAlias = "tuple[Tensor, ...] | PoolingError"


class Receiver(Protocol):
    """Whoever waits for the answer to a sequence."""

    @property
    def abandoned(self) -> bool: ...

    def start(self, now: float) -> None:
        """A batch that holds one of its sequences begins."""
        ...

    def receive(self, sequence: Sequence, answer: Answer) -> None: ...


@dataclass(slots=True, eq=False)
class Sequence:
    rendered: Rendered
    asks: tuple[Ask, ...]  # nearly always one
    receiver: Receiver
    index: int = 0  # which input of its request this is
    priority: int = 0
    adapter: str | None = None
    against: Tensor | None = None  # the rows of a query to compare it with

    @property
    def num_tokens(self) -> int:
        return len(self.rendered.token_ids)

    @property
    def abandoned(self) -> bool:
        return self.receiver.abandoned

    def answer(self, answer: Answer) -> None:
        self.receiver.receive(self, answer)
