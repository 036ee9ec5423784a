"""Command-line parsing that `cenote` and programs share; mirrors `vllm.utils.argparse_utils`.

Flags with `_` or `-`, dotted flags for the fields of JSON options, flags with several values, and YAML files.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from cenote.errors import BadRequest
from cenote.utils.arguments import normalize_flag

FLAG = re.compile(r"--[A-Za-z][\w.-]*\+?")
CONFIG_FLAG = "--config"

KnownFlags = Mapping[str, argparse.Action]
JSONFields = dict[str, dict[str, Any]]  # by option


class UsageError(BadRequest):
    """Invalid command line; exit status 2."""


@contextmanager
def option_errors() -> Iterator[None]:
    """Report a value that the classes of the options refuse as an invalid command line, as one that a flag refuses."""
    try:
        yield
    except UsageError:
        raise
    except BadRequest as error:
        raise UsageError(error.message) from None


class DottedFlag(NamedTuple):
    """A flag such as --pooler-config.pooling_type, which sets one field of a JSON option."""

    path: list[str]  # with underscores
    value: Any

    @property
    def flag(self) -> str:
        return "--" + self.path[0].replace("_", "-")

    def get_option(self, known_flags: KnownFlags) -> str:
        """Return the name of the JSON option, which may have several flags."""
        return known_flags[self.flag].dest if self.flag in known_flags else self.path[0]


class EnableDisable(argparse.BooleanOptionalAction):
    """A switch `--enable-x` with its opposites `--disable-x` and `--no-enable-x`, or `--x` with `--no-x`."""

    def __init__(self, option_strings: Sequence[str], dest: str, **options: Any) -> None:
        super().__init__(option_strings, dest, **options)
        opposites = {"--enable-": "--disable-", "--disable-": "--enable-"}
        inverses = [
            opposite + flag.removeprefix(prefix)
            for flag in option_strings
            for prefix, opposite in opposites.items()
            if flag.startswith(prefix)
        ]
        self.option_strings = [*self.option_strings, *inverses]
        self.positive_flags = option_strings

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: Any = None
    ) -> None:
        setattr(namespace, self.dest, option_string in self.positive_flags)


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

    The command line overrides the file, and the file the defaults; fields of a JSON option may come from both.
    """

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        return super().parse_args(self._expand(sys.argv[1:] if args is None else args), namespace)

    def _expand(self, argv: Sequence[str]) -> list[str]:
        """Return the words that argparse parses; those of the file come first, or first after the subcommand."""
        end = list(argv).index("--") if "--" in argv else len(argv)
        known_flags = _collect_flags(self)
        try:
            words, path, config_at = _split_config(argv[:end])
            if path is None:
                return [*join_fields(read_flags(words, known_flags), known_flags, {})[0], *argv[end:]]
            parser, start = _find_subparser(self, words[:config_at])
            on_line = list(read_flags(words[start:], known_flags))
            of_file, fields = parser._read_file(path, _list_options(on_line, known_flags))
            before, _ = join_fields(read_flags(words[:start], known_flags), known_flags, {})
            after, _ = join_fields(on_line, known_flags, fields)
        except (UsageError, OSError) as error:
            self.error(str(error))
        return [*before, *of_file, *after, *argv[end:]]

    def _read_file(self, path: str, given: Collection[str]) -> tuple[list[str], JSONFields]:
        """Return the words of a file without the options that are `given`, and the fields of its JSON options."""
        flags = self._option_string_actions
        words: list[str] = []
        json_words: list[str] = []
        for name, value in read_yaml_options(path).items():
            flag = "--" + str(name).replace("_", "-")
            arguments = to_arguments(flags, flag, value)
            if "." in flag or _is_json_object(flags.get(flag), value):
                json_words += arguments
            elif flag not in flags or flags[flag].dest not in given:
                words += arguments
        joined, fields = join_fields(read_flags(json_words, flags), flags, {}, _list_options(json_words, flags))
        return [*words, *joined], fields


def read_flags(argv: Sequence[str], known_flags: KnownFlags) -> Iterator[str | DottedFlag]:
    """Yield the words, with --max_model_len as --max-model-len and dotted flags with their values.

    A flag that a program has declared with underscores stays as it is. `--json.name+ a,b` appends to a list.
    """
    remaining = iter(argv)
    for word in remaining:
        name, equals, value = word.partition("=")
        name = _expand_short(name, known_flags)
        if not FLAG.fullmatch(name) or name in known_flags:
            yield word
            continue
        base, *path = name[2:].split(".")
        if not path:
            yield normalize_flag(word)
            continue
        if not equals:
            value = next(remaining, "")
        if not value:
            raise UsageError(f"{name} needs a value")
        is_list = path[-1].endswith("+")
        path[-1] = path[-1].removesuffix("+")
        parsed = value.split(",") if is_list else parse_json_or_text(value)
        yield DottedFlag([part.replace("-", "_") for part in (base, *path)], parsed)


