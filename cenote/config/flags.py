"""Command-line flags generated from the options declared in this package."""

from __future__ import annotations

import argparse
from dataclasses import Field
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from cenote.config.ignored_options import IGNORED_OPTIONS
from cenote.config.options import option_fields
from cenote.utils.argparse_utils import MultiValue, clean_errors, parse_json_or_text
from cenote.utils.arguments import parse_json_object

IGNORED_FLAG_OPTIONS: dict[str, dict[str, Any]] = {
    "switch": {"action": argparse.BooleanOptionalAction},
    "value": {"type": parse_json_or_text},
    "values": {"action": MultiValue, "nargs": "+"},
}
# vLLM's short flags
SHORT_FLAGS = {
    "quantization": "-q",
    "tensor_parallel_size": "-tp",
    "pipeline_parallel_size": "-pp",
    "data_parallel_size": "-dp",
}


def add_flags(group: argparse._ActionsContainer, config: type, *, without: tuple[str, ...] = ()) -> None:
    """Add one flag per option; a flag that is not given is absent from the namespace."""
    hints = get_type_hints(config)
    for option in option_fields(config):
        if option.name not in without:
            argument_options = _argument_options(option, hints[option.name])
            group.add_argument(*_flags(option.name), dest=option.name, default=argparse.SUPPRESS, **argument_options)


def add_ignored_flags(group: argparse._ActionsContainer) -> None:
    """Add the flags of vLLM that are accepted and ignored, and the deprecated `--task`, hidden from the help."""
    hidden: dict[str, Any] = {"help": argparse.SUPPRESS, "default": argparse.SUPPRESS}
    group.add_argument("--task", **hidden)
    for name, option in IGNORED_OPTIONS.items():
        group.add_argument(*_flags(name), dest=name, **IGNORED_FLAG_OPTIONS[option.arity], **hidden)


def add_deprecated_pooler_flag(group: argparse._ActionsContainer) -> None:
    """Add the older name of --pooler-config, hidden from the help."""
    group.add_argument(
        "--override-pooler-config",
        dest="pooler_config",
        type=parse_json_object,
        help=argparse.SUPPRESS,
        default=argparse.SUPPRESS,
    )


def _flags(name: str) -> list[str]:
    """Return the flag of an option, and the short one if it has one."""
    return ["--" + name.replace("_", "-"), *([SHORT_FLAGS[name]] if name in SHORT_FLAGS else [])]


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
