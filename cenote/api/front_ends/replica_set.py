"""ReplicaSet: several engines with the same model as one engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from cenote.api.front_ends.availability import Availability
from cenote.api.front_ends.front_end_engine import FrontEndEngine
from cenote.api.front_ends.remote_engine import RemoteEngine
from cenote.api.front_ends.remote_pending import RemotePending
from cenote.api.front_ends.replica_choice import ReplicaChooser, ReplicaKey, ReplicaLoads, make_route
from cenote.api.front_ends.replica_split import ReplicaPart, add_timing, run_parts, take_pool_part
from cenote.api.front_ends.text_model import TextModelCache
from cenote.errors import PoolingError
from cenote.protocol.input_types import Input
from cenote.protocol.model_info import ModelInfo
from cenote.protocol.requests import PluginRequest, PoolRequest
from cenote.protocol.results import IOProcessorResult, PoolResult
from cenote.utils.metrics import REPLICA_LABEL, MetricFamily, add_label, merge_families

# an input that may crash an engine process waits so long for a second replica, as a part of the replay timeout: the
# only one that answers would be lost for all other requests
SUSPECT_WAIT_SHARE = 0.5


class ReplicaSet(FrontEndEngine):
    """Implement Engine over the engines of one model: a request goes to the one with the fewest tokens in flight.

    Equal inputs go to the same replica, where they are computed once or found in the result cache. The inputs of a
    large request are divided. What a replica has not answered when its process exits goes to another one.
    """

    def __init__(self, replicas: Sequence[RemoteEngine], loads: ReplicaLoads) -> None:
        self.replicas = replicas
        self.availability = Availability()
        self.quarantine = replicas[0].quarantine
        self.chooser = ReplicaChooser(loads)
        # a link may be ready before the supervisor tells which engines are replicas
        known = [replica.text_models for replica in replicas if replica.text_models.last is not None]
        self.text_models = known[0] if known else TextModelCache()
        for replica in replicas:
            replica.share(self.quarantine, self.text_models)
            replica.availability.on_update = self._on_update
        self._num_available = 0
        self._on_update()

    @property
    def model_info(self) -> ModelInfo:
        """That of a replica that answers, with most adapters: one that was just restarted may not have all yet."""
        known = [replica for replica in self.replicas if replica.has_model_info]
        available = [replica for replica in known if replica.availability.is_available]
        return max([replica.model_info for replica in available or known], key=lambda info: len(info.adapters))

    @property
    def has_model_info(self) -> bool:
        return any(replica.has_model_info for replica in self.replicas)

    def close(self) -> None:
        for replica in self.replicas:
            replica.close()

    # requests

    async def pool(self, request: PoolRequest) -> list[PoolResult | PoolingError]:
        request = await self._prepare(request)
        parts = self._divide(request.inputs, request.adapter)
        if len(parts) < 2:
            return await self._pool_prepared(request)
        requests = [take_pool_part(request, part.rows) for part in parts]
        runs = [self._pool_prepared(item, part.replica) for part, item in zip(parts, requests, strict=True)]
        try:
            return await run_parts(parts, runs)
        finally:
            add_timing(request.timing, [item.timing for item in requests])

    def _divide(self, inputs: Sequence[Input], adapter: object) -> Sequence[ReplicaPart]:
        """Return the parts of a request; one or none if it is not divided."""
        if len(inputs) < 2 or self._num_available < 2:
            return ()
        candidates = self._list_candidates(adapter if isinstance(adapter, str) else None)
        return self.chooser.divide(candidates, inputs, self.model_info.device)

    async def pool_part(self, request: PoolRequest, first: int | None = None) -> list[PoolResult | PoolingError]:
        route = make_route(request.inputs, request.adapter)
        pending = RemotePending(request, request.num_chars)
        replica: RemoteEngine | None = None
        try:
            while True:
                index = await self._select(route, pending, replica, first)
                if replica is not None:
                    replica.forget_pool(pending)
                replica, first = self.replicas[index], None
                with self.chooser.in_flight(index, route):
                    if (results := await replica.try_pool(pending)) is not None:
                        return results
        finally:
            if replica is not None:
                replica.forget_pool(pending)
            if pending.suspect_digests:
                self.quarantine.remove_suspects(pending.suspect_digests)

    async def process(self, request: PluginRequest) -> IOProcessorResult:
        await self.availability.wait(request.deadline_at, None, 0)
        route = make_route(())
        index = self.chooser.choose(self._list_candidates(None), route)
        with self.chooser.in_flight(index, route):
            return await self.replicas[index].process(request)

    async def _select(
        self,
        route: ReplicaKey,
        call: RemotePending,
        last: RemoteEngine | None,
        first: int | None = None,
    ) -> int:
        """Return the replica that a call is sent to, `first` if possible; wait until there is one.

        `last` has not answered the call. What was on its device must be known before the call is sent again.
        """
        if last is not None:
            await last.availability.wait_for_report(call.engine_number)
        if call.may_crash:
            await self._wait_for_second(call)
        while not (candidates := self._list_candidates(route.adapter)) and not call.is_decided:
            num_chars = 0 if call.was_lost else call.num_chars
            await self.availability.wait(call.request.deadline_at, call, num_chars)
        if not candidates or call.is_decided:
            return 0  # nothing is sent
        return first if first in candidates else self.chooser.choose(candidates, route)

    async def _wait_for_second(self, call: RemotePending) -> None:
        """Wait until two replicas answer, for some time, if another one is about to."""
        deadline_at = call.request.deadline_at
        ends_at = time.monotonic() + SUSPECT_WAIT_SHARE * self.availability.replay_timeout_s
        if deadline_at:
            ends_at = min(ends_at, time.monotonic() + SUSPECT_WAIT_SHARE * (deadline_at - time.monotonic()))
        while self._num_available == 1 and not call.is_decided and (remaining_s := ends_at - time.monotonic()) > 0:
            if not any(replica.status in ("restarting", "loading") for replica in self.replicas):
                return
            await self.availability.wait_for_change(remaining_s)

    def _list_candidates(self, adapter: str | None) -> list[int]:
        """Return the replicas that answer; those that have loaded the adapter, if one has."""
        candidates = [index for index, replica in enumerate(self.replicas) if replica.availability.is_available]
        if adapter is None or len(candidates) < 2:
            return candidates
        return [index for index in candidates if adapter in self.replicas[index].model_info.adapters] or candidates

    def _on_update(self) -> None:
        states = [replica.availability for replica in self.replicas]
        self._num_available = sum(state.is_available for state in states)
        if self._num_available:
            self.chooser.has_result_cache = self.model_info.has_result_cache
        self.availability.combine(states)

    # adapters and metrics

    async def load_adapter(self, name: str, path: str, *, in_place: bool = False) -> None:
        await (await self._wait_for_one()).load_adapter(name, path, in_place=in_place)

    async def unload_adapter(self, name: str) -> None:
        await (await self._wait_for_one()).unload_adapter(name)

    async def _wait_for_one(self) -> RemoteEngine:
        """Return a replica that answers; the supervisor changes the adapters of the others as well."""
        await self.availability.wait(0.0, None, 0)
        return self.replicas[self._list_candidates(None)[0]]

    async def collect_metrics(self) -> list[MetricFamily]:
        if self.dead_error is not None:
            raise self.dead_error
        indices = self._list_candidates(None)
        families = await asyncio.gather(*(self.replicas[index].collect_metrics() for index in indices))
        return merge_families(
            add_label(family, REPLICA_LABEL, str(index))
            for index, items in zip(indices, families, strict=True)
            for family in items
        )
