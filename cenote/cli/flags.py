"""Flags, made from the options that `config.py` declares."""

from __future__ import annotations

import argparse
import json
from contextlib import suppress
from dataclasses import Field
from textwrap import fill, indent
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from cenote.cli.parser import Parser, json_value, with_our_words
from cenote.config.engine import EngineConfig, PoolerConfig, declared


def add_engine_flags(parser: Parser, *, without: tuple[str, ...] = ()) -> None:
    """One flag per option; what is not given stays out of the namespace, so that the library's defaults hold."""
    group = parser.add_argument_group("model and engine")
    add_flags(group, EngineConfig, without=without)
    older: dict[str, Any] = {"dest": "pooler_config", "default": argparse.SUPPRESS, "type": json_value}
    group.add_argument("--override-pooler-config", help=argparse.SUPPRESS, **older)
    names = fill(", ".join(option.name for option in declared(PoolerConfig)), width=100)
    parts = indent(f"{names}\none at a time: --pooler-config.NAME VALUE", "  ")
    parser.epilog = f"{parser.epilog}\n\nparts of --pooler-config:\n{parts}"


def add_flags(group: argparse._ArgumentGroup, config: type, *, without: tuple[str, ...] = ()) -> None:
    hints = get_type_hints(config)
    for option in declared(config):
        if option.name not in without:
            flag = "--" + option.name.replace("_", "-")
            reading = _reading(option, hints[option.name])
            group.add_argument(flag, dest=option.name, default=argparse.SUPPRESS, **reading)


def engine_keywords(args: argparse.Namespace) -> dict[str, Any]:
    """What the command line said about the engine, as keywords of `LLM`."""
    names = {option.name for option in declared(EngineConfig)}
    return {name: value for name, value in vars(args).items() if name in names}


class Several(argparse.Action):
    """A flag with several words, given once or repeatedly; a JSON list counts as its words."""

    last_words: tuple[str, ...] = ()  # what ended a row of several: perhaps not meant for this flag

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: Any = None
    ) -> None:
        if len(values) > 1:
            self.last_words = (*self.last_words, values[-1])
        words = [word for value in values for word in words_of(value)]
        setattr(namespace, self.dest, (*getattr(namespace, self.dest, ()), *words))


def words_of(text: str) -> list[str]:
    if text.startswith("["):
        with suppress(ValueError):
            words = json.loads(text)
            if all(isinstance(word, str) for word in words):
                return list(words)
    return [text]


def _reading(option: Field[Any], hint: Any) -> dict[str, Any]:
    text = _help(option)
    kinds = [kind for kind in _alternatives(hint) if kind is not type(None)]
    if get_origin(hint) is tuple:
        return {"action": Several, "nargs": "+", "help": text, "metavar": option.name.rpartition("_")[2].upper()}
    if kinds == [bool]:
        return {"action": argparse.BooleanOptionalAction, "help": text}
    if option.metadata["choices"]:
        return {"choices": option.metadata["choices"], "type": option.metadata["parse"], "help": text}
    if option.metadata["parse"] is not None:
        return {"type": with_our_words(option.metadata["parse"]), "help": text, "metavar": "N"}
    if kinds in ([int], [float]):
        return {"type": kinds[0], "help": text, "metavar": "N"}
    if kinds == [str]:
        return {"help": text, "metavar": option.name.rpartition("_")[2].upper()}
    return {"type": json_value, "help": text, "metavar": "JSON"}


def _help(option: Field[Any]) -> str:
    default = option.default
    shown = isinstance(default, str | int | float) and not isinstance(default, bool) and default != ""
    text = str(option.metadata["help"]) + (f" (default: {default})" if shown else "")
    return text.replace("%", "%%")


def _alternatives(hint: Any) -> tuple[Any, ...]:
    if get_origin(hint) is Literal:
        return (str,)
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
