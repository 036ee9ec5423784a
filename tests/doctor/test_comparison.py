"""`cenote doctor --compare` says whether two servers agree, and names the cause if they do not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cenote.cli.main import main
from cenote.doctor.comparison import Comparison, compare, kendall_tau
from cenote.doctor.recording import ProxyRequest
from cenote.doctor.texts import COMPARED_TEXTS, make_long_text
from cenote.utils.http_client import HttpClient, HttpReply
from tests.doctor import faulty_proxy as faults
from tests.doctor.conftest import Serve
from tests.doctor.faulty_proxy import FaultyProxy, change_vectors

EMBEDDINGS = "/v1/embeddings"
TEXTS = [*COMPARED_TEXTS[:7], make_long_text(60, "The bridge is closed.")]


def run_compare(one: str, other: str) -> Comparison:
    with HttpClient(one) as first, HttpClient(other) as second:
        return compare(first, second, model=None, texts=TEXTS)


def prepend_prompt(body: dict[str, Any]) -> None:
    texts = body["input"] if isinstance(body["input"], list) else [body["input"]]
    body["input"] = [f"query: {text}" for text in texts]


def truncate_to_32(body: dict[str, Any]) -> None:
    body["truncate_prompt_tokens"] = 32


def round_to_three_digits(vectors: list[Any]) -> list[Any]:
    return [[round(value, 3) for value in vector] for vector in vectors]


def cut_in_half(proxy: FaultyProxy, request: ProxyRequest, reply: HttpReply) -> HttpReply:
    change = change_vectors(lambda vectors: [vector[: len(vector) // 2] for vector in vectors])
    return change(proxy, request, reply) if request.path == EMBEDDINGS else reply


def test_a_server_is_the_same_as_itself(embedder: str) -> None:
    result = run_compare(embedder, embedder)

    assert result.is_same and result.cause == "equal up to rounding"
    assert result.cosine_min == pytest.approx(1) and result.max_abs_difference == pytest.approx(0, abs=1e-6)
    assert (result.top_k_overlap, result.kendall_tau, result.rerank_kendall_tau) == (1, 1, 1)


@pytest.mark.parametrize(
    ("fault", "is_same", "cause"),
    [
        ({"change_reply": change_vectors(faults.scale)}, False, "normalization: the vectors of {proxy} are not"),
        ({"change_reply": faults.pool_cls}, False, "pooling: {server} uses MEAN, {proxy} uses CLS"),
        ({"change_request": prepend_prompt}, False, "prompt: {proxy} prepends 'query: ', {server} does not"),
        ({"change_request": truncate_to_32}, False, "truncation at {proxy}: only texts of "),
        ({"change_reply": change_vectors(round_to_three_digits)}, True, "precision: cosine 0.9999"),
    ],
    ids=["normalization", "pooling", "prompt", "truncation", "precision"],
)
def test_the_cause_of_a_difference_is_named(
    fault: dict[str, Any], is_same: bool, cause: str, embedder: str, serve: Serve
) -> None:
    proxy = serve(FaultyProxy(embedder, EMBEDDINGS, **fault))

    result = run_compare(embedder, proxy)

    assert result.cause.startswith(cause.format(server=embedder, proxy=proxy)), result.to_text()
    assert result.is_same == is_same


def test_the_command_reads_texts_and_reports_refused_ones(
    embedder: str, serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "texts.txt"
    file.write_text("\n".join(["hello", "Paris", "a red bird", make_long_text(200)]))
    proxy = serve(FaultyProxy(embedder, EMBEDDINGS, change_reply=change_vectors(faults.scale)))

    assert main(["doctor", "--compare", embedder, embedder, "--texts", str(file)]) == 0
    assert "(200 words): status 400" in capsys.readouterr().out
    assert main(["doctor", "--compare", embedder, proxy, "--texts", str(file), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["norms"][1] == pytest.approx([5.5, 5.5])
    file.write_text("one\n")
    assert main(["doctor", "--compare", embedder, proxy, "--texts", str(file)]) == 2
    assert "has 1 texts; expected two or more" in capsys.readouterr().err


def test_rerankers_are_compared_by_their_order(cross_encoder: str, serve: Serve) -> None:
    swapped = serve(FaultyProxy(cross_encoder, "/rerank", change_reply=faults.swap_scores))

    assert run_compare(cross_encoder, cross_encoder).cause == "scores are equal"
    result = run_compare(cross_encoder, swapped)
    assert not result.is_same and result.cause.startswith("rankings differ")


def test_an_embedder_and_a_cross_encoder_differ_even_if_their_rankings_agree(
    embedder: str, cross_encoder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cenote.doctor.comparison.kendall_tau", lambda one, other: 1.0)  # the weights are random

    assert run_compare(cross_encoder, embedder).cause.startswith(f"{embedder} returns embeddings, {cross_encoder} does")
    result = run_compare(embedder, cross_encoder)
    assert result.cause.startswith(f"{embedder} returns embeddings, {cross_encoder} does not")
    assert not result.is_same and result.rerank_kendall_tau == 1


def test_other_dimensions_are_named_even_if_rankings_agree(embedder: str, serve: Serve) -> None:
    halves = serve(FaultyProxy(embedder, EMBEDDINGS, "/rerank", change_reply=cut_in_half))

    result = run_compare(embedder, halves)

    assert not result.is_same and result.cause.startswith("dimensions: 384 and 192")
    assert result.rerank_kendall_tau == 1


def test_kendall_tau_counts_pairs() -> None:
    assert kendall_tau(np.array([3.0, 2.0, 1.0]), np.array([9.0, 5.0, 1.0])) == 1
    assert kendall_tau(np.array([3.0, 2.0, 1.0]), np.array([1.0, 2.0, 3.0])) == -1
    assert kendall_tau(np.array([3.0, 2.0, 1.0]), np.array([2.0, 3.0, 1.0])) == pytest.approx(1 / 3)
