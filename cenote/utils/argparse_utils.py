"""Command-line parsing that `cenote` and programs share; mirrors `vllm.utils.argparse_utils`.

Flags with `_` or `-`, dotted flags for the fields of JSON options, flags with several values, and YAML files.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from cenote.errors import BadRequest
from cenote.utils.arguments import normalize_flag

FLAG = re.compile(r"--[A-Za-z][\w.-]*\+?")
CONFIG_FLAG = "--config"


class UsageError(BadRequest):
    """Invalid command line; exit status 2."""


class MultiValue(argparse.Action):
    """A flag with several values, given once or repeatedly; a JSON list counts as its items."""

    last_values: tuple[str, ...] = ()  # last values of several: possibly the model, swallowed by this flag

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: Any = None
    ) -> None:
        if len(values) > 1:
            self.last_values = (*self.last_values, values[-1])
        words = [word for value in values for word in parse_words(value)]
        given = getattr(namespace, self.dest, ())
        # values on the command line replace the default
        setattr(namespace, self.dest, (*(() if given is self.default else given), *words))


class FlexibleArgumentParser(argparse.ArgumentParser):
    """Argument parser for programs: `--max_model_len`, `--pooler-config.pooling_type MEAN` and `--config FILE.yaml`.

    The command line overrides the file, and the file the defaults.
    """

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        return super().parse_args(self._expand(sys.argv[1:] if args is None else args), namespace)

    def _expand(self, argv: Sequence[str]) -> list[str]:
        """Return the words that argparse parses: those of the file, then those of the command line."""
        try:
            words, path = _split_config(argv)
            from_file = [] if path is None else self._words_of_file(path)
            plain, dotted = split_flags([*from_file, *words], self._option_string_actions)
        except (UsageError, OSError) as error:
            self.error(str(error))
        fields: dict[str, Any] = {}
        for (flag, *names), value in dotted:
            _merge(fields.setdefault(flag, {}), names, value)
        return [*plain, *(f"--{flag.replace('_', '-')}={json.dumps(value)}" for flag, value in fields.items())]

    def _words_of_file(self, path: str) -> list[str]:
        return [
            word
            for name, value in read_yaml_options(path).items()
            for word in to_arguments(self._option_string_actions, "--" + str(name).replace("_", "-"), value)
        ]


def split_flags(
    argv: Sequence[str], known_flags: Mapping[str, argparse.Action]
) -> tuple[list[str], list[tuple[list[str], Any]]]:
    """Return the words with --max_model_len as --max-model-len, and dotted flags separately as (path, value).

    A flag that a program has declared with underscores stays as it is. `--json.name+ a,b` appends to a list.
    """
    words: list[str] = []
    dotted: list[tuple[list[str], Any]] = []
    remaining = iter(argv)
    for word in remaining:
        name, equals, value = word.partition("=")
        if not FLAG.fullmatch(name) or name in known_flags:
            words.append(word)
            continue
        base, *path = name[2:].split(".")
        if not path:
            words.append(normalize_flag(word))
            continue
        if not equals:
            value = next(remaining, "")
        if not value:
            raise UsageError(f"{name} needs a value")
        is_list = path[-1].endswith("+")
        path[-1] = path[-1].removesuffix("+")
        parsed = value.split(",") if is_list else parse_json_or_text(value)
        dotted.append(([part.replace("-", "_") for part in (base, *path)], parsed))
    return words, dotted


def parse_json_or_text(text: str) -> Any:
    """Parse a value that is JSON (number, list, object), a Python constant, or else a plain string."""
    if text in ("True", "False", "None"):  # Python's spelling
        return {"True": True, "False": False, "None": None}[text]
    try:
        return json.loads(text)
    except ValueError:
        return text


def parse_words(text: str) -> list[str]:
    """Return the items of a JSON list of strings; any other text is one item."""
    if text.startswith("["):
        with suppress(ValueError):
            words = json.loads(text)
            if all(isinstance(word, str) for word in words):
                return list(words)
    return [text]


def clean_errors(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Wrap a parser so that argparse shows the message of its BadRequest instead of a generic one."""

    def parse_clean(text: str) -> Any:
        try:
            return parse(text)
        except BadRequest as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse_clean


def read_yaml_options(path: str) -> dict[str, Any]:
    """Return the options in a YAML file, by name."""
    import yaml

    try:
        entries = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise UsageError(f"{CONFIG_FLAG} {path} is not YAML: {' '.join(str(error).split())}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{CONFIG_FLAG} {path} is not UTF-8 text") from None
    if entries is None:
        return {}
    if not isinstance(entries, dict):
        raise UsageError(f"{CONFIG_FLAG} {path} must be a mapping of options to values, for example port: 8000")
    if "config" in map(str, entries):
        raise UsageError(f"{CONFIG_FLAG} {path} contains config, the name of another file; only one file is supported")
    return entries


def to_arguments(options_by_flag: Mapping[str, argparse.Action], flag: str, value: Any) -> list[str]:
    """Return a value as words of a command line."""
    if value is None:
        return []
    action = options_by_flag.get(flag)
    if isinstance(action, argparse.BooleanOptionalAction) and isinstance(value, bool):
        return [flag if value else f"--no-{flag[2:]}"]
    if action is not None and action.nargs == 0 and isinstance(value, bool):  # a switch of a program
        return [flag] if value else []
    if isinstance(value, list) and (action is None or isinstance(action, MultiValue)):
        # as a JSON list, so that an item that looks like a list is not split
        return [f"{flag}={json.dumps([item if isinstance(item, str) else str(item)])}" for item in value]
    text = value if isinstance(value, str) else json.dumps(value)
    return [f"{flag}={text}"]


def _split_config(argv: Sequence[str]) -> tuple[list[str], str | None]:
    """Return the words without --config, and its file."""
    words: list[str] = []
    path = None
    remaining = iter(argv)
    for word in remaining:
        name, equals, value = word.partition("=")
        if name != CONFIG_FLAG:
            words.append(word)
            continue
        if path is not None:
            raise UsageError(f"{CONFIG_FLAG} is given twice; only one file is supported")
        path = value if equals else next(remaining, "")
        if not path:
            raise UsageError(f"{CONFIG_FLAG} needs a file")
    return words, path


def _merge(target: dict[str, Any], names: Sequence[str], value: Any) -> None:
    """Set a nested field; a list is appended to the one that is there."""
    *inner, last = names
    for name in inner:
        if not isinstance(target.get(name), dict):
            target[name] = {}
        target = target[name]
    previous = target.get(last)
    target[last] = [*previous, *value] if isinstance(previous, list) and isinstance(value, list) else value
