"""Output types of `LLM`: results with their request id and prompt token ids, under the names of vLLM."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import numpy as np

from cenote.errors import BadRequest, Overloaded, PoolingError
from cenote.protocol.results import Entity, LateChunk, LateChunkingMetadata, TokenIds
from cenote.utils.arrays import Array
from cenote.utils.tensors import HasData, TensorOnAccess, import_torch, is_tensor

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "ChunkEmbeddingOutput",
    "ClassificationOutput",
    "ClassificationRequestOutput",
    "CombinedOutput",
    "EmbeddingOutput",
    "EmbeddingRequestOutput",
    "EntitiesOutput",
    "EntitiesRequestOutput",
    "LateChunk",
    "LateChunkingMetadata",
    "LazyResults",
    "PluginRequestOutput",
    "PoolingOutput",
    "PoolingRequestOutput",
    "RequestError",
    "RequestOutput",
    "ResolvedOutput",
    "ScoringOutput",
    "ScoringRequestOutput",
    "SparseEmbeddingOutput",
    "SparseEmbeddingRequestOutput",
]


@dataclass(eq=False)
class PoolingOutput(HasData):
    __slots__ = ()

    data: TensorOnAccess = TensorOnAccess()  # on the CPU, a view of the results of its batch

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._copy_data(),)

    def _copy_data(self) -> Any:
        """Return the data alone: pickling a view would save the whole batch."""
        return self._data.clone() if is_tensor(self._data) else self._data.copy()


class EmbeddingOutput(PoolingOutput):
    """An embedding; converted to a list of floats on access."""

    __slots__ = ()

    def __init__(self, data: Array | Tensor) -> None:
        if data.ndim != 1:
            raise BadRequest("pooled_data should be a 1-D embedding vector")
        self.data = data

    @property
    def embedding(self) -> list[float]:
        values: list[float] = self._data.tolist()
        return values

    @property
    def hidden_size(self) -> int:
        return len(self._data)

    def __repr__(self) -> str:
        return f"EmbeddingOutput(hidden_size={self.hidden_size})"


class ChunkEmbeddingOutput(EmbeddingOutput):
    """The embedding of a chunk of a document, and where the chunk is: `document[start:end]`, in characters."""

    __slots__ = ("document_index", "start", "end")

    def __init__(self, data: Array | Tensor, document_index: int, start: int, end: int) -> None:
        super().__init__(data)
        self.document_index = document_index  # of its document among those of the call
        self.start = start
        self.end = end

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._copy_data(), self.document_index, self.start, self.end)

    def __repr__(self) -> str:
        place = f"document_index={self.document_index}, start={self.start}, end={self.end}"
        return f"ChunkEmbeddingOutput(hidden_size={self.hidden_size}, {place})"


class ClassificationOutput(PoolingOutput):
    """The probability, or logit, of every class."""

    __slots__ = ()

    def __init__(self, data: Array | Tensor) -> None:
        if data.ndim != 1:
            raise BadRequest("pooled_data should be a 1-D probability vector")
        self.data = data

    @property
    def probs(self) -> list[float]:
        values: list[float] = self._data.tolist()
        return values

    @property
    def num_classes(self) -> int:
        return len(self._data)

    def __repr__(self) -> str:
        return f"ClassificationOutput(num_classes={self.num_classes})"


class SparseEmbeddingOutput(PoolingOutput):
    """The token ids with a weight above zero, in ascending order."""

    __slots__ = ("_tokens",)

    def __init__(self, data: Array | Tensor, tokens: Callable[[list[int]], list[str]] | list[str]) -> None:
        if data.ndim != 2 or data.shape[1] != 2:
            raise BadRequest("pooled_data should be rows of token id and weight")
        self.data = data
        self._tokens = tokens  # or the function that converts ids to tokens

    @property
    def token_ids(self) -> list[int]:
        return list(map(int, self._data[:, 0].tolist()))

    @property
    def weights(self) -> list[float]:
        values: list[float] = self._data[:, 1].tolist()
        return values

    @property
    def tokens(self) -> list[str]:
        if callable(self._tokens):
            self._tokens = self._tokens(self.token_ids)
        return self._tokens

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._copy_data(), self.tokens)

    def __repr__(self) -> str:
        return f"SparseEmbeddingOutput(num_entries={len(self._data)})"


class CombinedOutput(PoolingOutput):
    """The outputs of combined tasks by name, in the order of the request: `outputs["embed"].data`."""

    __slots__ = ("task_outputs",)

    def __init__(self, task_outputs: Mapping[str, PoolingOutput]) -> None:
        self.task_outputs = dict(task_outputs)

    def __getitem__(self, task: str) -> PoolingOutput:
        if task not in self.task_outputs:
            raise LookupError(f"task {task!r} was not requested; available: {', '.join(self.task_outputs)}")
        return self.task_outputs[task]

    @property
    def data(self) -> Tensor:  # type: ignore[override]
        """The tensors of all tasks, flattened and concatenated."""
        parts: list[Any] = [output.data.flatten() for output in self.task_outputs.values()]
        data: Any = import_torch().cat(parts) if is_tensor(parts[0]) else np.concatenate(parts)
        return data  # type: ignore[no-any-return]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.task_outputs,)

    def __repr__(self) -> str:
        return f"CombinedOutput({', '.join(self.task_outputs)})"


@dataclass(slots=True)
class ScoringOutput:
    score: float


@dataclass(slots=True)
class EntitiesOutput:
    entities: list[Entity]
    truncated: bool  # the text was longer than max_model_len, and entities in its rest are missing


@dataclass(frozen=True, slots=True)
class RequestError:
    """Why one prompt failed while the others of its call did not."""

    code: str
    message: str
    retryable: bool = False

    @classmethod
    def from_exception(cls, error: PoolingError) -> RequestError:
        name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(error).__name__).lower()
        code = "validation_error" if isinstance(error, BadRequest) else error.code or name
        return cls(code, str(error), retryable=isinstance(error, Overloaded))

    def to_exception(self) -> PoolingError:
        if self.code == "validation_error":
            return BadRequest(self.message)
        return Overloaded(self.message) if self.retryable else PoolingError(self.message)


OutputT = TypeVar("OutputT")
NO_IDS: TokenIds = np.zeros(0, dtype=np.int32)


@dataclass(slots=True, eq=False)
class ResolvedOutput(Generic[OutputT]):
    """The output objects of one prompt."""

    outputs: OutputT | PoolingError  # the error of a prompt that failed
    token_ids: TokenIds
    num_input_tokens: int  # before truncation
    late_chunking: LateChunkingMetadata | None = None


@dataclass(frozen=True)
class LazyResults(Generic[OutputT]):
    """The results of many prompts as arrays; the output object of a prompt is made on access."""

    make_output: Callable[..., OutputT]  # from the arrays of a prompt, one per task
    get_arrays: Callable[[], Sequence[Sequence[Array]]]  # per task, the results of all prompts
    token_ids: TokenIds
    offsets: Array  # [prompts + 1], into token_ids
    num_input_tokens: Sequence[int] | Array

    @cached_property
    def _arrays(self) -> Sequence[Sequence[Array]]:
        return self.get_arrays()

    def resolve(self, index: int) -> ResolvedOutput[OutputT]:
        start, end = self.offsets[index : index + 2]
        output = self.make_output(*[arrays[index] for arrays in self._arrays])
        return ResolvedOutput(output, self.token_ids[start:end], int(self.num_input_tokens[index]))


class RequestOutput(Generic[OutputT]):
    """The result of one prompt, with vLLM's attributes."""

    __slots__ = ("_results", "_resolved", "_index", "request_id")

    num_cached_tokens = 0
    finished = True
    _results: LazyResults[OutputT]
    _resolved: ResolvedOutput[OutputT] | None  # None until accessed
    _index: int

    def __init__(
        self,
        request_id: str,
        outputs: OutputT | PoolingError,
        token_ids: TokenIds = NO_IDS,
        num_input_tokens: int | None = None,
        late_chunking: LateChunkingMetadata | None = None,
    ) -> None:
        self.request_id = request_id
        num_input_tokens = len(token_ids) if num_input_tokens is None else num_input_tokens
        self._resolved = ResolvedOutput(outputs, token_ids, num_input_tokens, late_chunking)

    @classmethod
    def from_lazy(cls, results: LazyResults[OutputT], request_ids: Iterable[int]) -> list[Self]:
        """Return an output per prompt; each holds only its index until it is accessed."""
        outputs = []
        for index, request_id in enumerate(request_ids):
            output = cls.__new__(cls)
            output.request_id = str(request_id)
            output._resolved = None
            output._results = results
            output._index = index
            outputs.append(output)
        return outputs

    def __reduce__(self) -> tuple[Any, ...]:
        resolved = self._resolve()  # pickling the shared arrays would save the results of other prompts
        values = resolved.outputs, resolved.token_ids, resolved.num_input_tokens, resolved.late_chunking
        return _restore, (type(self), self.request_id, *values)

    def _resolve(self) -> ResolvedOutput[OutputT]:
        if self._resolved is None:
            self._resolved = self._results.resolve(self._index)
        return self._resolved

    @property
    def outputs(self) -> OutputT:
        """The output; raises the error of a prompt that failed."""
        outputs = self._resolve().outputs
        if isinstance(outputs, PoolingError):
            raise outputs
        return outputs

    @outputs.setter
    def outputs(self, outputs: OutputT) -> None:
        self._resolve().outputs = outputs

    @property
    def error(self) -> RequestError | None:
        """Why this prompt failed, though the others of the call did not."""
        outputs = self._resolve().outputs
        return RequestError.from_exception(outputs) if isinstance(outputs, PoolingError) else None

    @property
    def late_chunking(self) -> LateChunkingMetadata | None:
        """The places of the chunks, of prompts with `late_chunking_params`."""
        return self._resolve().late_chunking

    @late_chunking.setter
    def late_chunking(self, metadata: LateChunkingMetadata | None) -> None:
        self._resolve().late_chunking = metadata

    @property
    def prompt_token_ids(self) -> list[int]:
        ids: list[int] = self._resolve().token_ids.tolist()
        return ids

    @prompt_token_ids.setter
    def prompt_token_ids(self, ids: Sequence[int]) -> None:  # for plugins, which may remove special tokens
        self._resolve().token_ids = np.asarray(ids, dtype=np.int32)

    @property
    def num_prompt_tokens(self) -> int:
        return len(self._resolve().token_ids)

    @property
    def num_input_tokens(self) -> int:
        """The number of prompt tokens before truncation."""
        return self._resolve().num_input_tokens

    def __repr__(self) -> str:
        error = "" if self.error is None else f", error={self.error!r}"
        return (
            f"{type(self).__name__}(request_id={self.request_id!r}, outputs={self._resolve().outputs!r}, "
            f"prompt_token_ids={self.prompt_token_ids}, num_cached_tokens=0, finished=True{error})"
        )


def _restore(output_type: type[RequestOutput[Any]], *values: Any) -> RequestOutput[Any]:
    output = output_type.__new__(output_type)
    RequestOutput.__init__(output, *values)
    return output


class PoolingRequestOutput(RequestOutput[PoolingOutput]):
    __slots__ = ()


class PluginRequestOutput(PoolingRequestOutput):
    """The result of an IO processor plugin: `outputs` is an object of the plugin."""

    __slots__ = ()

    def __init__(self, outputs: Any) -> None:
        super().__init__("", outputs)

    @property
    def num_cached_tokens(self) -> int:  # type: ignore[override]
        return int(getattr(self.outputs, "num_cached_tokens", 0))


class EmbeddingRequestOutput(RequestOutput[EmbeddingOutput]):
    __slots__ = ()


class ClassificationRequestOutput(RequestOutput[ClassificationOutput]):
    __slots__ = ()


class SparseEmbeddingRequestOutput(RequestOutput[SparseEmbeddingOutput]):
    __slots__ = ()


class ScoringRequestOutput(RequestOutput[ScoringOutput]):
    __slots__ = ()


class EntitiesRequestOutput(RequestOutput[EntitiesOutput]):
    __slots__ = ()
