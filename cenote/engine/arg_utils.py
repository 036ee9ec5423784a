"""EngineArgs: the options of `LLM` as a dataclass and as command-line flags; mirrors `vllm.engine.arg_utils`."""

from __future__ import annotations

import argparse
from dataclasses import field, fields, make_dataclass
from typing import Any, Self, TypeVar

from cenote.config.engine import TRANSLATED_OPTIONS, EngineConfig
from cenote.config.flags import add_deprecated_pooler_flag, add_flags, add_vllm_flags
from cenote.config.options import option_fields
from cenote.config.vllm_options import REFUSAL_REASONS, VLLM_OPTIONS, list_accepted_values
from cenote.utils.argparse_utils import MultiValue

ParserT = TypeVar("ParserT", bound=argparse.ArgumentParser)


class _EngineArgsMethods:
    @staticmethod
    def add_cli_args(parser: ParserT) -> ParserT:
        """Add the flags of all options to a parser, with their defaults: `LLM(**vars(parser.parse_args()))`."""
        group = parser.add_argument_group("model and engine")
        add_flags(group, EngineConfig, without=("served_model_name",))
        names = "model names in messages and responses; LLM takes the first"
        group.add_argument("--served-model-name", nargs="+", action=MultiValue, metavar="NAME", help=names)
        add_deprecated_pooler_flag(group)
        add_vllm_flags(group)
        parser.set_defaults(**_get_defaults())
        return parser

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> Self:
        """Return the options in a namespace; other entries of it are left out."""
        names = [item.name for item in fields(cls)]  # type: ignore[arg-type]  # subclasses are dataclasses
        return cls(**{name: getattr(args, name) for name in names if hasattr(args, name)})


def _get_defaults() -> dict[str, Any]:
    """Return the default of every option; LLM gives the same result with and without them."""
    defaults = {item.name: item.default for item in option_fields(EngineConfig)}
    refused = {name: list_accepted_values(name)[0] for name in REFUSAL_REASONS}
    return {**defaults, "pooler_config": None, **dict.fromkeys((*TRANSLATED_OPTIONS, *VLLM_OPTIONS)), **refused}


EngineArgs = make_dataclass(
    "EngineArgs",
    [(name, Any, field(default=default)) for name, default in _get_defaults().items()],
    bases=(_EngineArgsMethods,),
    namespace={"__doc__": "Options of `LLM`, including those of vLLM without effect: `LLM(**asdict(args))`."},
)
EngineArgs.__module__ = __name__
