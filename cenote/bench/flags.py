"""Command-line options of `cenote bench serve` and their validation."""

from __future__ import annotations

import argparse
import math
import shlex

from cenote.bench.backends import BACKENDS
from cenote.bench.load import LoadPattern
from cenote.errors import BadRequest
from cenote.utils.arguments import parse_json_object, parse_non_negative_int, parse_positive_int
from cenote.utils.async_http_client import ServerAddress


def add_serve_flags(parser: argparse.ArgumentParser) -> None:
    servers = parser.add_argument_group("servers")
    servers.add_argument(
        "--base-url",
        action="append",
        type=_parse_server,
        metavar="[NAME=]URL",
        help="http://127.0.0.1:8000, https://..., or unix:///a.sock; repeat it to measure several servers in "
        "interleaved rounds and compare the first with the others",
    )
    servers.add_argument("--host", help="host, instead of --base-url (default: 127.0.0.1)")
    servers.add_argument("--port", type=parse_positive_int, help="port, instead of --base-url (default: 8000)")
    servers.add_argument("--uds", metavar="PATH", help="Unix socket that the server listens on")
    servers.add_argument("--spawn", action="store_true", help="start `cenote serve` for the duration of the benchmark")
    servers.add_argument(
        "--serve-args", type=shlex.split, default=[], metavar="'ARGUMENTS'", help="extra arguments for --spawn"
    )
    servers.add_argument(
        "--in-process",
        action="store_true",
        help="also run LLM.embed in this process, interleaved with the servers, and report the share of its speed that "
        "remains over HTTP",
    )
    servers.add_argument("--dtype", default="auto", help="dtype for --spawn and --in-process (default: auto)")
    servers.add_argument("--ca-cert", metavar="FILE", help="additional CA certificate to trust")
    servers.add_argument("--insecure", action="store_true", help="do not verify TLS certificates")

    requests = parser.add_argument_group("requests")
    requests.add_argument(
        "--backend", choices=BACKENDS, default="openai-embeddings", help="request format (default: %(default)s)"
    )
    requests.add_argument(
        "--endpoint", type=_parse_path, metavar="PATH", help="path, instead of the default path of the backend"
    )
    requests.add_argument("--model", help="model for --spawn and for requests (default: the first model of the server)")
    requests.add_argument("--api-key", metavar="KEY", help="sent as a bearer token")
    requests.add_argument(
        "--header", action="append", type=_parse_header, default=[], metavar="NAME=VALUE", help="extra header"
    )
    requests.add_argument(
        "--extra-body",
        type=parse_json_object,
        default={},
        metavar="JSON",
        help="extra body fields; null removes a field",
    )
    requests.add_argument(
        "--encoding-format", choices=("float", "base64"), default="float", help="encoding of vectors (default: float)"
    )

    texts = parser.add_argument_group("texts")
    texts.add_argument(
        "--items-per-request",
        type=parse_positive_int,
        default=1,
        metavar="K",
        help="texts per request, or documents per query (default: 1)",
    )
    texts.add_argument("--mean", type=parse_positive_float, default=50, help="mean length in tokens (default: 50)")
    texts.add_argument(
        "--sigma",
        type=_parse_non_negative_float,
        default=0.8,
        help="sigma of the log-normal distribution of lengths (default: 0.8)",
    )
    texts.add_argument("--longest", type=_parse_length, default=256, help="maximum length in tokens (default: 256)")
    texts.add_argument(
        "--query-mean",
        type=parse_positive_float,
        default=12,
        help="mean query length for rerank and score, in tokens (default: 12)",
    )
    texts.add_argument(
        "--tokenizer", metavar="FOLDER", help="tokenizer that counts tokens (default: that of the default model)"
    )
    texts.add_argument(
        "--dataset",
        metavar="FILE.jsonl",
        help="read texts from a file; for rerank and score a query, then its documents",
    )
    texts.add_argument("--column", default="text", help="text column of --dataset (default: text)")
    texts.add_argument("--seed", type=parse_non_negative_int, default=0, help="random seed (default: 0)")

    load = parser.add_argument_group("load")
    load.add_argument(
        "--concurrency",
        type=parse_positive_int,
        metavar="C",
        help="closed loop: number of clients, each with one request in flight (default: 8)",
    )
    load.add_argument(
        "--client-processes",
        type=parse_positive_int,
        default=1,
        metavar="P",
        help="number of client processes (default: 1)",
    )
    load.add_argument(
        "--request-rate",
        type=_parse_rate,
        metavar="R",
        help="open loop: requests/s, independent of responses; inf: all at once",
    )
    load.add_argument(
        "--burstiness",
        type=parse_positive_float,
        help="burstiness of --request-rate; 1 is Poisson, higher is more regular",
    )
    load.add_argument(
        "--max-concurrency", type=parse_positive_int, metavar="C", help="maximum requests in flight with --request-rate"
    )
    load.add_argument(
        "--num-requests",
        "--num-prompts",
        type=parse_positive_int,
        metavar="N",
        help="requests per round (default: 1000)",
    )
    load.add_argument(
        "--duration",
        type=parse_positive_float,
        metavar="S",
        help="seconds per round, instead of or in addition to --num-requests",
    )
    load.add_argument(
        "--num-warmups",
        type=parse_non_negative_int,
        default=16,
        help="warmup requests per round, not measured (default: 16)",
    )
    load.add_argument("--rounds", type=parse_positive_int, help="number of rounds (default: 1, or 3 for comparisons)")
    load.add_argument(
        "--timeout",
        type=parse_positive_float,
        default=60,
        metavar="S",
        help="timeout of one request in seconds (default: 60)",
    )
    parser.add_argument("--json", metavar="FILE", help="also write the results to a JSON file")


