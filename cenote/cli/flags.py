"""Flags, made from the options that `config.py` declares."""

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
    """One flag per option; what is not given stays out of the namespace, so that the library's defaults hold."""
    group = parser.add_argument_group("model and engine")
    add_flags(group, EngineConfig, without=without)
    older: dict[str, Any] = {"dest": "pooler_config", "default": argparse.SUPPRESS, "type": parse_json_object}
    group.add_argument("--override-pooler-config", help=argparse.SUPPRESS, **older)
    names = fill(", ".join(option.name for option in option_fields(PoolerConfig)), width=100)
    parts = indent(f"{names}\none at a time: --pooler-config.NAME VALUE", "  ")
    parser.epilog = f"{parser.epilog}\n\nparts of --pooler-config:\n{parts}"


def add_flags(group: argparse._ArgumentGroup, config: type, *, without: tuple[str, ...] = ()) -> None:
    hints = get_type_hints(config)
    for option in option_fields(config):
        if option.name not in without:
            flag = "--" + option.name.replace("_", "-")
            reading = _argument_options(option, hints[option.name])
            group.add_argument(flag, dest=option.name, default=argparse.SUPPRESS, **reading)


def engine_keywords(args: argparse.Namespace) -> dict[str, Any]:
    """What the command line said about the engine, as keywords of `LLM`."""
    names = {option.name for option in option_fields(EngineConfig)}
    return {name: value for name, value in vars(args).items() if name in names}


class MultiValue(argparse.Action):
    """A flag with several words, given once or repeatedly; a JSON list counts as its words."""

    last_values: tuple[str, ...] = ()  # what ended a row of several: perhaps not meant for this flag

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
    kinds = [kind for kind in _union_members(hint) if kind is not type(None)]
    if get_origin(hint) is tuple:
        return {"action": MultiValue, "nargs": "+", "help": text, "metavar": option.name.rpartition("_")[2].upper()}
    if kinds == [bool]:
        return {"action": argparse.BooleanOptionalAction, "help": text}
    if option.metadata["choices"]:
        return {"choices": option.metadata["choices"], "type": option.metadata["parse"], "help": text}
    if option.metadata["parse"] is not None:
        return {"type": clean_errors(option.metadata["parse"]), "help": text, "metavar": "N"}
    if kinds in ([int], [float]):
        return {"type": kinds[0], "help": text, "metavar": "N"}
    if kinds == [str]:
        return {"help": text, "metavar": option.name.rpartition("_")[2].upper()}
    return {"type": parse_json_object, "help": text, "metavar": "JSON"}


def _help_text(option: Field[Any]) -> str:
    default = option.default
    shown = isinstance(default, str | int | float) and not isinstance(default, bool) and default != ""
    text = str(option.metadata["help"]) + (f" (default: {default})" if shown else "")
    return text.replace("%", "%%")


def _union_members(hint: Any) -> tuple[Any, ...]:
    if get_origin(hint) is Literal:
        return (str,)
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
