"""Attackers beside the honest clients: processes that are started with the load and stopped with it."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager

from cenote.bench.process_group import ProcessGroup
from lab.chaos.results import ChaosResults, format_counts
from lab.chaos.server import THREADS, ChaosServer
from lab.chaos.session import ADMIN_KEY, ATTACKER_KEY, ChaosOptions


@asynccontextmanager
async def attackers(server: ChaosServer, options: ChaosOptions, results: ChaosResults) -> AsyncIterator[None]:
    """Attack the server during the block, then add to the results what the attackers saw."""
    command = [sys.executable, "-m", "lab.chaos.attackers", str(server.address)]
    command += ["--api-key", ATTACKER_KEY, "--admin-key", ADMIN_KEY]
    command += [] if server.grpc_port is None else ["--grpc-port", str(server.grpc_port)]
    with ExitStack() as stack:
        reports = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(options.attackers)]
        groups = [
            ProcessGroup(
                [*command, "--seed", str(options.seed + number)], stdin=subprocess.DEVNULL, stdout=report, stderr=report
            )
            for number, report in enumerate(reports)
        ]
        try:
            yield
        finally:
            for group in groups:
                await THREADS.run(group.terminate)
        for report in reports:
            report.seek(0)
            add_report(results, report.read().decode(errors="replace"))


def add_report(results: ChaosResults, text: str) -> None:
    """Add what one attacker has printed; anything but a report is its error."""
    try:
        report = json.loads(text.strip().rpartition("\n")[2])
    except ValueError:
        results.violations.append(f"an attacker has failed: {text[-500:]}")
        return
    results.attacks += Counter(report["attacks"])
    results.notes.append(f"an attacker got these answers: {format_counts(report['answers'])}")
    results.violations += [f"an attack was answered with a failure: {problem}" for problem in report["problems"]]