def check_serve_flags(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Report invalid combinations of options."""
    if args.base_url and (args.host or args.port):
        parser.error("--base-url cannot be combined with --host or --port")
    if args.uds and len(args.base_url or []) > 1:
        parser.error("--uds applies to one server; for several servers use --base-url NAME=unix:///PATH")
    if args.concurrency and args.request_rate:
        parser.error(
            "--concurrency (closed loop) cannot be combined with --request-rate (open loop); use --max-concurrency"
        )
    if args.request_rate is None and (args.max_concurrency or args.burstiness):
        parser.error("--max-concurrency and --burstiness require --request-rate; use --concurrency C to run C clients")
    if args.request_rate == math.inf and args.num_requests is None and args.duration:
        parser.error(
            "--request-rate inf requires --num-requests; --duration alone does not bound the number of requests"
        )
    if args.in_process and not BACKENDS[args.backend].is_embedding:
        kinds = ", ".join(name for name, backend in BACKENDS.items() if backend.is_embedding)
        parser.error(f"--in-process runs LLM.embed; invalid --backend {args.backend}, expected one of: {kinds}")
    if args.in_process and args.request_rate:
        parser.error(
            "--in-process compares maximum throughput and cannot be used with --request-rate; use --concurrency C"
        )
    if args.client_processes > (args.concurrency or args.max_concurrency or (8 if args.request_rate is None else 1e9)):
        parser.error(
            f"--client-processes {args.client_processes} requires at least as many clients; increase --concurrency"
        )
    if args.client_processes > 1 and any(address.tls for _, address in parse_servers(args)):
        parser.error("--client-processes does not support https:// servers")
    if args.serve_args and not args.spawn:
        parser.error("--serve-args requires --spawn")
    names = [name for name, _ in parse_servers(args)] + ["cenote"] * args.spawn
    if len(set(names)) < len(names):
        parser.error(f"duplicate server names: {', '.join(sorted(names))}; name them with --base-url NAME=URL")


def parse_servers(args: argparse.Namespace) -> list[tuple[str, ServerAddress]]:
    """Return the running servers given by options, as (name, address)."""
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
        raise argparse.ArgumentTypeError(f"invalid path {text!r}; expected for example /v1/embeddings")
    return text


def _parse_header(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name or not text.isprintable():
        raise argparse.ArgumentTypeError(f"invalid header {text!r}; expected NAME=VALUE")
    return name, value


def _parse_length(text: str) -> int:
    if (number := parse_positive_int(text)) < 3:
        raise argparse.ArgumentTypeError(
            f"invalid length {text!r}; expected at least 3 tokens: one word and two special tokens"
        )
    return number


def _parse_rate(text: str) -> float:
    return math.inf if text.lower() == "inf" else parse_positive_float(text)


def parse_positive_float(text: str) -> float:
    if (number := _parse_float(text)) <= 0:
        raise argparse.ArgumentTypeError(f"invalid value {text!r}; expected a number greater than 0")
    return number


def _parse_non_negative_float(text: str) -> float:
    if (number := _parse_float(text)) < 0:
        raise argparse.ArgumentTypeError(f"invalid value {text!r}; expected a number of at least 0")
    return number


def _parse_float(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"invalid number {text!r}")
    return number
