"""Startup banner: log the model, limits and address once the server is ready."""

from __future__ import annotations

import logging
import socket
from typing import Any

from cenote.api.app_state import AppState
from cenote.api.model_names import get_served_names
from cenote.api.sockets import format_address
from cenote.protocol.model_info import ModelInfo
from cenote.version import __version__

logger = logging.getLogger("cenote")


def log_banner(app_state: AppState, listener: socket.socket, model_info: ModelInfo) -> None:
    rows = make_banner_rows(app_state, format_address(app_state.settings, listener), model_info)
    width = max(map(len, rows))
    lines = "\n".join(f"  {name:<{width}}  {value}" for name, value in rows.items())
    text = f"Cenote {__version__} is ready after {app_state.uptime_s:.1f} s\n{lines}"
    fields: dict[str, Any] = {"event": "ready", "version": __version__, "seconds": round(app_state.uptime_s, 2)}
    fields |= {name.lower().replace(" ", "_"): value for name, value in rows.items()}
    logger.info("%s", text, extra={"fields": fields})


def make_banner_rows(app_state: AppState, address: str, model_info: ModelInfo) -> dict[str, str]:
    settings = app_state.settings
    names = get_served_names(settings, model_info)
    rows = {"model": ", ".join(names) + ("" if model_info.root in names else f" ({model_info.root})")}
    rows["architecture"] = model_info.architecture
    rows["tasks"] = ", ".join(model_info.tasks)
    if model_info.score_types:
        rows["scores"] = ", ".join(model_info.score_types)
    if model_info.late_interaction is not None:
        rows["late interaction"] = model_info.late_interaction
    rows["runs"] = f"{model_info.dtype} on {model_info.device}" + (
        ", deterministic" if model_info.deterministic else ""
    )
    if model_info.fingerprint:
        rows["fingerprint"] = model_info.fingerprint
    if settings.api_server_count > 1:
        rows["runs"] += f", behind {settings.api_server_count} front-end processes"
    rows["limits"] = (
        f"{model_info.max_model_len:,} tokens per input, {settings.max_request_items:,} inputs "
        f"and {settings.max_body_bytes / 1024**2:,.0f} MiB per request"
    )
    rows["API keys"] = (
        str(len(app_state.api_keys))
        if app_state.api_keys.is_required
        else "none: the API is open to every client that can connect"
    )
    rows["address"] = address
    return rows
