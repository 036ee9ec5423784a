"""Startup of the server: from the command to the first response, and errors that prevent it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from tests.suite import first_of

from .conftest import ARRANGEMENTS, StartServer
from .server_process import ServerProcess

in_every_arrangement = pytest.mark.parametrize("start_server", first_of(ARRANGEMENTS), indirect=True)


def test_the_listening_process_does_not_import_torch() -> None:
    code = "import sys, cenote.cli.serve, cenote.api.server, cenote.api.prometheus; print('torch' in sys.modules)"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)

    assert done.stdout.split() == ["False"]


@pytest.mark.slow
@in_every_arrangement
def test_half_precision_on_a_cpu_starts_and_logs_one_line_about_float32(start_server: StartServer) -> None:
    flags = ("--dtype", "half", "--device", "cpu")
    server = start_server(*flags, CENOTE_CPU_LEVEL="baseline").wait_until_ready()  # without fp16 instructions

    with server.client() as client:
        response = client.post("/v1/embeddings", json={"input": "hello"})

    assert response.status_code == 200 and len(response.json()["data"][0]["embedding"]) == 384
    assert server.output.count("; using float32") == 1
    assert "float32 on cpu" in server.output


def test_the_banner_lists_the_model_and_the_address(shared_server: ServerProcess) -> None:
    banner = shared_server.output[shared_server.output.index("is ready after") :]

    facts = dict(re.findall(r"^  (\w[\w ]*?) {2,}(.*)$", banner, re.MULTILINE))
    assert facts["model"].startswith("all-MiniLM-L6-v2")
    assert facts["architecture"] == "BertModel"
    assert facts["tasks"] == "embed, token_embed"
    assert "on cpu" in facts["runs"] or "on cuda" in facts["runs"]
    assert facts["limits"] == "256 tokens per input, 2,048 inputs and 64 MiB per request"
    assert facts["API keys"].startswith("none")
    assert facts["address"] == shared_server.address
    assert facts["open to"] == "clients that reach 127.0.0.1 (--host)"


class ServerWithoutHost(ServerProcess):
    listen_flags = ("--port", "0")


def test_without_a_host_and_keys_only_this_machine_connects_and_a_line_says_how_others_can(tmp_path: Path) -> None:
    server = ServerWithoutHost(str(tmp_path))  # without a model it ends after it has begun to listen

    assert server.wait() == 78

    assert server.address.startswith("http://127.0.0.1:")
    reason = "this machine only, as neither --host nor an API key is set; --host 0.0.0.0 opens it to others"
    assert server.output.count(f"open to {reason}\n") == 1


def test_only_one_socket_listens(shared_server: ServerProcess) -> None:
    open_files = set()
    for link in Path(f"/proc/{shared_server.process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed in the meantime
            open_files.add(os.readlink(link))
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]

    listening = [row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in open_files]

    assert listening == [f"0100007F:{shared_server.port:04X}"]


def test_a_model_that_cannot_be_loaded_is_one_line_and_status_78(start_server: StartServer, tmp_path: Path) -> None:
    server = start_server(str(tmp_path))

    assert server.wait() == 78
    errors = [line for line in server.lines if line.startswith("cenote: ")]
    assert len(errors) == 1 and str(tmp_path) in errors[0]
    assert "Traceback" not in server.output


def test_an_unsupported_option_fails_before_the_server_listens(start_server: StartServer) -> None:
    server = start_server("--nnodes", "2")

    assert server.wait() == 78
    assert server.output.startswith("cenote: nnodes=2 is not supported: the processes of a model run on one machine")
    assert server.output.endswith("remove it or use 1\n") and server.output.count("\n") == 1


def test_a_port_in_use_is_one_line_and_status_1(start_server: StartServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        server = start_server("--port", port)

        assert server.wait() == 1
    assert server.output.count("\n") == 1
    assert f"cannot listen on 127.0.0.1:{port}: the address is already in use" in server.output


def test_a_signal_while_loading_stops_the_server_immediately(start_server: StartServer) -> None:
    server = start_server()
    with server.client() as client:
        assert client.get("/health").json()["state"] == "loading"

    server.signal(signal.SIGTERM)

    assert server.wait() == 0
    assert "is ready after" not in server.output


def test_options_from_a_file_variables_and_flags_are_combined(start_server: StartServer, tmp_path: Path) -> None:
    config = tmp_path / "server.yaml"
    config.write_text("served-model-name: [one, two]\nmax_request_items: 3\nlog-format: json\nport: 1\n")
    keys = tmp_path / "keys"
    keys.write_text("from-a-file\n")
    server = start_server("--config", str(config), "--api-key-file", str(keys), CENOTE_API_KEY="from-a-variable")

    with httpx.Client() as client:
        started = json.loads(server.wait_for_line("listening on"))
        address = re.search(r"http://\S+(?=;)", started["message"])
        assert address is not None
        ready = json.loads(server.wait_for_line('"event": "ready"'))
        models = client.get(f"{address[0]}/v1/models", headers={"Authorization": "Bearer from-a-variable"}).json()
        body, headers = {"input": ["a"] * 4}, {"api-key": "from-a-file"}
        too_many = client.post(f"{address[0]}/v1/embeddings", json=body, headers=headers)
        refused = client.get(f"{address[0]}/v1/models")

    assert [card["id"] for card in models["data"]] == ["one", "two"]
    assert too_many.status_code == 400 and "limit 3 per request" in too_many.json()["message"]
    assert refused.status_code == 401
    assert ready["api_keys"].startswith("2 for all routes") and ready["architecture"] == "BertModel"


def test_the_help_lists_serve_first() -> None:
    done = subprocess.run([sys.executable, "-m", "cenote", "--help"], capture_output=True, text=True, timeout=60)

    assert done.stdout.index("serve") < done.stdout.index("embed  ")
