"""What must hold: one right answer or one honest error for each request, and at rest nothing is left."""

from __future__ import annotations

import asyncio
from typing import Any

from cenote.api.admission.counters import QUEUED, REQUESTS, find_model_column
from cenote.api.front_ends.remote_pending import MAX_EXITS_ALONE, MAX_LINK_LOSSES, MAX_UNEXPLAINED_CRASHES
from cenote.api.front_ends.replica_set import ReplicaSet
from cenote.api.supervisor.restart_policy import MAX_FAILURES
from cenote.errors import (
    BadRequest,
    DeadlineExceeded,
    EngineStopped,
    InputCrashedEngine,
    NotReady,
    NumericalError,
    Overloaded,
)
from lab.protocol.clients import UNKNOWN_TOKEN, Request, get_vector
from lab.protocol.device import CRASHES, HANGS, NOT_A_NUMBER, Tokens, compute
from lab.protocol.machine import Machine


def count_outcome(request: Request) -> str:
    """Return the kind of an answer, for statistics."""
    if request.results is not None:
        has_errors = any(isinstance(result, Exception) for result in request.results)
        return "results, errors of inputs" if has_errors else "results"
    if isinstance(request.error, asyncio.CancelledError):
        return "client has disconnected" if request.has_given_up else "front-end killed"
    return type(request.error).__name__


def check_outcome(machine: Machine, request: Request) -> None:
    name = f"request {request.number}"
    if request.num_answers != 1:
        machine.report(f"{name} has {request.num_answers} answers")
        return
    if request.error is not None:
        if problem := find_dishonesty(machine, request, request.error):
            machine.report(f"{name} fails with {type(request.error).__name__} ({request.error}): {problem}")
        return
    assert request.results is not None
    if len(request.results) != len(request.inputs):
        machine.report(f"{name} has {len(request.results)} results of {len(request.inputs)} inputs")
        return
    for index, (tokens, result) in enumerate(zip(request.inputs, request.results, strict=True)):
        if isinstance(result, Exception):
            if problem := find_input_dishonesty(machine, request, index, result):
                machine.report(f"{name}, input {index}: {type(result).__name__} ({result}): {problem}")
        elif get_vector(result) != compute(tokens).tolist():
            machine.report(f"{name}, input {index}: {tokens} has the result {get_vector(result)}")
        elif tokens[0] in (CRASHES, HANGS, NOT_A_NUMBER, UNKNOWN_TOKEN):
            machine.report(f"{name}, input {index}: {tokens} cannot have a result")


def find_dishonesty(machine: Machine, request: Request, error: BaseException) -> str:
    """Return why a request must not fail with this error; "" if it may."""
    index = getattr(error, "index", None)
    if index is not None:
        if request.return_exceptions:
            return "it asks for the errors of inputs among its results"
        return find_input_dishonesty(machine, request, index, error)
    if isinstance(error, asyncio.CancelledError):
        return "" if request.has_given_up or machine.faults["kill_front_end"] else "nobody has cancelled it"
    if isinstance(error, DeadlineExceeded):
        return "" if request.timeout_s is not None else "it has no deadline"
    if isinstance(error, Overloaded):
        if not machine.faults["refuse_requests"]:
            return "the engine has capacity"
        first = request.inputs[0]
        was_accepted = len(request.inputs) == 1 and first in machine.accepted and first[0] < CRASHES  # those are shared
        return "an engine process has admitted it before" if was_accepted else ""
    if isinstance(error, NotReady | EngineStopped):
        return find_outage(machine, request, error)
    return "no error of this class is honest"


def find_outage(machine: Machine, request: Request, error: BaseException) -> str:
    """Return why a request must not fail for lack of an engine; "" if it may."""
    faults = machine.faults
    if request.sent_at < machine.ready_at or (faults["fail_next_start"] and faults["unload_model"]):
        return ""  # requests do not wait for the first load, and none can be answered if a load fails
    if isinstance(error, NotReady):
        if request.timeout_s is not None and faults["unload_model"] + faults["reload_model"]:
            return ""
    elif faults["cut_link"] > MAX_LINK_LOSSES or machine.num_failures >= min(MAX_UNEXPLAINED_CRASHES, MAX_FAILURES):
        return ""
    return "the server can answer it"


def find_input_dishonesty(machine: Machine, request: Request, index: int, error: BaseException) -> str:
    tokens: Tokens = request.inputs[index]
    if isinstance(error, InputCrashedEngine):
        exits = {cause: machine.exits_alone[tokens, cause] for cause in MAX_EXITS_ALONE}
        is_blamed = any(count >= MAX_EXITS_ALONE[cause] for cause, count in exits.items())
        return "" if is_blamed else f"it was alone on the device at these exits: {exits}"
    if isinstance(error, NumericalError):
        return "" if tokens[0] == NOT_A_NUMBER else "its result is a number"
    if isinstance(error, BadRequest):
        return "" if tokens[0] == UNKNOWN_TOKEN else "the input is valid"
    return "no error of this class is honest for an input"


def check_at_rest(machine: Machine) -> None:
    """Check that nothing is left of requests; this function alone reads what the package keeps to itself."""
    counters = machine.supervisor.context.counters
    sets = machine.supervisor.models.sets
    for engine_set in sets:
        column = find_model_column(engine_set.slot)
        for offset in range(QUEUED, REQUESTS + 1):
            expect_zero(machine, counters.total(column + offset), f"column {offset} of the counters of admission")
    for number, front_end in enumerate(machine.front_ends, 1):
        if front_end is None or front_end.process.has_exited or front_end.engines is None:
            continue
        name = f"front-end {number}"
        engines: Any = front_end.engines
        ended = set(engines.engines) - {engine_id for engine_set in sets for engine_id in engine_set.engine_ids}
        expect_zero(machine, len(ended), f"{name}: engines that have ended")
        for engine_id, engine in engines.engines.items():
            what = f"{name}, engine {engine_id}"
            expect_zero(machine, len(engine.calls.pending), f"{what}: calls in the table")
            expect_zero(machine, len(engine.quarantine.suspects), f"{what}: suspects")
            expect_zero(machine, engine.availability._num_waiting_chars, f"{what}: characters that wait")
            if engine._channel is not None:
                expect_zero(machine, engine._channel.num_pending_calls, f"{what}: calls without a reply")
        for use in engines._uses.values():
            expect_zero(machine, use.num_users, f"{name}, engines {use.engine_ids}: users")
            if isinstance(use.engine, ReplicaSet):
                loads = use.engine.chooser.loads.read()
                expect_zero(machine, max(map(abs, loads)), f"{name}: tokens in flight at a replica")
                expect_zero(machine, len(use.engine.chooser._same_inputs), f"{name}: equal inputs in flight")
    for process in machine.list_living():
        device = process.device
        if device.is_hung or process.read().age_s:
            continue  # it is ended soon
        num_inputs = len(device.waiting) + len(device.isolated) + len(device.running)
        expect_zero(machine, num_inputs, f"inputs in the engine process {process.pid}")


def expect_zero(machine: Machine, value: float, what: str) -> None:
    if value:
        machine.report(f"at rest: {value:g} {what}")
