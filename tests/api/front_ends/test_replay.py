"""Requests outlive engine processes: each is answered once, by whichever process and link can."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from cenote.api.front_ends import availability
from cenote.api.front_ends.remote_pending import MAX_EXITS_ALONE, MAX_LINK_LOSSES, MAX_UNEXPLAINED_CRASHES
from cenote.api.front_ends.text_model import TextModelCache
from cenote.api.wire.control_messages import ExitCause
from cenote.api.wire.device_table import DeviceTable, make_device_table
from cenote.errors import DeadlineExceeded, EngineStopped, InputCrashedEngine, NotReady
from cenote.protocol.requests import PluginRequest, ScoreRequest
from cenote.protocol.results import ScoreResult
from tests.api.front_ends.machines import BlockedRenderer, Machine, get_core, run_machine, values
from tests.api.front_ends.remote_link import attach_engine, wait_until
from tests.engine.conftest import MakeEngine

THREE = 2093  # the token id of "three"


async def test_requests_in_flight_and_later_ones_are_answered_by_the_next_engine(make_engine: MakeEngine) -> None:
    async with run_machine(make_engine) as machine:
        hang = await machine.start(7)
        waiting = [machine.embed([[7], [8 + number]]) for number in range(20)]
        await wait_until(hang.gate.reached.is_set)
        await machine.crash()
        late = machine.embed([[99]])
        score = asyncio.create_task(machine.remote.score(ScoreRequest(queries=["a"], documents=["a", "b"])))
        await asyncio.sleep(0.01)
        assert not late.done() and not score.done()
        await machine.start()
        for number, call in enumerate(waiting):
            assert values(await call) == [[7], [8 + number]]
        assert values(await late) == [[99]]
        assert len(await score) == 2
        assert machine.total().num_replayed == 20


async def test_results_that_have_arrived_are_kept(make_engine: MakeEngine) -> None:
    async with run_machine(make_engine) as machine:
        hang = await machine.start(7, max_num_batched_tokens=1)
        call = machine.embed([[5], [6], [7], [8]])
        await wait_until(hang.gate.reached.is_set)
        await asyncio.sleep(0.05)
        await machine.crash()
        second = await machine.start()
        assert values(await call) == [[5], [6], [7], [8]]
        assert sorted(sum(second.batches, [])) == [7, 8]  # two batches


async def test_inputs_that_were_on_the_device_run_alone(make_engine: MakeEngine) -> None:
    async with run_machine(make_engine) as machine:
        hang = await machine.start(7, max_num_batched_tokens=4)
        calls = [machine.embed([[7], [1], [2], [3]]), machine.embed([[4], [5], [6], [9]])]
        await wait_until(hang.gate.reached.is_set)
        on_device = hang.batches[-1]
        assert len(on_device) == 4
        await machine.crash()
        second = await machine.start(max_num_batched_tokens=4)
        await asyncio.gather(*calls)
        assert all(len(batch) == 1 for batch in second.batches if set(batch) & set(on_device))
        assert any(len(batch) > 1 for batch in second.batches)
        assert machine.total().num_quarantined == 1


async def test_an_input_that_crashes_two_engines_gets_an_error_and_the_others_their_results(
    make_engine: MakeEngine,
) -> None:
    async with run_machine(make_engine) as machine:
        hang = await machine.start(7)
        await machine.embed([[1]])  # registers the options, so that the others run together
        calls = [machine.embed([[number], [number, 2]]) for number in range(3, 11)]
        await wait_until(hang.gate.reached.is_set)
        await machine.crash()
        hang = await machine.start(7)
        await wait_until(hang.gate.reached.is_set)
        await machine.crash()
        with pytest.raises(
            InputCrashedEngine, match="input 0 crashed the engine process .exited with SIGSEGV"
        ) as caught:
            await calls[4]  # at once: it does not wait for the third engine
        assert (caught.value.index, caught.value.status, caught.value.code) == (0, 500, "input_crashed_engine")
        third = await machine.start(7)
        for number, call in zip(range(3, 11), calls, strict=True):
            if number != 7:
                assert values(await call) == [[number], [number, 2]]
        assert machine.total().num_poison == 1

        # the same input again is refused without a crash
        with pytest.raises(InputCrashedEngine):
            await machine.embed([[7], [7, 2]])
        assert not third.gate.reached.is_set()


async def test_with_return_exceptions_only_the_poison_input_has_no_result(make_engine: MakeEngine) -> None:
    async with run_machine(make_engine) as machine:
        for _ in range(2):
            hang = await machine.start(7)
            if not machine.num_exits:
                call = machine.embed([[5], [7], [9]], return_exceptions=True)
            await wait_until(hang.gate.reached.is_set)
            await machine.crash()
        await machine.start(7)
        first, poison, last = await call
        assert values([first, last]) == [[5], [9]]
        assert isinstance(poison, InputCrashedEngine) and poison.index == 1
        refused, fine = await machine.embed([[7], [8]], return_exceptions=True)
        assert isinstance(refused, InputCrashedEngine) and values([fine]) == [[8]]


async def test_a_request_that_ends_with_the_error_of_an_input_leaves_no_call(make_engine: MakeEngine) -> None:
    async with run_machine(make_engine) as machine:
        for _ in range(2):
            hang = await machine.start(7)
            if not machine.num_exits:
                call = machine.embed([[7]], return_exceptions=True)
            await wait_until(hang.gate.reached.is_set)
            await machine.crash()
        (poison,) = await call
        assert isinstance(poison, InputCrashedEngine)


async def test_a_poison_document_fails_its_own_score_alone(make_engine: MakeEngine) -> None:
    def score(machine: Machine, *documents: str, **options: Any) -> asyncio.Task[Any]:
        request = ScoreRequest(queries=["one"], documents=documents, **options)
        return asyncio.create_task(machine.remote.score(request))

    async with run_machine(make_engine) as machine:
        for _ in range(2):
            hang = await machine.start(THREE)
            if not machine.num_exits:
                call = score(machine, "two", "three", "four", return_exceptions=True)
            await wait_until(hang.gate.reached.is_set)
            await machine.crash()
        third = await machine.start(THREE)
        first, poison, last = await call
        assert isinstance(first, ScoreResult) and isinstance(last, ScoreResult)
        assert isinstance(poison, InputCrashedEngine)
        assert (poison.index, poison.message.split(" (")[0]) == (1, "input 1 crashed the engine process")

        assert len(await score(machine, "two", "four", "five")) == 3
        with pytest.raises(InputCrashedEngine, match="^input 2 crashed the engine process"):
            await score(machine, "two", "four", "three")
        assert not third.gate.reached.is_set()


@pytest.mark.parametrize("cause", ["hang", "external"])
async def test_what_may_be_chance_does_not_make_an_input_poison(make_engine: MakeEngine, cause: ExitCause) -> None:
    async with run_machine(make_engine) as machine:
        call = None
        for _ in range(MAX_EXITS_ALONE[cause]):  # the first one finds it in a batch, the others alone
            hang = await machine.start(7)
            call = call or machine.embed([[7]])
            await wait_until(hang.gate.reached.is_set)
            await machine.crash(cause=cause)
        await machine.start()
        assert values(await call) == [[7]]


async def test_an_input_that_hangs_alone_twice_is_refused(make_engine: MakeEngine) -> None:
    async with run_machine(make_engine) as machine:
        call = None
        for _ in range(3):
            hang = await machine.start(7)
            call = call or machine.embed([[7]])
            await wait_until(hang.gate.reached.is_set)
            await machine.crash(cause="hang", reason="a batch did not finish")
        with pytest.raises(InputCrashedEngine, match="input 0 crashed the engine process .a batch did not finish"):
            await call


async def test_a_request_is_given_up_after_crashes_that_nothing_on_the_device_explains(make_engine: MakeEngine) -> None:
    async with run_machine(make_engine) as machine:
        hang, call = await machine.hang(7)
        for _ in range(MAX_UNEXPLAINED_CRASHES):
            machine.table = DeviceTable(make_device_table())  # as if it were being tokenized
            await machine.crash()
            if machine.num_exits < MAX_UNEXPLAINED_CRASHES:
                hang = await machine.start(7)
                await wait_until(hang.gate.reached.is_set)
        with pytest.raises(EngineStopped, match="crashed 3 times"):
            await call


async def test_a_link_that_is_lost_is_replaced_and_its_calls_are_sent_again(make_engine: MakeEngine) -> None:
    async with run_machine(make_engine) as machine:
        await machine.start()
        machine.hangs[0].token_ids = {7}
        call = machine.embed([[7], [8]])
        await wait_until(machine.hangs[0].gate.reached.is_set)
        machine.link = await attach_engine(machine.remote, machine.engine)  # the same process, without a crash
        machine.hangs[0].gate.opened.set()
        assert values(await call) == [[7], [8]]


async def test_a_request_that_loses_every_link_is_given_up(make_engine: MakeEngine) -> None:
    async with run_machine(make_engine) as machine:
        hang, call = await machine.hang(7)
        for _ in range(MAX_LINK_LOSSES + 1):
            await asyncio.sleep(0.02)
            machine.link = await attach_engine(machine.remote, machine.engine)
        with pytest.raises(EngineStopped, match="link to the engine process was lost"):
            await call


async def test_nothing_is_sent_before_the_report_of_the_crash(make_engine: MakeEngine) -> None:
    async with run_machine(make_engine) as machine:
        hang, call = await machine.hang(7)
        old_table, machine.num_exits = machine.table, 1
        machine.link.channel.close()
        await wait_until(lambda: machine.remote.status != "ready")
        second = await machine.start(7)  # ready, but the report of the first has not arrived
        await asyncio.sleep(0.05)
        assert not second.batches and not call.done()
        machine.table, machine.num_exits = old_table, 0
        machine.report()
        await wait_until(second.gate.reached.is_set)
        assert DeviceTable.read(machine.table).calls
        second.gate.opened.set()
        assert values(await call) == [[7]]
        assert machine.total().num_quarantined == 1


async def test_a_large_request_that_is_half_rendered_is_answered_by_the_next_engine(make_engine: MakeEngine) -> None:
    async with run_machine(make_engine) as machine:
        await machine.start()
        renderer = BlockedRenderer(get_core(machine.remote))
        calls = [machine.embed([f"{number} " + "word " * 100] * 80) for number in range(3)]
        await wait_until(renderer.started.is_set)
        await machine.crash()
        renderer.allowed.set()
        machine.remote.text_models = TextModelCache()  # the next link makes its own
        await machine.start()
        for call in calls:
            assert len(await call) == 80
        assert len(renderer.threads) == 1  # what the first link cannot send is not tokenized for it


async def test_a_request_that_waits_for_a_full_link_goes_to_the_next_one(make_engine: MakeEngine) -> None:
    async with run_machine(make_engine) as machine:
        await machine.start()
        await machine.embed([[7]])
        get_core(machine.remote).channel.pause_writing()  # as if the engine read nothing
        call = machine.embed([[8]])
        await asyncio.sleep(0.01)
        await machine.crash()
        await machine.start()
        assert values(await call) == [[8]]


async def test_a_request_whose_options_are_being_registered_is_answered(make_engine: MakeEngine) -> None:
    async with run_machine(make_engine) as machine:
        await machine.start()
        machine.link.channel.on_call = lambda *call: asyncio.Future()  # it reads, and never answers
        call = machine.embed([[8]])
        await asyncio.sleep(0.01)
        assert get_core(machine.remote).channel.num_pending_calls == 1
        await machine.crash()
        await machine.start()
        assert values(await call) == [[8]]


async def test_a_client_that_disconnects_while_the_engine_is_down_leaves_nothing(make_engine: MakeEngine) -> None:
    async with run_machine(make_engine) as machine:
        hang = await machine.start(7)
        in_flight = machine.embed([[7]])
        await wait_until(hang.gate.reached.is_set)
        await machine.crash()
        new = machine.embed([[8]])
        await asyncio.sleep(0.01)
        for call in (in_flight, new):
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
        second = await machine.start()
        await machine.embed([[9]])
        assert second.batches == [[9]]


async def test_an_engine_that_stops_itself_is_as_good_as_dead(make_engine: MakeEngine) -> None:
    async with run_machine(make_engine) as machine:
        hang, call = await machine.hang(7)
        hang.gate.opened.set()
        hang.gate.reached.clear()
        await asyncio.to_thread(machine.engine.stop, EngineStopped("the device is lost"))
        await wait_until(lambda: call.done() or machine.remote.status == "restarting")
        late = machine.embed([[8]])
        await asyncio.sleep(0.01)
        await machine.crash()
        await machine.start()
        assert values(await call) == [[7]] and values(await late) == [[8]]


@pytest.mark.parametrize("status", ["failed", "stopped"])
async def test_requests_fail_at_once_when_no_engine_will_come(make_engine: MakeEngine, status: Any) -> None:
    async with run_machine(make_engine) as machine:
        hang, call = await machine.hang(7)
        await machine.crash()
        machine.remote.availability.on_report(status, "5 engine processes failed")
        for request in (call, machine.embed([[8]])):
            with pytest.raises(EngineStopped, match="5 engine processes failed"):
                await request


async def test_requests_fail_at_once_when_the_server_shuts_down_without_an_engine(make_engine: MakeEngine) -> None:
    async with run_machine(make_engine) as machine:
        hang, call = await machine.hang(7)
        machine.remote.availability.start_draining()
        await asyncio.sleep(0.01)
        assert not call.done()  # the engine lives
        await machine.crash()
        with pytest.raises(NotReady, match="shutting down while its engine is down"):
            await call


async def test_a_request_does_not_wait_longer_than_the_replay_timeout(make_engine: MakeEngine) -> None:
    async with run_machine(make_engine) as machine:
        await machine.start()
        await machine.crash()
        machine.remote.availability.replay_timeout_s = 0.1
        with pytest.raises(NotReady, match="not been restarted after 0.1 s"):
            await machine.embed([[8]])


async def test_a_request_does_not_wait_longer_than_its_deadline(make_engine: MakeEngine) -> None:
    async with run_machine(make_engine) as machine:
        await machine.start()
        await machine.crash()
        with pytest.raises(DeadlineExceeded, match=r"the request waited 0\.1\d+ s, and its deadline passed"):
            await machine.embed([[8]], deadline_at=time.monotonic() + 0.1)


async def test_the_size_of_requests_that_wait_is_limited(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(availability, "MAX_WAITING_CHARS", 100)

    async with run_machine(make_engine) as machine:
        await machine.start()
        await machine.crash()
        large = machine.embed(["a" * 1000])  # alone, a request of any size waits
        await asyncio.sleep(0.01)
        with pytest.raises(NotReady, match="requests with 1000 characters wait"):
            await machine.embed(["a"])
        with pytest.raises(NotReady, match="requests with 1000 characters wait"):
            await machine.remote.score(ScoreRequest(queries=["a"], documents=["b"]))
        await machine.start()
        assert len(await large) == 1


async def test_a_plugin_call_in_flight_is_not_sent_twice(make_engine: MakeEngine) -> None:
    async with run_machine(make_engine) as machine:
        await machine.start()
        machine.link.channel.on_call = lambda *call: asyncio.Future()
        call = asyncio.create_task(machine.remote.process(PluginRequest(data=1, request_id="r")))
        await asyncio.sleep(0.01)
        await machine.crash()
        with pytest.raises(EngineStopped, match="exited before it responded"):
            await call
        assert machine.total().num_replayed == 0
