"""Dispatch of subcommands: help, version, exit statuses, one-line errors."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from cenote import __version__
from cenote.cli.main import COMMANDS, main
from cenote.config.engine import EngineConfig
from cenote.errors import LoadError

from .conftest import CommandResult, FakeEngine

Command = Callable[..., CommandResult]


def test_help_names_every_command_on_one_line_and_shows_examples(cenote_command: Command) -> None:
    result = cenote_command("--help")

    assert result.status == 0
    for name, summary in COMMANDS.items():
        assert f"{summary}\n" in result.out.split(f"\n  {name} ")[1]
    assert 'cenote embed "hello world"' in result.out


@pytest.mark.parametrize("command", ["embed", "classify", "score", "rerank", "encode", "inspect"])
def test_the_help_of_every_command_has_option_groups_and_examples(command: str, cenote_command: Command) -> None:
    result = cenote_command(command, "--help")

    assert result.status == 0
    assert result.out.startswith(f"usage: cenote {command}")
    assert "model and engine:" in result.out
    assert "examples:" in result.out


def test_help_does_not_import_torch() -> None:
    program = (
        "import sys; from cenote.cli.main import main; main(['embed', '--help']); assert 'torch' not in sys.modules"
    )

    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)


def test_the_version_is_printed(cenote_command: Command) -> None:
    assert cenote_command("--version").out == f"cenote {__version__}\n"


def test_no_command_shows_the_help_as_an_error(cenote_command: Command) -> None:
    result = cenote_command()

    assert (result.status, result.out) == (2, "")
    assert "commands:" in result.err


def test_an_unknown_command_is_refused_with_a_suggestion(cenote_command: Command) -> None:
    result = cenote_command("embd", "hello")

    assert (result.status, result.err) == (2, "cenote: unknown command 'embd'; did you mean embed?\n")


def test_an_unknown_flag_is_refused_with_a_suggestion(cenote_command: Command) -> None:
    result = cenote_command("embed", "hello", "--dimension", "3")

    assert result.status == 2
    assert result.err == "cenote: unknown option --dimension, did you mean --dimensions?; see cenote embed --help\n"


def test_empty_standard_input_is_a_usage_error(cenote_command: Command, pipe: Callable[[bytes], None]) -> None:
    pipe(b"")

    result = cenote_command("embed")

    assert result.status == 2
    assert result.err.startswith("cenote: no texts on standard input; pass them")


def test_a_command_does_not_wait_for_input_from_a_terminal(
    cenote_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", None)

    result = cenote_command("embed")

    assert result.status == 2
    assert result.err.startswith("cenote: no texts; pass them as arguments")


def test_texts_and_a_file_at_once_are_a_usage_error(cenote_command: Command) -> None:
    assert cenote_command("embed", "hello", "--input", "texts.txt").status == 2


def test_a_model_that_cannot_be_loaded_ends_with_78(cenote_command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**options: object) -> None:
        raise LoadError("no config.json in\n  nowhere")

    monkeypatch.setitem(sys.modules["cenote"].__dict__, "LLM", refuse)

    result = cenote_command("embed", "hello")

    assert (result.status, result.err) == (78, "cenote: no config.json in nowhere\n")


def test_a_missing_file_is_one_line_before_the_model_is_loaded(
    cenote_command: Command, engine: FakeEngine, tmp_path: Path
) -> None:
    result = cenote_command("embed", "--input", tmp_path / "none.txt")

    assert (result.status, result.err) == (1, f"cenote: no such file or directory: {tmp_path / 'none.txt'}\n")
    assert engine.requests == []


def test_ctrl_c_ends_with_130(cenote_command: Command, engine: FakeEngine) -> None:
    def stop(number: int) -> None:
        raise KeyboardInterrupt

    engine.on_call = stop

    result = cenote_command("embed", "hello")

    assert (result.status, result.err) == (130, "cenote: interrupted\n")


def test_a_closed_pipe_prints_no_error(tmp_path: Path) -> None:
    program = "import sys; from cenote.cli.main import main; sys.exit(main())"
    child = subprocess.Popen([sys.executable, "-c", program, "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout is not None and child.stderr is not None
    child.stdout.close()
    errors = child.stderr.read()
    child.stderr.close()

    assert child.wait() == 141
    assert errors == b""


def test_inspect_receives_the_engine_config(cenote_command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    configs: list[EngineConfig] = []
    module = ModuleType("cenote.cli.inspect")
    module.inspect_model = lambda config, **_: configs.append(config) or 5  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cenote.cli.inspect", module)

    assert cenote_command("inspect", "some/model", "--pooler-config.pooling_type", "MEAN").status == 5
    assert (configs[0].model, configs[0].pooler_config.pooling_type) == ("some/model", "MEAN")


def test_bench_receives_the_remaining_arguments(cenote_command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("cenote.bench.main")
    module.main = len  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cenote.bench.main", module)

    assert cenote_command("bench", "embed", "--any_thing", "3").status == 3


def test_a_bug_shows_its_traceback(engine: FakeEngine) -> None:
    def fail(number: int) -> None:
        raise ZeroDivisionError

    engine.on_call = fail

    with pytest.raises(ZeroDivisionError):
        main(["embed", "hello"])
