"""Faults of the engine process: killed, stopped, hanging, crashed by an input, garbage on its links."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress

from lab.chaos.expectations import INTERNAL_ERROR, POISON_CODE, RESTARTS_METRIC
from lab.chaos.fault_hook import GARBAGE
from lab.chaos.faults.fault import Fault, FaultContext, sleep_until_replaced
from lab.chaos.outcomes import FaultWindow
from lab.chaos.request_mix import ChaosRequest, encode

NUM_NEIGHBOURS = 63  # requests that are sent together with a poison request
MAX_POISON_RESTARTS = 2
HANG_LIMIT_S = 60.0
ORDER_TIMEOUT_S = 5.0


class KillEngine(Fault):
    """SIGKILL to the engine process, as by the kernel when memory runs out."""

    name = "kill-engine"
    replaces_engine = True

    async def inject(self, context: FaultContext, window: FaultWindow) -> None:
        os.kill(await context.server.wait_for_engine(), signal.SIGKILL)


class StopEngineProcess(Fault):
    """SIGSTOP to the engine process, and SIGCONT later if it still exists."""

    name = "stop-engine"
    num_engine_failures = 1

    async def inject(self, context: FaultContext, window: FaultWindow) -> None:
        engine = await context.server.wait_for_engine()
        os.kill(engine, signal.SIGSTOP)
        await sleep_until_replaced(context.server, engine, context.max_fault_s)
        with suppress(ProcessLookupError):
            os.kill(engine, signal.SIGCONT)


class HangEngine(Fault):
    """A batch that never finishes, as on a device that does not answer."""

    name = "hang-engine"
    replaces_engine = True
    num_engine_failures = 1

    async def inject(self, context: FaultContext, window: FaultWindow) -> None:
        engine = await context.server.wait_for_engine()
        with context.hooks.hang():
            if not await sleep_until_replaced(context.server, engine, HANG_LIMIT_S):
                window.problems.append(f"an engine that hung for {HANG_LIMIT_S:g} s was not replaced")


class PoisonInput(Fault):
    """One input on which the engine process crashes in native code, among other requests."""

    name = "poison"
    replaces_engine = True
    num_engine_failures = MAX_POISON_RESTARTS

    def skip_reason(self, context: FaultContext) -> str | None:
        return None if "embed-ids" in context.mix.requests else "needs a model that embeds token ids"

    async def inject(self, context: FaultContext, window: FaultWindow) -> None:
        sender, short = context.sender, context.mix.short
        restarts = (await context.server.read_metrics()).get(RESTARTS_METRIC, 0)
        neighbours = [sender.send_request(context.source.choice(short)) for _ in range(NUM_NEIGHBOURS)]
        await asyncio.gather(sender.send_request(make_poison_request(context.session.texts.poison())), *neighbours)
        restarts = (await context.server.read_metrics()).get(RESTARTS_METRIC, 0) - restarts
        if restarts > MAX_POISON_RESTARTS:
            window.problems.append(f"one poison input restarted the engine {restarts:g} times")


class BadFrames(Fault):
    """Garbage on the links between a front-end and the engine: no message, or no frame, in both directions."""

    name = "bad-frames"

    async def inject(self, context: FaultContext, window: FaultWindow) -> None:
        for garbage in GARBAGE:
            for to_engine in (True, False):
                context.hooks.order_bad_frame(garbage, to_engine=to_engine)
                with suppress(TimeoutError):
                    async with asyncio.timeout(ORDER_TIMEOUT_S):
                        await self._wait_until_sent(context)

    async def _wait_until_sent(self, context: FaultContext) -> None:
        while context.hooks.has_open_orders:  # the next message takes the order
            await context.sender.send_request(context.mix.short[0])


def make_poison_request(token_ids: list[int]) -> ChaosRequest:
    body = encode({"input": [token_ids]})
    return ChaosRequest("poison", "/v1/embeddings", body, INTERNAL_ERROR, error_code=POISON_CODE)
