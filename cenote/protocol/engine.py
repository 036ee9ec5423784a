"""The Engine protocol: the interface that the HTTP server uses, implemented in-process and over a socket."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from cenote.errors import PoolingError
from cenote.protocol.input_types import Input
from cenote.protocol.model_info import ModelInfo
from cenote.protocol.requests import EntityRequest, PluginRequest, PoolRequest, ScoreRequest
from cenote.protocol.results import EntityResult, IOProcessorResult, PoolResult, ScoreResult, TokenizeResult
from cenote.utils.metrics import MetricFamily

# restarting: a new engine process is being started; failed: they exit again and again, or none could load the model;
# stopped: it will not come back
EngineStatus = Literal["loading", "ready", "restarting", "failed", "stopped"]
# of a model: also without engine processes, and while they finish their last requests
ModelStatus = EngineStatus | Literal["unloaded", "unloading"]


class Engine(Protocol):
    """An engine as the HTTP server sees it, in the same process or in another one."""

    @property
    def model_info(self) -> ModelInfo: ...

    @property
    def status(self) -> EngineStatus: ...

    @property
    def dead_error(self) -> PoolingError | None:
        """Why the engine does not answer requests; None while it does."""
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
        return_offsets: bool = False,
        mm_processor_kwargs: Mapping[str, Any] | None = None,
        max_tokens: int | None = None,
    ) -> TokenizeResult:
        """Return the tokens of a prompt; raise if they are more than `max_tokens`."""
        ...

    async def detokenize(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str: ...

    async def process(self, request: PluginRequest) -> IOProcessorResult:
        """Run the IO processor plugin: its pre-processing, the model, its post-processing."""
        ...

    async def load_adapter(self, name: str, path: str, *, in_place: bool = False) -> None:
        """Load a LoRA adapter from a folder or the hub; `in_place` replaces a loaded adapter of the same name."""
        ...

    async def unload_adapter(self, name: str) -> None:
        """Reject new requests for the adapter and free its weights once those in flight have finished."""
        ...

    async def collect_metrics(self) -> list[MetricFamily]:
        """Return a snapshot of all metrics."""
        ...
