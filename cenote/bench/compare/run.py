"""`cenote bench compare`: starts every engine, lets each have its turn in every round, tells how they stand."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from cenote.bench.compare.engines import CENOTE, EMBED_IMAGES, SCORE, TOKEN_CLASSIFY, PeerEngine, select_engines
from cenote.bench.compare.environments import ENVIRONMENTS, default_peers_dir, install_command, install_environment
from cenote.bench.compare.http import run_http
from cenote.bench.compare.models import ComparedModel, export_model, prepare_model
from cenote.bench.compare.plot import render_svg
from cenote.bench.compare.progress import format_duration
from cenote.bench.compare.results import CompareReport
from cenote.bench.compare.rounds import RunningEngine, measure_rounds
from cenote.bench.compare.worker import WorkerFailed, WorkerProcess
from cenote.bench.compare.workload_specs import WorkloadSpec, prepare_image_workload, prepare_workload, select_workloads
from cenote.bench.report import write_json
from cenote.bench.workloads import load_tokenizer
from cenote.utils.progress import print_note


def run_compare(given: argparse.Namespace) -> int:
    root = Path(given.peers_dir) if given.peers_dir else default_peers_dir()
    engines, kinds = select_engines(given.peers), select_workloads(given.workloads)
    began = time.monotonic()
    if given.install_peers:
        install_missing(engines, root)
    report = CompareReport(given.rounds)
    there, report.left_out = split_by_installed(engines, root)
    for line in report.left_out:
        print_note(f"left out: {line}")
    with tempfile.TemporaryDirectory() as scratch:
        for group in group_by_task(kinds):
            model = prepare_model(group[0].task, model_option(given, group[0].task), Path(scratch))
            run = run_http if group[0].is_over_http else run_in_process_group
            run(given, group, model, there, root, Path(scratch), report)
            save_report(given, report)  # what was measured is not lost should the next group fail
    print_note(f"done after {format_duration(time.monotonic() - began)}")
    print(report.to_text())
    return 0


def save_report(given: argparse.Namespace, report: CompareReport) -> None:
    if given.json:
        write_json(given.json, report.to_json())
    if given.plot:
        Path(given.plot).write_text(render_svg(report))


def install_missing(engines: Sequence[PeerEngine], root: Path) -> None:
    for name in dict.fromkeys(engine.environment for engine in engines if engine.find_python(root) is None):
        if name is not None:
            print_note(f"installing the peer environment {name} in {root / name}; this takes minutes")
            install_environment(name, root)


def split_by_installed(engines: Sequence[PeerEngine], root: Path) -> tuple[list[PeerEngine], list[str]]:
    """Those that can run, and for the others what to do about it."""
    there = [engine for engine in engines if engine.find_python(root) is not None]
    missing: dict[str, list[str]] = {}
    for engine in engines:
        if engine not in there and engine.environment is not None:
            missing.setdefault(engine.environment, []).append(engine.name)
    lines = [
        f"{', '.join(names)}: not installed; `{install_command([place], root)}` does that"
        for place, names in missing.items()
    ]
    return there, lines


def group_by_task(kinds: Sequence[WorkloadSpec]) -> Iterator[list[WorkloadSpec]]:
    """Workloads that one process of an engine can do: the same task of the same model."""
    groups: dict[tuple[str, bool], list[WorkloadSpec]] = {}
    for kind in kinds:
        groups.setdefault((kind.task, kind.is_over_http), []).append(kind)
    yield from groups.values()


def model_option(given: argparse.Namespace, task: str) -> str | None:
    named: dict[str, str | None] = {
        SCORE: given.reranker,
        TOKEN_CLASSIFY: given.tagger,
        EMBED_IMAGES: given.clip,
    }
    return named.get(task, given.model)


def run_in_process_group(
    given: argparse.Namespace,
    kinds: Sequence[WorkloadSpec],
    model: ComparedModel,
    engines: Sequence[PeerEngine],
    root: Path,
    scratch: Path,
    report: CompareReport,
) -> None:
    max_tokens = model.max_tokens(given.max_tokens)
    task, same = kinds[0].task, {"texts": given.texts, "quick": given.quick, "seed": given.seed}
    if task == EMBED_IMAGES:
        works = [prepare_image_workload(kind, scratch / kind.name, **same) for kind in kinds]
    else:
        tokenizer = load_tokenizer(str(model.folder))
        works = [prepare_workload(kind, tokenizer, max_tokens=max_tokens, **same) for kind in kinds]
    settings = {"batch_size": given.batch_size, "max_tokens": max_tokens}
    print_note(f"{', '.join(kind.name for kind in kinds)}: {model.title}, at most {max_tokens} tokens")
    with ExitStack() as stack:
        contenders: list[RunningEngine] = []
        exported = ModelExports(model, root, scratch)
        for engine in engines:
            if task not in engine.tasks:
                continue
            try:
                contenders.append(start_engine(engine, task, model, exported, settings, root, stack))
                print_note(f"  {engine.name}: ready after {contenders[-1].info['ready_s']:.0f} s")
            except WorkerFailed as error:
                if engine.name == CENOTE:
                    raise
                report.left_out.append(f"{engine.name} on {task}: {error.message}")
                print_note(f"  left out: {report.left_out[-1]}")
        outcomes = measure_rounds(contenders, works, model.title, rounds=given.rounds, left_out=report.left_out)
    report.outcomes += outcomes


class ModelExports:
    """The model in other formats, made when the first engine asks for it."""

    def __init__(self, model: ComparedModel, root: Path, scratch: Path) -> None:
        self.model, self.root, self.folder = model, root, scratch / f"export-{model.task}"
        self.result: ComparedModel | WorkerFailed | None = None

    def get(self) -> ComparedModel:
        if self.result is None:
            python = ENVIRONMENTS["openvino"].find_python(self.root)
            if python is None:
                self.result = WorkerFailed(
                    f"needs the model as ONNX; `{install_command(['openvino'], self.root)}` brings the tools for that"
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
            settings["pooling"], settings["dimensions"] = model.pooling_settings()
            settings["file_name"] = "onnx/model.onnx"
    python = engine.find_python(root)
    assert python is not None
    worker = WorkerProcess.from_script(engine.name, python, engine.script, engine.environment_variables)
    stack.callback(worker.terminate)
    return RunningEngine(engine, worker, worker.load(str(model.folder), task, settings))
