"""The server under attack, and what the attackers saw of it."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from cenote.utils.async_http_client import AsyncHttpClient, NoResponse, ServerAddress, encode_http_request

MAX_PROBLEMS = 20
HONEST_FAILURES = (503, 504)  # of a server that is short of something, or whose engine is replaced
REPLY_TIMEOUT_S = 60.0


@dataclass
class AttackReport:
    """What one attacker did, and what it got."""

    attacks: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)  # by status, or "none"
    problems: list[str] = field(default_factory=list)

    def add_problem(self, problem: str) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(problem)

    def to_json(self) -> str:
        return json.dumps(vars(self))


@dataclass(frozen=True)
class Target:
    address: ServerAddress
    api_key: str
    admin_key: str
    grpc_port: int | None  # None: the server has no gRPC
    source: random.Random
    report: AttackReport

    async def post(self, path: str, body: Any, *, key: str | None = None) -> None:
        """Send a body, as JSON unless it is bytes; an answer of the server must not be a failure of its own."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {key or self.api_key}"}
        message = encode_http_request("POST", self.address, path, headers=headers, body=content)
        async with AsyncHttpClient(self.address, timeout_s=REPLY_TIMEOUT_S) as client:
            try:
                reply = await client.send(message)
            except NoResponse:  # the connection of a large body may be closed, and processes are killed meanwhile
                self.report.answers["none"] += 1
                return
        self.report.answers[str(reply.status)] += 1
        if reply.status >= 500 and reply.status not in HONEST_FAILURES:
            self.report.add_problem(f"{path} {content[:80]!r}: status {reply.status}: {reply.excerpt()}")


Attack = Callable[[Target], Awaitable[None]]  # its docstring says what it does
