"""The flags of `cenote bench serve`, and what about them can be wrong."""

from __future__ import annotations

import argparse
import math
import shlex

from cenote.bench.backends import BACKENDS
from cenote.bench.client import ServerAddress
from cenote.bench.load import LoadPattern
from cenote.errors import BadRequest
from cenote.utils.arguments import parse_json_object, parse_non_negative_int, parse_positive_int


def add_serve_flags(parser: argparse.ArgumentParser) -> None:
    servers = parser.add_argument_group("servers")
    servers.add_argument(
        "--base-url",
        action="append",
        type=_parse_server,
        metavar="[NAME=]URL",
        help="http://127.0.0.1:8000, https://..., or unix:///a.sock; several are measured in turns, and the first is "
        "compared with the others",
    )
    servers.add_argument("--host", help="instead of --base-url (default: 127.0.0.1)")
    servers.add_argument("--port", type=parse_positive_int, help="instead of --base-url (default: 8000)")
    servers.add_argument("--uds", metavar="PATH", help="the unix socket that the server listens on")
    servers.add_argument("--spawn", action="store_true", help="start `cenote serve` for the time of the measurement")
    servers.add_argument("--serve-args", type=shlex.split, default=[], metavar="'ARGUMENTS'", help="more for --spawn")
    servers.add_argument(
        "--in-process",
        action="store_true",
        help="also run LLM.embed here, in turns with the servers, and tell how much of its speed HTTP keeps",
    )
    servers.add_argument("--dtype", default="auto", help="of --spawn and --in-process (default: auto)")
    servers.add_argument("--ca-cert", metavar="FILE", help="trust this certificate as well")
    servers.add_argument("--insecure", action="store_true", help="trust any certificate")

    requests = parser.add_argument_group("requests")
    requests.add_argument("--backend", choices=BACKENDS, default="openai-embeddings", help="(default: %(default)s)")
    requests.add_argument("--endpoint", type=_parse_path, metavar="PATH", help="instead of the backend's own")
    requests.add_argument("--model", help="what --spawn loads and requests name; asked from the server when left out")
    requests.add_argument("--api-key", metavar="KEY")
    requests.add_argument("--header", action="append", type=_parse_header, default=[], metavar="NAME=VALUE")
    requests.add_argument(
        "--extra-body", type=parse_json_object, default={}, metavar="JSON", help="more fields; null takes a field away"
    )
    requests.add_argument("--encoding-format", choices=("float", "base64"), default="float", help="(default: float)")

    texts = parser.add_argument_group("texts")
    texts.add_argument(
        "--items-per-request",
        type=parse_positive_int,
        default=1,
        metavar="K",
        help="texts, or documents per query (default: 1)",
    )
    texts.add_argument("--mean", type=_parse_positive_float, default=50, help="mean length in tokens (default: 50)")
    texts.add_argument(
        "--sigma", type=_parse_non_negative_float, default=0.8, help="of the log-normal spread (default: 0.8)"
    )
    texts.add_argument("--longest", type=_parse_length, default=256, help="in tokens (default: 256)")
    texts.add_argument("--query-mean", type=_parse_positive_float, default=12, help="of rerank and score (default: 12)")
    texts.add_argument("--tokenizer", metavar="FOLDER", help="to count tokens with (default: the default model's)")
    texts.add_argument("--dataset", metavar="FILE.jsonl", help="texts from a file instead; a query, then its documents")
    texts.add_argument("--column", default="text", help="of --dataset (default: text)")
    texts.add_argument("--seed", type=parse_non_negative_int, default=0)

    load = parser.add_argument_group("load")
    load.add_argument(
        "--concurrency",
        type=parse_positive_int,
        metavar="C",
        help="clients that each wait for their answer (default: 8)",
    )
    load.add_argument(
        "--client-processes", type=parse_positive_int, default=1, metavar="P", help="that share the load (default: 1)"
    )
    load.add_argument(
        "--request-rate", type=_parse_rate, metavar="R", help="requests/s that arrive regardless; inf: all at once"
    )
    load.add_argument(
        "--burstiness", type=_parse_positive_float, help="of --request-rate; 1 is Poisson, more is steadier"
    )
    load.add_argument(
        "--max-concurrency", type=parse_positive_int, metavar="C", help="with --request-rate, at most this many"
    )
    load.add_argument(
        "--num-requests", "--num-prompts", type=parse_positive_int, metavar="N", help="per round (default: 1000)"
    )
    load.add_argument(
        "--duration", type=_parse_positive_float, metavar="S", help="seconds per round, instead or as well"
    )
    load.add_argument(
        "--num-warmups", type=parse_non_negative_int, default=16, help="per round, not counted (default: 16)"
    )
    load.add_argument(
        "--rounds", type=parse_positive_int, help="(default: 1, or 3 where there is something to compare)"
    )
    load.add_argument(
        "--timeout", type=_parse_positive_float, default=60, metavar="S", help="of one request (default: 60)"
    )
    parser.add_argument("--json", metavar="FILE", help="also save the figures")


