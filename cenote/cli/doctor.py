"""`cenote doctor`: check a running server, compare two, record traffic and replay it."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from cenote.cli.admin_client import DEFAULT_URL, find_api_key
from cenote.cli.parser import CommandParser
from cenote.utils.argparse_utils import UsageError
from cenote.utils.http_client import HttpClient, ServerUnreachable
from cenote.utils.progress import print_note

EXIT_FAILED, EXIT_UNREACHABLE = 1, 2
DEFAULT_PROXY_PORT = 8010


def doctor(argv: Sequence[str]) -> int:
    parser = make_parser()
    args = parser.parse(argv)
    if sum(mode is not None for mode in (args.compare, args.record, args.replay)) > 1:
        parser.error("--compare, --record and --replay exclude each other")
    if args.compare and args.url:
        parser.error("--compare takes both URLs itself")

    try:
        return run(args)
    except ServerUnreachable as error:
        print_note(error.message)
        return EXIT_UNREACHABLE


def make_parser() -> CommandParser:
    parser = CommandParser(
        "doctor",
        "[URL]",
        "Send the requests of all known clients to a server, Cenote or another one, and check the replies: shape, "
        "order, values, errors, truncation, latency. Exit status: 1 if a check failed, 2 if the server cannot be "
        "reached.",
        [
            "cenote doctor http://127.0.0.1:8000",
            "cenote doctor http://10.0.0.5:8080 --api-key SECRET --model bge-m3 --json",
            "cenote doctor --compare http://127.0.0.1:8000 http://127.0.0.1:8080 --texts lines.txt",
            "cenote doctor http://127.0.0.1:8000 --record traffic.jsonl --port 8010",
            "cenote doctor http://127.0.0.1:8000 --replay traffic.jsonl",
        ],
    )
    parser.add_argument("url", nargs="?", metavar="URL", help=f"address of the server (default: {DEFAULT_URL})")
    parser.add_argument("--api-key", metavar="KEY", help="API key of the server; CENOTE_API_KEY if unset")
    parser.add_argument("--model", metavar="NAME", help="model name in requests; the first one of the server if unset")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--apis", metavar="NAMES", help="check only these APIs, such as OpenAI,TEI; all that the server has if unset"
    )
    compare = parser.add_argument_group("comparison of two servers")
    compare.add_argument(
        "--compare",
        nargs=2,
        metavar=("URL1", "URL2"),
        help="compare vectors and rankings of two servers, and name the likely cause of a difference",
    )
    compare.add_argument("--texts", metavar="FILE", help="texts to compare, one per line; built-in texts if unset")
    traffic = parser.add_argument_group("traffic")
    traffic.add_argument(
        "--record",
        metavar="FILE",
        help="forward requests to URL and append them and their replies to FILE, as JSON lines",
    )
    traffic.add_argument(
        "--port",
        type=int,
        default=DEFAULT_PROXY_PORT,
        metavar="N",
        help=f"port of --record on this machine (default: {DEFAULT_PROXY_PORT})",
    )
    traffic.add_argument(
        "--replay",
        metavar="FILE",
        help="send the requests of FILE again and compare the replies with the recorded ones",
    )
    return parser


def run(args: argparse.Namespace) -> int:
    if args.compare:
        return compare_servers(args)
    if args.record is not None:
        return record_traffic(args)
    return replay_traffic(args) if args.replay is not None else examine_server(args)


def examine_server(args: argparse.Namespace) -> int:
    from cenote.doctor.examination import examine

    apis = [name.strip() for name in args.apis.split(",") if name.strip()] if args.apis else None
    with HttpClient(args.url or DEFAULT_URL, api_key(args)) as client:
        report = examine(client, args.model, apis)
    print(report.to_json() if args.json else report.to_text())
    return EXIT_FAILED if report.has_failed else 0


def compare_servers(args: argparse.Namespace) -> int:
    from cenote.doctor.comparison import compare

    one, other = (HttpClient(url, api_key(args)) for url in args.compare)
    texts = read_texts(args.texts) if args.texts else None
    with one, other:
        comparison = compare(one, other, model=args.model, texts=texts)
    print(comparison.to_json() if args.json else comparison.to_text())
    return 0 if comparison.is_same else EXIT_FAILED


def record_traffic(args: argparse.Namespace) -> int:
    from cenote.doctor.recording import record

    with HttpClient(args.url or DEFAULT_URL) as client:
        client.get("/")  # fail now rather than at the first request
    print_note(f"http://127.0.0.1:{args.port} forwards to {client.url} and records in {args.record}; Ctrl-C stops")
    return record(client.url, Path(args.record), args.port)


def replay_traffic(args: argparse.Namespace) -> int:
    from cenote.doctor.replay import replay

    with HttpClient(args.url or DEFAULT_URL, api_key(args)) as client:
        report = replay(client, Path(args.replay))
    print(report.to_json() if args.json else report.to_text())
    return EXIT_FAILED if report.has_failed else 0


def read_texts(path: str) -> list[str]:
    texts = [line for line in Path(path).read_text().splitlines() if line.strip()]
    if len(texts) < 2:
        raise UsageError(f"{path} has {len(texts)} texts; expected two or more, one per line")
    return texts


def api_key(args: argparse.Namespace) -> str | None:
    return args.api_key or find_api_key(os.environ)
