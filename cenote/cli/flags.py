"""The flags of the engine options on the command line of `cenote`."""

from __future__ import annotations

import argparse
from textwrap import fill, indent
from typing import Any

from cenote.cli.parser import CommandParser
from cenote.config.engine import EngineConfig
from cenote.config.flags import add_deprecated_pooler_flag, add_flags
from cenote.config.options import option_fields
from cenote.config.pooler import PoolerConfig
from cenote.utils.argparse_utils import option_errors


def add_model_argument(parser: CommandParser) -> None:
    text = "folder, hub name or s3://bucket/path; if unset, a bundled model"
    parser.add_argument("model", nargs="?", metavar="MODEL", help=text)


def add_engine_flags(parser: CommandParser, *, without: tuple[str, ...] = ()) -> None:
    """Add one flag per option; a flag that is not given is absent from the namespace, so the defaults of LLM apply."""
    group = parser.add_argument_group("model and engine")
    add_flags(group, EngineConfig, without=without)
    add_deprecated_pooler_flag(group)
    names = fill(", ".join(option.name for option in option_fields(PoolerConfig)), width=100)
    fields = indent(f"{names}\none field at a time: --pooler-config.NAME VALUE", "  ")
    parser.epilog = f"{parser.epilog}\n\nfields of --pooler-config:\n{fields}"


def engine_keywords(args: argparse.Namespace) -> dict[str, Any]:
    """Return the engine options of the command line as keyword arguments of `LLM`."""
    names = {option.name for option in option_fields(EngineConfig)}
    return {name: value for name, value in vars(args).items() if name in names}


def make_engine_config(args: argparse.Namespace) -> EngineConfig:
    with option_errors():
        return EngineConfig.from_kwargs(**engine_keywords(args))
