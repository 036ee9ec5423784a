"""`python -m lab.lanes`: latency of a query beside bulk clients, and what it costs them."""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from cenote.bench.process_group import terminate_groups_on_sigterm
from cenote.bench.spawn import find_free_port, make_serve_command, spawn_server
from cenote.utils.arguments import parse_positive_int
from cenote.utils.async_http_client import AsyncHttpClient, ServerAddress, encode_http_request

TEXT = (
    "a cenote is natural pit in limestone that exposes groundwater beneath the surface where rivers flow through caves "
    "and divers find fossils of animals which lived there before sea level rose again after last ice age"
)
WORDS = TEXT.split()
QUERY_WORDS, MIN_WORDS, MAX_WORDS = 10, 10, 100
# bodies are made before the clock starts; enough different ones that identical inputs are rare
NUM_BODIES = 16
BULK_HEADERS = {"x-priority": "bulk"}
WARMUP_S = 1.0  # before the clock of a phase starts, and after bulk requests were cancelled


@dataclass(slots=True)
class Phase:
    """What one phase of a round measured."""

    query_s: list[float] = field(default_factory=list)
    num_tokens: float = 0.0  # in the batches that ran
    elapsed_s: float = 0.0

    def add(self, other: Phase) -> None:
        self.query_s += other.query_s
        self.num_tokens += other.num_tokens
        self.elapsed_s += other.elapsed_s


class Load:
    """Clients of one server: one that sends a query at a time, and several that send many texts at a time."""

    def __init__(self, address: ServerAddress, *, num_clients: int, num_texts: int, pause_s: float) -> None:
        self.address = address
        self.num_clients = num_clients
        self.pause_s = pause_s
        rng = random.Random(0)

        def make_text(num_words: int) -> str:
            return " ".join(
                rng.choice(WORDS) + str(rng.randrange(100)) * (rng.random() < 0.1) for _ in range(num_words)
            )

        def encode(texts: Sequence[str], headers: dict[str, str]) -> bytes:
            body = msgspec.json.encode({"input": texts})
            return encode_http_request("POST", address, "/v1/embeddings", headers=headers, body=body)

        self.queries = [encode([make_text(QUERY_WORDS)], {}) for _ in range(500)]
        self.bulk = [
            encode([make_text(rng.randint(MIN_WORDS, MAX_WORDS)) for _ in range(num_texts)], BULK_HEADERS)
            for _ in range(NUM_BODIES)
        ]

    async def run(self, seconds: float, *, has_query: bool, has_bulk: bool) -> Phase:
        """Send requests for a time; bulk requests that are not finished by then are cancelled."""
        phase = Phase()
        async with (
            AsyncHttpClient(self.address, timeout_s=600) as monitor,
            AsyncHttpClient(self.address, timeout_s=600) as client,
        ):
            bulk = [
                asyncio.create_task(self._send_bulk(client, number)) for number in range(self.num_clients * has_bulk)
            ]
            await asyncio.sleep(WARMUP_S)
            began, num_tokens = time.perf_counter(), await self._count_tokens(monitor)
            if has_query:
                await self._send_queries(monitor, began + seconds, phase)
            else:
                await asyncio.sleep(seconds)
            phase.num_tokens = await self._count_tokens(monitor) - num_tokens
            phase.elapsed_s = time.perf_counter() - began
            for task in bulk:
                assert not task.done(), task.exception()
                task.cancel()
            await asyncio.gather(*bulk, return_exceptions=True)
        await asyncio.sleep(WARMUP_S)
        return phase

    async def _send_queries(self, client: AsyncHttpClient, until: float, phase: Phase) -> None:
        number = 0
        while time.perf_counter() < until:
            began = time.perf_counter()
            reply = await client.send(self.queries[number % len(self.queries)])
            assert reply.status == 200, reply.content[:500]
            phase.query_s.append(reply.received_at - began)
            number += 1
            await asyncio.sleep(self.pause_s)

    async def _send_bulk(self, client: AsyncHttpClient, number: int) -> None:
        while True:
            reply = await client.send(self.bulk[number % len(self.bulk)])
            assert reply.status == 200, reply.content[:500]
            number += self.num_clients

    async def _count_tokens(self, client: AsyncHttpClient) -> float:
        reply = await client.send(encode_http_request("GET", self.address, "/metrics"))
        (value,) = re.findall(rb"^cenote_batch_tokens_sum{.*} (\S+)$", reply.content, re.MULTILINE)
        return float(value)


def percentile(seconds: Sequence[float], part: float) -> float:
    return sorted(seconds)[min(len(seconds) - 1, int(part * len(seconds)))]


def print_report(idle: Phase, alone: Phase, both: Phase) -> None:
    p99_limit = 3 * percentile(idle.query_s, 0.99) + 0.05
    for name, phase in (("idle", idle), ("beside bulk", both)):
        p50, p99 = (1000 * percentile(phase.query_s, part) for part in (0.5, 0.99))
        print(f"query {name}: p50 {p50:.1f} ms, p99 {p99:.1f} ms, {len(phase.query_s)} queries")
    p99 = percentile(both.query_s, 0.99)
    print(f"p99 beside bulk: {p99 / p99_limit:.2f} of 3 x p99 idle + 50 ms = {1000 * p99_limit:.1f} ms")
    rates = [phase.num_tokens / phase.elapsed_s for phase in (alone, both)]
    print(
        f"bulk alone: {rates[0]:.0f} tokens/s, with queries: {rates[1]:.0f} tokens/s, ratio {rates[1] / rates[0]:.2f}"
    )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m lab.lanes", description=__doc__)
    parser.add_argument("--model", help="model of the server; the default model if unset")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--clients", type=parse_positive_int, default=4, help="bulk clients")
    parser.add_argument("--texts", type=parse_positive_int, default=512, help="texts per bulk request")
    parser.add_argument("--pause-ms", type=float, default=20.0, help="between a reply and the next query")
    parser.add_argument("--rounds", type=parse_positive_int, default=3, help="each has three phases")
    parser.add_argument("--seconds", type=float, default=10.0, help="per phase")
    parser.add_argument("serve_args", nargs="*", help="after --: further flags of the server")
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    port = find_free_port()
    command = make_serve_command(port, model=args.model, dtype=args.dtype, extra_args=args.serve_args)
    idle, alone, both = Phase(), Phase(), Phase()
    with terminate_groups_on_sigterm(), asyncio.Runner() as runner, spawn_server(command, port, runner) as server:
        load = Load(server.address, num_clients=args.clients, num_texts=args.texts, pause_s=args.pause_ms / 1000)
        runner.run(load.run(WARMUP_S, has_query=True, has_bulk=True))
        for _ in range(args.rounds):
            idle.add(runner.run(load.run(args.seconds, has_query=True, has_bulk=False)))
            alone.add(runner.run(load.run(args.seconds, has_query=False, has_bulk=True)))
            both.add(runner.run(load.run(args.seconds, has_query=True, has_bulk=True)))
    print_report(idle, alone, both)


if __name__ == "__main__":
    main()
