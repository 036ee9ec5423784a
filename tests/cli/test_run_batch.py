"""`cenote run-batch`: responses to valid and invalid lines, order, resuming."""

from __future__ import annotations

import base64
import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest

from cenote import LLM
from cenote.cli.main import main
from cenote.cli.run_batch import manifest_options
from cenote.files.columns import ColumnOptions
from cenote.files.partial_file import PartialFile, make_manifest
from cenote.files.sources import FileSource
from tests.tiny import tiny_bert

ENVIRONMENT = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
TEXTS = ["the cat is in the city", "a red bird", "who live in berlin?"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An embedding model with 32 dimensions and a maximum length of 66 tokens."""
    folder = tmp_path_factory.mktemp("tiny")
    tiny_bert(folder)
    return folder


@pytest.fixture
def run_batch(folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., list[Any]]:
    """Run the command in this process on the lines and return the lines that it wrote."""

    def run(*lines: Any, options: tuple[object, ...] = ()) -> list[Any]:
        source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
        source.write_bytes(b"\n".join(line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines))
        argv = ["run-batch", "-i", source, "-o", output, "--model", folder, "--dtype", "float32", *options]
        status = main([*map(str, argv)])
        lines_out = [json.loads(line) for line in output.read_text().splitlines()]
        params = [line["error"]["error"]["param"] for line in lines_out if line["error"] is not None]
        has_invalid_lines = any(param in ("line", "custom_id", "method", "body") for param in params)
        assert status == (1 if has_invalid_lines else 0), capfd.readouterr().err
        return lines_out

    return run


def request_line(url: str, custom_id: str = "one", **body: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def body_of(line: Any) -> Any:
    assert line["error"] is None, line
    assert line["response"]["status_code"] == 200
    return line["response"]["body"]


def error_of(line: Any) -> tuple[int, str]:
    assert line["response"]["body"] is None
    assert line["error"]["error"]["code"] == line["response"]["status_code"]
    return line["response"]["status_code"], line["error"]["error"]["message"]


def test_every_route_responds_as_the_server_does(run_batch: Any, folder: Path) -> None:
    with LLM(str(folder), dtype="float32") as llm:
        embedded = [output.outputs.embedding for output in llm.embed(TEXTS, use_tqdm=False)]
        scores = [output.outputs.score for output in llm.score(TEXTS[0], TEXTS[1:], use_tqdm=False)]

    lines = run_batch(
        request_line("/v1/embeddings", "a", input=TEXTS),
        request_line("/v1/embeddings", "b", input=TEXTS[0], encoding_format="base64"),
        request_line("/score", "c", text_1=TEXTS[0], text_2=TEXTS[1:]),
        request_line("/v1/score", "d", queries=TEXTS[0], documents=TEXTS[1:]),
        request_line("/rerank", "e", query=TEXTS[0], documents=TEXTS[1:]),
        request_line("/v1/rerank", "f", query=TEXTS[0], documents=TEXTS[1:]),
        request_line("/v2/embed", "g", texts=TEXTS),
        request_line("/pooling", "h", input=TEXTS[0], task="token_embed"),
        request_line("/some/prefix/rerank", "i", query=TEXTS[0], documents=TEXTS[1:]),
        request_line("https://api.example.com/v1/embeddings", "j", input=TEXTS[0]),
    )

    assert [line["custom_id"] for line in lines] == list("abcdefghij")
    assert len({line["id"] for line in lines}) == len(lines)
    bodies = [body_of(line) for line in lines]
    assert np.allclose([entry["embedding"] for entry in bodies[0]["data"]], embedded, atol=1e-5)
    decoded = np.frombuffer(base64.b64decode(bodies[1]["data"][0]["embedding"]), dtype="<f4")
    assert np.allclose(decoded, embedded[0], atol=1e-5)
    for body in bodies[2:4]:
        assert [entry["score"] for entry in body["data"]] == pytest.approx(scores, abs=1e-5)
    for body in (bodies[4], bodies[5], bodies[8]):
        assert {result["index"]: result["relevance_score"] for result in body["results"]} == pytest.approx(
            dict(enumerate(scores)), abs=1e-5
        )
    assert np.allclose(bodies[6]["embeddings"]["float"], embedded, atol=1e-5)
    assert np.shape(bodies[7]["data"][0]["data"]) == (8, 32)
    assert bodies[9]["id"] == f"embd-{lines[9]['response']['request_id']}"


def test_an_invalid_line_fails_alone(run_batch: Any) -> None:
    good = request_line("/v1/embeddings", "good", input="the cat")
    lines = run_batch(
        good,
        b"not json",
        b'["a", "list"]',
        b'{"custom_id": "half", "url": "/v1/embe',
        b"\xff\xfe{}",
        b'{"custom_id": "nan", "url": "/v1/embeddings", "body": {"input": NaN}}',
        b"[" * 100_000,
        {"url": "/v1/embeddings", "body": {"input": "the cat"}},
        {"custom_id": 7, "url": "/v1/embeddings", "body": {"input": "the cat"}},
        request_line("/v1/chat/completions", "chat", messages=[]),
        {"custom_id": "nowhere", "body": {}},
        {"custom_id": "get", "method": "GET", "url": "/v1/embeddings", "body": {"input": "the cat"}},
        {"custom_id": "empty", "url": "/v1/embeddings"},
        {"custom_id": "text", "url": "/v1/embeddings", "body": "the cat"},
        request_line("/v1/embeddings", "typed", input={"a": 1}),
        request_line("/v1/embeddings", "long", input="the cat " * 40),
        request_line("/v1/embeddings", "bytes", input="the cat", encoding_format="bytes"),
        request_line("/v1/embeddings", "other", input="the cat", model="other"),
        request_line("/classify", "classes", input="the cat"),
        good,
    )

    assert len(lines) == 20
    assert body_of(lines[0])["data"] == body_of(lines[-1])["data"]
    errors = {str(line["custom_id"]): error_of(line) for line in lines[7:-1]}
    assert [error_of(line)[0] for line in lines[1:7]] == [400] * 6
    for number, line in enumerate(lines[1:7], 2):
        assert error_of(line)[1].startswith(f"line {number} is not a JSON object")
    assert [status for status, _ in errors.values()] == [400] * 10 + [404, 400]
    assert "custom_id is required" in errors["None"][1]
    assert "custom_id is required" in errors["7"][1]
    assert "unknown url '/v1/chat/completions'; expected one of: /classify" in errors["chat"][1]
    assert "unknown url None" in errors["nowhere"][1]
    assert "method must be POST, got 'GET'" in errors["get"][1]
    assert "body is required" in errors["empty"][1]
    assert "expected object" in errors["text"][1]
    assert "maximum context length is 66 tokens" in errors["long"][1]
    assert "expected encoding_format base64 or float" in errors["bytes"][1]


def test_blank_lines_and_a_byte_order_mark_are_skipped(run_batch: Any) -> None:
    line = json.dumps(request_line("/v1/embeddings", input="the cat")).encode()

    assert len(run_batch(b"\xef\xbb\xbf" + line + b"\r", b"", b"   ", line, b"")) == 2


def test_repeated_slashes_in_a_url_are_merged(run_batch: Any) -> None:
    for line in run_batch(
        request_line("//v1/embeddings", input="the cat"),
        request_line("https://api.example.com//v1//embeddings", input="the cat"),
    ):
        body_of(line)


def test_the_exit_status_is_1_only_if_a_line_is_not_a_request(
    run_batch: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    good = request_line("/v1/embeddings", input="the cat")
    refused = [
        request_line("/v1/embeddings", input="the cat", model="other"),
        request_line("/bad_url", input="the cat"),
        request_line("/v1/embeddings", input="the cat", encoding_format="hex"),
        request_line("/classify", input="the cat"),
    ]

    lines = run_batch(good, *refused)  # checks the exit status, as in the following

    assert [line["response"]["status_code"] for line in lines] == [200, 404, 400, 400, 400]
    assert "4 of 5 requests failed" in capfd.readouterr().err
    (line,) = run_batch({"method": "POST", "url": "/v1/embeddings", "body": {"input": "a"}}, options=("--overwrite",))
    assert line["error"]["error"]["param"] == "custom_id"


def test_errors_are_the_body_of_the_response_too_in_openais_format(run_batch: Any) -> None:
    good = request_line("/v1/embeddings", input="the cat")
    refused = request_line("/v1/embeddings", input="the cat", model="other")

    ok, failed, invalid = run_batch(good, refused, b"no json", options=("--openai-batch-errors",))

    body_of(ok)
    for line, status in ((failed, 404), (invalid, 400)):
        assert line["response"]["status_code"] == status
        assert line["response"]["body"] == line["error"]
        assert line["response"]["body"]["error"]["code"] == status


def test_an_existing_empty_file_is_filled_and_can_be_read_through_an_open_handle(folder: Path, tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text(json.dumps(request_line("/v1/embeddings", input="the cat")))
    with tempfile.NamedTemporaryFile("r", dir=tmp_path) as output:
        inode = os.stat(output.name).st_ino

        assert main(["run-batch", "-i", str(source), "-o", output.name, "--model", str(folder), "--quiet"]) == 0

        text = output.read()
        body_of(json.loads(text))
        assert os.stat(output.name).st_ino == inode
        assert Path(output.name).read_text() == text
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["in.jsonl", Path(output.name).name])


def test_an_empty_file_stays_empty_if_it_cannot_be_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "out.jsonl"
    output.touch()
    part = PartialFile(output, {"input": "a"})
    assert not part.check_resumable(overwrite=False)
    part.open(fresh=True)
    part.path.write_text("one\ntwo\n")

    def fail_halfway(source: IO[bytes], target: IO[bytes]) -> None:
        target.write(source.read(5))
        target.flush()
        raise OSError("no space left on device")

    monkeypatch.setattr(shutil, "copyfileobj", fail_halfway)
    with pytest.raises(OSError, match="no space left"):
        part.finish(part.path)
    monkeypatch.undo()
    part.close()

    assert output.read_text() == ""
    assert part.check_resumable(overwrite=False)
    part.open(fresh=False)
    part.finish(part.path)
    assert output.read_text() == "one\ntwo\n"
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]


def test_failed_lines_of_an_interrupted_run_count_in_the_exit_status(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    good = json.dumps(request_line("/v1/embeddings", input="the cat"))
    source.write_text("\n".join(["no json", good, good]))
    command = ["run-batch", "-i", str(source), "-o", str(output), "--model", str(folder)]
    assert main(command) == 1
    lines = output.read_bytes().splitlines(keepends=True)
    output.unlink()
    identity = FileSource(str(source), ColumnOptions(), "jsonl").identity()
    part = PartialFile(output, make_manifest(identity, manifest_options(Namespace(model=str(folder)))))
    part.open(fresh=True)
    part.path.write_bytes(b"".join(lines[:2]))
    part.close()
    capfd.readouterr()

    assert main(command) == 1
    message = capfd.readouterr().err
    assert message.startswith(f"cenote: continuing {part.path} after 2 lines\n")
    assert "1 of 3 requests failed" in message


def test_an_empty_file_gives_an_empty_file(run_batch: Any) -> None:
    assert run_batch() == []


def test_responses_keep_the_order_of_the_lines_however_many_are_in_flight(run_batch: Any) -> None:
    requests = [
        request_line("/v1/embeddings", str(number), input=["the cat is in the city"] * (40 if number % 7 == 0 else 1))
        for number in range(100)
    ]

    for options in [(), ("--max-in-flight", 1, "--overwrite"), ("--max-in-flight", 5, "--overwrite")]:
        lines = run_batch(*requests, options=options)

        assert [line["custom_id"] for line in lines] == [str(number) for number in range(100)]
        assert [len(body_of(line)["data"]) for line in lines] == [40 if number % 7 == 0 else 1 for number in range(100)]


def test_a_line_above_max_body_bytes_is_refused_without_parsing(run_batch: Any) -> None:
    long = request_line("/v1/embeddings", "long", input="the cat " * 20_000)

    lines = run_batch(long, request_line("/v1/embeddings", "next", input="the cat"), options=("--max-body-bytes", 1000))

    status, message = error_of(lines[0])
    assert status == 413
    assert "more than 1000 bytes, limit 1000 bytes" in message
    assert lines[1]["custom_id"] == "next"
    body_of(lines[1])


def test_the_model_is_served_under_its_served_names(run_batch: Any) -> None:
    names = ("--served-model-name", "first", "second")

    lines = run_batch(request_line("/v1/embeddings", input="a", model="second"), options=names)

    assert body_of(lines[0])["model"] == "first"


def test_server_options_apply_to_lines(run_batch: Any) -> None:
    options = ("--max-request-items", 2, "--rerank-document-shape", "string")

    many, ranked = run_batch(
        request_line("/v1/embeddings", input=TEXTS),
        request_line("/rerank", query="a", documents=["b"]),
        options=options,
    )

    assert error_of(many)[0] == 400
    assert body_of(ranked)["results"][0]["document"] == "b"


def test_a_gzip_file_is_decompressed(folder: Path, tmp_path: Path) -> None:
    source, output = tmp_path / "in.jsonl.gz", tmp_path / "out.jsonl"
    source.write_bytes(gzip.compress(json.dumps(request_line("/v1/embeddings", input="the cat")).encode()))

    assert main(["run-batch", "-i", str(source), "-o", str(output), "--model", str(folder), "--quiet"]) == 0
    body_of(json.loads(output.read_text()))


def test_errors_of_the_files_are_reported_before_the_model_is_loaded(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    command = ["run-batch", "--model", str(tmp_path / "no model"), "-o", str(output), "-i"]

    assert main([*command, str(source)]) == 1
    assert capfd.readouterr().err == f"cenote: no such file or directory: {source}\n"

    source.write_text("")
    output.write_text("precious")
    assert main([*command, str(source)]) == 1
    assert capfd.readouterr().err == f"cenote: {output} exists; --overwrite replaces it\n"
    assert output.read_text() == "precious"


def test_when_the_engine_stops_the_run_ends_and_keeps_completed_lines(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from cenote.engine.engine import PoolingEngine

    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps(request_line("/v1/embeddings", str(n), input="a")) + "\n" for n in range(500)))
    submit, requests = PoolingEngine.submit, []

    def submit_and_stop(engine: PoolingEngine, request: Any, **kwargs: Any) -> Any:
        requests.append(request)
        if len(requests) == 300:
            engine.stop()
        return submit(engine, request, **kwargs)

    monkeypatch.setattr(PoolingEngine, "submit", submit_and_stop)
    command = ["run-batch", "-i", str(source), "-o", str(output), "--model", str(folder), "--max-in-flight", "8"]

    assert main(command) == 1
    part = tmp_path / "out.jsonl.part"
    message, num_kept = capfd.readouterr().err, part.read_bytes().count(b"\n")
    assert message.endswith(
        f"; lines kept: {num_kept}, in {part}; run the same command to continue: cenote {' '.join(command)}\n"
    )
    assert not output.exists()
    monkeypatch.undo()

    assert main(command) == 0
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert [line["custom_id"] for line in lines] == [str(number) for number in range(500)]
    assert all(line["error"] is None for line in lines)


def run_process(*argv: object, text: str | None = None) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "cenote", "run-batch", *map(str, argv)]
    return subprocess.run(words, input=text, capture_output=True, text=True, env=ENVIRONMENT, timeout=120)


@pytest.mark.slow
def test_the_real_command_reads_a_pipe_and_writes_to_one() -> None:
    requests = [
        request_line("/v1/embeddings", "a", input="a deep cave"),
        request_line("/v2/rerank", "b", query="a", documents=["b", "c"]),
    ]

    result = run_process(text="".join(json.dumps(line) + "\n" for line in requests) + "no json\n")

    assert result.returncode == 1, result.stderr
    assert result.stderr == "cenote: 1 of 3 requests failed; see their error\n"
    first, second, third = (json.loads(line) for line in result.stdout.splitlines())
    assert np.linalg.norm(body_of(first)["data"][0]["embedding"]) == pytest.approx(1, abs=1e-3)
    assert len(body_of(second)["results"]) == 2
    assert error_of(third)[0] == 400


def test_ctrl_c_keeps_complete_lines_and_the_same_command_continues(folder: Path, tmp_path: Path) -> None:
    source, output, part = tmp_path / "in.jsonl", tmp_path / "out.jsonl", tmp_path / "out.jsonl.part"
    source.write_text(
        "".join(json.dumps(request_line("/v1/embeddings", str(n), input=TEXTS * 20)) + "\n" for n in range(200))
    )
    command = ["-i", source, "-o", output, "--model", folder, "--pooler-config.pooling_type", "CLS"]
    command += ["--max-in-flight", 4]
    started = [sys.executable, "-m", "cenote", "run-batch", *map(str, command)]
    child = subprocess.Popen(started, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
    while child.poll() is None and not (part.exists() and part.stat().st_size):
        time.sleep(0.005)
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=120)

    words = " ".join(map(str, command))
    num_kept = part.read_bytes().count(b"\n")
    assert child.returncode == 130
    assert num_kept > 0
    assert errors == (
        f"cenote: interrupted; lines kept: {num_kept}, in {part}; "
        f"run the same command to continue: cenote run-batch {words}\n"
    )
    assert not output.exists()
    with open(part, "ab") as stream:
        stream.write(b'{"half a li')  # as a kill during a write leaves it

    result = run_process(*command)

    assert result.returncode == 0, result.stderr
    assert result.stderr.startswith(f"cenote: continuing {part} after ")
    assert [json.loads(line)["custom_id"] for line in output.read_text().splitlines()] == [*map(str, range(200))]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]
