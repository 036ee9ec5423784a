"""The advice and the report of `cenote explain --http`, from given figures."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from cenote.bench.load_stats import Percentiles
from cenote.explain.http_report import make_http_advice, to_json, to_text
from cenote.explain.http_results import HttpResults, make_stages
from cenote.explain.process_cpu import ProcessUsage

STAGES_MS = {"parse": 1.0, "tokenize": 1.0, "wire": 1.0, "queue": 2.0, "pack": 0.5, "device": 3.0, "deliver": 0.5}


def usage(role: str, cores: float, event_loop: float = 0.1, pid: int = 1) -> ProcessUsage:
    return ProcessUsage(role, pid, cores, event_loop, 100.0)


def make_results() -> HttpResults:
    """Results with nothing saturated."""
    return HttpResults(
        model="small",
        endpoint="/v1/embeddings",
        encoding_format="base64",
        connections=64,
        client_processes=1,
        seconds=5.0,
        requests=5000,
        failed=0,
        requests_per_s=1000.0,
        tokens_per_request=48.0,
        latency_ms=Percentiles(p50=10.0, p90=11.0, p99=12.0, mean=10.0, max=13.0),
        stages=tuple(make_stages({**STAGES_MS, "inference": 3.5}, 10.0, {"engine", "front-end"})),
        processes=(usage("front-end", 0.5, 0.5), usage("engine", 0.6, 0.2, pid=2)),
        client_cores=0.3,
        machine_cores=16,
        device_busy=0.4,
        inputs_per_batch=8.0,
    )


def test_the_stages_and_the_rest_add_up_to_the_latency() -> None:
    stages = {stage.name: stage for stage in make_results().stages}

    assert list(stages) == ["parse", "tokenize", "wire", "queue", "pack", "device", "deliver", "encode", "other"]
    assert stages["other"].mean_ms == pytest.approx(1.0)  # inference is not a stage: it covers pack and device
    assert sum(stage.share for stage in stages.values()) == pytest.approx(1)


def test_the_engine_in_the_process_of_the_server_has_no_other_processes() -> None:
    stages = list(make_stages(STAGES_MS, 10.0, {"server"}))

    assert {stage.process for stage in stages[:-1]} == {"server"}


BUSY_FRONT_ENDS = tuple(usage("front-end", 0.97, 0.96, pid) for pid in (2, 3))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "Nothing is saturated (device 40% busy, 1.4 of 16 cores in use)"),
        ({"device_busy": 0.95}, "The device is busy for 95% of the time"),
        ({"client_cores": 0.98}, "measure with --client-processes 2"),
        ({"client_cores": 0.98, "client_processes": 2}, "Nothing is saturated"),
        ({"machine_cores": 1}, "The 1 cores of this machine are in use, 0.30 of them by the client"),
        ({"processes": BUSY_FRONT_ENDS}, "raise --api-server-count to 4; 13.8 cores are idle"),
        ({"processes": BUSY_FRONT_ENDS, "machine_cores": 2}, "The 2 cores of this machine are in use"),
        ({"processes": (*BUSY_FRONT_ENDS, usage("front-end", 0.2))}, "Nothing is saturated"),
        ({"processes": (usage("engine", 1.2, 0.9),)}, "The event loop of the engine process is full"),
    ],
)
def test_the_first_advice_is_what_limits_the_requests(changes: dict[str, object], expected: str) -> None:
    limit, largest = make_http_advice(replace(make_results(), **changes))  # type: ignore[arg-type]

    assert expected in limit
    assert "in the stage device: 30% of 10.00 ms" in largest


def test_failed_requests_come_first() -> None:
    assert make_http_advice(replace(make_results(), failed=3))[0].startswith("3 requests failed")


def test_the_report_has_every_stage_and_process() -> None:
    results = make_results()
    advice = make_http_advice(results)

    text = to_text(results, advice)
    assert "1,000 requests/s, latency p50 10.00 ms, p99 12.00 ms" in text
    for line in ("wire 1.000 10% front-end and engine", "engine 2 0.60", *advice):
        assert line in re.sub(" +", " ", text)
    assert json.loads(to_json(results, advice))["processes"][1]["role"] == "engine"
