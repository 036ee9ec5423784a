"""Collect options from a YAML file, the environment and the command line, all parsed by the same parser."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from cenote.cli.parser import CommandParser
from cenote.config.engine import EXTRA_VARIABLES
from cenote.errors import BadRequest
from cenote.utils.argparse_utils import MultiValue, UsageError, parse_words, read_yaml_options, to_arguments

ENV_PREFIX = "CENOTE_"
# set by programs that start vLLM
VLLM_VARIABLES = {
    "VLLM_API_KEY": "api_key",
    "VLLM_LOGGING_LEVEL": "log_level",
    "VLLM_SKIP_MODEL_NAME_VALIDATION": "skip_model_name_validation",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "allow_runtime_lora_updating",
}
# Kubernetes sets these in every pod of a namespace that has a service whose name begins with cenote
KUBERNETES_VARIABLE = re.compile(
    ENV_PREFIX + r"(?:\w+_)?(?:SERVICE_HOST|SERVICE_PORT(?:_\w+)?|PORT_\d+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)"
)
# YAML parses 007 as 7 and no as false: in a file, values of these options must be strings
TEXT_OPTIONS = ("api_key", "served_model_name", "hf_token")
BOOLEAN_WORDS = {
    "1": True,
    "true": True,
    "yes": True,
    "on": True,
    "0": False,
    "false": False,
    "no": False,
    "off": False,
}


def collect_options(parser: CommandParser, argv: Sequence[str], environment: Mapping[str, str]) -> dict[str, Any]:
    """Return every option that is set, by name; the command line overrides the environment, and that the file."""
    from_line = _parse(parser, argv)
    path = from_line.pop("config", None) or environment.get(f"{ENV_PREFIX}CONFIG")
    from_file = _options_from_file(parser, path) if path else {}
    options: dict[str, Any] = {}
    for source in (from_file, _options_from_environment(parser, environment), from_line):
        for name, value in source.items():
            previous = options.get(name)
            # fields of a JSON option may come from different sources
            if isinstance(previous, dict) and isinstance(value, dict):
                value = {**previous, **value}
            options[name] = value
    return options


def _parse(parser: CommandParser, words: Sequence[str]) -> dict[str, Any]:
    return {name: value for name, value in vars(parser.parse(words)).items() if value is not None}


def _options_from_file(parser: CommandParser, path: str) -> dict[str, Any]:
    words: list[str] = []
    for name, value in read_yaml_options(path).items():
        flag = "--" + str(name).replace("_", "-")
        action = parser.options_by_flag().get(flag)
        if action is not None and action.dest in TEXT_OPTIONS:
            value = _require_text(path, str(name), value)
        words += to_arguments(parser.options_by_flag(), flag, value)
    return _with_source(parser, words, f"in {path}")


def _require_text(path: str, name: str, value: Any) -> Any:
    if value is None:
        return "" if name.replace("-", "_") == "api_key" else None
    for item in value if isinstance(value, list) else [value]:
        if not isinstance(item, str):
            kind = type(item).__name__
            raise UsageError(f"--config {path}: {name} must be a string, YAML parses it as {kind}; put it in quotes")
    return value


def _options_from_environment(parser: CommandParser, environment: Mapping[str, str]) -> dict[str, Any]:
    words: list[str] = []
    options = parser.options_by_flag()
    by_name = {action.dest: flag for flag, action in reversed(options.items()) if action.dest != "help"}
    _check_variables(environment, [ENV_PREFIX + name.upper() for name in by_name])
    for name, flag in by_name.items():
        action = options[flag]
        vllm_names = [variable for variable, option in VLLM_VARIABLES.items() if option == name]
        for variable in (ENV_PREFIX + name.upper(), *vllm_names):
            text = environment.get(variable)
            # an empty value counts as unset, except for a key: without a key the API would be open to every client
            if text or (text is not None and name == "api_key"):
                break
        else:
            continue
        if name == "config" or _is_kubernetes_variable(variable, text):
            continue
        words += to_arguments(options, flag, _parse_variable(action, variable, text))
    return _with_source(parser, words, "in the environment") if words else {}


def _check_variables(environment: Mapping[str, str], options: Sequence[str]) -> None:
    known = {*options, *EXTRA_VARIABLES}
    for name, value in environment.items():
        if not name.startswith(ENV_PREFIX) or name in known or _is_kubernetes_variable(name, value):
            continue
        near = get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else "unset it; see cenote serve --help for the options"
        # the value is not shown: it may be a key
        raise UsageError(f"in the environment: unknown variable {name}; {hint}")


def _is_kubernetes_variable(name: str, value: str) -> bool:
    return KUBERNETES_VARIABLE.fullmatch(name) is not None or (name.endswith("_PORT") and "://" in value)


def _parse_variable(action: argparse.Action, variable: str, text: str) -> Any:
    """Parse the text of a variable for its option."""
    if isinstance(action, argparse.BooleanOptionalAction):
        if text.lower() not in BOOLEAN_WORDS:
            raise UsageError(f"invalid boolean {variable}={text!r}; expected one of: {', '.join(BOOLEAN_WORDS)}")
        return BOOLEAN_WORDS[text.lower()]
    if action.dest == "api_key":  # may contain spaces, commas and even brackets
        key = text.strip()
        return [key] if variable in VLLM_VARIABLES else parse_words(key) or [key]
    if isinstance(action, MultiValue):
        return parse_words(text) if text.startswith("[") else re.split(r"[,\s]+", text.strip())
    return text


def _with_source(parser: CommandParser, words: Sequence[str], source: str) -> dict[str, Any]:
    try:
        return _parse(parser, words)
    except BadRequest as error:
        raise UsageError(f"{source}: {error.message}") from None
