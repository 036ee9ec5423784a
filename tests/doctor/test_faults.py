"""The doctor finds each of eleven faults of a server, and nothing at the same server without the fault."""

from __future__ import annotations

import pytest

from cenote.doctor.examination import examine
from cenote.doctor.findings import Report
from cenote.utils.http_client import HttpClient
from tests.doctor import faulty_proxy as faults
from tests.doctor.conftest import Serve
from tests.doctor.faulty_proxy import FaultyProxy, change_vectors

EMBEDDINGS = "/v1/embeddings"


def run_doctor(url: str) -> Report:
    with HttpClient(url) as client:
        return examine(client)


def failures(report: Report) -> str:
    return "\n".join(f"{item.check}: {item.message}" for item in report.findings if item.status == "fail")


@pytest.mark.parametrize("path", [EMBEDDINGS, "/rerank"])
def test_a_proxy_without_a_fault_passes(path: str, embedder: str, serve: Serve) -> None:
    report = run_doctor(serve(FaultyProxy(embedder, path)))

    assert failures(report) == ""
    assert {item.api for item in report.findings if item.status == "ok"} >= {"vLLM" if path == "/rerank" else "OpenAI"}


@pytest.mark.parametrize(
    ("fault", "check", "words"),
    [
        ({"change_reply": faults.pool_cls}, "reference vectors", "wrong pooling"),
        ({"change_reply": change_vectors(faults.scale)}, "reference vectors", "not normalized: lengths 5.500"),
        (
            {"change_request": faults.ask_for_truncation, "change_reply": faults.hide_truncation},
            "long text, no field",
            "truncated silently",
        ),
        (
            {"change_reply": change_vectors(faults.reverse)},
            "openai, float",
            "wrong order: text 0 has the vector of text 2",
        ),
        ({"change_reply": faults.flatten_error}, "errors", "error is missing"),
        ({"change_reply": faults.drop_content_type}, "openai, float", "header Content-Type is missing"),
        ({"change_reply": faults.drop_warning}, "token ids", "read as other tokens, and nothing says so: cosine 0."),
        ({"change_reply": faults.fail_on_bad_input}, "errors", "wrong type: 500 instead of 4xx"),
        ({"change_request": faults.ignore_dimensions}, "dimensions", "dimensions=192 returns 384 values"),
        ({"change_reply": change_vectors(faults.round_base64)}, "base64 equals float", "lossy base64"),
    ],
    ids=[
        "wrong pooling",
        "unnormalised",
        "truncated silently",
        "wrong order",
        "flat error",
        "missing header",
        "ids of another tokenizer",
        "5xx on bad input",
        "wrong dimension",
        "lossy base64",
    ],
)
def test_a_fault_of_embeddings_is_found(
    fault: dict[str, object], check: str, words: str, embedder: str, serve: Serve
) -> None:
    report = run_doctor(serve(FaultyProxy(embedder, EMBEDDINGS, **fault)))  # type: ignore[arg-type]

    assert report.has_failed
    found = [item.message for item in report.findings if item.status == "fail" and item.check == check]
    assert any(words in message for message in found), failures(report)


@pytest.mark.parametrize("name", ["embedder", "cross_encoder"])
def test_swapped_scores_are_found(name: str, request: pytest.FixtureRequest, serve: Serve) -> None:
    url = request.getfixturevalue(name)

    report = run_doctor(serve(FaultyProxy(url, "/rerank", change_reply=faults.swap_scores)))

    assert "batch equals single: swapped scores" in failures(report)
