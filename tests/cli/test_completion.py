"""`cenote completion`: bash, zsh and fish complete commands, flags and values with the scripts that it prints."""

from __future__ import annotations

import os
import pty
import re
import shlex
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from cenote.cli.completion import CommandEntry, list_commands
from cenote.cli.completion_scripts import SCRIPTS
from cenote.cli.main import COMMANDS, main

# the line before the cursor -> what zsh and fish offer; FOLDER has one file, `texts.jsonl`
LINES = {
    "cenote ": list(COMMANDS),
    "cenote comp": ["completion"],
    "cenote completion ": ["bash", "zsh", "fish"],
    "cenote completion z": ["zsh"],
    "cenote bench q": ["quality"],
    "cenote bench quality --ret": ["--retrieval"],
    "cenote bench quality FOLDER/t": ["texts.jsonl"],
    "cenote embed --input-f": ["--input-format"],
    "cenote embed --format p": ["parquet"],
    "cenote embed --format=p": ["parquet"],
    "cenote embed --input FOLDER/t": ["texts.jsonl"],
    "cenote embed FOLDER/t": ["texts.jsonl"],
    "cenote encode hello --task token_": ["token_embed", "token_classify"],
    "cenote serve --disable-fastapi": [],  # hidden
    "cenote serve --served-model-n": ["--served-model-name"],
    "cenote serve -t": ["-tp"],
}
# writes every match to the file $MATCHES instead of parsing what the terminal shows; ^T ends a line
ZSH_RECORDER = """\
PS1= LISTMAX=0
setopt no_auto_list no_auto_menu
autoload -Uz compinit
compinit -D -u
compadd() {
    # completion functions call it with these options to filter lists of their own
    if [[ " ${@[1,(i)(-|--)]} " == *\\ -(O|A|D)\\ * ]]; then
        builtin compadd "$@"
        return
    fi
    local -a found
    builtin compadd -A found "$@"
    (( $#found )) && print -rl -- $found >> $MATCHES
    builtin compadd "$@"
}
end_line() { print -r -- -- >> $MATCHES; BUFFER= }
zle -N end_line
bindkey '^T' end_line
"""


def complete_in_zsh(script: str, lines: list[str], folder: Path) -> list[list[str]]:
    """Type the lines into a terminal of zsh, each with a Tab, and return what it offers for each."""
    (folder / "_cenote").write_text(script)
    (folder / "recorder").write_text(ZSH_RECORDER)
    environment = os.environ | {"TERM": "xterm", "FPATH_FOLDER": str(folder), "MATCHES": str(folder / "matches")}
    typed = [
        "fpath=($FPATH_FOLDER $fpath); source $FPATH_FOLDER/recorder\n",
        *(f"{line}\t\x14" for line in lines),
        "exit\n",
    ]
    terminal, other_end = pty.openpty()
    with subprocess.Popen(
        ["zsh", "-f", "-i"],
        stdin=other_end,
        stdout=other_end,
        stderr=other_end,
        env=environment,
        start_new_session=True,
    ) as shell:
        os.close(other_end)
        os.write(terminal, "".join(typed).encode())
        with suppress(OSError):  # raised when the shell has exited
            while os.read(terminal, 65536):
                pass
        assert shell.wait(timeout=30) == 0
    os.close(terminal)
    return [part.split() for part in (folder / "matches").read_text().split("--\n")[: len(lines)]]


def complete_in_fish(script: str, lines: list[str], folder: Path) -> list[list[str]]:
    (folder / "cenote.fish").write_text(script)
    calls = "; ".join(f"complete -C {shlex.quote(line)}; echo =====" for line in lines)
    program = f"source {shlex.quote(str(folder / 'cenote.fish'))}; {calls}"
    environment = os.environ | {"HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "XDG_DATA_HOME": str(folder)}
    done = subprocess.run(["fish", "-N", "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert done.stderr == ""
    offered = [[line.partition("\t")[0] for line in part.splitlines()] for part in done.stdout.split("=====\n")]
    return [[re.sub(r"^(--[\w-]+=|.*/)", "", word) for word in words] for words in offered[: len(lines)]]


COMPLETERS = {"zsh": complete_in_zsh, "fish": complete_in_fish}


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
            flags = {match[1] for word in words if (match := re.match(r"\*(--?[\w-]+)=?\[", word))}
        else:
            lines = [line for line in script.splitlines() if f"-n '__cenote_is {command.name}'" in line]
            found = [re.findall(r" -(l|s|o) ([\w-]+)", line.partition(" -d '")[0]) for line in lines]
            flags = {f"{'--' if kind == 'l' else '-'}{name}" for line in found for kind, name in line}
        assert flags == {flag for option in command.options for flag in option.flags}, command.name


@pytest.mark.parametrize("shell", COMPLETERS)
def test_the_shell_completes(shell: str, commands: list[CommandEntry], tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed (Debian: {shell})")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "texts.jsonl").touch()
    lines = [line.replace("FOLDER", str(tmp_path / "data")) for line in LINES]

    offered = COMPLETERS[shell](SCRIPTS[shell](commands), lines, tmp_path)

    for line, words, expected in zip(LINES, offered, LINES.values(), strict=True):
        assert sorted(words) == sorted(expected), line


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
