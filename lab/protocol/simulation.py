"""One seed: a server, its clients and its faults, until nothing is left to happen."""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from cenote.api.admission.controller import AdmissionController
from cenote.api.front_ends import remote_engine
from cenote.api.supervisor import child, front_end_manager, model_manager
from cenote.api.supervisor.replica_plan import ReplicaPlan
from cenote.api.wire import channel, heartbeat
from cenote.errors import InputCrashedEngine
from lab.protocol.checks import check_at_rest, check_outcome, count_outcome
from lab.protocol.children import SimulatedEngineChild, SimulatedFrontEndChild
from lab.protocol.clients import Request, choose_bad_tokens, make_request, send
from lab.protocol.device import CRASHES, HANGS
from lab.protocol.faults import inject
from lab.protocol.machine import Machine
from lab.protocol.process import wait_exit
from lab.protocol.virtual_loop import VirtualLoop

WINDOWS_S = (0.5, 3.0, 3.0)  # requests and faults come within one of these times
# the longest that a request without a deadline may take: the replay timeout, for the model and then for its engine,
# and the delays of restarts
ANSWER_S = 200.0
FIRST_FRESH = 90  # number of a request after the faults
RETRY_S = 5.0  # of a fresh request after the faults
ADMISSION_DEFAULTS = AdmissionController.__init__.__kwdefaults__ or {}
BUFFER_BYTES = 4096  # of a channel; less than a large message has
BEAT_S = 1.0  # between two looks at the heartbeat of a process


@dataclass
class SeedOutcome:
    """What one seed has shown."""

    seed: int
    defects: list[str]
    faults: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)


def run_seed(seed: int, *, is_traced: bool = False) -> SeedOutcome:
    loop = VirtualLoop()
    machine = Machine(loop, random.Random(seed), is_traced=is_traced)
    loop.set_exception_handler(lambda _, context: machine.report(f"{context['message']}: {context!r}"))
    with surroundings(machine, seed), reported_errors(machine):
        try:
            answers = loop.run_until_complete(run(machine))
        finally:
            end_tasks(loop)
            loop.close()
            machine.close()
    return SeedOutcome(seed, machine.defects, machine.faults, answers)


async def run(machine: Machine) -> Counter[str]:
    machine.start()
    chance = machine.random
    await asyncio.sleep(chance.choice((0.1, 1.0, 1.0)))  # the first clients come while the server starts, or later
    bad_tokens = choose_bad_tokens(machine)
    requests = [make_request(machine, number, bad_tokens) for number in range(1, chance.randint(5, 10))]
    start, window_s = chance.uniform(0.0, 0.2), chance.choice(WINDOWS_S)
    events: list[tuple[float, Any]] = [(start + chance.random() ** 2 * window_s, request) for request in requests]
    if chance.random() < 0.9:
        events += [(start + chance.random() * window_s, None) for _ in range(chance.randint(1, 4))]
    clients, now = [], 0.0
    for at, request in sorted(events, key=lambda event: event[0]):
        await asyncio.sleep(at - now)
        now = at
        if request is None:
            inject(machine)
        elif (client := start_client(machine, request)) is not None:
            clients.append(client)
    if clients:
        _, late = await asyncio.wait(clients, timeout=ANSWER_S)
        for _ in late:
            machine.report("a request has no answer")
    sent = [request for request in requests if request.sent_at]
    if machine.changes:
        _, endless = await asyncio.wait(machine.changes, timeout=ANSWER_S)
        for _ in endless:
            machine.report("a change of the model does not end")
    fresh = await send_fresh(machine, [token for token in bad_tokens if token in (CRASHES, HANGS)])
    for request in sent + fresh:
        check_outcome(machine, request)
    await wait_for_rest(machine)
    check_at_rest(machine)
    return Counter(map(count_outcome, sent))


async def wait_for_rest(machine: Machine) -> None:
    """Wait until each process that was stopped goes on or is replaced: it owes replies until then."""
    ends_at = machine.loop.time() + ANSWER_S
    while machine.loop.time() < ends_at and any(process.read().age_s for process in machine.list_living()):
        await asyncio.sleep(0.5)
    await asyncio.sleep(1.0)


