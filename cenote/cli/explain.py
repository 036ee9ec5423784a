"""`cenote explain`: the speed of a model and its limits, or with --http where the time of a request goes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from cenote.cli.parser import CommandParser
from cenote.cli.serve import parse_config
from cenote.config.engine import EngineConfig
from cenote.explain.http_results import HttpLoadOptions
from cenote.utils.argparse_utils import UsageError, option_errors
from cenote.utils.arguments import parse_positive_int


def make_http_parser() -> CommandParser:
    parser = CommandParser(
        "explain",
        "[MODEL] --http",
        "Start the server for a model, send it one text per request, and show where the time of a request goes, by "
        "stage and by process. All options of cenote serve are accepted too.",
        ["cenote explain --http", "cenote explain FOLDER --http --connections 256 --api-server-count 4"],
    )
    parser.add_argument("--http", action="store_true", help="measure over HTTP")
    parser.add_argument(
        "--connections",
        type=parse_positive_int,
        default=64,
        metavar="N",
        help="number of connections, each with one request in flight (default: 64)",
    )
    parser.add_argument(
        "--client-processes",
        type=parse_positive_int,
        default=1,
        metavar="P",
        help="number of processes that send requests (default: 1)",
    )
    parser.add_argument(
        "--length", type=parse_positive_int, default=48, metavar="N", help="tokens per text (default: 48)"
    )
    parser.add_argument(
        "--encoding-format",
        choices=("float", "base64"),
        default="base64",
        help="encoding of vectors in responses (default: base64, as clients of OpenAI ask for)",
    )
    parser.add_argument(
        "--seconds", type=float, default=5.0, metavar="N", help="duration of the measurement (default: 5)"
    )
    parser.add_argument("--json", action="store_true", help="print all measurements as JSON")
    return parser


def parse_http_options(argv: Sequence[str]) -> tuple[HttpLoadOptions, bool]:
    """Return the options, and whether to print JSON; options of `cenote serve` are checked before it is started."""
    parser = make_http_parser()
    args, serve_args = parser.parse_known_args(argv)
    if args.connections < args.client_processes:
        parser.error(f"--client-processes {args.client_processes} needs at least as many --connections")
    settings, engine_options = parse_config(serve_args, os.environ)
    EngineConfig.from_kwargs(**engine_options)
    if settings.uds or settings.ssl_certfile or settings.api_key_file:
        raise UsageError(
            "explain --http measures over plain HTTP on 127.0.0.1; leave out --uds, --ssl-certfile and --api-key-file"
        )
    options = HttpLoadOptions(
        serve_args=serve_args,
        model=engine_options.get("model"),
        api_key=settings.api_key[0] if settings.api_key else None,
        connections=args.connections,
        client_processes=args.client_processes,
        length=args.length,
        encoding_format=args.encoding_format,
        seconds=args.seconds,
    )
    return options, args.json


def explain_http(options: HttpLoadOptions, json_output: bool) -> int:
    from cenote.bench.process_group import terminate_groups_on_sigterm
    from cenote.explain.http_load import measure_http
    from cenote.explain.http_report import make_http_advice, to_json, to_text

    with terminate_groups_on_sigterm():
        results = measure_http(options)
    advice = make_http_advice(results)
    print(to_json(results, advice) if json_output else to_text(results, advice))
    return 0


def explain_model(options: dict[str, Any], *, lengths: Sequence[int], seconds: float, json_output: bool) -> int:
    """Compare the speed of a model with the limits of this machine and give advice."""
    from cenote.explain.advice import make_advice
    from cenote.explain.measure import LENGTHS, measure_model
    from cenote.explain.report import to_json, to_text
    from cenote.llm import LLM

    with option_errors():
        llm = LLM(**options)
    with llm:
        results = measure_model(llm, lengths or LENGTHS, seconds)
    advice = make_advice(results)
    print(to_json(results, advice) if json_output else to_text(results, advice))
    return 0
