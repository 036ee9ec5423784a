"""run_files: a task on files, computed in parts by actors; parts that are done are not done again."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from cenote.config.engine import EngineConfig
from cenote.config.ray import RayConfig
from cenote.errors import BadRequest
from cenote.files.columns import ColumnOptions
from cenote.files.file_parts import FilePart, list_files, split_files
from cenote.files.partial_file import describe_difference, make_manifest, read_manifest
from cenote.files.result_table import make_id_array
from cenote.files.sources import FileSource
from cenote.files.writers import format_json_lines
from cenote.ray.dataset import split_options
from cenote.ray.imports import connect, import_ray
from cenote.ray.part_output import FORMATS, PartOutput
from cenote.ray.row_pool import as_pooling_error, replica_range
from cenote.ray.row_task import SCHEMAS, RowTask
from cenote.ray.stage import CenoteStage
from cenote.utils.durable_files import replace_durably, sync_folder

TOKEN_PART_ROWS = 256  # results of all tokens of a part are in memory


@dataclass(frozen=True, slots=True)
class PartSummary:
    """What one part of the input came to."""

    number: int
    num_rows: int
    num_failed: int
    num_tokens: int
    seconds: float  # of the actor


@dataclass(frozen=True, slots=True)
class FilesSummary:
    """What a job came to; rows of parts that an earlier run has written are not counted."""

    num_parts: int
    num_resumed: int  # parts of an earlier run
    num_rows: int
    num_failed: int
    num_tokens: int


def run_files(
    inputs: str | Sequence[str],
    output: str,
    task: str = "embed",
    /,
    *,
    columns: Sequence[str] | None = None,
    id_column: str | None = None,
    input_format: str | None = None,
    format: str = "parquet",
    overwrite: bool = False,
    part_rows: int | None = None,
    ray_config: RayConfig | None = None,
    on_part: Callable[[PartSummary], None] | None = None,
    on_plan: Callable[[int, int], None] | None = None,
    **options: Any,
) -> FilesSummary:
    """Compute a task for all rows of files and folders, and write a folder of parts, or a Lance dataset.

    The same call continues an interrupted one. All nodes must see the files under the same paths. `on_part` is called
    for each part as it is done, `on_plan` before with the number of parts and how many of them are to be done.
    """
    if task not in SCHEMAS:
        raise BadRequest(f"run_files has no task {task!r}; expected one of: {', '.join(SCHEMAS)}", param="task")
    if format not in FORMATS:
        raise BadRequest(f"unknown format {format!r}; expected one of: {', '.join(FORMATS)}", param="format")
    ray_config = ray_config or RayConfig(engine="ray")
    task_options, engine_options = split_options(task, options)
    row_task = RowTask(task, task_options)
    EngineConfig.from_kwargs(**engine_options)
    paths = list_files(inputs)
    is_pairs = row_task.num_columns == 2
    column_options = ColumnOptions(tuple(columns) if columns else None, id_column, is_pairs)
    identities = [FileSource(path, ColumnOptions(), input_format or "txt").identity() for path in paths]
    manifest = {
        **make_manifest(identities, {**engine_options, **task_options}),
        "task": task,
        "columns": columns and list(columns),
        "id_column": id_column,
        "format": format,
        "part_rows": part_rows,
    }
    target = PartOutput(output, format)
    check_manifest(target, manifest, overwrite=overwrite)
    if part_rows is None and SCHEMAS[task].kind == "tokens":
        part_rows = TOKEN_PART_ROWS
    parts = split_files(paths, column_options, input_format, part_rows)
    waiting = [number for number in range(len(parts)) if not target.is_done(number)]
    if on_plan is not None:
        on_plan(len(parts), len(waiting))
    worker_options = {
        "task": task,
        "engine_options": engine_options,
        "task_options": task_options,
        "threads": None if ray_config.num_gpus else ray_config.threads,
        "output": output,
        "format": format,
        "names": file_names(paths) if len(paths) > 1 else {},
        "has_ids": id_column is not None,
    }
    num_rows = num_failed = num_tokens = 0
    for summary in _run_parts(ray_config, parts, waiting, worker_options) if waiting else ():
        num_rows += summary.num_rows
        num_failed += summary.num_failed
        num_tokens += summary.num_tokens
        if on_part is not None:
            on_part(summary)
    target.finish(len(parts))
    return FilesSummary(len(parts), len(parts) - len(waiting), num_rows, num_failed, num_tokens)


def check_manifest(target: PartOutput, manifest: Mapping[str, Any], *, overwrite: bool) -> None:
    """Create the folder and its manifest; raise if the folder holds the results of another job."""
    expected: dict[str, Any] = json.loads(json.dumps(manifest, default=str))
    if overwrite:
        target.remove()
    found = read_manifest(target.manifest_path)
    if found is None and target.has_files():
        raise BadRequest(f"{target.folder} is not empty and has no manifest; use another folder, or overwrite it")
    if found is not None and (difference := describe_difference(found, expected)) is not None:
        raise BadRequest(f"{target.folder} holds results of another job ({difference}); use another, or overwrite it")
    target.manifest_path.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.manifest_path.with_suffix(".tmp")
    temporary.write_text(json.dumps(expected))
    replace_durably(temporary, target.manifest_path)
    sync_folder(target.manifest_path.parent.parent)


def file_names(paths: Sequence[str]) -> dict[str, str]:
    """Return a short name of each path, from the folder that all have in common."""
    common = os.path.commonpath([str(Path(path).parent) for path in paths])
    return {path: os.path.relpath(path, common) for path in paths}


def _run_parts(
    config: RayConfig, parts: Sequence[FilePart], numbers: Sequence[int], worker_options: Mapping[str, Any]
) -> Iterator[PartSummary]:
    ray = connect(config.address)
    data = import_ray("ray.data")
    data.DataContext.get_current().enable_progress_bars = False  # the caller shows the progress
    low, high = replica_range(ray, config)
    high = max(low, min(high, len(numbers)))
    items = [{"number": number, "part": msgspec.json.encode(parts[number]).decode()} for number in numbers]
    done = data.from_items(items, override_num_blocks=len(items)).map_batches(
        PartWorker,
        fn_constructor_kwargs=dict(worker_options),
        batch_size=1,
        batch_format="numpy",
        compute=data.ActorPoolStrategy(min_size=low, max_size=high, initial_size=high),
        num_cpus=config.num_cpus,
        num_gpus=config.num_gpus or None,
        udf_modifying_row_count=False,
    )
    try:
        for row in done.iter_rows():
            yield PartSummary(**row)
    except ray.exceptions.RayError as error:
        raise as_pooling_error(error) from None


class PartWorker:
    """Callable class of `map_batches` that reads, computes and writes parts."""

    def __init__(
        self,
        task: str,
        engine_options: Mapping[str, Any],
        task_options: Mapping[str, Any],
        threads: int | None,
        output: str,
        format: str,
        names: Mapping[str, str],
        has_ids: bool,
    ) -> None:
        columns = ("text",) * RowTask(task).num_columns  # not read: rows come from files
        self.stage = CenoteStage(
            task, columns=columns, threads=threads, engine_options=engine_options, task_options=task_options
        )
        self.schema = replace(SCHEMAS[task], has_ids=has_ids)
        self.target = PartOutput(output, format)
        self.names = names

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, list[Any]]:
        (number,), (text,) = batch["number"], batch["part"]
        summary = self.run(int(number), msgspec.json.decode(str(text), type=FilePart))
        return {name: [getattr(summary, name)] for name in PartSummary.__dataclass_fields__}

    def run(self, number: int, part: FilePart) -> PartSummary:
        started_at = time.monotonic()
        rows = list(part.rows())
        for row in rows:
            row.file = self.names.get(part.path)
        results = self.stage.collect(rows, self.stage.run(rows))
        if self.target.format == "jsonl":
            self.target.write_bytes(number, format_json_lines(results, self.schema))
        else:
            keys: dict[str, Any] = {"file": [row.file for row in rows]} if self.names else {}
            keys["index"] = [row.index for row in rows]
            if self.schema.has_ids:
                keys["id"] = make_id_array([row.id for row in rows])
            self.target.write_table(number, {**keys, **self.stage.make_columns(results)})
        seconds = time.monotonic() - started_at
        return PartSummary(number, len(rows), results.num_failed, sum(results.num_tokens), seconds)
