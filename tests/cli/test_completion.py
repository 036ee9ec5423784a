"""`cenote completion`: bash completes commands, flags and values; the scripts of other shells have all of them."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from cenote.cli.completion import CommandEntry, list_commands
from cenote.cli.completion_scripts import SCRIPTS
from cenote.cli.main import COMMANDS, main


@pytest.fixture(scope="module")
def commands() -> list[CommandEntry]:
    return list_commands()


@pytest.fixture(scope="module")
def bash_script(commands: list[CommandEntry], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "cenote.bash"
    path.write_text(SCRIPTS["bash"](commands))
    return path


def complete(script: Path, *words: str) -> list[str]:
    """Return what bash offers for the last word."""
    program = (
        f"source {shlex.quote(str(script))}; COMP_WORDS=({' '.join(map(shlex.quote, words))}); "
        f'COMP_CWORD={len(words) - 1}; _cenote; printf "%s\\n" "${{COMPREPLY[@]}}"'
    )
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("cenote", "comp"), ["completion"]),
        (("cenote", "completion", "z"), ["zsh"]),
        (("cenote", "bench", "q"), ["quality"]),
        (("cenote", "bench", "quality", "--ret"), ["--retrieval"]),
        (("cenote", "embed", "--input-f"), ["--input-format"]),
        (("cenote", "embed", "--format", "p"), ["parquet"]),
        (("cenote", "embed", "--format", "=", "p"), ["parquet"]),
        (("cenote", "embed", "--format", "="), ["jsonl", "npy", "parquet", "lance"]),
        (("cenote", "encode", "hello", "--task", "token_"), ["token_embed", "token_classify"]),
        (("cenote", "serve", "--served-model-n"), ["--served-model-name"]),
        (("cenote", "embed", "--input", "-"), []),  # a value: bash completes the names of files
        (("cenote", "embed", "tex"), []),
    ],
)
def test_bash_completes(bash_script: Path, words: tuple[str, ...], expected: list[str]) -> None:
    assert complete(bash_script, *words) == expected


def test_bash_offers_every_command(bash_script: Path) -> None:
    assert complete(bash_script, "cenote", "") == list(COMMANDS)


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_a_script_has_every_command_with_its_flags(shell: str, commands: list[CommandEntry]) -> None:
    script = SCRIPTS[shell](commands)

    assert {command.words[0] for command in commands} == set(COMMANDS)
    for command in commands:
        if shell == "zsh":
            part = script.partition(f'\n    "{command.name}")\n')[2].partition("\n        ;;")[0]
            words = shlex.split(part.replace("\\\n", " "))
            flags = {match[1] for word in words if (match := re.match(r"\*(--?[\w-]+)\[", word))}
        else:
            lines = [line for line in script.splitlines() if f"-n '__cenote_is {command.name}'" in line]
            found = [re.findall(r" -(l|s|o) ([\w-]+)", line.partition(" -d '")[0]) for line in lines]
            flags = {f"{'--' if kind == 'l' else '-'}{name}" for line in found for kind, name in line}
        assert flags == {flag for option in command.options for flag in option.flags}, command.name


def test_hidden_flags_are_not_offered(bash_script: Path) -> None:
    assert complete(bash_script, "cenote", "serve", "--disable-fastapi") == []


def test_the_command_prints_the_script(bash_script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    assert capsys.readouterr().out == bash_script.read_text()


def test_an_unknown_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "tcsh"]) == 2
    assert main(["completion"]) == 2

    unknown, missing = capsys.readouterr().err.splitlines()
    assert "tcsh" in unknown and "zsh" in unknown
    assert missing.startswith("cenote: the shell is missing; expected one of: bash, zsh, fish")
