"""ArgumentParser with one-line errors, `_` or `-` in flags, dotted JSON flags, and texts anywhere between flags."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from difflib import get_close_matches
from typing import NoReturn

from cenote.utils.argparse_utils import DottedFlag, UsageError, join_fields, parse_json_or_text, read_flags
from cenote.utils.arguments import parse_json_object


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
        known_flags = self._option_string_actions
        try:
            items = list(read_flags(argv[:end], known_flags))
        except UsageError as error:
            self.error(error.message)
        for item in items:
            if isinstance(item, DottedFlag):
                self._check_has_fields(item.flag)
        words, _ = join_fields(items, known_flags, {})
        args, unknown = self.parse_known_intermixed_args(words)
        for word in unknown:
            if word.startswith("-"):
                self.error(f"unknown option {word.partition('=')[0]}{self._suggest(word)}")
        texts = [*unknown, *argv[end + 1 :]]
        if texts:
            self._add_texts(args, texts)
        return args

    def options_by_flag(self) -> dict[str, argparse.Action]:
        """Return every option by the first of its flags."""
        return {action.option_strings[0]: action for action in self._actions if action.option_strings}

    def _check_has_fields(self, flag: str) -> None:
        """Raise unless the value of an option is a JSON object."""
        action = self._option_string_actions.get(flag)
        if action is None:
            self.error(f"unknown option {flag}{self._suggest(flag)}")
        if action.type not in (parse_json_object, parse_json_or_text):
            self.error(f"{flag} has no fields to set: its value is not a JSON object")

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


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=36, width=110)
