"""The engine protocol: what the server needs of an engine, in this process or another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from cenote.errors import PoolingError
from cenote.protocol.input_types import Input
from cenote.utils.metrics import MetricFamily

if TYPE_CHECKING:
    pass
from cenote.protocol.model_info import ModelInfo
from cenote.protocol.requests import EntityRequest, PluginRequest, PoolRequest, ScoreRequest
from cenote.protocol.results import EntityResult, IOProcessorResult, PoolResult, ScoreResult, TokenizeResult


class Engine(Protocol):
    """What the server needs of an engine, in this process or another."""

    @property
    def model_info(self) -> ModelInfo: ...

    @property
    def dead_error(self) -> PoolingError | None:
        """What ended the engine, if it has ended."""
        ...

    async def pool(self, request: PoolRequest) -> list[PoolResult | PoolingError]: ...

    async def score(self, request: ScoreRequest) -> list[ScoreResult | PoolingError]: ...

    async def entities(self, request: EntityRequest) -> list[EntityResult]: ...

    async def tokenize(
        self,
        prompt: Input,
        *,
        add_special_tokens: bool = True,
        return_token_strs: bool = False,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
    ) -> TokenizeResult: ...

    async def detokenize(self, token_ids: Sequence[int]) -> str: ...

    async def process(self, request: PluginRequest) -> IOProcessorResult:
        """Have the IO processor plugin turn its own kind of input into its own kind of answer."""
        ...

    async def load_adapter(self, name: str, path: str, *, in_place: bool = False) -> None:
        """Let requests name one more adapter, from a folder or the hub; `in_place`: instead of the one of that name."""
        ...

    async def unload_adapter(self, name: str) -> None:
        """Take no more requests for it, and forget it when those that came are answered."""
        ...

    async def collect_metrics(self) -> list[MetricFamily]:
        """Everything that is counted, as it stands now."""
        ...

    def observe_http(self, handler: str, method: str, status: int, seconds: float) -> None: ...
