"""Measure the service times of a running server, and run a load against it to compare a simulation with."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from statistics import median

import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from cenote.bench.load import LoadPattern, RequestSample
from cenote.bench.load_stats import LoadStats, compute_load_stats
from cenote.bench.target import LoadTarget, RequestSettings
from cenote.bench.workloads import load_tokenizer, make_log_normal_workload
from cenote.errors import PoolingError
from cenote.utils.async_http_client import ServerAddress, encode_http_request
from cenote.utils.progress import print_note
from lab.simulate.service_time import LoadWindow, ServiceTime, fit_service_time, relative_errors

CONCURRENCIES = (1, 2, 4, 16)  # the last one is more for more than two replicas
MEAN_TOKENS = (16, 48, 128)
FULL_CONCURRENCY = 8  # clients per replica with which requests always wait for every replica
DISTINCT_TEXTS = 2048
METRICS = {
    "batches": "cenote_batch_sequences_count",
    "sequences": "cenote_batch_sequences_sum",
    "tokens": "cenote_batch_tokens_sum",
    "device_s": "cenote_device_seconds_total",
}


def measure_service_time(url: str, api_key: str | None, model: str | None, window_s: float) -> ServiceTime:
    """Send closed-loop loads of several sizes, and fit the service time to what the metrics of the server count."""
    return asyncio.run(_measure(url, api_key, model, window_s))


def run_open_loop(
    url: str, api_key: str | None, model: str | None, load: LoadPattern, *, mean_tokens: float, sigma: float
) -> tuple[LoadStats, list[int]]:
    """Return the statistics of an open-loop load of one text per request, and the lengths of the texts."""

    async def run() -> tuple[LoadStats, list[int]]:
        target, lengths = await _make_target(url, api_key, model, mean_tokens, sigma)
        await target.run_round(LoadPattern(4, num_requests=40), 0)
        return compute_load_stats([await target.run_round(load, 0)]), lengths

    return asyncio.run(run())


async def _measure(url: str, api_key: str | None, model: str | None, window_s: float) -> ServiceTime:
    windows: list[LoadWindow] = []
    samples: list[RequestSample] = []  # of one request at a time
    for mean_tokens in MEAN_TOKENS:
        target, _ = await _make_target(url, api_key, model, mean_tokens, 0.8)
        await target.run_round(LoadPattern(4, num_requests=20), 0)
        for least in CONCURRENCIES:
            before = await _read_metrics(target)
            full = FULL_CONCURRENCY * int(before["replicas"])
            concurrency = max(least, full) if least == CONCURRENCIES[-1] else least
            load = LoadPattern(concurrency, duration_s=window_s, num_requests=None)
            round_ = await target.run_round(load, 0)
            seconds = max(sample.finished for sample in round_.samples)
            after = await _read_metrics(target)
            failed = [sample for sample in round_.samples if sample.error is not None]
            if failed:
                hint = "; start the server with --max-queue-seconds 60" if failed[0].status == 429 else ""
                raise PoolingError(f"{len(failed)} of {len(round_.samples)} requests failed: {failed[0].error}{hint}")
            gained = {name: after[name] - before[name] for name in METRICS}
            num_replicas = int(after["replicas"])
            others = mean_others(gained["device_s"] / seconds, min(concurrency, num_replicas))
            waiting_s = seconds * num_replicas if concurrency >= full else None
            windows.append(LoadWindow(**gained, others=others, waiting_s=waiting_s))
            samples += round_.samples if concurrency == 1 else []
    service = fit_service_time(windows, *_compare_alone(windows, samples))
    errors = ", ".join(f"{error:+.0%}" for error in relative_errors(service, windows))
    print_note(f"device seconds of the fit against each window: {errors}")
    return service


def mean_others(mean_busy: float, max_busy: int) -> float:
    """Return how many other replicas compute on average while one does, if so many compute at most."""
    return (max_busy - 1) * min(1.0, mean_busy / max_busy)


def _compare_alone(windows: Sequence[LoadWindow], samples: Sequence[RequestSample]) -> tuple[float, tuple[float, ...]]:
    """Return the overhead of a request, and how much the time of a batch varies, from requests one at a time."""
    fitted = fit_service_time(windows, 0.0)
    device_ms = [(sample, dict(sample.timing_ms).get("device", 0.0)) for sample in samples]
    overheads = [sample.finished - sample.sent - milliseconds / 1e3 for sample, milliseconds in device_ms]
    factors = np.array([ms / 1e3 / fitted.expected_s(1, sample.tokens or 1) for sample, ms in device_ms if ms > 0])
    # the mean is that of the windows, which have batches of all sizes
    return median(overheads), tuple(float(factor) for factor in factors / factors.mean())


async def _make_target(
    url: str, api_key: str | None, model: str | None, mean_tokens: float, sigma: float
) -> tuple[LoadTarget, list[int]]:
    workload = make_log_normal_workload(load_tokenizer(model), DISTINCT_TEXTS, mean=mean_tokens, sigma=sigma)
    settings = RequestSettings(headers={"Authorization": f"Bearer {api_key}"} if api_key else {})
    target = LoadTarget("cenote", ServerAddress.from_url(url), settings)
    if problem := await target.fetch_model():
        raise PoolingError(f"{url} is not a server with a model: {problem}")
    target.prepare([[text] for text in workload.texts])
    return target, list(workload.lengths)


async def _read_metrics(target: LoadTarget) -> dict[str, float]:
    """Return the sums over all replicas, and how many there are."""
    request = encode_http_request("GET", target.address, "/metrics", headers=target.request_settings.headers)
    async with target.make_client() as client:
        reply = await client.send(request)
    sums: defaultdict[str, float] = defaultdict(float)
    num_replicas = 0
    for family in text_string_to_metric_families(reply.content.decode()):
        for sample in family.samples:
            sums[sample.name] += sample.value
            num_replicas += sample.name == METRICS["device_s"]  # each has a series of its own
    missing = [name for name in METRICS.values() if name not in sums]
    if missing:
        raise PoolingError(f"/metrics of {target.address} has no {', '.join(missing)}; it must be a server of Cenote")
    return {"replicas": num_replicas, **{name: sums[metric] for name, metric in METRICS.items()}}
