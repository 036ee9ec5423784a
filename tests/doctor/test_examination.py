"""`cenote doctor URL` passes on our own server, whatever its model, and says what it could not check."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from cenote import LLM
from cenote.bench.spawn import find_free_port
from cenote.cli.main import main
from cenote.doctor.client_requests import CLIENT_REQUESTS
from tests.doctor.conftest import NAME, Serve, make_app
from tests.doctor.faulty_proxy import FaultyProxy


def run_json(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, dict[str, object]]:
    status = main(["doctor", *argv, "--json"])
    return status, json.loads(capsys.readouterr().out)


def test_the_default_model_passes_with_all_clients(embedder: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, report = run_json(capsys, embedder)

    findings = report["findings"]
    assert isinstance(findings, list)
    assert status == 0, [item for item in findings if item["status"] == "fail"]
    assert report["model"] == NAME
    assert {item["api"] for item in findings if item["status"] == "ok"} == {row.api for row in CLIENT_REQUESTS}
    rows = Counter((item["api"], item["check"]) for item in findings)
    assert all(rows[row.api, row.client] for row in CLIENT_REQUESTS)
    (reference,) = [item for item in findings if item["check"] == "reference vectors"]
    assert "cosine 1.000000" in reference["message"]
    assert report["measured"].items() >= {"dimensions": 384, "normalized": True}.items()  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["cross_encoder", "classifier"])
def test_other_models_pass(name: str, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> None:
    url = request.getfixturevalue(name)

    assert main(["doctor", url]) == 0

    out = capsys.readouterr().out
    served = "requests, /classify" if name == "classifier" else "langchain JinaRerank"
    assert any(line.startswith("ok") and served in line for line in out.splitlines()), out
    assert "batch equals single" in out


def test_a_server_with_one_api_is_judged_by_it_alone(
    embedder: str, serve: Serve, capsys: pytest.CaptureFixture[str]
) -> None:
    url = serve(FaultyProxy(embedder, "/api/embed", "/api/tags"))

    assert main(["doctor", url]) == 0

    lines = capsys.readouterr().out.splitlines()
    absent = next(line for line in lines if line.startswith("absent  ") and "Gemini" in line)
    assert ", Cohere, DeepInfra, " in absent
    assert any("long text, truncate: false" in line for line in lines)


def test_a_server_that_embeds_nothing_fails(serve: Serve, embedder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", serve(FaultyProxy(embedder))]) == 1
    assert "no embedding, rerank or classification request was answered" in capsys.readouterr().out


def test_a_server_that_cannot_be_reached_is_exit_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    port = find_free_port()

    assert main(["doctor", f"http://127.0.0.1:{port}"]) == 2
    assert f"http://127.0.0.1:{port} cannot be reached" in capsys.readouterr().err


def test_an_api_key_is_needed_and_checked(minilm: LLM, serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    url = serve(make_app(minilm, api_key=("SECRET",)))

    assert main(["doctor", url]) == 1
    assert "needs an API key (401); set --api-key" in capsys.readouterr().err
    status, report = run_json(capsys, url, "--api-key", "SECRET", "--apis", "OpenAI, Gemini")
    assert status == 0
    findings = report["findings"]
    assert isinstance(findings, list)
    assert {item["api"] for item in findings} == {"OpenAI", "Gemini"}
    assert [item["status"] for item in findings if item["check"] == "API key"] == ["ok"]


def test_an_unknown_api_is_refused(embedder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", embedder, "--apis", "OpenAPI"]) == 2
    assert "unknown API 'OpenAPI'; expected some of: OpenAI, Azure OpenAI, TEI" in capsys.readouterr().err
