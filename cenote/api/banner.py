"""What the server says about itself when it is ready."""

from __future__ import annotations

import logging
import socket
from typing import Any

from cenote.api.app_state import Service
from cenote.api.model_names import served_names
from cenote.api.sockets import address
from cenote.version import __version__

logger = logging.getLogger("cenote")


def banner(service: Service, listening: socket.socket) -> None:
    rows = facts(service, address(service.settings, listening))
    width = max(map(len, rows))
    lines = "\n".join(f"  {name:<{width}}  {value}" for name, value in rows.items())
    text = f"Cenote {__version__} is ready after {service.seconds:.1f} s\n{lines}"
    fields: dict[str, Any] = {"event": "ready", "version": __version__, "seconds": round(service.seconds, 2)}
    fields |= {name.lower().replace(" ", "_"): value for name, value in rows.items()}
    logger.info("%s", text, extra={"fields": fields})


def facts(service: Service, where: str) -> dict[str, str]:
    about, settings = service.engine.about, service.settings
    names = served_names(settings, about)
    rows = {"model": ", ".join(names) + ("" if about.root in names else f" ({about.root})")}
    rows["architecture"] = about.architecture
    rows["tasks"] = ", ".join(about.tasks)
    if about.score_types:
        rows["scores"] = ", ".join(about.score_types)
    rows["runs"] = f"{about.dtype} on {about.device}"
    if settings.api_server_count > 1:
        rows["runs"] += f", behind {settings.api_server_count} front-end processes"
    rows["limits"] = (
        f"{about.max_model_len:,} tokens per input, {settings.max_request_items:,} inputs "
        f"and {settings.max_body_bytes / 1024**2:,.0f} MiB per request"
    )
    rows["API keys"] = str(len(service.keys)) if service.keys.needed else "none: whoever reaches the address may ask"
    rows["address"] = where
    return rows
