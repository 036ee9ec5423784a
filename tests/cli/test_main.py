"""The dispatcher: help, version, exit statuses, one-line errors."""

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
    shown = cenote_command("--help")

    assert shown.status == 0
    for name, summary in COMMANDS.items():
        assert f"{summary}\n" in shown.out.split(f"\n  {name} ")[1]
    assert 'cenote embed "hello world"' in shown.out


@pytest.mark.parametrize("command", ["embed", "classify", "score", "rerank", "encode", "inspect"])
def test_every_command_explains_itself_in_groups(command: str, cenote_command: Command) -> None:
    shown = cenote_command(command, "--help")

    assert shown.status == 0
    assert shown.out.startswith(f"usage: cenote {command}")
    assert "model and engine:" in shown.out
    assert "examples:" in shown.out


def test_help_does_not_wait_for_torch() -> None:
    program = (
        "import sys; from cenote.cli.main import main; main(['embed', '--help']); assert 'torch' not in sys.modules"
    )

    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)


def test_the_version_is_printed(cenote_command: Command) -> None:
    assert cenote_command("--version").out == f"cenote {__version__}\n"


def test_no_command_shows_the_help_as_an_error(cenote_command: Command) -> None:
    shown = cenote_command()

    assert (shown.status, shown.out) == (2, "")
    assert "commands:" in shown.err


def test_an_unknown_command_is_answered_with_the_nearest(cenote_command: Command) -> None:
    shown = cenote_command("embd", "hello")

    assert (shown.status, shown.err) == (2, "cenote: no command 'embd'; did you mean embed?\n")


def test_an_unknown_flag_is_answered_with_the_nearest(cenote_command: Command) -> None:
    shown = cenote_command("embed", "hello", "--dimension", "3")

    assert shown.status == 2
    assert shown.err == "cenote: no option --dimension, did you mean --dimensions?; see cenote embed --help\n"


def test_nothing_to_read_is_a_usage_error(cenote_command: Command, pipe: Callable[[bytes], None]) -> None:
    pipe(b"")

    shown = cenote_command("embed")

    assert shown.status == 2
    assert shown.err.startswith("cenote: no texts on standard input; give some")


def test_a_terminal_is_not_waited_for(cenote_command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)

    shown = cenote_command("embed")

    assert shown.status == 2
    assert shown.err.startswith("cenote: no texts; give some as arguments")


def test_texts_and_a_file_at_once_are_a_usage_error(cenote_command: Command) -> None:
    assert cenote_command("embed", "hello", "--input", "texts.txt").status == 2


def test_a_model_that_cannot_be_loaded_ends_with_78(cenote_command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**options: object) -> None:
        raise LoadError("no config.json in\n  nowhere")

    monkeypatch.setitem(sys.modules["cenote"].__dict__, "LLM", refuse)

    shown = cenote_command("embed", "hello")

    assert (shown.status, shown.err) == (78, "cenote: no config.json in nowhere\n")


def test_a_missing_file_is_one_line_before_the_model_is_loaded(
    cenote_command: Command, engine: FakeEngine, tmp_path: Path
) -> None:
    shown = cenote_command("embed", "--input", tmp_path / "none.txt")

    assert (shown.status, shown.err) == (1, f"cenote: no such file or directory: {tmp_path / 'none.txt'}\n")
    assert engine.requests == []


def test_ctrl_c_ends_with_130(cenote_command: Command, engine: FakeEngine) -> None:
    def stop(number: int) -> None:
        raise KeyboardInterrupt

    engine.on_call = stop

    shown = cenote_command("embed", "hello")

    assert (shown.status, shown.err) == (130, "cenote: interrupted\n")


def test_a_closed_pipe_is_quiet(tmp_path: Path) -> None:
    program = "import sys; from cenote.cli.main import main; sys.exit(main())"
    child = subprocess.Popen([sys.executable, "-c", program, "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout is not None and child.stderr is not None
    child.stdout.close()
    errors = child.stderr.read()
    child.stderr.close()

    assert child.wait() == 141
    assert errors == b""


def test_inspect_hands_over_the_config(cenote_command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[EngineConfig] = []
    module = ModuleType("cenote.cli.inspect")
    module.inspect = lambda config: seen.append(config) or 5  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cenote.cli.inspect", module)

    assert cenote_command("inspect", "some/model", "--pooler-config.pooling_type", "MEAN").status == 5
    assert (seen[0].model, seen[0].pooler_config.pooling_type) == ("some/model", "MEAN")


def test_bench_gets_the_rest_of_the_line(cenote_command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
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
