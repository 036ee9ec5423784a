"""FrontEndEngine: how a request is prepared for engine processes."""

from __future__ import annotations

from abc import abstractmethod
from functools import partial

from cenote.api.front_ends.availability import Availability
from cenote.api.front_ends.text_model import TextModel, TextModelCache
from cenote.engine.text_engine import TextEngine
from cenote.errors import BadRequest, PoolingError
from cenote.inputs.listwise_prompt import join_listwise
from cenote.protocol.engine import EngineStatus
from cenote.protocol.input_types import compute_inputs_size
from cenote.protocol.model_info import ModelInfo
from cenote.protocol.requests import PoolRequest
from cenote.protocol.results import PoolResult


class FrontEndEngine(TextEngine):
    availability: Availability
    text_models: TextModelCache

    @property
    @abstractmethod
    def model_info(self) -> ModelInfo: ...

    @property
    @abstractmethod
    def has_model_info(self) -> bool: ...

    @property
    def status(self) -> EngineStatus:
        """The supervisor may report an engine process before its link tells which model it has: it still loads."""
        status = self.availability.status
        return "loading" if status == "restarting" and not self.has_model_info else status

    @property
    def dead_error(self) -> PoolingError | None:
        return self.availability.dead_error

    @abstractmethod
    async def pool_part(self, request: PoolRequest, first: int | None = None) -> list[PoolResult | PoolingError]:
        """Pool a request whose images are preprocessed, or a part of one; `first`: the replica for it, if available."""

    async def _prepare(self, request: PoolRequest) -> PoolRequest:
        """Wait until an engine has told its model, and return the request as that model reads it."""
        if (texts := self.text_models.last) is None:
            texts = await self.get_text_parts(request.deadline_at, compute_inputs_size(request.inputs))
        if not request.inputs:
            raise BadRequest("You must pass at least one prompt", param="input")
        if texts.tasks.scoring.model.preferred_score_type == "listwise":
            return join_listwise(request, self.model_info.architecture)
        return request

    async def _pool_prepared(self, request: PoolRequest, first: int | None = None) -> list[PoolResult | PoolingError]:
        assert self.text_models.last is not None, "it has prepared the request"
        workers = self.text_models.last.image_workers
        return await self._pool_in_parts(request, workers, partial(self.pool_part, first=first))

    async def get_text_parts(self, deadline_at: float, num_chars: int) -> TextModel:
        if self.text_models.last is None or not self.availability.is_available:
            await self.availability.wait(deadline_at, None, num_chars)
        assert self.text_models.last is not None, "RendererInfo comes before EngineReady"
        return self.text_models.last
