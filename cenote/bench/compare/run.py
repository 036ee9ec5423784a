"""`cenote bench compare`: start the engines, measure them in interleaved rounds, and report the results."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from cenote.bench.compare.engines import (
    CENOTE,
    EMBED_IMAGES,
    SCORE,
    TOKEN_CLASSIFY,
    PeerEngine,
    select_engines,
    split_by_emulated,
)
from cenote.bench.compare.environments import ENVIRONMENTS, default_peers_dir, install_command, install_environment
from cenote.bench.compare.flags import QUICK_ROUNDS, ROUNDS
from cenote.bench.compare.http import SERVING_ENGINES, compute_reference_rows, describe_requests, start_server
from cenote.bench.compare.models import ComparedModel, export_model, prepare_model
from cenote.bench.compare.plot import render_svg
from cenote.bench.compare.results import CompareReport
from cenote.bench.compare.rounds import RunningEngine, format_duration, leave_out, measure_rounds
from cenote.bench.compare.worker import WorkerFailed, WorkerProcess
from cenote.bench.compare.workload_specs import (
    TEXTS_PER_REQUEST,
    WorkloadSpec,
    prepare_image_workload,
    prepare_workload,
    select_workloads,
)
from cenote.bench.report import write_json
from cenote.bench.workloads import load_tokenizer
from cenote.errors import LoadError
from cenote.kernels.cpu_features import cpu_features
from cenote.utils.progress import print_note


def run_compare(args: argparse.Namespace) -> int:
    root = Path(args.peers_dir) if args.peers_dir else default_peers_dir()
    engines, kinds = select_engines(args.peers), select_workloads(args.workloads)
    began = time.monotonic()
    args.rounds = args.rounds or (QUICK_ROUNDS if args.quick else ROUNDS)
    report = CompareReport(args.rounds)
    if args.peers is None:
        has_bfloat16 = torch.cuda.is_available() or cpu_features().has_bfloat16
        engines, report.left_out = split_by_emulated(engines, has_bfloat16=has_bfloat16)
    if args.install_peers:
        install_missing(engines, root)
    installed, not_installed = split_by_installed(engines, root)
    report.left_out += not_installed
    for line in report.left_out:
        print_note(f"left out: {line}")
    with tempfile.TemporaryDirectory() as scratch:
        for group in group_by_task(kinds):
            model = prepare_model(group[0].task, model_option(args, group[0].task), Path(scratch))
            run_group(args, group, model, installed, root, Path(scratch), report)
            save_report(args, report)  # keeps the results if the next group fails
    print_note(f"done after {format_duration(time.monotonic() - began)}")
    print(report.to_text())
    return 0


def save_report(args: argparse.Namespace, report: CompareReport) -> None:
    if args.json:
        write_json(args.json, report.to_json())
    if args.plot:
        Path(args.plot).write_text(render_svg(report))


def install_missing(engines: Sequence[PeerEngine], root: Path) -> None:
    for name in dict.fromkeys(engine.environment for engine in engines if engine.find_python(root) is None):
        if name is not None:
            print_note(f"installing the peer environment {name} in {root / name}; takes minutes")
            install_environment(name, root)


def split_by_installed(engines: Sequence[PeerEngine], root: Path) -> tuple[list[PeerEngine], list[str]]:
    """Return the installed engines, and a line with the install command for the others."""
    installed = [engine for engine in engines if engine.find_python(root) is not None]
    missing: dict[str, list[str]] = {}
    for engine in engines:
        if engine not in installed and engine.environment is not None:
            missing.setdefault(engine.environment, []).append(engine.name)
    lines = [
        f"{', '.join(names)}: not installed; `{install_command([environment], root)}` installs it"
        for environment, names in missing.items()
    ]
    return installed, lines


def group_by_task(kinds: Sequence[WorkloadSpec]) -> Iterator[list[WorkloadSpec]]:
    """Group workloads that share a task, and so one worker process per engine."""
    groups: dict[tuple[str, bool], list[WorkloadSpec]] = {}
    for kind in kinds:
        groups.setdefault((kind.task, kind.is_over_http), []).append(kind)
    yield from groups.values()


def model_option(args: argparse.Namespace, task: str) -> str | None:
    options: dict[str, str | None] = {
        SCORE: args.reranker,
        TOKEN_CLASSIFY: args.tagger,
        EMBED_IMAGES: args.clip,
    }
    return options.get(task, args.model)


def run_group(
    args: argparse.Namespace,
    kinds: Sequence[WorkloadSpec],
    model: ComparedModel,
    engines: Sequence[PeerEngine],
    root: Path,
    scratch: Path,
    report: CompareReport,
) -> None:
    max_tokens = model.max_tokens(args.max_tokens)
    task, same = kinds[0].task, {"texts": args.texts, "quick": args.quick, "seed": args.seed}
    is_over_http = kinds[0].is_over_http
    if task == EMBED_IMAGES:
        works = [prepare_image_workload(kind, scratch / kind.name, **same) for kind in kinds]
    else:
        tokenizer = load_tokenizer(str(model.folder))
        works = [prepare_workload(kind, tokenizer, max_tokens=max_tokens, **same) for kind in kinds]
    settings = {"batch_size": args.batch_size, "max_tokens": max_tokens}
    how = describe_requests(works[0]) if is_over_http else f"at most {max_tokens} tokens"
    print_note(f"{', '.join(kind.name for kind in kinds)}: {model.title}, {how}")
    with ExitStack() as stack:
        running: list[RunningEngine] = []
        exported = ModelExports(model, root, scratch)
        for engine in engines:
            if (engine.name not in SERVING_ENGINES) if is_over_http else (task not in engine.tasks):
                continue
            try:
                if is_over_http:
                    running.append(start_server(engine, model, max_tokens, root, stack))
                else:
                    running.append(start_engine(engine, task, model, exported, settings, root, stack))
                print_note(f"  {engine.name}: ready after {running[-1].info['ready_s']:.0f} s")
            except (WorkerFailed, LoadError) as error:
                if engine.name == CENOTE:
                    raise
                place = kinds[0].name if is_over_http else task
                leave_out(report.left_out, f"{engine.name} on {place}: {error.message}")
        reference = None
        if is_over_http:
            reference = compute_reference_rows(model, works[0].inputs[:TEXTS_PER_REQUEST], max_tokens, root)
        left_out = report.left_out
        report.outcomes += measure_rounds(
            running, works, model.title, rounds=args.rounds, left_out=left_out, reference=reference
        )


class ModelExports:
    """The model in other formats, exported on first use."""

    def __init__(self, model: ComparedModel, root: Path, scratch: Path) -> None:
        self.model, self.root, self.folder = model, root, scratch / f"export-{model.task}"
        self.result: ComparedModel | WorkerFailed | None = None

    def get(self) -> ComparedModel:
        if self.result is None:
            python = ENVIRONMENTS["openvino"].find_python(self.root)
            if python is None:
                self.result = WorkerFailed(
                    f"needs an ONNX export; `{install_command(['openvino'], self.root)}` installs the export tools"
                )
            else:
                print_note(f"  exporting {self.model.title} to ONNX and OpenVINO")
                try:
                    self.result = export_model(self.model, python, self.folder)
                except WorkerFailed as error:
                    self.result = error
        if isinstance(self.result, WorkerFailed):
            raise self.result
        return self.result


def start_engine(
    engine: PeerEngine,
    task: str,
    model: ComparedModel,
    exports: ModelExports,
    common_settings: Mapping[str, Any],
    root: Path,
    stack: ExitStack,
) -> RunningEngine:
    settings = {**common_settings, **engine.settings}
    if engine.needs_export:
        model = exports.get()
    if engine.environment == "onnx":
        settings["file_name"] = "onnx/model.onnx"
    if engine.needs_pooling:
        settings["pooling"], settings["dimensions"] = model.pooling_settings()
    python = engine.find_python(root)
    assert python is not None
    worker = WorkerProcess.from_script(engine.name, python, engine.script, engine.environment_variables)
    stack.callback(worker.terminate)
    return RunningEngine(engine, worker, worker.load(str(model.folder), task, settings))
