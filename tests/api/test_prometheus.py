"""Prometheus metrics: valid format, correct values under Cenote and vLLM names, bounded label values."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from cenote import LLM
from cenote.api.app import build_app
from cenote.api.app_state import AppState
from cenote.api.prometheus import VLLM_NAMES, render_metrics
from cenote.config.server import ServerConfig
from cenote.engine.engine import PoolingEngine
from cenote.loading.loaded_model import LoadedModel
from cenote.utils.metrics import MetricsRegistry, add_label

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture
def client(loaded: LoadedModel, llm: LLM) -> Any:
    engine = PoolingEngine(loaded, llm.config)  # a new engine, with all metrics at zero
    app_state = AppState(ServerConfig(served_model_name=("one", "two")))
    app_state.set_engine(engine)
    yield TestClient(build_app(app_state))
    engine.stop()


def get_samples(client: TestClient) -> Samples:
    reply = client.get("/metrics")
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    samples: Samples = {}
    for family in text_string_to_metric_families(reply.text):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in samples, f"{key} occurs twice"
            samples[key] = sample.value
    return samples


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, tuple(sorted(labels.items()))]


def test_requests_tokens_and_replies_are_counted(client: TestClient) -> None:
    client.post("/v1/embeddings", json={"input": ["a", "b c"]})
    client.post("/embeddings", json={"input": "x " * 300})
    client.get("/v1/embeddings")

    samples = get_samples(client)

    assert value(samples, "cenote_requests_total", model_name="one", outcome="answered") == 1
    assert value(samples, "cenote_requests_total", model_name="one", outcome="refused") == 1
    assert value(samples, "cenote_prompt_tokens_total", model_name="one") == 7
    assert value(samples, "cenote_inputs_total", model_name="one") == 2
    assert value(samples, "cenote_request_duration_seconds_count", model_name="one") == 1
    assert value(samples, "cenote_waiting_tokens", model_name="one") == 0
    assert value(samples, "http_requests_total", handler="/v1/embeddings", method="POST", status="200") == 1
    assert value(samples, "http_requests_total", handler="/v1/embeddings", method="POST", status="400") == 1
    assert value(samples, "http_requests_total", handler="none", method="GET", status="405") == 1
    assert value(samples, "http_request_duration_seconds_count", handler="/v1/embeddings") == 2
    assert value(samples, "process_resident_memory_bytes") > 10_000_000


def test_vllm_metric_names_have_the_same_values(client: TestClient) -> None:
    client.post("/v1/embeddings", json={"input": ["a", "b c"]})

    samples = get_samples(client)

    labels = {"model_name": "one", "engine": "0"}
    assert value(samples, "vllm:prompt_tokens_total", **labels) == 7
    assert value(samples, "vllm:num_requests_running", **labels) == 0
    assert value(samples, "vllm:request_success_total", finished_reason="stop", **labels) == 1
    assert value(samples, "vllm:request_success_total", finished_reason="abort", **labels) == 0
    for theirs, ours in VLLM_NAMES.items():
        shared = {
            (name.removeprefix(theirs), tuple(pair for pair in pairs if pair[0] == "le")): number
            for (name, pairs), number in samples.items()
            if name.startswith(theirs + "_")
        }
        for (suffix, bounds), number in shared.items():
            assert value(samples, ours + suffix, model_name="one", **dict(bounds)) == number


def test_histogram_buckets_are_cumulative(client: TestClient) -> None:
    for text in ("a", "a b c d e f", "w " * 100):
        client.post("/v1/embeddings", json={"input": text})

    samples = get_samples(client)

    def count_up_to(bound: str) -> float:
        return value(samples, "cenote_request_prompt_tokens_bucket", le=bound, model_name="one")

    assert [
        count_up_to("2.0"),
        count_up_to("5.0"),
        count_up_to("10.0"),
        count_up_to("100.0"),
        count_up_to("200.0"),
        count_up_to("+Inf"),
    ] == [0, 1, 2, 2, 3, 3]
    assert value(samples, "cenote_request_prompt_tokens_count", model_name="one") == 3
    assert value(samples, "cenote_request_prompt_tokens_sum", model_name="one") == 3 + 8 + 102


def test_metrics_of_an_idle_server_are_zero(client: TestClient) -> None:
    samples = get_samples(client)

    for outcome in ("answered", "cancelled", "failed"):
        assert value(samples, "cenote_requests_total", model_name="one", outcome=outcome) == 0
    assert value(samples, "cenote_batch_tokens_bucket", le="+Inf", model_name="one") == 0
    assert value(samples, "vllm:iteration_tokens_total_count", model_name="one", engine="0") == 0


def test_unknown_paths_and_methods_add_no_labels(client: TestClient) -> None:
    client.request("BREW", "/pot")
    client.get("/path/1")
    before = get_samples(client)

    for number in range(30):
        client.get(f"/path/{number}")
        client.request(f"VERB{number}", f"/path/{number}")
        client.post("/v1/embeddings", json={"input": "a", "model": f"model-{number}", "user": f"user-{number}"})

    added = {name for name, _ in get_samples(client).keys() - before.keys()}
    assert added <= {name for name in added if name.startswith("http_request")}
    labels = {pairs for name, pairs in get_samples(client) if name == "http_requests_total"}
    assert {dict(pairs)["handler"] for pairs in labels} == {"none", "/v1/embeddings", "/metrics"}
    assert {dict(pairs)["method"] for pairs in labels} == {"GET", "POST", "other"}


def test_label_values_with_quotes_and_line_breaks_are_escaped() -> None:
    metrics = MetricsRegistry()
    metrics.counter("cenote_things_total", "Things.")(by=2)

    families = [add_label(family, "model_name", 'a"b\\c\nd') for family in metrics.snapshot()]
    text = render_metrics(families).decode()

    (family,) = [family for family in text_string_to_metric_families(text) if family.name == "cenote_things"]
    assert family.samples[0].labels == {"model_name": 'a"b\\c\nd'}


def test_metrics_are_unavailable_before_the_model_is_loaded() -> None:
    assert TestClient(build_app(AppState(ServerConfig()))).get("/metrics").status_code == 503
