"""`cenote ps`, `load`, `unload` and `stop`: see and change the models of a running server."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from cenote.cli.admin_client import AdminClient
from cenote.cli.flags import engine_keywords
from cenote.cli.model_table import format_models
from cenote.errors import PoolingError
from cenote.utils.argparse_utils import UsageError
from cenote.utils.http_client import ServerUnreachable
from cenote.utils.progress import print_note

STOP_POLL_S = 0.2
PROBE_TIMEOUT_S = 5.0


def list_server_models(args: argparse.Namespace) -> int:
    reply = _make_client(args).get("/admin/models")
    models = reply.get("models", [])
    if args.json:
        _print_json(reply)
    elif not models:
        print_note("the server has no models")
    else:
        print("\n".join(format_models(models)))
    return 0


def load_server_model(args: argparse.Namespace) -> int:
    options = engine_keywords(args)
    body: dict[str, Any] = {"name": args.name}
    body |= {} if args.source is None else {"source": args.source}
    body |= {"options": options} if options else {}
    if not args.reload:
        body |= {"aliases": args.alias} if args.alias else {}
        body |= {} if args.pinned is None else {"pinned": args.pinned}
        body |= {} if args.keep_alive_s is None else {"keep_alive_s": args.keep_alive_s}
    elif args.alias or args.pinned is not None or args.keep_alive_s is not None:
        raise UsageError("--alias, --pinned and --keep-alive-s are set when a model is loaded; not with --reload")
    if len(body) > 1 and args.source is None and not args.reload:
        raise UsageError("options need the SOURCE of the model, or --reload for one that is loaded")
    if sys.stderr.isatty():
        print_note(f"loading {args.name}; this may take minutes")
    row = _make_client(args).post("/admin/models/reload" if args.reload else "/admin/models/load", body)
    _print_row(args, row)
    return 0 if row.get("state") != "failed" else 1


def unload_server_model(args: argparse.Namespace) -> int:
    row = _make_client(args).post("/admin/models/unload", {"name": args.name})
    _print_row(args, row)
    return 0


def stop_server(args: argparse.Namespace) -> int:
    """Ask the server to shut down and wait until it has: requests in flight are answered first."""
    client = _make_client(args)
    reply = client.post("/admin/shutdown")
    if args.json:
        _print_json(reply)
    if not args.wait:
        print_note(f"{client.url} is shutting down", quiet=args.json)
        return 0
    deadline = time.monotonic() + args.timeout_s
    probe = AdminClient(args.url, client.api_key, PROBE_TIMEOUT_S)
    while time.monotonic() < deadline:
        try:
            probe.get("/health/live")
        except ServerUnreachable:
            print_note(f"{client.url} has stopped", quiet=args.json)
            return 0
        except PoolingError:  # an error status is an answer too
            pass
        time.sleep(STOP_POLL_S)
    raise PoolingError(f"{client.url} still answers after {args.timeout_s:g} s; see its log, or raise --timeout-s")


def _make_client(args: argparse.Namespace) -> AdminClient:
    return AdminClient(args.url, args.api_key, getattr(args, "timeout_s", None))


def _print_row(args: argparse.Namespace, row: dict[str, Any]) -> None:
    if args.json:
        _print_json(row)
    else:
        print("\n".join(format_models([{"name": args.name, **row}])))


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))
