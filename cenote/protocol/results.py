"""Result types of the engine; imports no torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from cenote.errors import PoolingError
from cenote.protocol.params import Task

if TYPE_CHECKING:  # the supervisor imports this module, which needs no numpy
    import numpy as np

TokenIds: TypeAlias = "np.ndarray[Any, np.dtype[np.int32]]"
Float32Array: TypeAlias = "np.ndarray[Any, np.dtype[np.float32]]"


class TokenUsage:
    """Token counts of an input before and after truncation; mixin of the result types, which declare the fields."""

    __slots__ = ()

    num_tokens: int
    num_input_tokens: int
    is_input_count_exact: bool

    @property
    def truncated(self) -> bool:
        return self.num_tokens < self.num_input_tokens or not self.is_input_count_exact


class PoolResult(TokenUsage, msgspec.Struct):
    """The result of one input."""

    data: Float32Array
    token_ids: TokenIds
    num_tokens: int  # after truncation
    num_input_tokens: int  # before truncation
    is_input_count_exact: bool = True  # False if a very long text was cut before all of it was tokenized
    extra_data: Mapping[Task, Float32Array] = msgspec.field(default_factory=dict)  # by the request's extra_tasks


class PoolResultBatch(list[PoolResult | PoolingError]):
    """Results that are all vectors of one size: `rows` holds them as one array, [inputs, size]."""

    def __init__(self, results: Iterable[PoolResult | PoolingError], rows: Float32Array) -> None:
        super().__init__(results)
        self.rows = rows


class LateChunk(msgspec.Struct, frozen=True):
    """Where a chunk of a fixed number of tokens is in its text."""

    token_range: tuple[int, int]
    char_range: tuple[int, int] | None  # None: special tokens only


class LateChunkingMetadata(msgspec.Struct, frozen=True):
    """The chunks of a text, in the order of their vectors."""

    chunk_size: int
    input_tokens: int
    chunks: list[LateChunk]
    strategy: str = "fixed_tokens"


class ScoreResult(TokenUsage, msgspec.Struct):
    """The score of one pair."""

    score: float
    token_ids: TokenIds
    num_tokens: int
    num_input_tokens: int  # before truncation
    is_input_count_exact: bool = True
    num_repeated_tokens: int = 0  # of a query that was computed once and is counted by an earlier result

    @classmethod
    def from_pool(cls, score: float, result: PoolResult) -> ScoreResult:
        """Combine a score with the token counts of the input that it was computed from."""
        return cls(score, result.token_ids, result.num_tokens, result.num_input_tokens, result.is_input_count_exact)


class Entity(msgspec.Struct, frozen=True, kw_only=True):
    """A span of a text and its label: merged tokens, or the single token with number `index`."""

    label: str  # PER; for a single token as in the model's config, B-PER
    score: float
    word: str  # its tokens, decoded by the tokenizer
    start: int  # in characters of the original text
    end: int
    text: str  # the original text from start to end
    index: int | None = None

    @property
    def entity_group(self) -> str:
        return self.label

    @property
    def entity(self) -> str:
        return self.label

    def as_dict(self) -> dict[str, Any]:
        """Return the fields of Transformers' token-classification pipeline, and `text`."""
        name: dict[str, Any] = {"entity_group": self.label} if self.index is None else {"entity": self.label}
        values = {"score": self.score, "word": self.word, "start": self.start, "end": self.end, "text": self.text}
        return name | values | ({} if self.index is None else {"index": self.index})


class EntityResult(TokenUsage, msgspec.Struct):
    """The entities of one text, in order of position."""

    entities: list[Entity]
    token_ids: TokenIds
    num_tokens: int  # after truncation; tokens in the overlap of two windows count twice
    num_input_tokens: int  # before truncation
    is_input_count_exact: bool = True


class IOProcessorResult(msgspec.Struct):
    """Result of an IO processor plugin as JSON values, and the usage of its prompts."""

    data: Any = None
    num_inputs: int = 0
    num_tokens: int = 0
    num_truncated: int = 0

    def add_usage(self, results: Sequence[PoolResult | PoolingError]) -> None:
        pooled = [result for result in results if isinstance(result, PoolResult)]
        self.num_inputs += len(pooled)
        self.num_tokens += sum(result.num_tokens for result in pooled)
        self.num_truncated += sum(result.truncated for result in pooled)


class TokenizeResult(msgspec.Struct):
    """The token ids of a prompt."""

    token_ids: list[int]
    token_strs: list[str] | None = None  # the tokens as in the vocabulary, if requested
    offsets: list[tuple[int, int] | None] | None = None  # characters of each token, if requested; None: special token
