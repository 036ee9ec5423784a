"""The subcommands that download models and administer a running server: their arguments, help texts and calls."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from cenote.cli.admin_client import DEFAULT_URL, KEY_VARIABLES
from cenote.cli.flags import add_engine_flags, add_model_argument, make_engine_config
from cenote.cli.parser import CommandParser

STOP_TIMEOUT_S = 60.0


def ps(argv: Sequence[str]) -> int:
    parser = CommandParser(
        "ps",
        "",
        "List the models of a running server: state, tasks, dtype, device, memory, limits, queue and speed.",
        ["cenote ps", "cenote ps --url http://10.0.0.5:8080 --api-key SECRET", "cenote ps --json"],
    )
    _add_server_flags(parser)
    args = parser.parse(argv)

    from cenote.cli.admin import list_server_models

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

    from cenote.cli.admin import load_server_model

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

    from cenote.cli.admin import unload_server_model

    return unload_server_model(args)


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

    from cenote.cli.admin import stop_server

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
