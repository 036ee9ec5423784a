"""Several engines with the same model answer as one, also while some of them crash."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from cenote import LLM
from cenote.api.admission.counters import Counters
from cenote.api.front_ends import replica_set
from cenote.api.front_ends.remote_engine import RemoteEngine
from cenote.api.front_ends.replica_choice import ReplicaLoads
from cenote.api.front_ends.replica_set import ReplicaSet
from cenote.errors import BadRequest, EngineStopped, InputCrashedEngine
from cenote.protocol.requests import PoolRequest, ScoreRequest
from cenote.protocol.results import PoolResultBatch
from tests.api.front_ends.machines import Machine, values
from tests.api.front_ends.remote_link import attach_engine, wait_until
from tests.engine.conftest import MakeEngine

POISON = 7


class Replicas:
    """A front-end and several engines, which crash when the test says so."""

    def __init__(self, make: MakeEngine, count: int) -> None:
        self.machines = [Machine(make, engine_id) for engine_id in range(count)]
        self.engine = ReplicaSet([machine.remote for machine in self.machines], ReplicaLoads(count, Counters(), 0))

    async def start(self, *hang_on: int) -> None:
        for machine in self.machines:
            await machine.start(*hang_on)

    def embed(self, inputs: Sequence[Any], **options: Any) -> asyncio.Task[Any]:
        return asyncio.create_task(self.engine.pool(PoolRequest(task="embed", inputs=inputs, **options)))

    async def find_busy(self) -> Machine:
        """Wait until a device hangs, and return its machine."""
        await wait_until(lambda: any(machine.hangs[-1].gate.reached.is_set() for machine in self.machines))
        return next(machine for machine in self.machines if machine.hangs[-1].gate.reached.is_set())

    def other(self, machine: Machine) -> Machine:
        return next(item for item in self.machines if item is not machine)

    async def hang(self) -> tuple[asyncio.Task[Any], Machine, Machine]:
        """Start all engines; return a request, the machine that hangs on it, and another one, which would not."""
        await self.start(POISON)
        call = self.embed([[POISON]])
        first = await self.find_busy()
        second = self.other(first)
        second.hangs[0].token_ids = set()
        return call, first, second


@asynccontextmanager
async def run_replicas(make: MakeEngine) -> AsyncIterator[Replicas]:
    replicas = Replicas(make, 2)
    try:
        async with asyncio.timeout(30):
            yield replicas
        for machine in replicas.machines:
            assert not machine.remote.calls.pending
        assert not replicas.engine.quarantine.suspects
        assert not any(replicas.engine.chooser.loads.read())
    finally:
        for machine in replicas.machines:
            machine.close()
        await asyncio.sleep(0.01)


async def test_requests_are_spread_over_the_replicas(make_engine: MakeEngine) -> None:
    async with run_replicas(make_engine) as replicas:
        await replicas.start()
        results = await asyncio.gather(*(replicas.embed([[number]]) for number in range(100, 140)))
        assert [values(result) for result in results] == [[[number]] for number in range(100, 140)]
        counts = [sum(map(len, machine.hangs[0].batches)) for machine in replicas.machines]
        assert sum(counts) == 40 and min(counts) >= 10


def test_a_set_loads_until_an_engine_has_told_its_model_whatever_the_supervisor_reports() -> None:
    replicas = [RemoteEngine(engine_id=number) for number in range(2)]
    engine = ReplicaSet(replicas, ReplicaLoads(2, Counters(), 0))

    replicas[0].availability.on_report("ready")

    assert engine.status == "loading"


async def test_a_large_request_is_divided_and_its_results_are_in_order(make_engine: MakeEngine) -> None:
    async with run_replicas(make_engine) as replicas:
        await replicas.start()
        inputs = [[number] * 8 for number in range(100, 150)]
        request = PoolRequest(task="embed", inputs=inputs)
        results = await replicas.engine.pool(request)
        assert values(results) == inputs
        assert isinstance(results, PoolResultBatch)
        assert results.rows[:, 0].astype(int).tolist() == list(range(100, 150))
        counts = [sum(map(len, machine.hangs[0].batches)) for machine in replicas.machines]
        assert counts == [200, 200]
        assert request.timing.inference_s > 0 and request.timing.wire_s > 0


async def test_an_error_in_a_divided_request_has_the_index_in_the_whole(make_engine: MakeEngine) -> None:
    async with run_replicas(make_engine) as replicas:
        await replicas.start()
        inputs: list[Any] = [[number] * 8 for number in range(100, 150)]
        inputs[45] = [10**6]  # not in the vocabulary
        with pytest.raises(BadRequest) as caught:
            await replicas.embed(inputs)
        assert caught.value.index == 45
        results = await replicas.embed(inputs, return_exceptions=True)
        assert isinstance(results[45], BadRequest) and results[45].index == 45
        assert values([*results[:45], *results[46:]]) == [*inputs[:45], *inputs[46:]]


def test_scores_of_a_divided_request_are_those_of_one_engine(llm: LLM) -> None:
    """With the real model: a query and its documents."""
    request = ScoreRequest(queries=["which planet is red?"], documents=[f"document {n} " * 20 for n in range(12)])

    async def score() -> tuple[Any, Any]:
        machines = [Machine(lambda **options: llm.engine, engine_id) for engine_id in range(2)]
        engine = ReplicaSet([machine.remote for machine in machines], ReplicaLoads(2, Counters(), 0))
        for machine in machines:
            machine.link = await attach_engine(machine.remote, llm.engine)
        try:
            assert len(engine.chooser.divide([0, 1], request.documents, "cpu")) == 2
            return await llm.engine.score(request), await engine.score(request)
        finally:
            for machine in machines:
                machine.close()
            await asyncio.sleep(0.01)

    local, divided = asyncio.run(score())
    assert np.allclose([item.score for item in local], [item.score for item in divided], atol=1e-5)
    assert [item.num_tokens for item in local] == [item.num_tokens for item in divided]


async def test_what_a_killed_replica_had_is_answered_by_the_other_at_once(make_engine: MakeEngine) -> None:
    async with run_replicas(make_engine) as replicas:
        await replicas.start(POISON)
        calls = [replicas.embed([[POISON], [100 + number]]) for number in range(8)]
        first = await replicas.find_busy()
        second = replicas.other(first)
        second.hangs[0].token_ids = set()
        second.hangs[0].gate.opened.set()
        await first.crash(cause="external", reason="exited with SIGKILL")
        for number, call in enumerate(calls):
            assert values(await call) == [[POISON], [100 + number]]
        assert replicas.engine.status == "ready" and replicas.engine.dead_error is None
        assert values(await replicas.embed([[99]])) == [[99]]


async def test_nothing_goes_to_another_replica_before_the_report_of_the_crash(make_engine: MakeEngine) -> None:
    async with run_replicas(make_engine) as replicas:
        call, first, second = await replicas.hang()
        first.link.channel.close()
        await wait_until(lambda: first.remote.status != "ready")
        await asyncio.sleep(0.05)
        assert not second.hangs[0].batches and not call.done()
        first.report(cause="external")
        assert values(await call) == [[POISON]]
        assert first.total().num_quarantined == 1


async def test_an_input_that_crashes_an_engine_costs_two_processes_of_all_replicas(make_engine: MakeEngine) -> None:
    async with run_replicas(make_engine) as replicas:
        await replicas.start(POISON)
        poison = replicas.embed([[POISON]])
        first = await replicas.find_busy()
        second = replicas.other(first)
        await first.crash()
        await asyncio.sleep(0.05)
        # the last replica is not risked while the other one restarts, and goes on with other requests
        assert not second.hangs[-1].gate.reached.is_set() and not poison.done()
        assert values(await replicas.embed([[100]])) == [[100]]
        await first.start(POISON)
        blamed = await replicas.find_busy()
        others = replicas.embed([[101]])
        await blamed.crash()
        with pytest.raises(InputCrashedEngine, match="input 0 crashed"):
            await poison
        assert values(await others) == [[101]]
        # refused by every replica
        with pytest.raises(InputCrashedEngine):
            await replicas.embed([[POISON]])
        assert sum(machine.num_exits for machine in replicas.machines) == 2


async def test_suspects_run_on_the_last_replica_if_no_other_comes(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_set, "SUSPECT_WAIT_SHARE", 0.001)
    async with run_replicas(make_engine) as replicas:
        call, first, _ = await replicas.hang()
        await first.crash()
        assert values(await call) == [[POISON]]


def test_the_index_of_a_poison_input_in_a_divided_request_is_that_of_the_whole(make_engine: MakeEngine) -> None:
    async def crash(replicas: Replicas) -> None:
        await replicas.start(POISON)
        inputs = [[100 + number] * 8 for number in range(50)]
        inputs[40] = [POISON] * 8
        call = replicas.embed(inputs)
        first = await replicas.find_busy()
        await first.crash()
        await first.start(POISON)
        await (await replicas.find_busy()).crash()
        with pytest.raises(InputCrashedEngine, match="input 40 crashed") as caught:
            await call
        assert caught.value.index == 40


async def test_requests_wait_if_no_replica_is_left_and_go_to_the_first_that_is_back(make_engine: MakeEngine) -> None:
    async with run_replicas(make_engine) as replicas:
        await replicas.start()
        for machine in replicas.machines:
            await machine.crash(cause="external")
        assert replicas.engine.status == "restarting"
        call = replicas.embed([[100], [101]])
        score = asyncio.create_task(replicas.engine.score(ScoreRequest(queries=["a"], documents=["a", "b"])))
        await asyncio.sleep(0.02)
        assert not call.done() and not score.done()
        await replicas.machines[1].start()
        assert values(await call) == [[100], [101]]
        assert len(await score) == 2
        assert replicas.engine.status == "ready"


async def test_a_failed_replica_does_not_fail_the_others(make_engine: MakeEngine) -> None:
    async with run_replicas(make_engine) as replicas:
        await replicas.start()
        first, second = replicas.machines
        await first.crash()
        first.remote.availability.on_report("failed", "5 engine processes failed")
        assert replicas.engine.status == "ready"
        assert values(await replicas.embed([[100]])) == [[100]]
        await second.crash()
        second.remote.availability.on_report("failed", "5 engine processes failed")
        assert replicas.engine.status == "failed"
        with pytest.raises(EngineStopped, match="5 engine processes failed"):
            await replicas.embed([[100]])


async def test_while_the_server_shuts_down_what_a_killed_replica_had_goes_to_the_other(make_engine: MakeEngine) -> None:
    async with run_replicas(make_engine) as replicas:
        call, first, _ = await replicas.hang()
        for engine in (replicas.engine, *replicas.engine.replicas):
            engine.availability.start_draining()
        await first.crash(cause="external")
        assert values(await call) == [[POISON]]


async def test_a_lost_link_does_not_keep_requests_from_another_replica(make_engine: MakeEngine) -> None:
    async with run_replicas(make_engine) as replicas:
        await replicas.start(POISON)
        call = replicas.embed([[POISON]])
        first = await replicas.find_busy()
        for machine in replicas.machines:
            machine.hangs[0].token_ids = set()
        first.link = await attach_engine(first.remote, first.engine)  # the same process, without a crash
        first.hangs[0].gate.opened.set()
        assert values(await call) == [[POISON]]


async def test_metrics_have_the_number_of_the_replica(make_engine: MakeEngine) -> None:
    async with run_replicas(make_engine) as replicas:
        await replicas.start()
        await replicas.embed([[number] * 8 for number in range(100, 150)])
        families = {family.name: family for family in await replicas.engine.collect_metrics()}
        tokens = families["cenote_prompt_tokens_total"]
        assert tokens.label_names == ("replica",)
        assert {series.labels: series.value for series in tokens.series} == {("0",): 200.0, ("1",): 200.0}
