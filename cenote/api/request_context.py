"""One request on its way through a handler: the engine it asks, and what the reply's head will say of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

from cenote.api.model_names import is_served, served_names
from cenote.api.replies import AnswerList, Entry, TokenCounts, Usage
from cenote.config.engine import ServerConfig
from cenote.errors import BadRequest, UnknownModel
from cenote.protocol.input_types import Input
from cenote.protocol.requests import (
    About,
    Engine,
    EntityRequest,
    PluginRequest,
    Pooled,
    PoolRequest,
    Scored,
    ScoreRequest,
    Tagged,
    Timing,
    Tokenized,
)

Answer = TypeVar("Answer", Pooled, Scored)
# of a score request, and of a pool request, which may have one for each input
Adapter = TypeVar("Adapter", str | None, str | Sequence[str | None] | None)


class Call:
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
    def about(self) -> About:
        return self.engine.about

    @property
    def model(self) -> str:
        """What replies call the model: the first of its names, whichever was asked for."""
        return self.names[0]

    @property
    def names(self) -> Sequence[str]:
        return served_names(self.settings, self.about)

    def check_model(self, name: str | None, *, param: str | None = None) -> None:
        """One of the model's names, or the name of an adapter, which then reads all inputs."""
        if name is None or name in self.names:
            return
        if name in self.about.added_adapters:
            self.adapter = name
        elif not self.settings.skip_model_name_validation and not is_served(name, self.settings, self.about):
            raise UnknownModel(f"The model `{name}` does not exist.", param=param)

    def check_count(self, count: int, name: str) -> None:
        if count > self.settings.max_request_items:
            raise BadRequest(
                f"{name} has {count} items, one request takes at most {self.settings.max_request_items}; "
                "send several, or raise --max-request-items",
                param=name,
            )

    async def pool(self, request: PoolRequest) -> list[Pooled]:
        """All answers, or the error of the first input that failed."""
        self.check_count(len(request.inputs), "input")
        self.has_token_ids = bool(request.inputs) and isinstance(request.inputs[0], list)
        adapter = self._adapter(request.adapter)
        request = replace(request, adapter=adapter, tenant=self.tenant, timing=self.timing)
        return self._counted(await self.engine.pool(request))

    async def score(self, request: ScoreRequest) -> list[Scored]:
        self.check_count(len(request.queries), "queries")
        self.check_count(len(request.documents), "documents")
        adapter = self._adapter(request.adapter)
        request = replace(request, adapter=adapter, tenant=self.tenant, timing=self.timing)
        return self._counted(await self.engine.score(request))

    async def entities(self, request: EntityRequest) -> list[Tagged]:
        self.check_count(len(request.pool.inputs), "input")
        adapter = self._adapter(request.pool.adapter)
        pool = replace(request.pool, adapter=adapter, tenant=self.tenant, timing=self.timing)
        return self._counted(await self.engine.entities(replace(request, pool=pool)))

    async def tokenize(self, item: Input, **how: Any) -> Tokenized:
        began = time.monotonic()
        tokenized = await self.engine.tokenize(item, **how)
        self.timing.tokenize += time.monotonic() - began
        return tokenized

    async def process(self, request: PluginRequest) -> Any:
        processed = await self.engine.process(replace(request, tenant=self.tenant, timing=self.timing))
        self.num_items += processed.num_inputs
        self.num_tokens += processed.num_tokens
        self.num_truncated += processed.num_truncated
        return processed.data

    def _adapter(self, asked: Adapter) -> Adapter:
        if self.adapter is not None and asked not in (None, self.adapter):
            raise BadRequest(f"model is the adapter {self.adapter!r}, adapter is {asked!r}; give one", param="adapter")
        return asked if self.adapter is None else self.adapter

    def identity(self, prefix: str) -> str:
        return f"{prefix}-{self.request_id}"

    def usage(self) -> Usage:
        return Usage(self.num_tokens, self.num_tokens)

    def answers(self, prefix: str, data: list[Entry]) -> AnswerList[Entry]:
        return AnswerList(self.identity(prefix), "list", self.created, self.model, data, self.usage())

    def token_counts(self, answer: Pooled | Scored | Tagged, wanted: bool | None) -> TokenCounts | None:
        """What a request that wants to know is told about one of its inputs."""
        if not wanted:
            return None
        lost = max(0, answer.num_input_tokens - answer.num_tokens)
        return TokenCounts(answer.num_tokens, answer.num_input_tokens, lost, not answer.input_tokens_exact)

    def headers(self) -> dict[str, str]:
        """What every reply says about its inputs and where the time went."""
        timing = self.timing
        parts = (("queue", timing.queue), ("tokenize", timing.tokenize), ("inference", timing.inference))
        return {
            "x-prompt-tokens": str(self.num_tokens),
            "x-truncated-inputs": str(self.num_truncated),
            "server-timing": ", ".join(f"{name};dur={seconds * 1000:.2f}" for name, seconds in parts),
        }

    def _counted(self, answers: Sequence[Any]) -> list[Any]:
        self.num_items += len(answers)
        self.num_tokens += sum([answer.num_tokens for answer in answers])
        self.num_truncated += sum([answer.truncated for answer in answers])
        return cast("list[Any]", answers)
