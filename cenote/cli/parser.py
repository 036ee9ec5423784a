"""ArgumentParser with one-line errors, `_` or `-` in flags, dotted JSON flags, and texts anywhere between flags."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from difflib import get_close_matches
from typing import NoReturn

from cenote.utils.argparse_utils import DottedFlag, UsageError, parse_json_or_text, split_flags
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
        for flag in dotted:
            self._set_dotted(args, flag)
        return args

    def options_by_flag(self) -> dict[str, argparse.Action]:
        """Return every option by the first of its flags."""
        return {action.option_strings[0]: action for action in self._actions if action.option_strings}

    def _set_dotted(self, args: argparse.Namespace, flag: DottedFlag) -> None:
        """Set one field of an option that is a JSON object."""
        action = self._option_string_actions.get(flag.flag)
        if action is None:
            self.error(f"unknown option {flag.flag}{self._suggest(flag.flag)}")
        if action.type not in (parse_json_object, parse_json_or_text):
            self.error(f"{flag.flag} has no fields to set: its value is not a JSON object")
        given = getattr(args, action.dest, None)
        target = dict(given) if isinstance(given, dict) else {}
        setattr(args, action.dest, target)
        *inner, last = flag.path[1:]
        for name in inner:
            target[name] = dict(target.get(name) or {})
            target = target[name]
        target[last] = flag.value

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
