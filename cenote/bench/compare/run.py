"""`cenote bench compare`: starts every engine, lets each have its turn in every round, tells how they stand."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from cenote.bench.compare.engines import EMBED_IMAGES, OURS, SCORE, TOKEN_CLASSIFY, Engine, engines_called
from cenote.bench.compare.environments import ENVIRONMENTS, default_root, install, install_command
from cenote.bench.compare.http import run_http
from cenote.bench.compare.models import Model, export, model_for
from cenote.bench.compare.plot import plot
from cenote.bench.compare.progress import minutes, note
from cenote.bench.compare.results import Report
from cenote.bench.compare.rounds import Contender, measure
from cenote.bench.compare.worker import Worker, WorkerFailed
from cenote.bench.compare.workload_specs import Kind, kinds_called, prepared, prepared_images
from cenote.bench.report import write_json
from cenote.bench.workloads import find_tokenizer


def compare(given: argparse.Namespace) -> int:
    root = Path(given.peers_dir) if given.peers_dir else default_root()
    engines, kinds = engines_called(given.peers), kinds_called(given.workloads)
    began = time.monotonic()
    if given.install_peers:
        install_missing(engines, root)
    report = Report(given.rounds)
    there, report.left_out = split_by_presence(engines, root)
    for line in report.left_out:
        note(f"left out: {line}")
    with tempfile.TemporaryDirectory() as scratch:
        for group in groups_of(kinds):
            model = model_for(group[0].task, model_named(given, group[0].task), Path(scratch))
            run = run_http if group[0].over_http else run_group
            run(given, group, model, there, root, Path(scratch), report)
            save(given, report)  # what was measured is not lost should the next group fail
    note(f"done after {minutes(time.monotonic() - began)}")
    print(report.text())
    return 0


def save(given: argparse.Namespace, report: Report) -> None:
    if given.json:
        write_json(given.json, report.as_json())
    if given.plot:
        Path(given.plot).write_text(plot(report))


def install_missing(engines: Sequence[Engine], root: Path) -> None:
    for name in dict.fromkeys(engine.environment for engine in engines if engine.python(root) is None):
        if name is not None:
            note(f"installing the peer environment {name} in {root / name}; this takes minutes")
            install(name, root)


def split_by_presence(engines: Sequence[Engine], root: Path) -> tuple[list[Engine], list[str]]:
    """Those that can run, and for the others what to do about it."""
    there = [engine for engine in engines if engine.python(root) is not None]
    missing: dict[str, list[str]] = {}
    for engine in engines:
        if engine not in there and engine.environment is not None:
            missing.setdefault(engine.environment, []).append(engine.name)
    lines = [
        f"{', '.join(names)}: not installed; `{install_command([place], root)}` does that"
        for place, names in missing.items()
    ]
    return there, lines


def groups_of(kinds: Sequence[Kind]) -> Iterator[list[Kind]]:
    """Workloads that one process of an engine can do: the same task of the same model."""
    groups: dict[tuple[str, bool], list[Kind]] = {}
    for kind in kinds:
        groups.setdefault((kind.task, kind.over_http), []).append(kind)
    yield from groups.values()


def model_named(given: argparse.Namespace, task: str) -> str | None:
    named: dict[str, str | None] = {SCORE: given.reranker, TOKEN_CLASSIFY: given.tagger, EMBED_IMAGES: given.clip}
    return named.get(task, given.model)


def run_group(
    given: argparse.Namespace,
    kinds: Sequence[Kind],
    model: Model,
    engines: Sequence[Engine],
    root: Path,
    scratch: Path,
    report: Report,
) -> None:
    max_tokens = model.max_tokens(given.max_tokens)
    task, same = kinds[0].task, {"texts": given.texts, "quick": given.quick, "seed": given.seed}
    if task == EMBED_IMAGES:
        works = [prepared_images(kind, scratch / kind.name, **same) for kind in kinds]
    else:
        tokenizer = find_tokenizer(str(model.folder))
        works = [prepared(kind, tokenizer, max_tokens=max_tokens, **same) for kind in kinds]
    settings = {"batch_size": given.batch_size, "max_tokens": max_tokens}
    note(f"{', '.join(kind.name for kind in kinds)}: {model.title}, at most {max_tokens} tokens")
    with ExitStack() as stack:
        contenders: list[Contender] = []
        exported = Exports(model, root, scratch)
        for engine in engines:
            if task not in engine.tasks:
                continue
            try:
                contenders.append(start(engine, task, model, exported, settings, root, stack))
                note(f"  {engine.name}: ready after {contenders[-1].about['ready_s']:.0f} s")
            except WorkerFailed as error:
                if engine.name == OURS:
                    raise
                report.left_out.append(f"{engine.name} on {task}: {error.message}")
                note(f"  left out: {report.left_out[-1]}")
        outcomes = measure(contenders, works, model.title, rounds=given.rounds, left_out=report.left_out)
    report.outcomes += outcomes


class Exports:
    """The model in other formats, made when the first engine asks for it."""

    def __init__(self, model: Model, root: Path, scratch: Path) -> None:
        self.model, self.root, self.folder = model, root, scratch / f"export-{model.task}"
        self.found: Model | WorkerFailed | None = None

    def get(self) -> Model:
        if self.found is None:
            python = ENVIRONMENTS["openvino"].python(self.root)
            if python is None:
                self.found = WorkerFailed(
                    f"needs the model as ONNX; `{install_command(['openvino'], self.root)}` brings the tools for that"
                )
            else:
                note(f"  exporting {self.model.title} to ONNX and OpenVINO")
                try:
                    self.found = export(self.model, python, self.folder)
                except WorkerFailed as error:
                    self.found = error
        if isinstance(self.found, WorkerFailed):
            raise self.found
        return self.found


def start(
    engine: Engine,
    task: str,
    model: Model,
    exports: Exports,
    same: Mapping[str, Any],
    root: Path,
    stack: ExitStack,
) -> Contender:
    settings = {**same, **engine.settings}
    if engine.reads_export:
        model = exports.get()
        if engine.environment == "onnx":
            settings["pooling"], settings["dimensions"] = model.pooling()
            settings["file_name"] = "onnx/model.onnx"
    python = engine.python(root)
    assert python is not None
    worker = Worker.of_script(engine.name, python, engine.script, engine.variables)
    stack.callback(worker.end)
    return Contender(engine, worker, worker.load(str(model.folder), task, settings))
