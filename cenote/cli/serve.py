"""`cenote serve`: options from four places, a socket, a server on it, and the engine behind them."""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from cenote.cli.flags import MultiValue, add_engine_flags, add_flags
from cenote.cli.option_sources import collect_options
from cenote.cli.parser import CommandParser, UsageError, parse_json_or_text
from cenote.config.engine import EngineConfig
from cenote.config.ignored_options import IGNORED_OPTIONS
from cenote.config.options import normalize_log_level, option_fields
from cenote.config.server import ServerConfig

if TYPE_CHECKING:
    from cenote.engine.engine import PoolingEngine

logger = logging.getLogger("cenote")

# the reference's flag -> ours
VLLM_FLAGS = {"disable-fastapi-docs": "disable_docs", "disable-uvicorn-access-log": "disable_access_log"}
IGNORED_FLAG_OPTIONS: dict[str, dict[str, Any]] = {
    "switch": {"action": argparse.BooleanOptionalAction},
    "value": {"type": parse_json_or_text},
    "values": {"action": MultiValue, "nargs": "+"},
}


def run_server(argv: Sequence[str], environment: Mapping[str, str] = os.environ) -> int:
    settings, options = parse_config(argv, environment)

    from cenote.api.app_state import AppState
    from cenote.api.log_config import configure_logging
    from cenote.api.sockets import format_address, open_socket

    configure_logging(settings)
    config = EngineConfig.from_kwargs(**options)  # what is wrong with it shows before anybody connects
    service = AppState(settings)
    listening = open_socket(settings)
    logger.info("listening on %s; loading %s", format_address(settings, listening), config.model or "the default model")

    if settings.api_server_count > 1:
        from cenote.api.front_ends.engine_process import run_engine_process as run
    else:
        from cenote.api.server import run_server as run

    engines: list[PoolingEngine] = []

    def load() -> PoolingEngine:
        # torch's threads would wait for each other with the cores held, which those that speak HTTP need meanwhile;
        # has to be said before torch is imported
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        from cenote.engine.engine import PoolingEngine

        engines.append(PoolingEngine.load(config))
        return engines[0]

    try:
        run(service, [listening], load)
    finally:
        if settings.uds:
            with suppress(OSError):
                os.unlink(settings.uds)
    if not engines:
        os._exit(0)  # stopped while loading: torch would abort if the interpreter ended below it
    engines[0].stop()
    if engines[0].is_running:  # a long batch on a slow machine: as above
        logging.shutdown()
        os._exit(0)
    return 0


def parse_config(argv: Sequence[str], environment: Mapping[str, str]) -> tuple[ServerConfig, dict[str, Any]]:
    """The server's options, and the keywords of the engine's."""
    reader = make_parser()
    given = collect_options(reader, argv, environment)
    tag = given.pop("model_tag", None)
    if tag is not None and given.setdefault("model", tag) != tag:
        raise UsageError(f"two models: {tag} and --model {given['model']}; give one")
    if "model" not in given:
        _check_swallowed_model(reader)
    ours = {option.name for option in option_fields(ServerConfig)}
    settings = ServerConfig(**{name: value for name, value in given.items() if name in ours})
    engine = {name: value for name, value in given.items() if name not in ours}
    return settings, {**engine, "served_model_name": settings.served_model_name}


def _check_swallowed_model(reader: CommandParser) -> None:
    """A flag with several words takes a model that follows it for one more of them."""
    for flag, action in reader.options_by_flag().items():
        words = action.last_values if isinstance(action, MultiValue) else ()
        if any(os.path.isdir(word) or ("/" in word and "://" not in word) for word in words):
            # the word is not shown: it may be a key after all
            raise UsageError(
                f"the last word of {flag} looks like the model; put the model first: cenote serve MODEL {flag} ..."
            )


def make_parser() -> CommandParser:
    found = CommandParser(
        "serve",
        "[MODEL]",
        "Answer over HTTP: embeddings, reranking, classification, token tasks, in the dialects of several vendors.",
        [
            "cenote serve",
            "cenote serve BAAI/bge-m3 --port 8080 --api-key SECRET",
            "cenote serve FOLDER --served-model-name a b --pooler-config.pooling_type MEAN",
            "cenote serve --config server.yaml",
        ],
    )
    found.add_argument(
        "model_tag", nargs="?", metavar="MODEL", help="a hub name or a folder; the default model if unset"
    )
    group = found.add_argument_group("server")
    group.add_argument("--config", metavar="FILE", help="YAML with any of these options; the command line wins")
    add_flags(group, ServerConfig)
    add_engine_flags(found, without=("served_model_name",))
    _add_vllm_flags(found)
    return found


def _add_vllm_flags(found: CommandParser) -> None:
    """Command lines that were written for the reference work as they are."""
    hidden: dict[str, Any] = {"help": argparse.SUPPRESS, "default": argparse.SUPPRESS}
    for flag, name in VLLM_FLAGS.items():
        found.add_argument(f"--{flag}", dest=name, action=argparse.BooleanOptionalAction, **hidden)
    levels = found.options_by_flag()["--log-level"].choices
    found.add_argument("--uvicorn-log-level", dest="log_level", type=normalize_log_level, choices=levels, **hidden)
    found.add_argument("--task", **hidden)
    for name, option in IGNORED_OPTIONS.items():
        found.add_argument("--" + name.replace("_", "-"), dest=name, **IGNORED_FLAG_OPTIONS[option.arity], **hidden)
    found.epilog = f"{found.epilog}\n\nOther flags of vLLM's server are accepted where they change no answer."
