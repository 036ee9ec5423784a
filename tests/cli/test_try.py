"""`cenote try`: a server on a free port of this machine, and its page in a browser."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from cenote.cli.main import main
from cenote.cli.try_model import open_when_ready
from tests.tiny import tiny_bert


def test_the_page_is_opened_when_the_model_is_loaded(tmp_path: Path) -> None:
    tiny_bert(tmp_path / "model")
    opened = tmp_path / "opened"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {opened}\n')
    browser.chmod(0o755)
    environment = {**os.environ, "BROWSER": f"{browser} %s", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "cenote", "try", str(tmp_path / "model"), "--device", "cpu"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as server:
        try:
            assert server.stderr is not None
            note = next(line for line in server.stderr if "playground" in line)
            match = re.search(r"http://127\.0\.0\.1:\d+/", note)
            assert match is not None
            assert httpx.get(f"{match[0]}health/ready").status_code == 200
            assert httpx.get(f"{match[0]}v1/models").json()["data"]
        finally:
            server.send_signal(signal.SIGINT)
            rest = server.stderr.read() if server.stderr else ""
        assert server.wait(30) == 0
    assert "no browser" not in rest
    assert opened.read_text().strip() == match[0]


def test_without_a_browser_the_address_is_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    replies = iter([False, False, True])
    monkeypatch.setattr("cenote.cli.try_model.is_ready", lambda address: next(replies))
    monkeypatch.setattr("cenote.cli.try_model.POLL_S", 0)

    open_when_ready("http://127.0.0.1:9", open_page=lambda address: False)

    assert "no browser was found; open http://127.0.0.1:9/ yourself" in capsys.readouterr().err


def test_a_unix_socket_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["try", "--uds", "socket"]) == 2
    assert "has no --uds; use cenote serve" in capsys.readouterr().err
