"""`cenote ps`, `load`, `unload` and `stop`: see and change the models of a running server; `cenote pull`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cenote.cli.admin_client import DEFAULT_URL, KEY_VARIABLES, AdminClient
from cenote.cli.flags import add_engine_flags, add_model_argument, engine_keywords, make_engine_config
from cenote.cli.parser import CommandParser
from cenote.errors import PoolingError
from cenote.utils.argparse_utils import UsageError
from cenote.utils.http_client import ServerUnreachable
from cenote.utils.progress import print_note
from cenote.utils.tables import align_columns

STOP_TIMEOUT_S = 60.0
STOP_POLL_S = 0.2
PROBE_TIMEOUT_S = 5.0
UNKNOWN = "-"
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def ps(argv: Sequence[str]) -> int:
    parser = CommandParser(
        "ps",
        "",
        "List the models of a running server: state, tasks, dtype, device, memory, limits, queue and speed.",
        ["cenote ps", "cenote ps --url http://10.0.0.5:8080 --api-key SECRET", "cenote ps --json"],
    )
    _add_server_flags(parser)
    args = parser.parse(argv)
    return list_server_models(args)


def load(argv: Sequence[str]) -> int:
    parser = CommandParser(
        "load",
        "NAME [SOURCE]",
        "Load a model into a running server and wait until it is ready; with --reload, replace one without a pause.",
        [
            "cenote load bge-m3",
            "cenote load bge-m3 BAAI/bge-m3 --alias embedder --pinned --dtype bfloat16",
            "cenote load bge-m3 --reload --revision main",
        ],
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="name under which requests address the model")
    parser.add_argument(
        "source", nargs="?", metavar="SOURCE", help="hub name or folder; may be left out for a model that is unloaded"
    )
    parser.add_argument("--alias", action="append", default=[], metavar="NAME", help="another name; may be repeated")
    parser.add_argument(
        "--pinned", action=argparse.BooleanOptionalAction, help="never unload it to make room for another model"
    )
    parser.add_argument(
        "--keep-alive-s", type=float, metavar="N", help="unload it after this many seconds without requests"
    )
    parser.add_argument(
        "--reload", action="store_true", help="replace a loaded model; requests go to the old one until then"
    )
    _add_server_flags(parser)
    _add_timeout_flag(parser, None)
    add_engine_flags(parser, without=("model", "served_model_name"))
    args = parser.parse(argv)
    _require_name(parser, args)
    return load_server_model(args)


def unload(argv: Sequence[str]) -> int:
    parser = CommandParser(
        "unload",
        "NAME",
        "Unload a model from a running server, after its requests in flight.",
        ["cenote unload bge-m3"],
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="name or alias of the model")
    _add_server_flags(parser)
    _add_timeout_flag(parser, None)
    args = parser.parse(argv)
    _require_name(parser, args)
    _print_row(args, _make_client(args).call("POST", "/admin/models/unload", {"name": args.name}))
    return 0


def stop(argv: Sequence[str]) -> int:
    parser = CommandParser(
        "stop",
        "",
        "Shut a running server down, after its requests in flight, and wait until it has stopped.",
        ["cenote stop", "cenote stop --url http://127.0.0.1:8080 --no-wait"],
    )
    parser.add_argument(
        "--wait", action=argparse.BooleanOptionalAction, default=True, help="return when the server has stopped"
    )
    _add_server_flags(parser)
    _add_timeout_flag(parser, STOP_TIMEOUT_S)
    args = parser.parse(argv)
    return stop_server(args)


def pull(argv: Sequence[str]) -> int:
    parser = CommandParser(
        "pull",
        "[MODEL]",
        "Download the files of a model that loading needs, and print their folder and the fingerprint of the model. "
        "An interrupted download is continued.",
        ["cenote pull BAAI/bge-m3", "cenote pull BAAI/bge-m3 --revision main --json", "cenote pull FOLDER"],
    )
    add_model_argument(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_engine_flags(parser, without=("model",))
    args = parser.parse(argv)

    from cenote.cli.pull import pull_model

    return pull_model(make_engine_config(args), as_json=args.json)


def _add_server_flags(parser: CommandParser) -> None:
    group = parser.add_argument_group("server")
    group.add_argument(
        "--url", default=DEFAULT_URL, metavar="URL", help=f"address of the server (default: {DEFAULT_URL})"
    )
    keys = " or ".join(KEY_VARIABLES)
    group.add_argument("--api-key", metavar="KEY", help=f"an admin key of the server; {keys} if unset")
    group.add_argument("--json", action="store_true", help="print the reply of the server as JSON")


def _add_timeout_flag(parser: CommandParser, default: float | None) -> None:
    text = "seconds to wait" + (f" (default: {default:g})" if default else "; without end if unset")
    parser.add_argument("--timeout-s", type=float, default=default, metavar="N", help=text)


def _require_name(parser: CommandParser, args: argparse.Namespace) -> None:
    if not args.name:
        parser.error("the name of the model is missing")


def list_server_models(args: argparse.Namespace) -> int:
    reply = _make_client(args).call("GET", "/admin/models")
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
    row = _make_client(args).call("POST", f"/admin/models/{'reload' if args.reload else 'load'}", body)
    _print_row(args, row)
    return 0 if row.get("state") != "failed" else 1


def stop_server(args: argparse.Namespace) -> int:
    """Ask the server to shut down and wait until it has: requests in flight are answered first."""
    client = _make_client(args)
    reply = client.call("POST", "/admin/shutdown")
    if args.json:
        _print_json(reply)
    if not args.wait:
        print_note(f"{client.url} is shutting down", quiet=args.json)
        return 0
    deadline = time.monotonic() + args.timeout_s
    probe = AdminClient(args.url, client.api_key, PROBE_TIMEOUT_S)
    while time.monotonic() < deadline:
        try:
            probe.call("GET", "/health/live")
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


def format_bytes(count: float) -> str:
    """Return for example "86.7 MiB"."""
    for unit in UNITS:
        if count < 1024 or unit == UNITS[-1]:
            break
        count /= 1024
    return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"


def _format_list(items: Sequence[str]) -> str:
    return ", ".join(map(str, items)) or "none"


def _format_count(count: float) -> str:
    return f"{count:,.0f}"


# title, field of a row, and how its value is shown
COLUMNS: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("MODEL", "name", str),
    ("STATE", "state", str),
    ("TASKS", "tasks", _format_list),
    ("DTYPE", "dtype", str),
    ("DEVICE", "device", str),
    ("MEMORY", "memory_bytes", format_bytes),
    ("MAX TOKENS", "max_model_len", _format_count),
    ("POOLING", "pooling", str),
    ("PROMPTS", "prompts", _format_list),
    ("QUEUE", "queued_tokens", _format_count),
    ("TOKENS/S", "tokens_per_second", _format_count),
)


def format_models(models: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines of the table, then the errors of models that have one."""
    rows = [tuple(title for title, _, _ in COLUMNS)]
    rows += [tuple(_format_cell(model.get(field), form) for _, field, form in COLUMNS) for model in models]
    return align_columns(rows) + [f"{model['name']}: {model['error']}" for model in models if model.get("error")]


def _format_cell(value: Any, form: Callable[[Any], str]) -> str:
    return UNKNOWN if value is None else form(value) or UNKNOWN
