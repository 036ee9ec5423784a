"""Clients in processes of their own, where one process cannot ask as fast as a server answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection

import uvloop

from cenote.bench.client import Address, Client
from cenote.bench.load import Good, Load, Request, Sender, run_load
from cenote.bench.load_stats import Round

HEAD_START_S = 0.05  # from the word to begin to the first request, so that all of them begin together
GONE_WITHIN_S = 5.0


class ClientProcesses:
    """Each has its share of the requests and of the load; a round is done by all of them at once."""

    def __init__(self, num: int, address: Address, requests: Sequence[Request], timeout_s: float) -> None:
        context = get_context("spawn")  # a fork would copy threads in the middle of something
        self.num = num
        self.lines: list[Connection] = []
        self.processes = []
        for number in range(num):
            ours, theirs = context.Pipe()
            share = requests[number::num] or requests
            process = context.Process(target=_work, args=(theirs, address, share, timeout_s), daemon=True)
            process.start()
            theirs.close()
            self.lines.append(ours)
            self.processes.append(process)

    def run_round(self, load: Load, num_warmups: int) -> Round:
        for number, line in enumerate(self.lines):
            line.send((load.share(number, self.num), -(-num_warmups // self.num)))
        for line in self.lines:
            line.recv()  # which says that it is ready
        began = time.perf_counter() + HEAD_START_S  # a clock that all processes share
        for line in self.lines:
            line.send(began)
        parts: list[Round] = [line.recv() for line in self.lines]
        samples = [sample for part in parts for sample in part.samples]
        return Round(samples, sum(part.cpu_s for part in parts), sum(part.num_resent for part in parts))

    def close(self) -> None:
        for line in self.lines:
            line.close()  # which they take for the end
        for process in self.processes:
            process.join(GONE_WITHIN_S)
            process.kill()


def _work(line: Connection, address: Address, requests: Sequence[Request], timeout_s: float) -> None:
    """The life of one process: a round whenever it is told to."""
    good: Good = {}

    async def round_of(load: Load, num_warmups: int) -> Round:
        async with Client(address, timeout_s=timeout_s) as client:
            if num_warmups:
                at_once = load.concurrency or load.max_concurrency or 1
                await run_load(Sender(client, requests, good), Load(at_once, num_requests=num_warmups))
            line.send("ready")
            began: float = line.recv()
            sender = Sender(client, requests, good)
            resent, cpu_s = client.num_resent, time.process_time()
            await asyncio.sleep(max(0.0, began - time.perf_counter()))
            await run_load(sender, load)
            return Round(sender.samples, time.process_time() - cpu_s, client.num_resent - resent)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, suppress(EOFError, KeyboardInterrupt):
        while True:
            line.send(runner.run(round_of(*line.recv())))
