"""The results of a chaos run as a table."""

from __future__ import annotations

from collections.abc import Iterator

from lab.chaos.results import VIOLATIONS, ChaosResults, InjectedFault


def format_results(results: ChaosResults) -> str:
    rows = [
        ("requests", f"{results.num_requests:,}"),
        ("right answer", f"{results.verdicts['ok']:,}"),
        ("invalid, rejected as documented", f"{results.verdicts['rejected']:,}"),
        ("refused or expired", f"{results.verdicts['refused'] + results.verdicts['expired']:,}"),
        ("connection lost or closed for another", f"{results.verdicts['broken']:,}"),
        ("aborted by the client", f"{results.verdicts['aborted']:,}"),
        *((name, f"{results.verdicts[name]:,}") for name in VIOLATIONS),
        ("other statuses than expected", format_counts(dict(results.statuses))),
        ("engine restarts", f"{results.restarts:g}"),
        ("requests replayed", "no metric" if results.replayed is None else f"{results.replayed:g}"),
    ]
    if results.attacks:
        rows.append(("attacks", format_counts(dict(results.attacks))))
    if (latency := results.latency_ms) is not None:
        rows.append(("latency p50 / p99 / max", f"{latency.p50:.0f} / {latency.p99:.0f} / {latency.max:.0f} ms"))
    width = max(len(name) for name, _ in rows)
    lines = [f"seed {results.seed}", *(f"{name:<{width}}  {value}" for name, value in rows)]
    lines += ["", *_format_faults(results.faults), *(f"note: {note}" for note in dict.fromkeys(results.notes))]
    lines += [f"VIOLATION: {violation}" for violation in results.violations] or ["no violation"]
    return "\n".join(lines)


def _format_faults(faults: list[InjectedFault]) -> Iterator[str]:
    names = dict.fromkeys(fault.name for fault in faults)
    for name in names:
        times = [fault.recovery_s for fault in faults if fault.name == name and fault.recovery_s is not None]
        count = sum(fault.name == name for fault in faults)
        spread = f"answered again after {min(times):.1f} to {max(times):.1f} s" if times else "no answer"
        yield f"{name:<16} {count:>3} times, {spread}"


def format_counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name}: {count:,}" for name, count in sorted(counts.items())) or "none"