def start_client(machine: Machine, request: Request) -> asyncio.Task[None] | None:
    usable = [front_end for front_end in machine.front_ends if front_end is not None and front_end.is_usable]
    if not usable:
        return None  # nobody accepts its connection
    front_end = machine.random.choice(usable)
    machine.note(f"request {request.number} to front-end process {front_end.process.pid}: {describe(request)}")
    task = front_end.start(send(machine, front_end, request))
    if request.gives_up_after_s is not None:

        def give_up() -> None:
            request.has_given_up = True
            task.cancel()

        machine.loop.call_later(request.gives_up_after_s, give_up)
    return task


def describe(request: Request) -> str:
    options = f"timeout {request.timeout_s}" if request.timeout_s else ""
    return f"{len(request.inputs)} inputs {request.inputs[:5]} {options}"


async def send_fresh(machine: Machine, poison: list[int]) -> list[Request]:
    """Ask every front-end again until it answers, as no fault is final, and refuses what is poison."""
    fresh: list[Request] = []
    for number in range(machine.num_front_ends):
        for token in (5000 + number, *poison, 6000 + number):
            fresh += await send_until_decided(machine, number, token)
    return fresh


async def send_until_decided(machine: Machine, number: int, token: int) -> list[Request]:
    """Send requests to one front-end until one has the answer that it must have in the end."""
    fresh: list[Request] = []
    ends_at = machine.loop.time() + ANSWER_S
    while machine.loop.time() < ends_at:
        front_end = machine.front_ends[number]
        if front_end is not None and front_end.is_usable:
            request = Request(FIRST_FRESH + number, [(token, len(fresh))])
            fresh.append(request)
            machine.note(f"fresh request {request.inputs} to front-end {number + 1}")
            await asyncio.wait([front_end.start(send(machine, front_end, request))], timeout=ANSWER_S)
            if isinstance(request.error, InputCrashedEngine) or request.results is not None:
                return fresh
        await asyncio.sleep(RETRY_S)
    machine.report(f"front-end {number + 1} does not answer {token} after the faults")
    return fresh


@contextmanager
def surroundings(machine: Machine, seed: int) -> Iterator[None]:
    """Replace the clock, chance, and what the supervisor asks the system."""
    replaced: list[tuple[Any, str, Any]] = [
        (time, "monotonic", machine.loop.time),
        (time, "thread_time", machine.loop.time),
        (AdmissionController.__init__, "__kwdefaults__", {**ADMISSION_DEFAULTS, "clock": machine.loop.time}),
        (child, "wait_exit", wait_exit),
        (child, "count_oom_kills", lambda: 0),
        (heartbeat, "POLL_INTERVAL_S", BEAT_S),
        (channel, "BUFFER_BYTES", BUFFER_BYTES),
        (model_manager, "EngineChild", SimulatedEngineChild),
        (model_manager, "plan_replicas", lambda config: [ReplicaPlan(config)] * config.num_replicas),
        (front_end_manager, "FrontEndChild", SimulatedFrontEndChild),
        (front_end_manager, "make_link", machine.make_link),
        (remote_engine, "call_ids", itertools.count(1)),
    ]
    before = [(module, name, getattr(module, name)) for module, name, _ in replaced]
    state = random.getstate()
    random.seed(seed)
    for module, name, value in replaced:
        setattr(module, name, value)
    try:
        yield
    finally:
        random.setstate(state)
        for module, name, value in before:
            setattr(module, name, value)


class ErrorHandler(logging.Handler):
    """Reports exceptions that the package has logged and gone on after."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(logging.INFO if machine.is_traced else logging.ERROR)
        self.machine = machine

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            self.machine.report(f"{record.getMessage()}: {record.exc_info[1]!r}")
        else:
            self.machine.note(f"log: {record.getMessage()}")


@contextmanager
def reported_errors(machine: Machine) -> Iterator[None]:
    logger = logging.getLogger("cenote")
    before = logger.handlers, logger.level, logger.propagate
    handler = ErrorHandler(machine)
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(handler.level)
    try:
        yield
    finally:
        logger.handlers, logger.propagate = before[0], before[2]
        logger.setLevel(before[1])


def end_tasks(loop: VirtualLoop) -> None:
    """Cancel all that runs, and find exceptions that nobody has retrieved."""
    while tasks := asyncio.all_tasks(loop):  # some start others when they are cancelled
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0.1))
    gc.collect()
