"""Traffic that is recorded in front of one server can be replayed at another."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from cenote.bench.spawn import find_free_port
from cenote.cli.main import main
from cenote.doctor.recording import RecordingProxy
from cenote.doctor.replay import compare_json
from cenote.utils.http_client import HttpClient, ServerUnreachable
from tests.doctor import faulty_proxy as faults
from tests.doctor.conftest import Serve
from tests.doctor.faulty_proxy import FaultyProxy, change_vectors

EMBEDDINGS = "/v1/embeddings"


@pytest.fixture
def recording(embedder: str, serve: Serve, tmp_path: Path) -> Path:
    """Four requests: vectors as numbers and as base64, a rerank, an error; with a key in a header and in a query."""
    path = tmp_path / "traffic.jsonl"
    with HttpClient(serve(RecordingProxy(embedder, path)), "SECRET-KEY") as client:
        assert client.post(EMBEDDINGS, {"input": ["hello", "a red bird"]}).status == 200
        assert client.post(f"{EMBEDDINGS}?key=SECRET-KEY", {"input": "hello", "encoding_format": "base64"}).is_ok
        assert client.post("/rerank", {"query": "bird", "documents": ["a red bird", "bread"]}).is_ok
        assert client.send("POST", EMBEDDINGS, b"{", {"Content-Type": "application/json"}).status == 400
    return path


def test_a_recording_has_requests_and_replies_but_no_keys(recording: Path) -> None:
    records = [json.loads(line) for line in recording.read_text().splitlines()]

    assert "SECRET-KEY" not in recording.read_text()
    assert recording.stat().st_mode & 0o777 == 0o600
    assert [entry["status"] for entry in records] == [200, 200, 200, 400]
    assert records[0]["request"] == {"json": {"input": ["hello", "a red bird"]}}
    assert len(records[0]["reply"]["json"]["data"][1]["embedding"]) == 384
    assert records[1]["path"] == f"{EMBEDDINGS}?key="
    assert records[3]["request"] == {"text": "{"}
    assert not any("authorization" in entry["headers"] for entry in records)


def test_a_replay_passes_at_the_same_server(recording: Path, embedder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", embedder, "--replay", str(recording)]) == 0
    assert "4 ok" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"change_reply": change_vectors(faults.scale)}, "data[0].embedding differs: cosine 1.000000"),
        ({"change_reply": faults.fail_on_bad_input}, "status 500, recorded 400"),
        ({"change_reply": faults.flatten_error}, "the reply has other keys: detail, error, object"),
    ],
    ids=["vectors", "status", "keys"],
)
def test_a_replay_fails_at_a_server_that_answers_in_another_way(
    fault: dict[str, Any],
    words: str,
    recording: Path,
    embedder: str,
    serve: Serve,
    capsys: pytest.CaptureFixture[str],
) -> None:
    url = serve(FaultyProxy(embedder, EMBEDDINGS, f"{EMBEDDINGS}?key=", "/rerank", **fault))

    assert main(["doctor", url, "--replay", str(recording)]) == 1
    assert words in capsys.readouterr().out


def test_ids_times_and_usage_may_differ_and_labels_may_not() -> None:
    recorded = {"id": "a", "usage": {"total_tokens": 3}, "created": 1, "data": [{"label": "good", "score": 0.5}]}
    same = {"id": "b", "usage": None, "created": 2, "data": [{"label": "good", "score": 0.5004}]}

    assert compare_json(same, recorded, "") is None
    assert compare_json(same | {"data": [{"label": "bad", "score": 0.5}]}, recorded, "") == (
        'data[0].label is "bad", recorded "good"'
    )
    assert compare_json(same | {"data": [{"label": "good", "score": 0.6}]}, recorded, "") == (
        "data[0].score is 0.6, recorded 0.5"
    )


def test_a_file_that_is_no_recording_is_refused(
    embedder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other.jsonl").write_text('{"input": "hello"}\n')

    assert main(["doctor", embedder, "--replay", str(tmp_path / "other.jsonl")]) == 1
    assert "line 1 of" in capsys.readouterr().err


def test_the_command_records_until_it_is_interrupted(embedder: str, tmp_path: Path) -> None:
    file, port = tmp_path / "traffic.jsonl", find_free_port()
    command = [sys.executable, "-m", "cenote", "doctor", embedder, "--record", str(file), "--port", str(port)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ})
    try:
        assert send_when_ready(f"http://127.0.0.1:{port}") == 200
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()

    assert process.returncode == 0, err
    assert f"1 requests are recorded in {file}" in err
    assert json.loads(file.read_text())["path"] == "/v1/models"


def send_when_ready(url: str) -> int:
    deadline = time.monotonic() + 60
    while True:
        try:
            with HttpClient(url) as client:
                return client.get("/v1/models").status
        except ServerUnreachable:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
