"""`cenote serve`: collect the options, open the socket, and run the supervisor."""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cenote.cli.flags import add_engine_flags
from cenote.cli.option_sources import collect_options
from cenote.cli.parser import CommandParser
from cenote.config.engine import EngineConfig
from cenote.config.flags import add_flags, add_vllm_flags
from cenote.config.model_table import ModelTable
from cenote.config.options import normalize_log_level, option_fields, parse_token_count
from cenote.config.ray import RayConfig
from cenote.config.server import ServerConfig
from cenote.utils.argparse_utils import EnableDisable, MultiValue, UsageError, clean_errors, option_errors
from cenote.utils.garbage_collection import no_collections
from cenote.utils.install_commands import install_command
from cenote.utils.system_limits import raise_file_limit

if TYPE_CHECKING:
    import socket

    from cenote.engine.engine import PoolingEngine

logger = logging.getLogger("cenote")

CHARS_PER_TOKEN = 3
# vLLM flag -> option
VLLM_SWITCHES = {"disable-fastapi-docs": "disable_docs", "disable-uvicorn-access-log": "disable_access_log"}


def run_server(argv: Sequence[str], environment: Mapping[str, str] = os.environ) -> int:
    with option_errors(), no_collections():
        settings, options = parse_config(argv, environment)
        ray_config = take_ray_config(options)
    if ray_config.is_ray:
        from cenote.ray.serve import run_serve

        with option_errors():
            table = make_table(settings, options)
        run_serve(settings, table, ray_config)
        return 0

    with no_collections():
        from cenote.api.log_config import configure_logging
        from cenote.api.pressure import describe_limit
        from cenote.api.sockets import format_address, open_socket, reserve_grpc_port
        from cenote.api.supervisor.replica_plan import plan_replicas

    configure_logging(settings)
    raise_file_limit()
    if (message := describe_limit(settings)) is not None:
        logger.warning(message)
    with option_errors():  # before the socket is opened
        table = make_table(settings, options)
    for entry in table.entries:
        plan_replicas(entry.config)
    listener = open_socket(settings)
    reserved: socket.socket | None = None  # kept open until the end
    if settings.grpc_port is not None:
        check_grpc(settings)
        reserved = reserve_grpc_port(settings.listen_host, settings.grpc_port)
        settings = replace(settings, grpc_port=reserved.getsockname()[1])
        logger.info("gRPC listens on %s port %d", settings.listen_host, settings.grpc_port)
    sources = [entry.config.model or "the default model" for entry in table.entries if entry.load == "start"]
    logger.info("listening on %s; loading %s", format_address(settings, listener), ", ".join(sources) or "no model")
    if settings.host is None and not settings.uds:
        # programs that expect the default of vLLM, which is every address, get no connection and need the reason
        logger.info("open to %s", settings.describe_reach())

    stop_engine: Callable[[], None] | None = None
    try:
        if settings.in_process_engine:
            stop_engine = _run_in_process(settings, listener, table.entries[0].config)
        else:
            with no_collections():
                from cenote.api.supervisor.supervisor import run_supervisor

            run_supervisor(settings, [listener], table)
    finally:
        if reserved is not None:
            reserved.close()
        if settings.uds:
            with suppress(OSError):
                os.unlink(settings.uds)
    if stop_engine is not None:
        stop_engine()
    return 0


def check_grpc(settings: ServerConfig) -> None:
    """Raise if the gRPC server cannot be started with these settings, or its packages are not installed."""
    try:
        from cenote.api.grpc.server import check_settings
    except ModuleNotFoundError as error:
        raise UsageError(f"--grpc-port needs the package {error.name}: {install_command('grpc')}") from None
    check_settings(settings)


def _run_in_process(settings: ServerConfig, listener: socket.socket, config: EngineConfig) -> Callable[[], None]:
    """Serve with the engine in this process; return the function that stops it and may end the process."""
    from cenote.api.app_state import AppState
    from cenote.api.background_load import import_engine
    from cenote.api.server import run_server

    engines: list[PoolingEngine] = []

    def load() -> PoolingEngine:
        engines.append(import_engine().load(config))
        return engines[0]

    def stop_engine() -> None:
        if not engines:
            os._exit(0)  # stopped while loading: torch would abort if the interpreter exited now
        engines[0].stop()
        if engines[0].is_running:  # a long batch on a slow machine: torch would abort, as above
            logging.shutdown()
            os._exit(0)

    run_server(AppState(settings), [listener], load)
    return stop_engine


