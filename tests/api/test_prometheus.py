"""What Prometheus reads: well-formed, true, under both kinds of names, and never more of it than there are routes."""

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
from cenote.loading.load import LoadedModel
from cenote.utils.metrics import MetricsRegistry

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture
def client(loaded: LoadedModel, llm: LLM) -> Any:
    engine = PoolingEngine(loaded, llm.config)  # one that has counted nothing yet
    service = AppState(ServerConfig(served_model_name=("one", "two")))
    service.set_engine(engine)
    yield TestClient(build_app(service))
    engine.stop()


def samples(client: TestClient) -> Samples:
    reply = client.get("/metrics")
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    found: Samples = {}
    for family in text_string_to_metric_families(reply.text):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found, f"{key} is there twice"
            found[key] = sample.value
    return found


def value(found: Samples, name: str, **labels: str) -> float:
    return found[name, tuple(sorted(labels.items()))]


def test_requests_tokens_and_replies_are_counted(client: TestClient) -> None:
    client.post("/v1/embeddings", json={"input": ["a", "b c"]})
    client.post("/embeddings", json={"input": "x " * 300})
    client.get("/v1/embeddings")

    found = samples(client)

    assert value(found, "cenote_requests_total", model_name="one", outcome="answered") == 1
    assert value(found, "cenote_requests_total", model_name="one", outcome="refused") == 1
    assert value(found, "cenote_prompt_tokens_total", model_name="one") == 7
    assert value(found, "cenote_inputs_total", model_name="one") == 2
    assert value(found, "cenote_request_duration_seconds_count", model_name="one") == 1
    assert value(found, "cenote_waiting_tokens", model_name="one") == 0
    assert value(found, "http_requests_total", handler="/v1/embeddings", method="POST", status="200") == 1
    assert value(found, "http_requests_total", handler="/v1/embeddings", method="POST", status="400") == 1
    assert value(found, "http_requests_total", handler="none", method="GET", status="405") == 1
    assert value(found, "http_request_duration_seconds_count", handler="/v1/embeddings") == 2
    assert value(found, "process_resident_memory_bytes") > 10_000_000


def test_vllm_metric_names_have_the_same_values(client: TestClient) -> None:
    client.post("/v1/embeddings", json={"input": ["a", "b c"]})

    found = samples(client)

    labels = {"model_name": "one", "engine": "0"}
    assert value(found, "vllm:prompt_tokens_total", **labels) == 7
    assert value(found, "vllm:num_requests_running", **labels) == 0
    assert value(found, "vllm:request_success_total", finished_reason="stop", **labels) == 1
    assert value(found, "vllm:request_success_total", finished_reason="abort", **labels) == 0
    for theirs, ours in VLLM_NAMES.items():
        shared = {
            (name.removeprefix(theirs), tuple(pair for pair in pairs if pair[0] == "le")): number
            for (name, pairs), number in found.items()
            if name.startswith(theirs + "_")
        }
        for (suffix, bounds), number in shared.items():
            assert value(found, ours + suffix, model_name="one", **dict(bounds)) == number


def test_buckets_add_up(client: TestClient) -> None:
    for text in ("a", "a b c d e f", "w " * 100):
        client.post("/v1/embeddings", json={"input": text})

    found = samples(client)

    def at(bound: str) -> float:
        return value(found, "cenote_request_prompt_tokens_bucket", le=bound, model_name="one")

    assert [at("2.0"), at("5.0"), at("10.0"), at("100.0"), at("200.0"), at("+Inf")] == [0, 1, 2, 2, 3, 3]
    assert value(found, "cenote_request_prompt_tokens_count", model_name="one") == 3
    assert value(found, "cenote_request_prompt_tokens_sum", model_name="one") == 3 + 8 + 102


def test_a_server_that_has_done_nothing_shows_zeros(client: TestClient) -> None:
    found = samples(client)

    for outcome in ("answered", "cancelled", "failed"):
        assert value(found, "cenote_requests_total", model_name="one", outcome=outcome) == 0
    assert value(found, "cenote_batch_tokens_bucket", le="+Inf", model_name="one") == 0
    assert value(found, "vllm:iteration_tokens_total_count", model_name="one", engine="0") == 0


def test_unknown_paths_and_methods_add_no_labels(client: TestClient) -> None:
    client.request("BREW", "/pot")
    client.get("/path/1")
    before = samples(client)

    for number in range(30):
        client.get(f"/path/{number}")
        client.request(f"VERB{number}", f"/path/{number}")
        client.post("/v1/embeddings", json={"input": "a", "model": f"model-{number}", "user": f"user-{number}"})

    added = {name for name, _ in samples(client).keys() - before.keys()}
    assert added <= {name for name in added if name.startswith("http_request")}
    labels = {pairs for name, pairs in samples(client) if name == "http_requests_total"}
    assert {dict(pairs)["handler"] for pairs in labels} == {"none", "/v1/embeddings", "/metrics"}
    assert {dict(pairs)["method"] for pairs in labels} == {"GET", "POST", "other"}


def test_names_with_quotes_and_line_breaks_survive() -> None:
    metrics = MetricsRegistry()
    metrics.counter("cenote_things_total", "Things.")(by=2)

    text = render_metrics(metrics.snapshot(), 'a"b\\c\nd').decode()

    (family,) = [each for each in text_string_to_metric_families(text) if each.name == "cenote_things"]
    assert family.samples[0].labels == {"model_name": 'a"b\\c\nd'}


def test_metrics_are_unavailable_before_the_model_is_loaded() -> None:
    assert TestClient(build_app(AppState(ServerConfig()))).get("/metrics").status_code == 503
