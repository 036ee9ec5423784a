"""`cenote serve`: options from four places, a socket, a server on it, and the engine behind them."""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from cenote.cli.flags import Several, add_engine_flags, add_flags
from cenote.cli.option_sources import gathered
from cenote.cli.parser import Parser, UsageError, json_or_text
from cenote.config.engine import EngineConfig, ServerConfig, declared, level_name
from cenote.config.ignored_options import WITHOUT_EFFECT

if TYPE_CHECKING:
    from cenote.engine.engine import PoolingEngine

logger = logging.getLogger("cenote")

# the reference's flag -> ours
OTHER_NAMES = {"disable-fastapi-docs": "disable_docs", "disable-uvicorn-access-log": "disable_access_log"}
READING: dict[str, dict[str, Any]] = {
    "switch": {"action": argparse.BooleanOptionalAction},
    "value": {"type": json_or_text},
    "values": {"action": Several, "nargs": "+"},
}


def serve(argv: Sequence[str], environment: Mapping[str, str] = os.environ) -> int:
    settings, options = configured(argv, environment)

    from cenote.api.app_state import Service
    from cenote.api.log_config import configure
    from cenote.api.sockets import address, listen

    configure(settings)
    config = EngineConfig.of(**options)  # what is wrong with it shows before anybody connects
    service = Service(settings)
    listening = listen(settings)
    logger.info("listening on %s; loading %s", address(settings, listening), config.model or "the default model")

    if settings.api_server_count > 1:
        from cenote.api.front_ends.engine_process import run
    else:
        from cenote.api.server import run

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


def configured(argv: Sequence[str], environment: Mapping[str, str]) -> tuple[ServerConfig, dict[str, Any]]:
    """The server's options, and the keywords of the engine's."""
    reader = parser()
    given = gathered(reader, argv, environment)
    tag = given.pop("model_tag", None)
    if tag is not None and given.setdefault("model", tag) != tag:
        raise UsageError(f"two models: {tag} and --model {given['model']}; give one")
    if "model" not in given:
        _refuse_swallowed_model(reader)
    ours = {option.name for option in declared(ServerConfig)}
    settings = ServerConfig(**{name: value for name, value in given.items() if name in ours})
    engine = {name: value for name, value in given.items() if name not in ours}
    return settings, {**engine, "served_model_name": settings.served_model_name}


def _refuse_swallowed_model(reader: Parser) -> None:
    """A flag with several words takes a model that follows it for one more of them."""
    for flag, action in reader.options().items():
        words = action.last_words if isinstance(action, Several) else ()
        if any(os.path.isdir(word) or ("/" in word and "://" not in word) for word in words):
            # the word is not shown: it may be a key after all
            raise UsageError(
                f"the last word of {flag} looks like the model; put the model first: cenote serve MODEL {flag} ..."
            )


def parser() -> Parser:
    found = Parser(
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
    _add_reference_flags(found)
    return found


def _add_reference_flags(found: Parser) -> None:
    """Command lines that were written for the reference work as they are."""
    hidden: dict[str, Any] = {"help": argparse.SUPPRESS, "default": argparse.SUPPRESS}
    for flag, name in OTHER_NAMES.items():
        found.add_argument(f"--{flag}", dest=name, action=argparse.BooleanOptionalAction, **hidden)
    levels = found.options()["--log-level"].choices
    found.add_argument("--uvicorn-log-level", dest="log_level", type=level_name, choices=levels, **hidden)
    found.add_argument("--task", **hidden)
    for name, option in WITHOUT_EFFECT.items():
        found.add_argument("--" + name.replace("_", "-"), dest=name, **READING[option.takes], **hidden)
    found.epilog = f"{found.epilog}\n\nOther flags of vLLM's server are accepted where they change no answer."
