"""Log lines on standard error: text for people, JSON for machines; never a body, a header or a query."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any

from starlette.types import Scope

from cenote.config.server import ServerConfig

access_logger = logging.getLogger("cenote.access")

MAX_PATH_CHARS = 256
PROBE_PATHS = frozenset(("/health", "/health/live", "/health/ready", "/ping", "/metrics", "/load"))


def configure_logging(settings: ServerConfig) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if settings.log_format == "json" else TextFormatter())
    level = settings.log_level.upper()
    for name, least in (("cenote", level), ("uvicorn", "ERROR"), ("asyncio", "ERROR")):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(least)
    access_logger.disabled = settings.disable_access_log
    logging.raiseExceptions = False  # a full disk or a closed pipe must not cost an answer


class TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        line = f"{when}.{int(record.msecs):03d} {record.levelname.lower():<8} {record.getMessage()}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {"time": f"{when}.{int(record.msecs):03d}Z", "level": record.levelname.lower()}
        fields = getattr(record, "fields", None)
        line |= fields if fields is not None else {"message": record.getMessage()}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def log_reply(scope: Scope, status: int, seconds: float) -> None:
    """One line per reply; those to probes only for who looks at everything."""
    level = logging.DEBUG if scope["path"] in PROBE_PATHS else logging.INFO
    if not access_logger.isEnabledFor(level):
        return
    # the path as it was sent: decoded, it could bring line breaks along
    path = scope.get("raw_path", b"").decode("ascii", "replace")[:MAX_PATH_CHARS]
    fields: dict[str, Any] = {
        "event": "reply",
        "request_id": scope["request_id"],
        "method": scope["method"],
        "path": path,
        "status": status,
        "ms": round(seconds * 1000, 2),
    }
    call = scope.get("call")
    if call is not None:
        fields |= {"items": call.num_items, "tokens": call.num_tokens}
    client = scope.get("client")
    fields["client"] = client[0] if client else "unix"
    if scope.get("key"):
        fields["key"] = scope["key"]
    access_logger.log(level, "%s", _LazyAccessLine(fields), extra={"fields": fields})


class _LazyAccessLine:
    """The same in one line, put together only where somebody reads it."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields = fields

    def __str__(self) -> str:
        known = self.fields
        more = " ".join(f"{name}={known[name]}" for name in ("items", "tokens", "client", "key") if name in known)
        head = f"{known['method']} {known['path']} {known['status']} {known['ms']:.1f} ms"
        return f"{head} {more} id={known['request_id']}"
