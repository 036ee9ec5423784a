"""What the engine returns for requests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cenote.errors import PoolingError

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor
from cenote.protocol.params import Task


@dataclass(slots=True)
class PoolResult:
    """The answer to one input: a tensor beside the engine, an array where it came from another process."""

    data: Tensor
    token_ids: np.ndarray[Any, np.dtype[np.int32]]
    num_tokens: int  # as the model read them
    num_input_tokens: int  # before truncation
    is_input_count_exact: bool = True  # False where a huge text was cut before all of it was counted
    extra_data: Mapping[Task, Tensor] = field(default_factory=dict)  # the answers to the request's further tasks

    @property
    def truncated(self) -> bool:
        return self.num_tokens < self.num_input_tokens or not self.is_input_count_exact


class PoolResultBatch(list[PoolResult | PoolingError]):
    """Answers that are vectors of one size, every one a row of one array: [inputs, size]."""

    def __init__(self, results: Iterable[PoolResult], rows: Tensor | np.ndarray[Any, Any]) -> None:
        super().__init__(results)
        self.rows = rows


@dataclass(slots=True)
class ScoreResult:
    """The score of one pair."""

    score: float
    token_ids: np.ndarray[Any, np.dtype[np.int32]]
    num_tokens: int
    num_input_tokens: int  # before truncation
    is_input_count_exact: bool = True

    @property
    def truncated(self) -> bool:
        return self.num_tokens < self.num_input_tokens or not self.is_input_count_exact


@dataclass(frozen=True, slots=True, kw_only=True)
class Entity:
    """A part of a text and its class: merged tokens, or a single one where `index` says which."""

    label: str  # PER; of a single token as the model names it, B-PER
    score: float
    word: str  # its tokens as the tokenizer puts them together
    start: int  # counted in characters of the text as it was sent
    end: int
    text: str  # what stands there
    index: int | None = None

    @property
    def entity_group(self) -> str:
        return self.label

    @property
    def entity(self) -> str:
        return self.label

    def as_dict(self) -> dict[str, Any]:
        """As Transformers' pipeline writes it, and the text."""
        name: dict[str, Any] = {"entity_group": self.label} if self.index is None else {"entity": self.label}
        values = {"score": self.score, "word": self.word, "start": self.start, "end": self.end, "text": self.text}
        return name | values | ({} if self.index is None else {"index": self.index})


@dataclass(slots=True)
class EntityResult:
    """The entities of one text, in their order."""

    entities: list[Entity]
    token_ids: np.ndarray[Any, np.dtype[np.int32]]
    num_tokens: int  # as the model read them, in windows those twice that lie in two
    num_input_tokens: int  # before truncation
    is_input_count_exact: bool = True

    @property
    def truncated(self) -> bool:
        return self.num_tokens < self.num_input_tokens or not self.is_input_count_exact


@dataclass(slots=True)
class IOProcessorResult:
    """What the plugin made of it, in plain values, and what was read on the way."""

    data: Any = None
    num_inputs: int = 0
    num_tokens: int = 0
    num_truncated: int = 0

    def add_usage(self, results: Sequence[PoolResult | PoolingError]) -> None:
        pooled = [answer for answer in results if isinstance(answer, PoolResult)]
        self.num_inputs += len(pooled)
        self.num_tokens += sum(answer.num_tokens for answer in pooled)
        self.num_truncated += sum(answer.truncated for answer in pooled)


@dataclass(slots=True)
class TokenizeResult:
    """A prompt as the model would read it."""

    token_ids: list[int]
    token_strs: list[str] | None = None  # the same tokens as the vocabulary writes them, where asked for
