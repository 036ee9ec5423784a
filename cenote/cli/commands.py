"""Subcommands of `cenote` that have no module of their own: their arguments, help texts and calls."""

from __future__ import annotations

from collections.abc import Sequence

from cenote.cli.flags import add_engine_flags, add_model_argument, engine_keywords, make_engine_config
from cenote.cli.interrupts import format_command_line
from cenote.cli.parser import CommandParser
from cenote.config.flags import add_flags
from cenote.utils.argparse_utils import option_errors
from cenote.utils.arguments import parse_positive_int


def run_batch(argv: Sequence[str]) -> int:
    from cenote.cli.run_batch import SERVER_OPTIONS, run_batch_file
    from cenote.config.options import option_fields
    from cenote.config.server import ServerConfig

    parser = CommandParser(
        "run-batch",
        "-i FILE -o FILE",
        "Process a file of requests in the format of the OpenAI Batch API: embeddings, scores, reranking and all other "
        "routes.",
        [
            "cenote run-batch -i requests.jsonl -o replies.jsonl --model FOLDER",
            "cat requests.jsonl | cenote run-batch > replies.jsonl",
        ],
    )
    files = parser.add_argument_group("files")
    line = 'one {"custom_id", "method", "url", "body"} per line, optionally .gz; - is standard input (the default)'
    files.add_argument("-i", "--input-file", default="-", metavar="FILE", help=line)
    replies = "responses in the order of the requests; - is standard output (the default)"
    files.add_argument("-o", "--output-file", default="-", metavar="FILE", help=replies)
    files.add_argument(
        "--overwrite",
        action="store_true",
        help="replace FILE if it exists and is not empty, and discard FILE.part of another command",
    )
    files.add_argument(
        "--max-in-flight", type=parse_positive_int, default=256, metavar="N", help="requests in flight (default: 256)"
    )
    files.add_argument(
        "--openai-batch-errors",
        action="store_true",
        help="write the error of a failed request as response.body too, as OpenAI does (default: null, as vLLM does)",
    )
    files.add_argument("--quiet", action="store_true", help="print errors only, no progress and no notes")
    others = tuple(option.name for option in option_fields(ServerConfig) if option.name not in SERVER_OPTIONS)
    add_flags(parser.add_argument_group("requests"), ServerConfig, without=others)
    add_engine_flags(parser, without=("served_model_name",))
    args = parser.parse(argv)
    args.command_line = format_command_line(parser.prog, argv)
    return run_batch_file(args)


def inspect(argv: Sequence[str]) -> int:
    parser = CommandParser(
        "inspect",
        "[MODEL]",
        "Show the resolved model settings and the file or option each comes from.",
        ["cenote inspect FOLDER", "cenote inspect FOLDER --pooler-config.pooling_type MEAN", "cenote inspect --json"],
    )
    add_model_argument(parser)
    parser.add_argument("--json", action="store_true", help="print value and source of every setting as JSON")
    parser.add_argument(
        "--checksums", action="store_true", help="print the SHA-256 of every file with weights too, which reads them"
    )
    add_engine_flags(parser, without=("model",))
    args = parser.parse(argv)

    from cenote.cli.inspect import inspect_model

    return inspect_model(make_engine_config(args), as_json=args.json, with_checksums=args.checksums)


def explain(argv: Sequence[str]) -> int:
    parser = CommandParser(
        "explain",
        "[MODEL]",
        "Measure the limits of this machine and the speed of a model on it, and list settings that would help.",
        [
            "cenote explain",
            "cenote explain FOLDER --length 32 --length 256 --dtype float32",
            "cenote explain --json",
            "cenote explain FOLDER --http --connections 64 --api-server-count 2",
        ],
    )
    parser.add_argument(
        "--http",
        action="store_true",
        help="start the server and measure where the time of a request goes; takes the options of cenote serve, and "
        "others of its own: cenote explain --http --help",
    )
    add_model_argument(parser)
    lengths = "length in tokens of the texts to measure with; may be repeated (default: 16 50 128 512)"
    parser.add_argument("--length", type=parse_positive_int, action="append", default=[], metavar="N", help=lengths)
    parser.add_argument(
        "--seconds", type=float, default=15.0, metavar="N", help="duration of the measurement (default: 15)"
    )
    parser.add_argument("--json", action="store_true", help="print all measurements as JSON")
    add_engine_flags(parser, without=("model",))
    if "--http" in argv:
        from cenote.cli.explain import explain_http, parse_http_options

        return explain_http(*parse_http_options(argv))
    args = parser.parse(argv)

    from cenote.cli.explain import explain_model

    return explain_model(engine_keywords(args), lengths=args.length, seconds=args.seconds, json_output=args.json)


def models(argv: Sequence[str]) -> int:
    from cenote.models.recommended_models import USES

    parser = CommandParser(
        "models",
        "[WORD]",
        "List the supported architectures with their tasks and example models, or models to begin with.",
        [
            "cenote models",
            "cenote models qwen3",
            "cenote models --task rerank --max-size 500M",
            "cenote models --task embed --language multilingual --json",
            "cenote models --check FOLDER --json",
            "cenote models --markdown > docs/models.md",
        ],
    )
    parser.add_argument(
        "word",
        nargs="?",
        default="",
        metavar="WORD",
        help="list only architectures whose name or example models contain WORD",
    )
    parser.add_argument(
        "--markdown", action="store_true", help="print a Markdown page that also lists what each was compared with"
    )
    parser.add_argument(
        "--check",
        metavar="MODEL",
        help="tell whether the model in a folder or on the hub is right by test, right by architecture, doubtful or "
        "refused; reads no weights. Exit status: 0 right, 1 doubtful, 78 refused",
    )
    parser.add_argument("--task", choices=USES, help="list models to begin with for this task")
    parser.add_argument(
        "--max-size", metavar="N", help="list models to begin with of at most N parameters, such as 500M"
    )
    parser.add_argument("--language", choices=("en", "multilingual"), help="list models to begin with for a language")
    parser.add_argument(
        "--json", action="store_true", help="print JSON: models to begin with, or with WORD or --check what these list"
    )
    args = parser.parse(argv)
    if args.check is not None:
        from cenote.cli.check import check_model

        return check_model(args.check, json_output=args.json)
    if (args.json and not args.word) or (args.task, args.max_size, args.language) != (None, None, None):
        from cenote.cli.models import list_recommended_models

        with option_errors():
            return list_recommended_models(
                args.task, args.max_size, args.language, json_output=args.json, markdown=args.markdown
            )

    from cenote.cli.models import list_models

    return list_models(args.word, markdown=args.markdown, json_output=args.json)
