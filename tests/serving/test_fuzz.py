"""Schemathesis sends valid and invalid requests, generated from the OpenAPI document, to a real server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cenote.api.dialects import DIALECTS
from tests.api.app_client import add_chat_template
from tests.tiny import tiny_bert_classifier

from .server_process import ServerProcess

ROUTES = [route for dialect in DIALECTS for route in dialect.routes]
# these routes accept "true" for true, which the check counts as an invalid body
LENIENT = "score|rerank|invocations"
# the document cannot express all reasons to refuse a request, such as an input that is too long for the model;
# 504 is the answer to a timeout that is too short, such as 1e-300 seconds; 424 that of Text Embeddings Inference's
# routes if the model does not support the task
CONFIG = f"""
[checks]
positive_data_acceptance.enabled = false
negative_data_rejection.expected-statuses = [400, 401, 403, 404, 405, 406, 409, 415, 422, 424, 429]
not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", 504]

[[operations]]
include-path-regex = "{LENIENT}"
checks.negative_data_rejection.enabled = false

# the document describes the routes of programs; GET / is the page for people
[[operations]]
include-path = "/"
checks.unsupported_method.enabled = false
"""


@pytest.fixture(scope="module")
def cross_encoder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A model and options that the default server lacks: classes, chat template, request templates, two front-ends."""
    folder = tmp_path_factory.mktemp("cross_encoder")
    tiny_bert_classifier(folder, num_labels=1)
    add_chat_template(folder)
    options = ("--trust-request-chat-template", "--enable-tokenizer-info-endpoint", "--api-server-count", "2")
    server = ServerProcess(str(folder), *options).wait_until_ready()
    yield server
    assert server.stop() == 0


def run_schemathesis(server: ServerProcess, folder: Path) -> None:
    (folder / "schemathesis.toml").write_text(CONFIG)
    arguments = ["--config-file", "schemathesis.toml", "run", f"{server.address}/openapi.json"]
    arguments += [
        "--phases",
        "examples,coverage,fuzzing",
        "--max-examples",
        "100" if os.environ.get("FAULT_TESTS") == "full" else "6",
        "--continue-on-failure",
        "--no-color",
    ]
    arguments += ["--seed", "7", "--generation-deterministic", "--request-timeout", "60"]
    arguments += ["--suppress-health-check", "filter_too_much"]  # model names in paths exclude many characters
    for alias in (path for route in ROUTES for path in route.paths[1:]):
        arguments += ["--exclude-path", alias]
    arguments += ["--exclude-path-regex", "^/admin/"]  # one of them ends the server

    done = subprocess.run(
        [str(Path(sys.executable).with_name("schemathesis")), *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
    )

    assert done.returncode == 0, done.stdout
    assert "passed" in done.stdout
    with server.client() as client:
        assert client.post("/tokenize", json={"prompt": "still here"}).status_code == 200
        statuses = set(re.findall(r'status="(5\w+)"', client.get("/metrics").text))
        assert statuses <= {"504"}
    assert "Traceback" not in server.output


@pytest.mark.timeout(1000)  # takes a minute on an idle machine
def test_an_embedder_survives_schemathesis(shared_server: ServerProcess, tmp_path: Path) -> None:
    run_schemathesis(shared_server, tmp_path)


@pytest.mark.timeout(1000)
def test_a_cross_encoder_survives_schemathesis(cross_encoder: ServerProcess, tmp_path: Path) -> None:
    run_schemathesis(cross_encoder, tmp_path)
