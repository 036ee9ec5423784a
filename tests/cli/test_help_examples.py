"""Every example in the help texts is a command that works."""

from __future__ import annotations

import io
import json
import shlex
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from cenote.bench.main import COMMANDS as BENCH_COMMANDS
from cenote.cli.main import COMMANDS, main
from cenote.cli.serve import make_table, parse_config
from cenote.utils.http_client import ServerUnreachable
from tests.tiny import tiny_bert, tiny_bert_classifier, tiny_bert_token_classifier, tiny_splade

FILES = {
    "texts.jsonl": '{"body": "a deep cave", "id": 1}\n{"body": "the price of bread", "id": 2}\n',
    "texts.csv": "body\na deep cave\nthe price of bread\n",
    "lines.txt": "a deep cave\nthe price of bread\n",
    "reviews.csv": "review\nwhat a fine day\n",
    "pairs.csv": "question,answer\nhow deep is it?,the water is 40 metres deep\n",
    "documents.jsonl": '"the water is 40 metres deep"\n"swimming is free"\n',
    "requests.jsonl": json.dumps(
        {"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": {"input": "a deep cave"}}
    ),
    "server.yaml": "port: 9000\n",
}


class FakeAdminClient:
    """A server with one model, which stops at once."""

    def __init__(self, url: str, api_key: str | None = None, timeout_s: float | None = None) -> None:
        self.url, self.api_key = url, api_key

    def call(self, method: str, path: str, body: Any = None) -> Any:
        if path == "/health/live":
            raise ServerUnreachable("stopped")
        return {"models": [{"name": "bge-m3", "state": "ready"}], "state": "ready"}


def help_text(*words: str) -> str:
    output = io.StringIO()
    with redirect_stdout(output):
        try:
            assert main([*words, "--help"]) == 0
        except SystemExit as exit_request:
            assert not exit_request.code
    return output.getvalue()


def list_examples() -> list[str]:
    pages = [
        help_text(),
        *(help_text(name) for name in COMMANDS),
        *(help_text("bench", name) for name in BENCH_COMMANDS),
    ]
    lines = [line for page in pages for line in page.partition("examples:\n")[2].partition("\n\n")[0].splitlines()]
    return list(dict.fromkeys(line.strip() for line in lines))


def parse_example(example: str) -> tuple[str | None, list[str], str | None]:
    """Return the file on standard input, the arguments, and the file that standard output goes to."""
    words = shlex.split(example)
    source = target = None
    if words[0] == "cat":
        source, words = words[1], words[3:]
    if ">" in words:
        target, words = words[-1], words[:-2]
    assert words[0] == "cenote"
    return source, words[1:], target


def write_model(folder: Path, argv: Sequence[str]) -> None:
    """Write a small model that supports the task of the command."""
    if argv[0] in ("classify", "models"):
        tiny_bert_classifier(folder)
    elif argv[0] == "entities" or "token_classify" in argv:
        tiny_bert_token_classifier(folder)
    elif "sparse_embed" in argv:
        tiny_splade(folder)
    else:
        tiny_bert(folder)


@pytest.fixture
def work_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, content in FILES.items():
        (tmp_path / name).write_text(content)
    (tmp_path / "docs").mkdir()
    return tmp_path


@pytest.mark.parametrize("example", list_examples())
def test_an_example_of_the_help_works(
    example: str,
    work_folder: Path,
    pipe: Callable[[bytes], None],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    source, argv, target = parse_example(example)
    if "FOLDER" in argv:
        (work_folder / "FOLDER").mkdir()
        write_model(work_folder / "FOLDER", argv)
    if argv[0] == "serve":  # would download the model and wait for requests
        settings, options = parse_config(argv[1:], {})
        if settings.models is None:
            make_table(settings, options)
        assert settings.port in (8000, 8080, 9000)
        return
    if argv[0] == "try":  # likewise
        started: list[Any] = []
        monkeypatch.setattr("cenote.cli.try_model.run_server", lambda *args: started.append(args) or 0)
        monkeypatch.setattr("cenote.cli.try_model.open_when_ready", lambda address: None)
        assert main(argv) == 0
        assert started[0][0] == argv[1:]
        return
    if argv[0] == "explain":  # measures for half a minute
        calls: list[Any] = []
        monkeypatch.setattr(
            "cenote.cli.explain.explain_model", lambda options, **kwargs: calls.append((options, kwargs)) or 0
        )
        monkeypatch.setattr("cenote.cli.explain.explain_http", lambda *args: calls.append(args) or 0)
    if argv[0] in ("ps", "load", "unload", "stop"):  # need a server
        monkeypatch.setattr("cenote.cli.admin.AdminClient", FakeAdminClient)
    if argv[0] == "doctor":  # needs a server
        monkeypatch.setattr("cenote.cli.doctor.run", lambda args: print(args) or 0)
    if argv[0] == "pull" and "FOLDER" not in argv:  # would download the model
        monkeypatch.setattr("cenote.cli.pull.pull_model", lambda config, **kwargs: print(config.model) or 0)
    if source is not None:
        pipe((work_folder / source).read_bytes())

    status = main(argv)

    out, err = capfd.readouterr()
    assert status == 0, err
    if "--output" in argv:
        assert (work_folder / argv[argv.index("--output") + 1]).stat().st_size > 0
    elif "-o" in argv:
        assert (work_folder / argv[argv.index("-o") + 1]).stat().st_size > 0
    elif argv[0] == "explain":
        assert len(calls) == 1
    elif argv[0] == "stop":
        assert "has stopped" in err or "is shutting down" in err
    else:
        assert out
    assert target is None or out


def test_every_command_but_bench_has_examples() -> None:
    examples = " ".join(list_examples())

    for name in COMMANDS.keys() - {"bench"}:
        assert f"cenote {name}" in examples
