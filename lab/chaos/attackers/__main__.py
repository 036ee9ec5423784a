"""`python -m lab.chaos.attackers URL`: one attacker, until SIGTERM; then it prints what it did as JSON."""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import sys
from collections.abc import Sequence

from cenote.utils.async_http_client import NoResponse, ServerAddress
from cenote.utils.system_limits import raise_file_limit
from lab.chaos.attackers.bodies import change_models, send_empty_strings, send_large_body
from lab.chaos.attackers.connections import (
    cut_bodies,
    half_close,
    hold_idle_connections,
    pipeline_requests,
    send_bad_bytes,
    send_slow_heads,
)
from lab.chaos.attackers.target import Attack, AttackReport, Target

# an attack and how often it comes, beside the others
ATTACKS: dict[Attack, float] = {
    send_large_body: 6.0,
    change_models: 1.0,
    send_bad_bytes: 1.0,
    hold_idle_connections: 1.0,
    pipeline_requests: 1.0,
    send_slow_heads: 1.0,
    half_close: 1.0,
    cut_bodies: 1.0,
    send_empty_strings: 1.0,
}
MAX_PAUSE_S = 1.0
ATTACK_TIMEOUT_S = 120.0


async def attack(target: Target) -> None:
    """Attack until cancelled."""
    while True:
        (chosen,) = target.source.choices(list(ATTACKS), list(ATTACKS.values()))
        target.report.attacks[chosen.__name__] += 1
        try:
            async with asyncio.timeout(ATTACK_TIMEOUT_S):
                await chosen(target)
        except (OSError, NoResponse, TimeoutError):
            target.report.answers["none"] += 1
        await asyncio.sleep(target.source.uniform(0, MAX_PAUSE_S))


async def run_until_terminated(target: Target) -> None:
    task = asyncio.ensure_future(attack(target))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.chaos.attackers", description=__doc__, allow_abbrev=False)
    parser.add_argument("url")
    parser.add_argument("--api-key", default="", help="of a client")
    parser.add_argument("--admin-key", default="", help="of an operator who mistypes")
    parser.add_argument("--grpc-port", type=int, help="of the gRPC server, if there is one")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    raise_file_limit()
    report = AttackReport()
    address, source = ServerAddress.from_url(args.url), random.Random(args.seed)
    asyncio.run(run_until_terminated(Target(address, args.api_key, args.admin_key, args.grpc_port, source, report)))
    print(report.to_json())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
