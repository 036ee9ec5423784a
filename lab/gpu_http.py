"""`python -m lab.gpu_http`: tokens per second of a known model shape over HTTP and in-process."""

from __future__ import annotations

import argparse
import asyncio
import string
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import product
from pathlib import Path

import tokenizers
import torch
import uvloop
from tokenizers import models, normalizers, pre_tokenizers, processors

from cenote.bench.load import LoadPattern
from cenote.bench.report import write_json
from cenote.bench.serve import measure_servers
from cenote.bench.serve_report import ServeReport
from cenote.bench.spawn import find_free_port, make_serve_command, spawn_server
from cenote.bench.target import LoadTarget, RequestSettings
from cenote.bench.workloads import load_tokenizer, make_log_normal_workload
from cenote.errors import LoadError
from cenote.explain.process_cpu import CpuTimes, compute_usage, read_cpu_times
from cenote.utils.arguments import parse_positive_int
from cenote.utils.async_http_client import ServerAddress
from lab.shapes import SHAPES, VOCABULARY, write_checkpoint

TOKENS_IN_FLIGHT = 600_000  # several batches, so that the device never waits for clients
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def main(arguments: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    with ExitStack() as stack:
        folder = Path(args.folder or stack.enter_context(tempfile.TemporaryDirectory()))
        tokenizer = _find_or_make_tokenizer(args.tokenizer)
        if not (folder / "config.json").exists():
            folder.mkdir(exist_ok=True)
            write_checkpoint(folder, SHAPES[args.shape], "cuda" if torch.cuda.is_available() else "cpu")
            tokenizer.save(str(folder / "tokenizer.json"))
        if args.write_only:
            return 0
        runner = stack.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))
        port = find_free_port()
        extra_args = ["--api-server-count", str(args.front_ends), "--disable-access-log", *args.serve_args]
        command = make_serve_command(port, model=str(folder), dtype="bfloat16", extra_args=extra_args)
        server = stack.enter_context(spawn_server(command, port, runner))
        print(f"server ready after {server.ready_s:.1f} s; {args.front_ends} front-end processes", flush=True)
        engine = None
        if args.in_process:
            from cenote.bench.in_process import InProcessEngine

            engine = InProcessEngine(str(folder), "bfloat16")
            stack.callback(engine.close)
        reports = []
        for length in args.lengths:
            groups = _make_text_groups(tokenizer, length, args.tokens, args.texts)
            most = TOKENS_IN_FLIGHT // (length * args.texts) // 8 * 8
            concurrency = args.concurrency or max(args.clients, most)
            load = LoadPattern(concurrency, num_requests=None, duration_s=args.duration)
            report = ServeReport(
                "openai-embeddings",
                "/v1/embeddings",
                "base64",
                args.texts,
                f"{length} tokens in every text",
                load.describe(),
                is_open=False,
                client_processes=args.clients,
            )
            addresses = {"cenote": server.address}
            if args.peer_url:
                addresses[args.peer_name] = ServerAddress.from_url(args.peer_url)
            targets = [
                LoadTarget(name, address, RequestSettings(num_processes=args.clients))
                for name, address in addresses.items()
            ]
            for target in targets:
                runner.run(target.fetch_model())
                target.prepare(groups)
            before = read_cpu_times(server.group.process.pid)
            try:
                measure_servers(
                    runner,
                    targets,
                    groups,
                    load,
                    report,
                    rounds=args.rounds,
                    num_warmups=concurrency,
                    engine=engine,
                )
            finally:
                for target in targets:
                    target.close()
            _print_report(length, report, before, read_cpu_times(server.group.process.pid))
            reports.append(report.to_json())
            if engine is not None:
                engine.seconds.clear()
    if args.json:
        write_json(args.json, {"reports": reports})
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lab.gpu_http", description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="bert-base")
    parser.add_argument("--lengths", type=parse_positive_int, nargs="+", default=[50, 512], help="tokens per text")
    parser.add_argument("--texts", type=parse_positive_int, default=32, help="texts per request (default: 32)")
    parser.add_argument(
        "--concurrency", type=parse_positive_int, help="connections (default: as many as keep the device busy)"
    )
    parser.add_argument("--clients", type=parse_positive_int, default=8, help="client processes (default: 8)")
    parser.add_argument(
        "--front-ends", type=parse_positive_int, default=3, help="front-end processes of the server (default: 3)"
    )
    parser.add_argument(
        "--tokens",
        type=parse_positive_int,
        default=2_000_000,
        help="total tokens of the distinct texts (default: 2000000)",
    )
    parser.add_argument("--rounds", type=parse_positive_int, default=5)
    parser.add_argument("--duration", type=float, default=6.0, help="seconds per round (default: 6)")
    parser.add_argument("--in-process", action="store_true", help="also run LLM.embed in this process, interleaved")
    parser.add_argument(
        "--tokenizer", metavar="FOLDER", help="tokenizer (default: that of the default model, or a generated one)"
    )
    parser.add_argument("--folder", help="folder of the checkpoint, written if it is empty (default: a temporary one)")
    parser.add_argument("--write-only", action="store_true", help="only write the checkpoint to --folder")
    parser.add_argument("--peer-url", help="a running server of the same checkpoint, measured in turns")
    parser.add_argument("--peer-name", default="peer")
    parser.add_argument("--json", metavar="FILE", help="also write the results to a JSON file")
    parser.add_argument("serve_args", nargs="*", help="extra server arguments, after --")
    return parser


