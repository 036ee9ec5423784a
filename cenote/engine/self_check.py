"""Self-check at load: the results of a few texts are compared with those of the first load of the same model.

An upgrade of torch, of a driver or of Cenote may change results although the model is the same. The comparison is the
cosine of all results of a task, those of the first load and those of now, where a change of their length counts too:
1 - |a - b|^2 / (2 max(|a|, |b|)^2), which is the cosine for vectors of equal length.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cenote.engine.execution.executor import Executor
from cenote.engine.pending import PoolResults
from cenote.engine.request_checks import RequestChecks
from cenote.engine.result_delivery import deliver_results
from cenote.engine.self_check_store import (
    CheckResults,
    CheckValues,
    get_path,
    get_versions,
    read_results,
    write_results,
)
from cenote.engine.sequence_group import GroupSlice, ScheduledBatch
from cenote.engine.tasks.engine_calls import EngineCalls
from cenote.engine.tasks.text_tasks import TextTasks
from cenote.errors import PoolingError
from cenote.inputs.renderer import Renderer
from cenote.loading.checkpoint import first_line
from cenote.loading.load import LoadedModel
from cenote.protocol.model_info import ModelInfo
from cenote.protocol.params import TokenizationParams
from cenote.protocol.requests import EntityRequest, PoolRequest, ScoreRequest
from cenote.scoring.scorer import JOINT_SCORE_TYPES
from cenote.utils.async_utils import run_coroutine_sync, run_inline

logger = logging.getLogger("cenote")

# few tokens, as every start of a server computes them
TEXTS = ("Paris is the capital of France.", "The cave is 40 metres deep.")
QUERY = "What is the capital of France?"
LABELS = ("city", "country")
TRUNCATE = TokenizationParams(truncate_prompt_tokens=-1)
# smallest cosine that is not reported, by the precision of the computation
MIN_SIMILARITY = {"float32": 0.9999, "float64": 0.9999, "bfloat16": 0.999, "float16": 0.999}
MIN_QUANTIZED_SIMILARITY = 0.99


@dataclass(frozen=True, slots=True)
class SelfCheck:
    """Runs the texts directly on the executor of an engine that has not started: no metrics, no queue, no cache."""

    model: LoadedModel
    model_info: ModelInfo
    request_checks: RequestChecks
    renderer: Renderer
    executor: Executor
    tasks: TextTasks

    def run(self) -> None:
        """Compare with the stored results, or store them; log a warning if they differ."""
        description = self.model.description
        if self.model.fingerprint is None or not description.architecture.reads_texts:
            return
        if description.kind.value == "tensors":  # the plugin defines its inputs
            return
        # OpenMP keeps threads for every thread that computes; those of this one end with it
        with ThreadPoolExecutor(1, thread_name_prefix="cenote-self-check") as thread:
            try:
                by_task = thread.submit(self._compute).result()
            except PoolingError as error:  # such as a model that needs an image with every text
                logger.info("self-check skipped: %s", error)
                return
            except Exception as error:  # a check must not keep a server from starting
                logger.warning("self-check failed: %s: %s", type(error).__name__, first_line(error))
                return
        device = description.device.value
        path = get_path(str(self.model.fingerprint), device)
        now, then = CheckResults(by_task, get_versions(device)), read_results(path)
        if then is not None:
            report_differences(then, now, self._get_min_similarity(), path)
            return
        try:
            write_results(path, now)
        except OSError as error:
            logger.info("the results of the self-check cannot be stored: %s", error)

    def _get_min_similarity(self) -> float:
        description = self.model.description
        if description.quantization.value is not None:
            return MIN_QUANTIZED_SIMILARITY
        return MIN_SIMILARITY[description.dtype.value]

    def _compute(self) -> dict[str, CheckValues]:
        calls = EngineCalls(self._pool, run_inline)
        if self.model.pooler.span_head is not None:
            pool_request = PoolRequest(task="token_classify", inputs=list(TEXTS), tokenization=TRUNCATE)
            request = EntityRequest(pool_request=pool_request, labels=LABELS, threshold=0.0)
            results = run_coroutine_sync(self.tasks.find_entities(request, calls))
            scores = [entity.score for result in results for entity in result.entities]
            return {"entities": CheckValues(np.array(scores, dtype=np.float32))}
        if self.model_info.score_types[:1] and self.model_info.score_types[0] in JOINT_SCORE_TYPES:
            score_request = ScoreRequest(queries=[QUERY], documents=list(TEXTS), tokenization=TRUNCATE)
            pairs = run_coroutine_sync(self.tasks.score(score_request, calls))
            return {"score": CheckValues(np.array([_require(pair).score for pair in pairs], dtype=np.float32))}
        task, *others = self.model_info.tasks
        pooled = run_coroutine_sync(
            self._pool(PoolRequest(task=task, inputs=list(TEXTS), extra_tasks=tuple(others), tokenization=TRUNCATE))
        )
        rows = [_require(result) for result in pooled]
        data = {task: [row.data for row in rows]} | {name: [row.extra_data[name] for row in rows] for name in others}
        return {name: _flatten(name, arrays) for name, arrays in data.items()}

    async def _pool(self, request: PoolRequest) -> PoolResults:
        state = self.request_checks.prepare(request, self.model_info)
        rendered = self.renderer.render(state.request.inputs, *state.settings)
        for error in rendered.errors.values():
            raise error
        for tokenized in state.make_batches(rendered, self.request_checks.max_model_len):
            batch = ScheduledBatch([GroupSlice(tokenized.make_group(tokenized), 0, len(tokenized.inputs))])
            deliver_results(batch, self.executor.start(batch)())
        state.future.result(timeout=0)
        return state.get_results()


def _require(result: Any) -> Any:
    if isinstance(result, PoolingError):
        raise result
    return result


def _flatten(task: str, arrays: Sequence[np.ndarray[Any, Any]]) -> CheckValues:
    """Return the results of all texts as one vector."""
    if task != "sparse_embed":
        return CheckValues(np.concatenate([array.ravel() for array in arrays]))
    keys = [array[:, 0].astype(np.int64) + (number << 32) for number, array in enumerate(arrays)]  # rows: id, weight
    return CheckValues(np.concatenate([array[:, 1] for array in arrays]), np.concatenate(keys))


def compute_similarity(then: CheckValues, now: CheckValues) -> float:
    """Return 1 for equal results and 0 for those of another size."""
    first, second = then.values.astype(np.float64), now.values.astype(np.float64)
    if then.keys is not None and now.keys is not None:
        keys = np.union1d(then.keys, now.keys)
        first, second = _place(then.keys, first, keys), _place(now.keys, second, keys)
    if first.shape != second.shape or (then.keys is None) != (now.keys is None):
        return 0.0
    # not `@`: starting the threads of BLAS takes longer
    largest = max(np.square(first).sum(), np.square(second).sum())
    return 1.0 if largest == 0 else float(1 - np.square(first - second).sum() / (2 * largest))


def _place(keys: np.ndarray[Any, Any], values: np.ndarray[Any, Any], all_keys: np.ndarray[Any, Any]) -> Any:
    placed = np.zeros(len(all_keys))
    placed[np.searchsorted(all_keys, keys)] = values
    return placed


def report_differences(then: CheckResults, now: CheckResults, min_similarity: float, path: Path) -> None:
    """Log a warning with the versions of then and now for results that differ."""
    empty = CheckValues(np.zeros(0, dtype=np.float32))
    similarities = {
        task: compute_similarity(then.by_task.get(task, empty), values) for task, values in now.by_task.items()
    }
    # `not >=` instead of `<`: NaN is a difference
    low = {task: value for task, value in similarities.items() if not value >= min_similarity}
    if not low:
        logger.debug("self-check passed: %s", similarities)
        return
    names = [name for name in {**now.versions, **then.versions} if now.versions.get(name) != then.versions.get(name)]
    changes = [f"{name} {then.versions.get(name, 'none')} then, {now.versions.get(name, 'none')} now" for name in names]
    logger.warning(
        "self-check: results differ from those of the first load: %s, expected a cosine of at least %s (%s); vectors "
        "in an index may have to be computed again. To accept the results of now, remove %s",
        ", ".join(f"{task} {value:.6f}" for task, value in low.items()),
        min_similarity,
        "; ".join(changes) or "no version has changed",
        path,
    )
