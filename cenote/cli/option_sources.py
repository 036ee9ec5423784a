"""Where options come from: the command line, then the environment, then a YAML file, all read by the same parser."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from cenote.cli.flags import Several, words_of
from cenote.cli.parser import Parser, UsageError
from cenote.config.engine import EXTRA_VARIABLES
from cenote.errors import BadRequest

PREFIX = "CENOTE_"
# programs that start the reference set these
OTHER_VARIABLES = {
    "VLLM_API_KEY": "api_key",
    "VLLM_LOGGING_LEVEL": "log_level",
    "VLLM_SKIP_MODEL_NAME_VALIDATION": "skip_model_name_validation",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "allow_runtime_lora_updating",
}
# Kubernetes sets these in every pod beside a service whose name begins with cenote
OF_KUBERNETES = re.compile(
    PREFIX + r"(?:\w+_)?(?:SERVICE_HOST|SERVICE_PORT(?:_\w+)?|PORT_\d+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)"
)
# YAML reads 007 as 7 and no as false: in a file these must be text already
TEXTS = ("api_key", "served_model_name", "hf_token")
TRUTHS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def gathered(parser: Parser, argv: Sequence[str], environment: Mapping[str, str]) -> dict[str, Any]:
    """Every option that somebody has set, by name."""
    from_line = _read(parser, argv)
    path = from_line.pop("config", None) or environment.get(f"{PREFIX}CONFIG")
    from_file = _from_file(parser, path) if path else {}
    found: dict[str, Any] = {}
    for source in (from_file, _from_environment(parser, environment), from_line):
        for name, value in source.items():
            before = found.get(name)
            # parts of a JSON option may come from different places
            found[name] = {**before, **value} if isinstance(before, dict) and isinstance(value, dict) else value
    return found


def _read(parser: Parser, words: Sequence[str]) -> dict[str, Any]:
    return {name: value for name, value in vars(parser.read(words)).items() if value is not None}


def _from_file(parser: Parser, path: str) -> dict[str, Any]:
    import yaml

    try:
        entries = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise UsageError(f"--config {path} is not YAML: {' '.join(str(error).split())}") from None
    except UnicodeDecodeError:
        raise UsageError(f"--config {path} is not UTF-8 text") from None
    if entries is None:
        return {}
    if not isinstance(entries, dict):
        raise UsageError(f"--config {path} must hold options with their values, like port: 8000")
    words: list[str] = []
    for name, value in entries.items():
        flag = "--" + str(name).replace("_", "-")
        if flag == "--config":
            raise UsageError(f"--config {path} names another file; there is one")
        action = parser.options().get(flag)
        if action is not None and action.dest in TEXTS:
            value = _text_only(path, str(name), value)
        words += _words(parser, flag, value)
    return _told_where(parser, words, f"in {path}")


def _text_only(path: str, name: str, value: Any) -> Any:
    if value is None:
        return "" if name.replace("-", "_") == "api_key" else None
    for item in value if isinstance(value, list) else [value]:
        if not isinstance(item, str):
            kind = type(item).__name__
            raise UsageError(f"--config {path}: {name} is text, YAML reads {kind} there; put it in quotes")
    return value


def _from_environment(parser: Parser, environment: Mapping[str, str]) -> dict[str, Any]:
    words: list[str] = []
    by_name = {action.dest: flag for flag, action in reversed(parser.options().items()) if action.dest != "help"}
    _refuse_unknown_variables(environment, [PREFIX + name.upper() for name in by_name])
    for name, flag in by_name.items():
        action = parser.options()[flag]
        others = [other for other, meant in OTHER_VARIABLES.items() if meant == name]
        for variable in (PREFIX + name.upper(), *others):
            given = environment.get(variable)
            # blank is as good as unset, except for a key: without one everybody would be let in
            if given or (given is not None and name == "api_key"):
                break
        else:
            continue
        if name == "config" or _is_of_kubernetes(variable, given):
            continue
        words += _words(parser, flag, _value(action, variable, given))
    return _told_where(parser, words, "in the environment")


def _refuse_unknown_variables(environment: Mapping[str, str], options: Sequence[str]) -> None:
    known = {*options, *EXTRA_VARIABLES}
    for name, value in environment.items():
        if not name.startswith(PREFIX) or name in known or _is_of_kubernetes(name, value):
            continue
        near = get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else "see cenote serve --help for the options; unset it"
        # the value is not shown: it may be a key
        raise UsageError(f"in the environment: no option is called {name}; {hint}")


def _is_of_kubernetes(name: str, value: str) -> bool:
    return OF_KUBERNETES.fullmatch(name) is not None or (name.endswith("_PORT") and "://" in value)


def _value(action: argparse.Action, variable: str, text: str) -> Any:
    """What a variable means to its option."""
    if isinstance(action, argparse.BooleanOptionalAction):
        if text.lower() not in TRUTHS:
            raise UsageError(f"{variable}={text!r} is neither true nor false")
        return TRUTHS[text.lower()]
    if action.dest == "api_key":  # may hold blanks and commas, even brackets
        key = text.strip()
        return [key] if variable in OTHER_VARIABLES else words_of(key) or [key]
    if isinstance(action, Several):
        return words_of(text) if text.startswith("[") else re.split(r"[,\s]+", text.strip())
    return text


def _words(parser: Parser, flag: str, value: Any) -> list[str]:
    """A value as the command line would have it."""
    if value is None:
        return []
    action = parser.options().get(flag)
    if isinstance(action, argparse.BooleanOptionalAction) and isinstance(value, bool):
        return [flag if value else f"--no-{flag[2:]}"]
    if isinstance(value, list) and (action is None or isinstance(action, Several)):
        # as a list, so that an item which looks like one is not taken apart
        return [f"{flag}={json.dumps([item if isinstance(item, str) else str(item)])}" for item in value]
    text = value if isinstance(value, str) else json.dumps(value)
    return [f"{flag}={text}"]


def _told_where(parser: Parser, words: Sequence[str], where: str) -> dict[str, Any]:
    try:
        return _read(parser, words)
    except BadRequest as error:
        raise UsageError(f"{where}: {error.message}") from None