def _print_report(length: int, report: ServeReport, before: dict[int, CpuTimes], after: dict[int, CpuTimes]) -> None:
    print(report.to_text())
    server = report.servers[0]
    speeds = sorted((stats.tokens_per_s or 0.0) / 1e6 for stats in server.rounds)
    middle = speeds[len(speeds) // 2]
    busy = sum(stats.seconds for stats in server.rounds)
    texts = max(1.0, sum(stats.items_per_s * stats.seconds for stats in server.rounds))
    usage = compute_usage(before, after, busy, 1)
    engine = sum(process.cores for process in usage if process.role == "engine")
    others = sum(process.cores for process in usage) - engine
    print(f"{length} tokens per text: {middle:.3f} M tok/s over HTTP ({speeds[0]:.3f}-{speeds[-1]:.3f})")
    requests = sorted(stats.requests_per_s for stats in server.rounds)
    print(f"{requests[len(requests) // 2]:,.0f} requests/s ({requests[0]:,.0f}-{requests[-1]:,.0f})")
    for name, cores in (("engine process", engine), ("supervisor and front-ends", others)):
        print(f"{name}: {cores:.2f} cores, {cores * busy / texts * 1e6:.1f} us per text", flush=True)
    print()


def _make_text_groups(
    tokenizer: tokenizers.Tokenizer, length: int, num_tokens: int, texts_per_request: int
) -> list[list[str]]:
    """Make texts of exactly `length` tokens, including special tokens, grouped by request."""
    count = max(1, num_tokens // length // texts_per_request) * texts_per_request
    texts = make_log_normal_workload(tokenizer, count, mean=length + 0.5, sigma=0, max_length=length).texts
    return [texts[at : at + texts_per_request] for at in range(0, count, texts_per_request)]


def _find_or_make_tokenizer(folder: str | None) -> tokenizers.Tokenizer:
    try:
        return load_tokenizer(folder)
    except LoadError:
        if folder is not None:
            raise
    return _make_tokenizer()


def _make_tokenizer() -> tokenizers.Tokenizer:
    """Make a WordPiece tokenizer with a vocabulary of BERT's size, for machines without a model."""
    letters = string.ascii_lowercase
    syllables = [first + second for first, second in product("bcdfghklmnprstvw", "aeiou")]
    words = ("".join(parts) for size in (2, 3) for parts in product(syllables, repeat=size))
    names = [*SPECIAL_TOKENS, *letters, *("##" + letter for letter in letters)]
    names += [next(words) for _ in range(VOCABULARY - len(names))]
    ids = {name: number for number, name in enumerate(names)}
    tokenizer = tokenizers.Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", ids["[SEP]"]), ("[CLS]", ids["[CLS]"]))
    return tokenizer


if __name__ == "__main__":
    sys.exit(main())
