"""Clients: what they send, and what they get."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from msgspec.structs import replace

from cenote.api.admission.cost import RequestCost
from cenote.api.admission.request_admission import RequestAdmission
from cenote.api.request_context import RequestContext
from cenote.protocol.requests import PoolRequest
from lab.protocol.device import CRASHES, HANGS, NOT_A_NUMBER, Tokens
from lab.protocol.engine_process import VOCAB_SIZE
from lab.protocol.front_end import FrontEnd
from lab.protocol.machine import Machine

ROUTE = cast("Any", SimpleNamespace(is_supported=lambda model_info: True))
UNKNOWN_TOKEN = VOCAB_SIZE + 1


@dataclass(slots=True)
class Request:
    """One request of a client, and its outcome."""

    number: int
    inputs: Sequence[Tokens]
    timeout_s: float | None = None
    return_exceptions: bool = False
    gives_up_after_s: float | None = None  # the client disconnects
    has_given_up: bool = False
    sent_at: float = 0.0
    ended_at: float = 0.0
    num_answers: int = 0
    results: Sequence[Any] | None = None
    error: BaseException | None = None


def make_request(machine: Machine, number: int, bad_tokens: Sequence[int]) -> Request:
    """Return a request whose inputs are its own, except for those with a token that makes them fail."""
    random = machine.random
    num_inputs = random.choice((1, 1, 1, 2, 3, 5, 12)) if random.random() < 0.98 else 70
    length = 60 if num_inputs == 70 else random.choice((1, 2, 4))
    inputs: list[Tokens] = [(100 * number + row, *range(length)) for row in range(num_inputs)]
    if bad_tokens and random.random() < 0.4:
        inputs[random.randrange(num_inputs)] = (random.choice(bad_tokens), random.randrange(2))
    return Request(
        number,
        inputs,
        timeout_s=random.choice((None, None, None, 0.5, 5.0)),
        return_exceptions=random.random() < 0.4,
        gives_up_after_s=random.uniform(0.0, 1.0) if random.random() < 0.1 else None,
    )


def choose_bad_tokens(machine: Machine) -> list[int]:
    """Return the first tokens of inputs that fail."""
    random = machine.random
    chances = ((CRASHES, 0.2), (HANGS, 0.05), (NOT_A_NUMBER, 0.1), (UNKNOWN_TOKEN, 0.1))
    return [token for token, chance in chances if random.random() < chance]


async def send(machine: Machine, front_end: FrontEnd, request: Request) -> None:
    """Send a request as a handler of HTTP does, and keep what comes back."""
    request.sent_at = machine.loop.time()
    try:
        request.results = await _pool(front_end, request)
    except BaseException as error:
        request.error = error
        if isinstance(error, asyncio.CancelledError):
            raise
    finally:
        request.num_answers += 1
        request.ended_at = machine.loop.time()
        outcome = request.error and f"{type(request.error).__name__}: {request.error}"
        machine.note(f"request {request.number} ends with {outcome or 'results'}")


async def _pool(front_end: FrontEnd, request: Request) -> Sequence[Any]:
    app_state = front_end.app_state
    admission = RequestAdmission(app_state.admission, app_state.api_keys, None)
    if request.timeout_s is not None:
        admission.set_timeout(request.timeout_s)
    context = RequestContext(app_state, ROUTE, str(request.number), admission)
    try:
        await context.select_model(None)
        ticket = admission.admit(RequestCost(sum(map(len, request.inputs)), num_inputs=len(request.inputs)))
        pool_request = PoolRequest(
            task="embed",
            inputs=[list(tokens) for tokens in request.inputs],
            deadline_at=admission.deadline_at,
            return_exceptions=request.return_exceptions,
            on_tokenized=ticket.set_tokens,
            timing=context.timing,
        )
        pool_request = pool_request.replace(scheduling=replace(pool_request.scheduling, lane=ticket.lane))
        try:
            results = await context.engine.pool(pool_request)
        except BaseException:
            ticket.release(is_completed=False)
            raise
        ticket.release(is_completed=True)
        return results
    finally:
        context.release()


def get_vector(result: Any) -> list[float]:
    return np.asarray(result.data).tolist()  # type: ignore[no-any-return]
