"""ArgumentParser with one-line errors, `_` or `-` in flags, dotted JSON flags, and texts anywhere between flags."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

from cenote.utils.argparse_utils import UsageError, split_flags

DOTTED_OPTIONS = ("pooler_config", "hf_overrides")
DEPRECATED_OPTIONS = {"override_pooler_config": "pooler_config"}


class ParserRequest(list[str]):
    """Arguments of a command whose parser is wanted, not its run: `parse` raises ParserFound."""


class ParserFound(Exception):
    def __init__(self, parser: CommandParser) -> None:
        super().__init__(parser.prog)
        self.parser = parser


class CommandParser(argparse.ArgumentParser):
    """Argument parser of one command."""

    def __init__(self, command: str, usage: str, summary: str, examples: Sequence[str]) -> None:
        epilog = "examples:\n" + "\n".join(f"  {example}" for example in examples)
        super().__init__(
            prog=f"cenote {command}",
            usage=f"cenote {command} {usage} [options]",
            description=summary,
            epilog=epilog,
            formatter_class=_HelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self.prog} --help")

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse the arguments; everything after a bare -- is text, even if it looks like a flag."""
        if isinstance(argv, ParserRequest):
            raise ParserFound(self)
        end = argv.index("--") if "--" in argv else len(argv)
        try:
            words, dotted = split_flags(argv[:end], self._option_string_actions)
        except UsageError as error:
            self.error(error.message)
        args, unknown = self.parse_known_intermixed_args(words)
        for word in unknown:
            if word.startswith("-"):
                self.error(f"unknown option {word.partition('=')[0]}{self._suggest(word)}")
        texts = [*unknown, *argv[end + 1 :]]
        if texts:
            self._add_texts(args, texts)
        for path, value in dotted:
            _set_dotted(args, path, value)
        return args

    def options_by_flag(self) -> dict[str, argparse.Action]:
        """Return every option by the first of its flags."""
        return {action.option_strings[0]: action for action in self._actions if action.option_strings}

    def _suggest(self, word: str) -> str:
        near = get_close_matches(word.partition("=")[0], self._option_string_actions, n=1)
        return f", did you mean {near[0]}?" if near else ""

    def _add_texts(self, args: argparse.Namespace, texts: list[str]) -> None:
        for action in self._get_positional_actions():
            if isinstance(values := getattr(args, action.dest, None), list):
                setattr(args, action.dest, [*values, *texts])
                return
        rest = iter(texts)
        for action in self._get_positional_actions():
            if getattr(args, action.dest, None) is None:
                setattr(args, action.dest, next(rest, None))
        for text in rest:
            self.error(f"unexpected argument {text!r}")


def _set_dotted(args: argparse.Namespace, path: list[str], value: Any) -> None:
    flag, *inner, last = path
    base = DEPRECATED_OPTIONS.get(flag, flag)
    if base not in DOTTED_OPTIONS:
        raise UsageError(f"--{flag} has no fields to set; only --pooler-config.NAME and --hf-overrides.NAME have")
    target = dict(getattr(args, base, None) or {})
    setattr(args, base, target)
    for name in inner:
        target[name] = dict(target.get(name) or {})
        target = target[name]
    target[last] = value


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=36, width=110)