def parse_config(argv: Sequence[str], environment: Mapping[str, str]) -> tuple[ServerConfig, dict[str, Any]]:
    """Return the server options and the keyword arguments of EngineConfig; `sources` of these are several models."""
    parser = make_parser()
    options = collect_options(parser, argv, environment)
    sources = tuple(options.pop("model_tags", None) or ())
    if sources and options.setdefault("model", sources[0]) != sources[0]:
        raise UsageError(f"two different models: {sources[0]} and --model {options['model']}; pass only one")
    if "model" not in options and "models" not in options:
        _check_swallowed_model(parser)
    if (max_waiting_chars := options.pop("max_waiting_chars", None)) is not None:
        logger.warning("--max-waiting-chars is deprecated; use --max-queue-tokens, which is about a third of it")
        options.setdefault("max_queue_tokens", max(1, max_waiting_chars // CHARS_PER_TOKEN))
    server_names = {option.name for option in option_fields(ServerConfig)}
    settings = ServerConfig(**{name: value for name, value in options.items() if name in server_names})
    engine_options = {name: value for name, value in options.items() if name not in server_names}
    if len(sources) > 1:
        engine_options["sources"] = sources
    return settings, {**engine_options, "served_model_name": settings.served_model_name}


def take_ray_config(options: dict[str, Any]) -> RayConfig:
    """Remove the options of Ray from those of the engine and return them."""
    return RayConfig(
        **{option.name: options.pop(option.name) for option in option_fields(RayConfig) if option.name in options}
    )


def make_table(settings: ServerConfig, options: Mapping[str, Any]) -> ModelTable:
    """Return the models of the command line, or of the file that it names."""
    options = dict(options)
    sources = options.pop("sources", ())
    if settings.models is None and len(sources) < 2:
        config = EngineConfig.from_kwargs(**options)
        return ModelTable.of(config, settings.served_model_name, options)
    model = options.pop("model", None)
    if settings.models is not None and model is not None:
        raise UsageError(f"--models {settings.models} and the model {model}; add it to the file, or leave one out")
    if options.pop("served_model_name", None):
        raise UsageError("--served-model-name names one model; give names in a file: --models FILE.yaml")
    if settings.in_process_engine:
        raise UsageError("--in-process-engine serves one model; leave it out, or pass one model")
    if settings.models is not None:
        return ModelTable.from_file(settings.models, options)
    return ModelTable.from_sources(sources, options)


def _check_swallowed_model(parser: CommandParser) -> None:
    """Raise if the last value of a flag with several values looks like a model that was meant as the positional."""
    for flag, action in parser.options_by_flag().items():
        words = action.last_values if isinstance(action, MultiValue) else ()
        if any(os.path.isdir(word) or ("/" in word and "://" not in word) for word in words):
            # the value is not shown: it may be an API key
            raise UsageError(
                f"the last value of {flag} looks like the model; pass the model first: cenote serve MODEL {flag} ..."
            )


def make_parser() -> CommandParser:
    parser = CommandParser(
        "serve",
        "[MODEL ...]",
        "Serve one or several models over HTTP: embedding, reranking, classification and token-level tasks, with the "
        "APIs of several vendors.",
        [
            "cenote serve",
            "cenote serve BAAI/bge-m3 --port 8080 --api-key SECRET",
            "cenote serve FOLDER --served-model-name a b --pooler-config.pooling_type MEAN",
            "cenote serve --config server.yaml",
            "cenote serve BAAI/bge-m3 cross-encoder/ms-marco-MiniLM-L12-v2",
            "cenote serve --models models.yaml --memory-budget 8G",
        ],
    )
    add_serve_arguments(parser)
    return parser


def add_serve_arguments(parser: CommandParser) -> None:
    parser.add_argument(
        "model_tags",
        nargs="*",
        metavar="MODEL",
        help="folder, hub name or s3://bucket/path; a bundled default model if unset. Options apply to all models",
    )
    group = parser.add_argument_group("server")
    group.add_argument(
        "--config", metavar="FILE", help="YAML file with any of these options; the command line overrides it"
    )
    add_flags(group, ServerConfig)
    add_flags(parser.add_argument_group("Ray cluster"), RayConfig)
    add_engine_flags(parser, without=("served_model_name",))
    parser.add_argument(
        "--replicas",
        dest="data_parallel_size",
        type=int,
        metavar="N",
        default=argparse.SUPPRESS,
        help="another name of --data-parallel-size",
    )
    _add_vllm_flags(parser)


def _add_vllm_flags(parser: CommandParser) -> None:
    """Add vLLM's and former names of flags, and the vLLM flags without effect, hidden from the help."""
    hidden: dict[str, Any] = {"help": argparse.SUPPRESS, "default": argparse.SUPPRESS}
    for flag, name in VLLM_SWITCHES.items():
        parser.add_argument(f"--{flag}", dest=name, action=EnableDisable, **hidden)
    parser.add_argument("--shutdown-timeout", dest="shutdown_timeout_s", type=float, **hidden)
    parse_tokens = clean_errors(parse_token_count)
    parser.add_argument("--max-num-queued-tokens", dest="max_queue_tokens", type=parse_tokens, **hidden)
    parser.add_argument("--max-waiting-chars", type=int, **hidden)
    levels = parser.options_by_flag()["--log-level"].choices
    parser.add_argument("--uvicorn-log-level", dest="log_level", type=normalize_log_level, choices=levels, **hidden)
    add_vllm_flags(parser)
    parser.epilog = (
        f"{parser.epilog}\n\n"
        "The other flags of vLLM 0.33 are known. Those that do not change results have no effect, and a line of the\n"
        "log names them; the rest are refused, with the reason, unless they have their default: see docs/vllm.md."
    )
