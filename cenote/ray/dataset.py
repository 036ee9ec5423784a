"""Tasks on Ray datasets: `embed(dataset)` and the like, each a `map_batches` with a pool of actors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cenote.config.engine import EngineConfig
from cenote.config.options import option_fields
from cenote.ray.imports import import_ray
from cenote.ray.row_task import OPTIONS, RowTask
from cenote.ray.stage import CenoteStage, check_columns

BATCH_ROWS = 2048


def map_task(
    dataset: Any,
    task: str,
    /,
    *,
    columns: Sequence[str] = ("text",),
    image_column: str | None = None,
    suffix: str = "",
    batch_size: int | None = BATCH_ROWS,
    batch_tokens: int | None = None,
    concurrency: int | tuple[int, int] | None = None,
    num_cpus: float = 1,
    num_gpus: float | None = None,
    ray_remote_args: Mapping[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Return the dataset with the results of a task.

    `concurrency`: the number of actors, or the smallest and the largest. An actor has `num_cpus` cores and as many
    threads. Other keyword arguments are those of the method of `LLM` for the task, and of `LLM` itself.
    """
    task_options, engine_options = split_options(task, options)
    check_columns(RowTask(task, task_options), columns, image_column)  # raise here, not in every actor
    EngineConfig.from_kwargs(**engine_options)
    stage_options = {
        "columns": tuple(columns),
        "image_column": image_column,
        "suffix": suffix,
        "batch_tokens": batch_tokens,
        "threads": None if num_gpus else count_threads(num_cpus),
        "engine_options": engine_options,
        "task_options": task_options,
    }
    pool = make_pool(concurrency)
    return dataset.map_batches(
        CenoteStage,
        fn_constructor_args=(task,),
        fn_constructor_kwargs=stage_options,
        batch_format="pyarrow",
        batch_size=batch_size,
        compute=pool,
        num_cpus=num_cpus,
        num_gpus=num_gpus,
        udf_modifying_row_count=False,
        **(ray_remote_args or {}),
    )


def split_options(task: str, options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of the task, and those of `LLM`; a name of both is the task's."""
    of_task = {name: value for name, value in options.items() if name in OPTIONS.get(task, ())}
    known = {option.name for option in option_fields(EngineConfig)}
    others = {name: value for name, value in options.items() if name not in of_task}
    RowTask(task, {name: None for name in others if name not in known})  # raises for names that neither has
    return of_task, others


def make_pool(concurrency: int | tuple[int, int] | None) -> Any:
    """Return the pool of actors: of one size, or one that grows and shrinks between two."""
    strategy = import_ray("ray.data").ActorPoolStrategy
    if concurrency is None:
        return strategy(min_size=1)
    if isinstance(concurrency, int):
        return strategy(size=concurrency)
    return strategy(min_size=concurrency[0], max_size=concurrency[1])


def count_threads(num_cpus: float) -> int:
    return max(1, round(num_cpus))


def embed(dataset: Any, column: str = "text", **options: Any) -> Any:
    """Add `embedding`, a list of float32 of fixed size."""
    return map_task(dataset, "embed", columns=(column,), **options)


def classify(dataset: Any, column: str = "text", **options: Any) -> Any:
    """Add `label`, the most likely one, and `probs`."""
    return map_task(dataset, "classify", columns=(column,), **options)


def token_embed(dataset: Any, column: str = "text", **options: Any) -> Any:
    """Add `token_embeddings`, a list of vectors."""
    return map_task(dataset, "token_embed", columns=(column,), **options)


def sparse_embed(dataset: Any, column: str = "text", **options: Any) -> Any:
    """Add `sparse_embedding`: `token_ids` and `weights`."""
    return map_task(dataset, "sparse_embed", columns=(column,), **options)


def entities(dataset: Any, column: str = "text", **options: Any) -> Any:
    """Add `entities`, a list of spans with label and score."""
    return map_task(dataset, "entities", columns=(column,), **options)


def score(dataset: Any, columns: tuple[str, str] = ("query", "document"), **options: Any) -> Any:
    """Add `score`, of the two texts of a row."""
    return map_task(dataset, "score", columns=columns, **options)


def rerank(dataset: Any, columns: tuple[str, str] = ("query", "documents"), **options: Any) -> Any:
    """Add `ranking`: the documents of a row, a list, by falling score, as `index` and `relevance_score`."""
    return map_task(dataset, "rerank", columns=columns, **options)
