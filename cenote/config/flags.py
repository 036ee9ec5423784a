"""Command-line flags generated from the options declared in this package."""

from __future__ import annotations

import argparse
from dataclasses import Field
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from cenote.config.options import option_fields
from cenote.config.vllm_options import VLLM_OPTIONS, Switch, Values
from cenote.utils.argparse_utils import EnableDisable, MultiValue, clean_errors, parse_json_or_text
from cenote.utils.arguments import parse_json_object

# other flags of an option in vLLM
OTHER_FLAGS = {
    "api_server_count": "-asc",
    "quantization": "-q",
    "tensor_parallel_size": "-tp",
    "pipeline_parallel_size": "-pp",
    "decode_context_parallel_size": "-dcp",
    "prefill_context_parallel_size": "-pcp",
    "data_parallel_size": "-dp",
    "data_parallel_rank": "-dpn",
    "data_parallel_start_rank": "-dpr",
    "data_parallel_size_local": "-dpl",
    "data_parallel_address": "-dpa",
    "data_parallel_rpc_port": "-dpp",
    "data_parallel_backend": "-dpb",
    "data_parallel_hybrid_lb": "-dph",
    "data_parallel_external_lb": "-dpe",
    "data_parallel_multi_port_external_lb": "-dpm",
    "enable_expert_parallel": "-ep",
    "nnodes": "-n",
    "node_rank": "-r",
    "optimization_level": "-O",
    "compilation_config": "-cc",
    "attention_config": "-ac",
    "speculative_config": "-sc",
    "diffusion_config": "-dc",
    "gpu_memory_utilization": "--device-memory-utilization",
}


def add_flags(group: argparse._ActionsContainer, config: type, *, without: tuple[str, ...] = ()) -> None:
    """Add one flag per option; a flag that is not given is absent from the namespace."""
    hints = get_type_hints(config)
    for option in option_fields(config):
        if option.name not in without:
            argument_options = _argument_options(option, hints[option.name])
            group.add_argument(*_flags(option.name), dest=option.name, default=argparse.SUPPRESS, **argument_options)


def add_vllm_flags(group: argparse._ActionsContainer) -> None:
    """Add the flags of vLLM that have no effect, one accepted value or a translation, hidden from the help."""
    hidden: dict[str, Any] = {"help": argparse.SUPPRESS, "default": argparse.SUPPRESS}
    group.add_argument("--task", **hidden)
    group.add_argument("--device-ids", **hidden)
    for name, hint in VLLM_OPTIONS.items():
        if _flags(name)[0] in group._option_string_actions:
            continue  # an option of the server, or the opposite of another flag
        if hint == Switch:
            group.add_argument(*_flags(name), dest=name, action=EnableDisable, **hidden)
        elif hint == Values:
            group.add_argument(*_flags(name), dest=name, action=MultiValue, nargs="+", **hidden)
        else:
            group.add_argument(*_flags(name), dest=name, type=parse_json_or_text, **hidden)


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
    """Return the flag of an option, and its other one."""
    return ["--" + name.replace("_", "-"), *([OTHER_FLAGS[name]] if name in OTHER_FLAGS else [])]


def _argument_options(option: Field[Any], hint: Any) -> dict[str, Any]:
    text = _help_text(option)
    types = [member for member in _union_members(hint) if member is not type(None)]
    if get_origin(hint) is tuple:
        return {"action": MultiValue, "nargs": "+", "help": text, "metavar": option.name.rpartition("_")[2].upper()}
    if types == [bool]:
        return {"action": EnableDisable, "help": text}
    if option.metadata["choices"]:
        return {"choices": option.metadata["choices"], "type": option.metadata["parse"], "help": text}
    if option.metadata["parse"] is not None:
        return {"type": clean_errors(option.metadata["parse"]), "help": text, "metavar": "N"}
    if types in ([int], [float]):
        return {"type": types[0], "help": text, "metavar": "N"}
    if types == [bool, str]:  # a flag that may stand alone, which means True
        return {"nargs": "?", "const": True, "help": text, "metavar": option.name.rpartition("_")[2].upper()}
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
