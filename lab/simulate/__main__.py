"""Command line of the simulation, and the text of its results."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from cenote.bench.load import LoadPattern
from cenote.bench.load_stats import LoadStats
from cenote.errors import PoolingError
from lab.simulate.routing import POLICIES, SimulatedRequest, make_policy, make_requests, make_trace
from lab.simulate.service_time import ServiceTime
from lab.simulate.simulation import ReplicaSettings, SimulationResult, simulate

# BERT-base in bfloat16 on an H200, docs/performance.md: a query of 16 tokens in 0.6 ms, 2.4 M tokens/s through HTTP
H200_BERT_BASE = ServiceTime(batch_s=0.0006, sequence_s=0.0, token_s=1 / 2.6e6, overhead_s=0.0015)


def main(arguments: Sequence[str] | None = None) -> int:
    args = make_parser().parse_args(arguments)
    try:
        return run(args)
    except PoolingError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def run(args: argparse.Namespace) -> int:
    service = H200_BERT_BASE if args.service is None else ServiceTime.read(args.service)
    if args.measure is not None:
        from lab.simulate.measure import measure_service_time

        service = measure_service_time(args.measure, args.api_key, args.tokenizer, args.window_s)
        if args.write is not None:
            service.write(args.write)
    print(describe_service(service))
    load = LoadPattern(
        None, args.rate, args.burstiness, num_requests=args.requests, duration_s=args.duration, seed=args.seed
    )
    if args.check is not None:
        return check(args, service, load)
    requests = make_requests(load, mean_tokens=args.mean_tokens, sigma=args.sigma, num_contents=args.distinct)
    results = {name: run_policy(args, name, requests, service) for name in args.policy or POLICIES}
    print(format_results(results, args.rate, args.replicas))
    return 0


def check(args: argparse.Namespace, service: ServiceTime, load: LoadPattern) -> int:
    """Compare the simulation with an open-loop load on a server."""
    from lab.simulate.measure import run_open_loop

    stats, lengths = run_open_loop(
        args.check, args.api_key, args.tokenizer, load, mean_tokens=args.mean_tokens, sigma=args.sigma
    )
    name = (args.policy or ["least-tokens"])[0]
    print(compare(stats, run_policy(args, name, make_trace(load, lengths), service)))
    return 0


def run_policy(
    args: argparse.Namespace, name: str, requests: Sequence[SimulatedRequest], service: ServiceTime
) -> SimulationResult:
    settings = ReplicaSettings(args.max_batch_tokens, args.max_batch_sequences, args.cache_entries)
    policy = make_policy(name, args.seed)
    return simulate(
        requests,
        service,
        policy,
        num_replicas=args.replicas,
        settings=settings,
        seed=args.seed,
    )


def describe_service(service: ServiceTime) -> str:
    return (
        f"batch {service.batch_s * 1e3:.3f} ms + sequence {service.sequence_s * 1e3:.4f} ms + token "
        f"{service.token_s * 1e6:.3f} us; {service.overhead_s * 1e3:.2f} ms beside the batch, "
        f"{service.gap_s * 1e3:.2f} ms between batches; "
        f"+{service.contention:.0%} for each other replica that computes; "
        f"{service.tokens_per_s(256, 256 * 48):,.0f} tokens/s in batches of 256 texts of 48 tokens"
    )


def format_results(results: Mapping[str, SimulationResult], rate: float, num_replicas: int) -> str:
    lines = [f"{num_replicas} replicas, {rate:g} requests/s offered"]
    lines.append(f"{'policy':<14}{'requests/s':>12}{'tokens/s':>14}{'p50 ms':>10}{'p99 ms':>10}{'busy':>7}{'hits':>9}")
    for name, result in results.items():
        lines.append(
            f"{name:<14}{result.requests_per_s:>12,.1f}{result.tokens_per_s:>14,.0f}{result.percentile_ms(50):>10.1f}"
            f"{result.percentile_ms(99):>10.1f}{result.busy:>7.0%}{result.cache_hits:>9,}"
        )
    return "\n".join(lines)


def compare(stats: LoadStats, simulated: SimulationResult) -> str:
    """Return the figures of a server beside those of the simulation of the same requests."""
    if stats.latency_ms is None:
        return f"no request of {stats.requests} succeeded"
    rows = [
        ("requests/s", stats.requests_per_s, simulated.requests_per_s),
        ("tokens/s", stats.tokens_per_s or 0.0, simulated.tokens_per_s),
        ("p50 ms", stats.latency_ms.p50, simulated.percentile_ms(50)),
        ("p99 ms", stats.latency_ms.p99, simulated.percentile_ms(99)),
    ]
    lines = [
        f"{stats.requests} requests, {stats.failed} failed",
        f"{'':<12}{'server':>12}{'simulated':>12}{'error':>9}",
    ]
    for name, real, ours in rows:
        lines.append(f"{name:<12}{real:>12,.1f}{ours:>12,.1f}{(ours / real - 1 if real else 0.0):>9.1%}")
    return "\n".join(lines)


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lab.simulate",
        description="Simulate replicas under load, with service times that were measured on a server.",
    )
    parser.add_argument("--measure", metavar="URL", help="measure the service time of this server for half a minute")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the measured service time as JSON")
    parser.add_argument("--service", type=Path, metavar="FILE", help="read it (default: BERT-base on an H200)")
    parser.add_argument("--check", metavar="URL", help="run the load on this server too, and compare")
    parser.add_argument("--api-key", help="API key of the server")
    parser.add_argument("--tokenizer", metavar="MODEL", help="model whose tokenizer makes the texts")
    parser.add_argument("--window-s", type=float, default=2.5, help="seconds of each of 12 loads of --measure")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--policy", action="append", choices=POLICIES, help="may be repeated (default: all)")
    parser.add_argument("--rate", type=float, default=100.0, help="requests per second")
    parser.add_argument("--burstiness", type=float, default=1.0, help="1: Poisson; below 1: bursts")
    parser.add_argument("--requests", type=int, default=None, help="number of requests")
    parser.add_argument("--duration", type=float, default=60.0, metavar="SECONDS", help="of arrivals")
    parser.add_argument("--mean-tokens", type=float, default=48.0)
    parser.add_argument("--sigma", type=float, default=0.8, help="spread of the log-normal lengths; 0: equal lengths")
    parser.add_argument("--distinct", type=int, default=None, metavar="N", help="repeat N texts, by Zipf's law")
    parser.add_argument("--cache-entries", type=int, default=0, help="results that the cache of a replica holds")
    parser.add_argument("--max-batch-tokens", type=int, default=16_384)
    parser.add_argument("--max-batch-sequences", type=int, default=1024)
    parser.add_argument("--seed", type=int, default=0)
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
