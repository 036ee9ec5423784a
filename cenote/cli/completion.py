"""`cenote completion`: the commands, their flags and choices, collected from the parsers, as a script for a shell."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from cenote.cli.parser import CommandParser, ParserFound, ParserRequest

MAX_HELP_CHARS = 80


@dataclass(frozen=True, slots=True)
class OptionEntry:
    """A flag with its other names; `metavar` is None if it takes no value."""

    flags: tuple[str, ...]
    help: str
    metavar: str | None = None
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """A command: its words after `cenote`, and what may follow them."""

    words: tuple[str, ...]
    summary: str
    options: tuple[OptionEntry, ...] = ()
    arguments: tuple[str, ...] = ()  # values of the first argument; if empty, files are completed

    @property
    def name(self) -> str:
        return " ".join(self.words)


def completion(argv: Sequence[str]) -> int:
    from cenote.cli.completion_scripts import SCRIPTS

    parser = CommandParser(
        "completion",
        "bash|zsh|fish",
        "Print the completion script of a shell: commands, flags and their values.",
        [
            "cenote completion bash > ~/.local/share/bash-completion/completions/cenote",
            "cenote completion zsh > ~/.zfunc/_cenote",
            "cenote completion fish > ~/.config/fish/completions/cenote.fish",
        ],
    )
    parser.add_argument("shell", nargs="?", choices=tuple(SCRIPTS), metavar="SHELL", help=", ".join(SCRIPTS))
    args = parser.parse(argv)
    if args.shell is None:
        parser.error(f"the shell is missing; expected one of: {', '.join(SCRIPTS)}")
    print(SCRIPTS[args.shell](list_commands()), end="")
    return 0


def list_commands() -> list[CommandEntry]:
    """Return all commands, and those of `cenote bench` after it."""
    from cenote.bench.main import COMMANDS as BENCH_COMMANDS
    from cenote.cli.main import COMMANDS, find_command

    entries = []
    for name, summary in COMMANDS.items():
        if name != "bench":
            entries.append(describe_command((name,), summary, collect_parser(find_command(name))))
            continue
        entries.append(CommandEntry((name,), summary, arguments=tuple(BENCH_COMMANDS)))
        for bench_name, command in BENCH_COMMANDS.items():
            parser = argparse.ArgumentParser()
            command.add_flags(parser)
            entries.append(describe_command((name, bench_name), command.help, parser))
    return entries


def collect_parser(run: Callable[[Sequence[str]], int]) -> CommandParser:
    """Return the parser of a command without running it."""
    try:
        run(ParserRequest())
    except ParserFound as found:
        return found.parser
    raise AssertionError("the command has not parsed its arguments")


def describe_command(words: tuple[str, ...], summary: str, parser: argparse.ArgumentParser) -> CommandEntry:
    shown = [action for action in parser._actions if action.help != argparse.SUPPRESS]
    options = tuple(describe_option(action) for action in shown if action.option_strings)
    positional = [_list_choices(action) for action in shown if not action.option_strings]
    return CommandEntry(words, summary, options, positional[0] if positional else ())


def describe_option(action: argparse.Action) -> OptionEntry:
    metavar = action.metavar[0] if isinstance(action.metavar, tuple) else action.metavar
    takes_value = action.nargs != 0
    text = " ".join((action.help or "").replace("%%", "%").split())
    if len(text) > MAX_HELP_CHARS:
        text = text[: MAX_HELP_CHARS - 3].rstrip() + "..."
    return OptionEntry(
        tuple(action.option_strings), text, (metavar or "VALUE") if takes_value else None, _list_choices(action)
    )


def iter_value_flags(options: Iterable[OptionEntry]) -> Iterator[str]:
    """Yield every flag that takes a value."""
    for option in options:
        if option.metavar is not None:
            yield from option.flags


def _list_choices(action: argparse.Action) -> tuple[str, ...]:
    return tuple(map(str, action.choices or ()))
