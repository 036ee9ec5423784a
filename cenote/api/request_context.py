"""One request on its way through a handler: the engine it asks, and what the reply's head will say of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

from cenote.api.model_names import get_served_names, is_served_name
from cenote.api.replies import AnswerList, EntryT, TokenCounts, Usage
from cenote.config.server import ServerConfig
from cenote.errors import BadRequest, UnknownModel
from cenote.protocol.engine import Engine
from cenote.protocol.input_types import Input
from cenote.protocol.model_info import ModelInfo
from cenote.protocol.requests import EntityRequest, PluginRequest, PoolRequest, ScoreRequest, Timing
from cenote.protocol.results import EntityResult, PoolResult, ScoreResult, TokenizeResult

ResultT = TypeVar("ResultT", PoolResult, ScoreResult)
# of a score request, and of a pool request, which may have one for each input
AdapterT = TypeVar("AdapterT", str | None, str | Sequence[str | None] | None)


class RequestContext:
    def __init__(self, engine: Engine, settings: ServerConfig, request_id: str, tenant: str = "") -> None:
        self.engine = engine
        self.settings = settings
        self.request_id = request_id
        self.tenant = tenant  # the digest of the API key that came along
        self.created = int(time.time())
        self.timing = Timing()
        self.num_items = 0  # inputs, or documents that were compared
        self.num_tokens = 0  # as the model read them
        self.num_truncated = 0  # inputs of which only a part was read
        self.has_token_ids = False  # some input came as numbers, which mean words in one vocabulary only
        self.adapter: str | None = None  # which the request calls its model

    @property
    def model_info(self) -> ModelInfo:
        return self.engine.model_info

    @property
    def model(self) -> str:
        """What replies call the model: the first of its names, whichever was asked for."""
        return self.model_names[0]

    @property
    def model_names(self) -> Sequence[str]:
        return get_served_names(self.settings, self.model_info)

    def check_model(self, name: str | None, *, param: str | None = None) -> None:
        """One of the model's names, or the name of an adapter, which then reads all inputs."""
        if name is None or name in self.model_names:
            return
        if name in self.model_info.external_adapters:
            self.adapter = name
        elif not self.settings.skip_model_name_validation and not is_served_name(name, self.settings, self.model_info):
            raise UnknownModel(f"The model `{name}` does not exist.", param=param)

    def check_num_items(self, count: int, name: str) -> None:
        if count > self.settings.max_request_items:
            raise BadRequest(
                f"{name} has {count} items, one request takes at most {self.settings.max_request_items}; "
                "send several, or raise --max-request-items",
                param=name,
            )

    async def pool(self, request: PoolRequest) -> list[PoolResult]:
        """All answers, or the error of the first input that failed."""
        self.check_num_items(len(request.inputs), "input")
        self.has_token_ids = bool(request.inputs) and isinstance(request.inputs[0], list)
        adapter = self._resolve_adapter(request.adapter)
        request = replace(request, adapter=adapter, tenant=self.tenant, timing=self.timing)
        return self._record_usage(await self.engine.pool(request))

    async def score(self, request: ScoreRequest) -> list[ScoreResult]:
        self.check_num_items(len(request.queries), "queries")
        self.check_num_items(len(request.documents), "documents")
        adapter = self._resolve_adapter(request.adapter)
        request = replace(request, adapter=adapter, tenant=self.tenant, timing=self.timing)
        return self._record_usage(await self.engine.score(request))

    async def entities(self, request: EntityRequest) -> list[EntityResult]:
        self.check_num_items(len(request.pool_request.inputs), "input")
        adapter = self._resolve_adapter(request.pool_request.adapter)
        pool = replace(request.pool_request, adapter=adapter, tenant=self.tenant, timing=self.timing)
        return self._record_usage(await self.engine.entities(replace(request, pool_request=pool)))

    async def tokenize(self, prompt: Input, **options: Any) -> TokenizeResult:
        began = time.monotonic()
        tokenized = await self.engine.tokenize(prompt, **options)
        self.timing.tokenize_s += time.monotonic() - began
        return tokenized

    async def process(self, request: PluginRequest) -> Any:
        processed = await self.engine.process(replace(request, tenant=self.tenant, timing=self.timing))
        self.num_items += processed.num_inputs
        self.num_tokens += processed.num_tokens
        self.num_truncated += processed.num_truncated
        return processed.data

    def _resolve_adapter(self, requested: AdapterT) -> AdapterT:
        if self.adapter is not None and requested not in (None, self.adapter):
            raise BadRequest(
                f"model is the adapter {self.adapter!r}, adapter is {requested!r}; give one", param="adapter"
            )
        return requested if self.adapter is None else self.adapter

    def make_response_id(self, prefix: str) -> str:
        return f"{prefix}-{self.request_id}"

    def make_usage(self) -> Usage:
        return Usage(self.num_tokens, self.num_tokens)

    def make_result_list(self, prefix: str, data: list[EntryT]) -> AnswerList[EntryT]:
        return AnswerList(self.make_response_id(prefix), "list", self.created, self.model, data, self.make_usage())

    def make_token_counts(
        self, result: PoolResult | ScoreResult | EntityResult, is_requested: bool | None
    ) -> TokenCounts | None:
        """What a request that wants to know is told about one of its inputs."""
        if not is_requested:
            return None
        lost = max(0, result.num_input_tokens - result.num_tokens)
        return TokenCounts(result.num_tokens, result.num_input_tokens, lost, not result.is_input_count_exact)

    def response_headers(self) -> dict[str, str]:
        """What every reply says about its inputs and where the time went."""
        timing = self.timing
        parts = (("queue", timing.queue_s), ("tokenize", timing.tokenize_s), ("inference", timing.inference_s))
        return {
            "x-prompt-tokens": str(self.num_tokens),
            "x-truncated-inputs": str(self.num_truncated),
            "server-timing": ", ".join(f"{name};dur={seconds * 1000:.2f}" for name, seconds in parts),
        }

    def _record_usage(self, results: Sequence[Any]) -> list[Any]:
        self.num_items += len(results)
        self.num_tokens += sum([answer.num_tokens for answer in results])
        self.num_truncated += sum([answer.truncated for answer in results])
        return cast("list[Any]", results)
