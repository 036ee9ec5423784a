"""From the command to the first answer, and every way in which there is none."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from .conftest import Start
from .server_process import ServerProcess


def test_the_listening_process_does_not_import_torch() -> None:
    code = "import sys, cenote.cli.serve, cenote.api.server, cenote.api.prometheus; print('torch' in sys.modules)"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)

    assert done.stdout.split() == ["False"]


def first_answers(served: ServerProcess) -> tuple[float, float]:
    """Seconds from the start to the first reply, and to the first vector."""
    with served.client() as client:
        early = client.get("/health")
        told = served.startup_s
        alive = client.get("/health/live")
        question = client.post("/v1/embeddings", json={"input": "too early"})
        while client.get("/health/ready").status_code != 200:
            time.sleep(0.01)
        answer = client.post("/v1/embeddings", json={"input": "hello"})
        took = served.startup_s

    assert (early.status_code, early.json()["state"]) == (503, "loading")
    assert (alive.status_code, alive.json()["state"]) == (200, "loading")
    assert question.status_code == 503 and question.headers["retry-after"] == "1"
    assert len(answer.json()["data"][0]["embedding"]) == 384
    return told, took


@pytest.mark.parametrize("num_front_ends", ["1", "2"])
def test_health_answers_within_a_second_and_the_first_request_within_five(start: Start, num_front_ends: str) -> None:
    tries: list[tuple[float, float]] = []
    # other processes may have the cores; a server that is slow by itself is slow every time
    while len(tries) < 3 and not any(told < 1.0 and took < 5.0 for told, took in tries):
        served = start("--api-server-count", num_front_ends)
        tries.append(first_answers(served))
        served.stop()

    assert any(told < 1.0 and took < 5.0 for told, took in tries), tries


@pytest.mark.parametrize("num_front_ends", ["1", "2"])
def test_half_precision_on_a_cpu_starts_and_logs_one_line_about_float32(start: Start, num_front_ends: str) -> None:
    served = start("--dtype", "half", "--device", "cpu", "--api-server-count", num_front_ends).ready()

    with served.client() as client:
        response = client.post("/v1/embeddings", json={"input": "hello"})

    assert response.status_code == 200 and len(response.json()["data"][0]["embedding"]) == 384
    assert served.output.count("computing in float32") == 1
    assert "float32 on cpu" in served.output


def test_the_banner_lists_the_model_and_the_address(served: ServerProcess) -> None:
    banner = served.output[served.output.index("is ready after") :]

    facts = dict(re.findall(r"^  (\w[\w ]*?) {2,}(.*)$", banner, re.MULTILINE))
    assert facts["model"].startswith("all-MiniLM-L6-v2")
    assert facts["architecture"] == "BertModel"
    assert facts["tasks"] == "embed, token_embed"
    assert "on cpu" in facts["runs"] or "on cuda" in facts["runs"]
    assert facts["limits"] == "256 tokens per input, 2,048 inputs and 64 MiB per request"
    assert facts["API keys"].startswith("none")
    assert facts["address"] == served.address


def test_only_one_socket_listens(served: ServerProcess) -> None:
    held = {os.readlink(link) for link in Path(f"/proc/{served.process.pid}/fd").iterdir() if link.is_symlink()}
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]

    listening = [row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in held]

    assert listening == [f"0100007F:{served.port:04X}"]


def test_a_model_that_cannot_be_loaded_ends_with_one_line_and_78(start: Start, tmp_path: Path) -> None:
    served = start(str(tmp_path))

    assert served.wait() == 78
    complaints = [line for line in served.lines if line.startswith("cenote: ")]
    assert len(complaints) == 1 and str(tmp_path) in complaints[0]
    assert "Traceback" not in served.output


def test_an_option_that_is_not_available_ends_before_anything_listens(start: Start) -> None:
    served = start("--kv-cache-dtype", "fp8")

    assert served.wait() == 78
    assert served.output == "cenote: kv_cache_dtype='fp8' is not available; leave it out or give 'auto'\n"


def test_a_port_in_use_is_one_line_and_1(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        served = start("--port", port)

        assert served.wait() == 1
    assert served.output.count("\n") == 1
    assert f"cannot listen on 127.0.0.1:{port}: something else listens there already" in served.output


def test_a_signal_while_loading_stops_the_server_immediately(start: Start) -> None:
    served = start()
    with served.client() as client:
        assert client.get("/health").json()["state"] == "loading"

    served.signal(signal.SIGTERM)

    assert served.wait() == 0
    assert "is ready after" not in served.output


def test_a_file_and_variables_and_flags_make_one_server(start: Start, tmp_path: Path) -> None:
    config = tmp_path / "server.yaml"
    config.write_text("served-model-name: [one, two]\nmax_request_items: 3\nlog-format: json\nport: 1\n")
    keys = tmp_path / "keys"
    keys.write_text("from-a-file\n")
    served = start("--config", str(config), "--api-key-file", str(keys), CENOTE_API_KEY="from-a-variable")

    with httpx.Client() as client:
        started = json.loads(served.wait_for_line("listening on"))
        address = re.search(r"http://\S+(?=;)", started["message"])
        assert address is not None
        ready = json.loads(served.wait_for_line('"event": "ready"'))
        models = client.get(f"{address[0]}/v1/models", headers={"Authorization": "Bearer from-a-variable"}).json()
        many = client.post(f"{address[0]}/v1/embeddings", json={"input": ["a"] * 4}, headers={"api-key": "from-a-file"})
        refused = client.get(f"{address[0]}/v1/models")

    assert [card["id"] for card in models["data"]] == ["one", "two"]
    assert many.status_code == 400 and "at most 3" in many.json()["message"]
    assert refused.status_code == 401
    assert (ready["api_keys"], ready["architecture"]) == ("2", "BertModel")


def test_the_command_line_lists_the_server_first() -> None:
    done = subprocess.run([sys.executable, "-m", "cenote", "--help"], capture_output=True, text=True, timeout=60)

    assert done.stdout.index("serve") < done.stdout.index("embed  ")


@pytest.mark.parametrize("path", ["/metrics", "/v1/models", "/version", "/load", "/openapi.json"])
def test_system_routes_are_served(path: str, served: ServerProcess) -> None:
    with served.client() as client:
        assert client.get(path).status_code == 200
