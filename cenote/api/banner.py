"""Startup banner: log the model, limits and address once the server is ready."""

from __future__ import annotations

import logging
import socket
from collections.abc import Sequence
from typing import Any, NamedTuple

from cenote.api.server_context import ServerContext
from cenote.api.sockets import format_address
from cenote.protocol.engine import ModelStatus
from cenote.protocol.model_info import ModelInfo
from cenote.version import __version__

logger = logging.getLogger("cenote")


class BannerModel(NamedTuple):
    names: Sequence[str]
    status: ModelStatus
    model_info: ModelInfo | None  # None if it is not loaded


def log_banner(server: ServerContext, listener: socket.socket, models: Sequence[BannerModel]) -> None:
    address = format_address(server.settings, listener)
    if len(models) == 1 and (model_info := models[0].model_info) is not None:
        rows = make_banner_rows(server, address, model_info, models[0].names)
    else:
        rows = {f"model {', '.join(model.names)}": describe_model(model) for model in models}
        rows |= make_server_rows(server, address)
    width = max(map(len, rows))
    lines = "\n".join(f"  {name:<{width}}  {value}" for name, value in rows.items())
    text = f"Cenote {__version__} is ready after {server.uptime_s:.1f} s\n{lines}"
    fields: dict[str, Any] = {"event": "ready", "version": __version__, "seconds": round(server.uptime_s, 2)}
    fields |= {name.lower().replace(" ", "_"): value for name, value in rows.items()}
    logger.info("%s", text, extra={"fields": fields})


def describe_model(model: BannerModel) -> str:
    """Return what one of several models is, in a line."""
    if (info := model.model_info) is None:
        return model.status
    tasks, products = ", ".join(info.tasks), format_products(info)
    return f"{info.architecture}; {tasks}; {info.dtype} on {info.device}{products}; {info.max_model_len:,} tokens"


def format_products(model_info: ModelInfo) -> str:
    """Return how linear layers multiply and with the kernels of which CPU level; nothing for a GPU."""
    return f" ({model_info.products})" if model_info.products else ""


def make_banner_rows(
    server: ServerContext, address: str, model_info: ModelInfo, names: Sequence[str] = ()
) -> dict[str, str]:
    settings = server.settings
    names = names or (model_info.name,)
    rows = {
        "model": ", ".join(names)
        + ("" if (source := model_info.source or model_info.root) in names else f" ({source})")
    }
    rows["architecture"] = model_info.architecture
    rows["tasks"] = ", ".join(model_info.tasks)
    if model_info.score_types:
        rows["scores"] = ", ".join(model_info.score_types)
    if model_info.late_interaction is not None:
        rows["late interaction"] = model_info.late_interaction
    runs = f"{model_info.dtype} on {model_info.device}{format_products(model_info)}"
    rows["runs"] = f"{runs}, deterministic" if model_info.deterministic else runs
    if model_info.pooling is not None:
        rows["pooling"] = model_info.pooling
    if model_info.fingerprint:
        rows["fingerprint"] = model_info.fingerprint
    if settings.api_server_count > 1:
        rows["runs"] += f", behind {settings.api_server_count} front-end processes"
    limits = f"{model_info.max_model_len:,} tokens per input, "
    server_rows = make_server_rows(server, address)
    return {**rows, **server_rows, "limits": limits + server_rows["limits"]}


def make_server_rows(server: ServerContext, address: str) -> dict[str, str]:
    settings = server.settings
    return {
        "limits": (
            f"{settings.max_request_items:,} inputs and {settings.max_body_bytes / 1024**2:,.0f} MiB per request"
        ),
        "API keys": server.api_keys.describe(settings.allow_local_admin),
        **({"adapters": describe_adapter_routes(server)} if settings.allow_runtime_lora_updating else {}),
        "address": address,
        **({} if settings.uds else {"open to": settings.describe_reach()}),
        **({} if settings.grpc_port is None else {"gRPC": f"{settings.listen_host} port {settings.grpc_port}"}),
    }


def describe_adapter_routes(server: ServerContext) -> str:
    if server.api_keys.has_admin:
        return "loaded and unloaded at runtime with an admin key"
    return "not loaded at runtime, which needs an admin key (--admin-api-key)"