def check_serve_flags(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """What only shows when flags are seen together."""
    if args.base_url and (args.host or args.port):
        parser.error("--base-url says it all; --host and --port are for when it is left out")
    if args.uds and len(args.base_url or []) > 1:
        parser.error("--uds is one server's socket; with several servers write --base-url NAME=unix:///PATH")
    if args.concurrency and args.request_rate:
        parser.error("--concurrency is the closed loop, --request-rate the open one; --max-concurrency bounds that")
    if args.request_rate is None and (args.max_concurrency or args.burstiness):
        parser.error("--max-concurrency and --burstiness belong to --request-rate; --concurrency C runs C clients")
    if args.request_rate == math.inf and args.num_requests is None and args.duration:
        parser.error("all at once for a duration has no end; give --num-requests")
    if args.in_process and not BACKENDS[args.backend].is_embedding:
        kinds = ", ".join(name for name, backend in BACKENDS.items() if backend.is_embedding)
        parser.error(f"--in-process runs LLM.embed, which {args.backend} does not compare with; those do: {kinds}")
    if args.in_process and args.request_rate:
        parser.error("--in-process compares full speed; --concurrency C gives it, --request-rate does not")
    if args.client_processes > (args.concurrency or args.max_concurrency or (8 if args.request_rate is None else 1e9)):
        parser.error(f"{args.client_processes} processes need as many clients: --concurrency C gives them")
    if args.client_processes > 1 and any(address.tls for _, address in parse_servers(args)):
        parser.error("--client-processes speak plain HTTP")
    if args.serve_args and not args.spawn:
        parser.error("--serve-args are for --spawn")
    names = [name for name, _ in parse_servers(args)] + ["cenote"] * args.spawn
    if len(set(names)) < len(names):
        parser.error(f"two servers have one name: {', '.join(sorted(names))}; write --base-url NAME=URL")


def parse_servers(args: argparse.Namespace) -> list[tuple[str, ServerAddress]]:
    """The servers that run already."""
    if args.base_url:
        return [(name, ServerAddress.from_url(url, uds=args.uds)) for name, url in args.base_url]
    if args.spawn and not (args.host or args.port or args.uds):
        return []
    host = args.host or "127.0.0.1"
    address = ServerAddress.from_url(f"http://{f'[{host}]' if ':' in host else host}:{args.port or 8000}", uds=args.uds)
    return [(args.uds or f"{host}:{address.port}", address)]


def make_load(args: argparse.Namespace) -> LoadPattern:
    is_open = args.request_rate is not None
    return LoadPattern(
        concurrency=None if is_open else args.concurrency or 8,
        rate=args.request_rate if is_open else math.inf,
        burstiness=args.burstiness or 1.0,
        max_concurrency=args.max_concurrency,
        num_requests=args.num_requests or (None if args.duration else 1000),
        duration_s=args.duration or math.inf,
        seed=args.seed,
    )


def _parse_server(text: str) -> tuple[str, str]:
    name, equals, url = text.partition("=")
    if not equals or "://" in name:
        name, url = "", text
    try:
        address = ServerAddress.from_url(url)
    except BadRequest as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return name or address.uds or f"{address.host}:{address.port}", url


def _parse_path(text: str) -> str:
    if not text.startswith("/") or not text.isprintable() or " " in text:
        raise argparse.ArgumentTypeError(f"{text!r} is no path; those look like /v1/embeddings")
    return text


def _parse_header(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name or not text.isprintable():
        raise argparse.ArgumentTypeError(f"{text!r} is no header; write NAME=VALUE")
    return name, value


def _parse_length(text: str) -> int:
    if (number := parse_positive_int(text)) < 3:
        raise argparse.ArgumentTypeError(f"{text!r} tokens have no room for a word between two special ones")
    return number


def _parse_rate(text: str) -> float:
    return math.inf if text.lower() == "inf" else _parse_positive_float(text)


def _parse_positive_float(text: str) -> float:
    if (number := _parse_float(text)) <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number


def _parse_non_negative_float(text: str) -> float:
    if (number := _parse_float(text)) < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 0")
    return number


def _parse_float(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number")
    return number