def _expand_short(name: str, known_flags: KnownFlags) -> str:
    """Return `-cc.mode` as `--compilation-config.mode`, and any other word unchanged."""
    short, dot, field = name.partition(".")
    if not dot or name.startswith("--") or short not in known_flags:
        return name
    return next((flag for flag in known_flags[short].option_strings if flag.startswith("--")), short) + dot + field


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
    except OSError as error:
        raise UsageError(f"{CONFIG_FLAG} {path} cannot be read: {error.strerror}") from None
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
    if isinstance(value, list) and action is not None and (action.nargs in ("+", "*") or isinstance(action.nargs, int)):
        return [flag, *map(str, value)]
    text = value if isinstance(value, str) else json.dumps(value)
    return [f"{flag}={text}"]


def _split_config(argv: Sequence[str]) -> tuple[list[str], str | None, int]:
    """Return the words without --config, its file, and the index where it stood."""
    words: list[str] = []
    path, config_at = None, 0
    remaining = iter(argv)
    for word in remaining:
        name, equals, value = word.partition("=")
        if name != CONFIG_FLAG:
            words.append(word)
            continue
        if path is not None:
            raise UsageError(f"{CONFIG_FLAG} is given twice; only one file is supported")
        path, config_at = value if equals else next(remaining, ""), len(words)
        if not path:
            raise UsageError(f"{CONFIG_FLAG} needs a file")
    return words, path, config_at


def _find_subparser(parser: FlexibleArgumentParser, words: Sequence[str]) -> tuple[FlexibleArgumentParser, int]:
    """Return the parser of the last subcommand in the words, and the index after it; else the parser itself and 0."""
    start = 0
    for index, word in enumerate(words):
        previous = parser._option_string_actions.get(words[index - 1]) if index > start else None
        subparser = _list_subparsers(parser).get(word)
        # a word after a flag with values is one of them
        if subparser is not None and (previous is None or previous.nargs == 0):
            parser, start = subparser, index + 1
    return parser, start


def _list_subparsers(parser: argparse.ArgumentParser) -> dict[str, FlexibleArgumentParser]:
    """Return the parsers of subcommands by name."""
    return {
        name: subparser
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
        for name, subparser in action.choices.items()
        if isinstance(subparser, FlexibleArgumentParser)
    }


def _collect_flags(parser: argparse.ArgumentParser) -> KnownFlags:
    """Return the flags of a parser and of its subcommands."""
    flags: dict[str, argparse.Action] = {}
    for subparser in _list_subparsers(parser).values():
        flags |= _collect_flags(subparser)
    return flags | parser._option_string_actions


def _is_json_object(action: argparse.Action | None, value: Any) -> bool:
    """Whether the value of an option in a file is a mapping, or its text where the option is not a plain string."""
    is_text = isinstance(value, str) and action is not None and action.type is not None
    return isinstance(parse_json_or_text(value) if is_text else value, dict)


def _list_options(items: Iterable[str | DottedFlag], known_flags: KnownFlags) -> set[str]:
    """Return the names of the options whose flags are among the words."""
    names = [item.partition("=")[0] for item in items if isinstance(item, str)]
    return {known_flags[name].dest for name in names if name in known_flags}


def join_fields(
    items: Iterable[str | DottedFlag], known_flags: KnownFlags, defaults: JSONFields, joined: Collection[str] = ()
) -> tuple[list[str], JSONFields]:
    """Return the words with one word per JSON option for all its fields, and the fields by option.

    Those are the options with `defaults` or a dotted flag, and `joined` ones. Dotted flags override a JSON object.
    """
    items = list(items)
    dotted = [item for item in items if isinstance(item, DottedFlag)]
    options = {*defaults, *joined, *(item.get_option(known_flags) for item in dotted)}
    words: list[str] = []
    places: dict[str, tuple[int, str]] = {}  # index of the word and its flag
    fields: JSONFields = {}
    remaining = iter(items)
    for item in remaining:
        if isinstance(item, DottedFlag):
            flag, option = item.flag, item.get_option(known_flags)
        else:
            flag, equals, value = item.partition("=")
            option = known_flags[flag].dest if flag in known_flags else ""
            given = [item] if equals or option not in options else [item, *islice(remaining, 1)]
            parsed = parse_json_or_text(value if equals else str(given[-1])) if option in options else None
            if not isinstance(parsed, dict):  # argparse reports it
                words += map(str, given)
                continue
            fields[option] = parsed
        if option not in places:
            places[option] = len(words), flag
            words.append("")
    for item in dotted:
        _merge(fields.setdefault(item.get_option(known_flags), {}), item.path[1:], item.value)
    for option, (index, flag) in places.items():
        fields[option] = {**defaults.get(option, {}), **fields[option]}
        words[index] = f"{flag}={json.dumps(fields[option])}"
    return words, fields


def _merge(target: dict[str, Any], names: Sequence[str], value: Any) -> None:
    """Set a nested field; a list is appended to the one that is there."""
    *inner, last = names
    for name in inner:
        if not isinstance(target.get(name), dict):
            target[name] = {}
        target = target[name]
    previous = target.get(last)
    target[last] = [*previous, *value] if isinstance(previous, list) and isinstance(value, list) else value
