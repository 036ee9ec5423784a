"""What `LLM` returns: the answer, the tokens it came from, and the names by which programs read them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, Self, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor

from cenote.errors import BadRequest
from cenote.protocol.results import Entity


@dataclass(slots=True, eq=False)
class PoolingOutput:
    data: Tensor  # on the CPU, a view of the answers of its batch

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.data.clone(),)  # a view would be saved with its whole batch


class EmbeddingOutput(PoolingOutput):
    """A vector; the list of Python floats is made when somebody reads it."""

    __slots__ = ()

    def __init__(self, data: Tensor) -> None:
        if data.ndim != 1:
            raise BadRequest("pooled_data should be a 1-D embedding vector")
        self.data = data

    @property
    def embedding(self) -> list[float]:
        values: list[float] = self.data.tolist()
        return values

    @property
    def hidden_size(self) -> int:
        return self.data.shape[0]

    def __repr__(self) -> str:
        return f"EmbeddingOutput(hidden_size={self.hidden_size})"


class ClassificationOutput(PoolingOutput):
    """A probability, or a logit, for every class."""

    __slots__ = ()

    def __init__(self, data: Tensor) -> None:
        if data.ndim != 1:
            raise BadRequest("pooled_data should be a 1-D probability vector")
        self.data = data

    @property
    def probs(self) -> list[float]:
        values: list[float] = self.data.tolist()
        return values

    @property
    def num_classes(self) -> int:
        return self.data.shape[0]

    def __repr__(self) -> str:
        return f"ClassificationOutput(num_classes={self.num_classes})"


class SparseEmbeddingOutput(PoolingOutput):
    """The entries of the vocabulary that have a weight above zero, in order of id."""

    __slots__ = ("_tokens",)

    def __init__(self, data: Tensor, tokens: Callable[[list[int]], list[str]] | list[str]) -> None:
        if data.ndim != 2 or data.shape[1] != 2:
            raise BadRequest("pooled_data should be rows of token id and weight")
        self.data = data
        self._tokens = tokens  # or who knows how the vocabulary writes them

    @property
    def token_ids(self) -> list[int]:
        ids: list[int] = self.data[:, 0].int().tolist()
        return ids

    @property
    def weights(self) -> list[float]:
        values: list[float] = self.data[:, 1].tolist()
        return values

    @property
    def tokens(self) -> list[str]:
        if callable(self._tokens):
            self._tokens = self._tokens(self.token_ids)
        return self._tokens

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.data.clone(), self.tokens)

    def __repr__(self) -> str:
        return f"SparseEmbeddingOutput(num_entries={len(self.data)})"


class CombinedOutput(PoolingOutput):
    """What several tasks say to one prompt: `outputs["embed"].data`, in the order in which they were asked."""

    __slots__ = ("task_outputs",)

    def __init__(self, task_outputs: Mapping[str, PoolingOutput]) -> None:
        self.task_outputs = dict(task_outputs)

    def __getitem__(self, task: str) -> PoolingOutput:
        if task not in self.task_outputs:
            raise LookupError(f"no task {task!r} was asked for; there are: {', '.join(self.task_outputs)}")
        return self.task_outputs[task]

    @property
    def data(self) -> Tensor:  # type: ignore[override]
        """All numbers in one row, task after task."""
        return torch.cat([part.data.flatten() for part in self.task_outputs.values()])

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
    truncated: bool  # what lies behind the model's length was not looked at


OutputT = TypeVar("OutputT")
TokenIds: TypeAlias = "np.ndarray[Any, np.dtype[np.int32]]"


@dataclass(slots=True, eq=False)
class ResolvedOutput(Generic[OutputT]):
    """What there is to say to one prompt."""

    outputs: OutputT
    token_ids: TokenIds
    num_input_tokens: int  # before truncation


@dataclass(frozen=True)
class LazyResults(Generic[OutputT]):
    """The answers to many prompts, in arrays: an object for each is made when somebody reads it."""

    make_output: Callable[..., OutputT]  # of the tensors that answer a prompt, one for each task
    get_tensors: Callable[[], Sequence[Sequence[Tensor]]]  # for each task the tensors of all prompts
    token_ids: TokenIds
    offsets: np.ndarray[Any, Any]  # where the tokens of each prompt begin, and the end
    num_input_tokens: np.ndarray[Any, Any]

    @cached_property
    def _tensors(self) -> Sequence[Sequence[Tensor]]:
        return self.get_tensors()

    def resolve(self, index: int) -> ResolvedOutput[OutputT]:
        start, end = self.offsets[index : index + 2]
        made = self.make_output(*(tensors[index] for tensors in self._tensors))
        return ResolvedOutput(made, self.token_ids[start:end], int(self.num_input_tokens[index]))


class RequestOutput(Generic[OutputT]):
    """One answer of a call."""

    __slots__ = ("_results", "_resolved", "_index", "request_id")

    num_cached_tokens = 0
    finished = True
    _results: LazyResults[OutputT]
    _resolved: ResolvedOutput[OutputT] | None  # None until somebody looks
    _index: int

    def __init__(
        self, request_id: str, outputs: OutputT, token_ids: TokenIds, num_input_tokens: int | None = None
    ) -> None:
        self.request_id = request_id
        num_input_tokens = len(token_ids) if num_input_tokens is None else num_input_tokens
        self._resolved = ResolvedOutput(outputs, token_ids, num_input_tokens)

    @classmethod
    def from_lazy(cls, results: LazyResults[OutputT], request_ids: Iterable[int]) -> list[Self]:
        """One for each of the answers, which knows no more than its place among them."""
        made = []
        for place, number in enumerate(request_ids):
            output = cls.__new__(cls)
            output.request_id = str(number)
            output._resolved = None
            output._results = results
            output._index = place
            made.append(output)
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        found = self._resolve()  # what else lies in those arrays is not for whoever saves this
        return _restore, (type(self), self.request_id, found.outputs, found.token_ids, found.num_input_tokens)

    def _resolve(self) -> ResolvedOutput[OutputT]:
        if self._resolved is None:
            self._resolved = self._results.resolve(self._index)
        return self._resolved

    @property
    def outputs(self) -> OutputT:
        return self._resolve().outputs

    @outputs.setter
    def outputs(self, outputs: OutputT) -> None:
        self._resolve().outputs = outputs

    @property
    def prompt_token_ids(self) -> list[int]:
        ids: list[int] = self._resolve().token_ids.tolist()
        return ids

    @prompt_token_ids.setter
    def prompt_token_ids(self, ids: Sequence[int]) -> None:  # plugins cut special tokens off
        self._resolve().token_ids = np.asarray(ids, dtype=np.int32)

    @property
    def num_prompt_tokens(self) -> int:
        return len(self._resolve().token_ids)

    @property
    def num_input_tokens(self) -> int:
        """Before truncation."""
        return self._resolve().num_input_tokens

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(request_id={self.request_id!r}, outputs={self.outputs!r}, "
            f"prompt_token_ids={self.prompt_token_ids}, num_cached_tokens=0, finished=True)"
        )


def _restore(output_type: type[RequestOutput[Any]], *values: Any) -> RequestOutput[Any]:
    output = output_type.__new__(output_type)
    RequestOutput.__init__(output, *values)
    return output


class PoolingRequestOutput(RequestOutput[PoolingOutput]):
    __slots__ = ()


class PluginRequestOutput(PoolingRequestOutput):
    """What an IO processor plugin made of the answers: `outputs` is an object of its own kind."""

    __slots__ = ()

    def __init__(self, outputs: Any) -> None:
        super().__init__("", outputs, np.zeros(0, dtype=np.int32))

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
