"""Logging to standard error as text or JSON; request bodies, headers and query strings are never logged."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import TYPE_CHECKING, Any

from cenote.config.server import ServerConfig
from cenote.utils.log_limits import LineLimit

if TYPE_CHECKING:
    from starlette.types import Scope

access_logger = logging.getLogger("cenote.access")

MAX_PATH_CHARS = 256
PAGE_FILES = ("/ui/", "/docs/")  # prefixes of what pages consist of
PROBE_PATHS = frozenset(("/health", "/health/live", "/health/ready", "/ping", "/metrics", "/load"))


def configure_logging(settings: ServerConfig) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if settings.log_format == "json" else TextFormatter())
    level = settings.log_level.upper()
    for name, min_level in (("cenote", level), ("asyncio", "ERROR")):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.filters = [LineLimit()]
        logger.propagate = False
        logger.setLevel(min_level)
    access_logger.disabled = settings.disable_access_log
    unlogged = {path.strip() for path in settings.disable_access_log_for_endpoints.split(",")}
    access_logger.filters = [lambda record: record.__dict__["fields"]["path"] not in unlogged]
    logging.raiseExceptions = False  # a full disk or a closed pipe must not fail a request


class TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        timestamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        line = f"{timestamp}.{int(record.msecs):03d} {record.levelname.lower():<8} {record.getMessage()}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        timestamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {"time": f"{timestamp}.{int(record.msecs):03d}Z", "level": record.levelname.lower()}
        fields = getattr(record, "fields", None)
        line |= fields if fields is not None else {"message": record.getMessage()}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def log_reply(scope: Scope, status: int, seconds: float) -> None:
    """Write the access log line of a response; those of probes and files of pages are logged at debug level."""
    is_routine = scope["path"] in PROBE_PATHS or scope["path"].startswith(PAGE_FILES)
    level = logging.DEBUG if is_routine else logging.INFO
    if not access_logger.isEnabledFor(level):
        return
    # the undecoded path: a decoded one could contain line breaks
    path = scope.get("raw_path", b"").decode("ascii", "replace")[:MAX_PATH_CHARS]
    fields: dict[str, Any] = {
        "event": "reply",
        "request_id": scope["request_id"],
        "method": scope["method"],
        "path": path,
        "status": status,
        "ms": round(seconds * 1000, 2),
    }
    context = scope.get("context")
    if context is not None:
        fields |= {"items": context.num_items, "tokens": context.num_tokens}
    client = scope.get("client")
    fields["client"] = client[0] if client else "unix"
    if scope.get("key"):
        fields["key"] = scope["key"]
    access_logger.log(level, "%s", _LazyAccessLine(fields), extra={"fields": fields})


class _LazyAccessLine:
    """Access log line as text, formatted only if a handler writes it."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields = fields

    def __str__(self) -> str:
        fields = self.fields
        details = " ".join(f"{name}={fields[name]}" for name in ("items", "tokens", "client", "key") if name in fields)
        head = f"{fields['method']} {fields['path']} {fields['status']} {fields['ms']:.1f} ms"
        return f"{head} {details} id={fields['request_id']}"
