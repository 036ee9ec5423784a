"""Text of the results of a simulation."""

from __future__ import annotations

from collections.abc import Mapping

from cenote.bench.load_stats import LoadStats
from lab.simulate.service_time import ServiceTime
from lab.simulate.simulation import SimulationResult


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
