"""Ray Serve: `serve run cenote.ray.serve:app model=FOLDER`, and what `cenote serve --engine ray` runs."""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Mapping
from typing import Any

import yaml

from cenote.config.engine import EngineConfig
from cenote.config.model_table import ModelEntry, ModelTable
from cenote.config.options import check_known_names, option_fields
from cenote.config.ray import RayConfig
from cenote.config.server import ServerConfig
from cenote.errors import BadRequest
from cenote.ray.imports import connect, import_ray
from cenote.ray.replica import ModelReplica
from cenote.ray.router import ModelRouter
from cenote.utils.progress import print_note

APP_NAME = "cenote"
# the engine refuses what it cannot queue; Ray Serve must not queue before it, or batches stay small
MAX_ONGOING_REQUESTS = 1024
MAX_QUEUED_REQUESTS = 4096  # while no replica runs
DRAIN_MARGIN_S = 5.0
POLICY = "cenote.ray.autoscaling:scale_on_queue"
REQUEST_ROUTER = "cenote.ray.request_router.TwoChoicesRouter"
SCALE_UP_DELAY_S, SCALE_DOWN_DELAY_S, LOOK_BACK_S = 5.0, 120.0, 30.0
# options of servers whose processes are not Ray's
LOCAL_OPTIONS = (
    *("uds", "api_server_count", "in_process_engine", "memory_budget", "gpu_memory_budget"),
    *("ssl_keyfile", "ssl_certfile", "ssl_ca_certs", "enable_ssl_refresh"),
)


def app(args: Mapping[str, Any]) -> Any:
    """Return the application of Ray Serve for options by name, as `serve run` and its configuration files give them."""
    groups = [{option.name for option in option_fields(config)} for config in (ServerConfig, RayConfig, EngineConfig)]
    check_known_names(args, set.union(*groups), "option")
    options = {name: convert_value(name, value) for name, value in args.items()}
    server, ray_options, engine = (
        {name: value for name, value in options.items() if name in names} for names in groups
    )
    settings = ServerConfig(**server)
    engine = {name: value for name, value in engine.items() if name not in server}
    if settings.models is not None:
        table = ModelTable.from_file(settings.models, engine)
    else:
        config = EngineConfig.from_kwargs(**engine, served_model_name=settings.served_model_name or None)
        table = ModelTable.of(config, settings.served_model_name, engine)
    return build(settings, table, RayConfig(**{"engine": "ray", **ray_options}))


def convert_value(name: str, value: Any) -> Any:
    """Return the value of an option: `serve run` gives texts, configuration files also lists and numbers."""
    for config in (ServerConfig, RayConfig, EngineConfig):
        for option in option_fields(config):
            if option.name != name:
                continue
            if isinstance(option.default, tuple):
                return tuple(value.split(",") if isinstance(value, str) else map(str, value))
            if isinstance(value, str) and option.metadata["parse"] is not None:
                return option.metadata["parse"](value)
            return yaml.safe_load(value) if isinstance(value, str) else value
    raise AssertionError(f"unknown option {name}")


def build(settings: ServerConfig, table: ModelTable, config: RayConfig) -> Any:
    """Return the application: one deployment for each model, and a router before several."""
    check_settings(settings, table)
    serve = import_ray("ray.serve")
    is_single = len(table.entries) == 1
    replica = serve.ingress()(ModelReplica) if is_single else ModelReplica
    handles = [
        serve.deployment(replica, **deployment_options(entry, settings, config)).bind(
            entry, settings, replica_threads(config)
        )
        for entry in table.entries
    ]
    if is_single:
        return handles[0]
    router = serve.deployment(
        serve.ingress()(ModelRouter),
        name="router",
        max_ongoing_requests=MAX_QUEUED_REQUESTS,
        ray_actor_options={"num_cpus": 0},
        graceful_shutdown_timeout_s=settings.shutdown_timeout_s + DRAIN_MARGIN_S,
    )
    return router.bind(table.entries, settings, handles)


def check_settings(settings: ServerConfig, table: ModelTable) -> None:
    defaults = ServerConfig()
    for name in LOCAL_OPTIONS:
        if getattr(settings, name) != getattr(defaults, name):
            raise BadRequest(f"{name} has no effect with the engine ray; leave it out", param=name)
    for entry in table.entries:
        if entry.replicas > 1:
            raise BadRequest(
                f"{entry.name}: data_parallel_size {entry.replicas} with the engine ray; use min_replicas instead"
            )


def deployment_options(entry: ModelEntry, settings: ServerConfig, config: RayConfig) -> dict[str, Any]:
    low = 1 if config.min_replicas is None else config.min_replicas
    high = max(1, low) if config.max_replicas is None else config.max_replicas
    options: dict[str, Any] = {
        "name": re.sub(r"[^\w.-]+", "_", entry.name),
        "max_ongoing_requests": MAX_ONGOING_REQUESTS,
        "max_queued_requests": MAX_QUEUED_REQUESTS,
        "request_router_config": {"request_router_class": REQUEST_ROUTER},
        "ray_actor_options": {"num_cpus": config.num_cpus, "num_gpus": config.num_gpus},
        "graceful_shutdown_timeout_s": settings.shutdown_timeout_s + DRAIN_MARGIN_S,
    }
    if low == high:
        return {**options, "num_replicas": low}
    return {
        **options,
        "autoscaling_config": {
            "min_replicas": low,
            "max_replicas": high,
            "upscale_delay_s": SCALE_UP_DELAY_S,
            "downscale_delay_s": SCALE_DOWN_DELAY_S,
            "look_back_period_s": LOOK_BACK_S,
            "policy": {"policy_function": POLICY},
        },
    }


def replica_threads(config: RayConfig) -> int | None:
    return None if config.num_gpus else config.threads


def run_serve(settings: ServerConfig, table: ModelTable, config: RayConfig) -> None:
    """Deploy, and without an address serve until a signal; on a given cluster the application stays."""
    application = build(settings, table, config)
    ray = connect(config.address)
    serve = import_ray("ray.serve")
    serve.start(http_options={"host": settings.listen_host, "port": settings.port})
    serve.run(application, name=APP_NAME, route_prefix=settings.root_path or "/")
    print_note(f"port {settings.port} is open to {settings.describe_reach()}")
    if config.address is not None:
        print_note(f"deployed the application {APP_NAME}; serve status shows it, serve delete {APP_NAME} removes it")
        return
    print_note(f"serving {', '.join(entry.name for entry in table.entries)} with Ray on port {settings.port}")
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    while not stopped.wait(1.0):
        pass
    serve.shutdown()
    ray.shutdown()
