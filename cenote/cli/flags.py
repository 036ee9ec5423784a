"""Command-line flags generated from the options declared in `cenote.config`."""

from __future__ import annotations

import argparse
import json
from contextlib import suppress
from dataclasses import Field
from textwrap import fill, indent
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from cenote.cli.parser import CommandParser, clean_errors
from cenote.config.engine import EngineConfig
from cenote.config.options import option_fields
from cenote.config.pooler import PoolerConfig
from cenote.utils.arguments import parse_json_object


def add_engine_flags(parser: CommandParser, *, without: tuple[str, ...] = ()) -> None:
    """Add one flag per option; a flag that is not given is absent from the namespace, so the defaults of LLM apply."""
    group = parser.add_argument_group("model and engine")
    add_flags(group, EngineConfig, without=without)
    deprecated: dict[str, Any] = {"dest": "pooler_config", "default": argparse.SUPPRESS, "type": parse_json_object}
    group.add_argument("--override-pooler-config", help=argparse.SUPPRESS, **deprecated)
    names = fill(", ".join(option.name for option in option_fields(PoolerConfig)), width=100)
    fields = indent(f"{names}\none field at a time: --pooler-config.NAME VALUE", "  ")
    parser.epilog = f"{parser.epilog}\n\nfields of --pooler-config:\n{fields}"


def add_flags(group: argparse._ArgumentGroup, config: type, *, without: tuple[str, ...] = ()) -> None:
    hints = get_type_hints(config)
    for option in option_fields(config):
        if option.name not in without:
            flag = "--" + option.name.replace("_", "-")
            argument_options = _argument_options(option, hints[option.name])
            group.add_argument(flag, dest=option.name, default=argparse.SUPPRESS, **argument_options)


def engine_keywords(args: argparse.Namespace) -> dict[str, Any]:
    """Return the engine options of the command line as keyword arguments of `LLM`."""
    names = {option.name for option in option_fields(EngineConfig)}
    return {name: value for name, value in vars(args).items() if name in names}


class MultiValue(argparse.Action):
    """A flag with several values, given once or repeatedly; a JSON list counts as its items."""

    last_values: tuple[str, ...] = ()  # last values of several: possibly the model, swallowed by this flag

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: Any = None
    ) -> None:
        if len(values) > 1:
            self.last_values = (*self.last_values, values[-1])
        words = [word for value in values for word in parse_words(value)]
        setattr(namespace, self.dest, (*getattr(namespace, self.dest, ()), *words))


def parse_words(text: str) -> list[str]:
    if text.startswith("["):
        with suppress(ValueError):
            words = json.loads(text)
            if all(isinstance(word, str) for word in words):
                return list(words)
    return [text]


def _argument_options(option: Field[Any], hint: Any) -> dict[str, Any]:
    text = _help_text(option)
    types = [member for member in _union_members(hint) if member is not type(None)]
    if get_origin(hint) is tuple:
        return {"action": MultiValue, "nargs": "+", "help": text, "metavar": option.name.rpartition("_")[2].upper()}
    if types == [bool]:
        return {"action": argparse.BooleanOptionalAction, "help": text}
    if option.metadata["choices"]:
        return {"choices": option.metadata["choices"], "type": option.metadata["parse"], "help": text}
    if option.metadata["parse"] is not None:
        return {"type": clean_errors(option.metadata["parse"]), "help": text, "metavar": "N"}
    if types in ([int], [float]):
        return {"type": types[0], "help": text, "metavar": "N"}
    if types == [str]:
        return {"help": text, "metavar": option.name.rpartition("_")[2].upper()}
    return {"type": parse_json_object, "help": text, "metavar": "JSON"}


def _help_text(option: Field[Any]) -> str:
    default = option.default
    is_shown = isinstance(default, str | int | float) and not isinstance(default, bool) and default != ""
    text = str(option.metadata["help"]) + (f" (default: {default})" if is_shown else "")
    return text.replace("%", "%%")


def _union_members(hint: Any) -> tuple[Any, ...]:
    if get_origin(hint) is Literal:
        return (str,)
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
