"""The self-check at load notices results that differ from those of the first load, for every kind of model."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cenote import LLM
from cenote.engine.execution.native_executor import NativeExecutor
from cenote.engine.self_check import CheckValues, compute_similarity
from cenote.engine.self_check_store import (
    MAX_FILES,
    CheckResults,
    get_path,
    read_results,
    write_results,
)
from cenote.utils.cache_folder import CACHE_FOLDER_VARIABLE
from tests.layouts.builders.gliner import gliner_v2_1
from tests.layouts.builders.st_formats import multi_vector, static_query_router
from tests.tiny import (
    tiny_bert,
    tiny_bert_classifier,
    tiny_bert_token_classifier,
    tiny_bge_m3,
    tiny_qwen3_classifier,
    tiny_splade,
)

MODELS: dict[str, tuple[Callable[[Path], Any], set[str]]] = {
    "embeddings": (tiny_bert, {"embed", "token_embed"}),
    "classifier": (tiny_bert_classifier, {"classify", "token_classify"}),
    "cross-encoder": (lambda folder: tiny_bert_classifier(folder, num_labels=1), {"score"}),
    "decoder": (lambda folder: tiny_qwen3_classifier(folder, num_labels=1), {"score"}),
    "token classifier": (tiny_bert_token_classifier, {"token_classify"}),
    "sparse": (tiny_splade, {"embed", "token_embed", "sparse_embed"}),
    "bge-m3": (tiny_bge_m3, {"embed", "token_embed", "token_classify", "sparse_embed"}),
    "ColBERT": (multi_vector, {"token_embed"}),
    "router": (static_query_router, {"embed", "token_embed"}),
    "GLiNER": (gliner_v2_1, {"entities"}),
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Path:
    """The folder of a model; the cache folder is empty."""
    caplog.set_level(logging.DEBUG, "cenote")
    monkeypatch.setenv(CACHE_FOLDER_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "model"


def load(folder: Path, **options: Any) -> Path:
    """Load a model and return the file with the results of its self-check."""
    with LLM(str(folder), device="cpu", dtype="float32", **options) as llm:
        fingerprint = llm.engine.model_info.fingerprint
        return get_path(fingerprint, llm.engine.model.description.device.value)


def change_stored(path: Path, change: Callable[[CheckValues], CheckValues], **versions: str) -> None:
    stored = read_results(path)
    assert stored is not None
    by_task = {task: change(values) for task, values in stored.by_task.items()}
    write_results(path, CheckResults(by_task, {**stored.versions, **versions}))


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.message.startswith("self-check: ")]


@pytest.mark.parametrize("name", MODELS)
def test_every_kind_of_model_is_checked(name: str, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    build, tasks = MODELS[name]
    folder.mkdir()
    build(folder)
    path = load(folder)
    stored = read_results(path)
    assert stored is not None, [record.message for record in caplog.records]
    assert set(stored.by_task) == tasks

    load(folder)
    assert not warnings(caplog)

    change_stored(path, lambda values: values._replace(values=values.values * 1.1))
    load(folder)
    (message,) = warnings(caplog)
    assert all(task in message for task in tasks)


def test_the_warning_names_the_versions_and_the_file(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    tiny_bert(folder)
    path = load(folder)
    change_stored(path, lambda values: values._replace(values=-values.values), torch="1.0")

    load(folder)

    (message,) = warnings(caplog)
    assert "embed -1.000000" in message
    assert "torch 1.0 then" in message and "cenote" not in message.partition("(")[2].partition(")")[0]
    assert f"remove {path}" in message
    path.unlink()
    load(folder)
    load(folder)
    assert len(warnings(caplog)) == 1


def test_rounding_is_no_difference(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    tiny_bert(folder)
    noise = np.random.default_rng(0)
    change_stored(
        load(folder),
        lambda values: values._replace(values=values.values + noise.normal(0, 1e-4, len(values.values)).astype("f4")),
    )

    load(folder)

    assert not warnings(caplog)


def test_another_number_of_tokens_is_a_difference(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    tiny_bert(folder)
    change_stored(load(folder), lambda values: values._replace(values=values.values[:-32]))

    load(folder)

    assert "token_embed 0.000000" in warnings(caplog)[0]


def test_results_that_are_not_numbers_are_a_difference(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    tiny_bert(folder)
    change_stored(load(folder), lambda values: values._replace(values=values.values * np.float32("nan")))

    load(folder)

    assert "embed nan" in warnings(caplog)[0]


@pytest.mark.parametrize("content", [b"", b"\xff" * 100, b"{}"])
def test_a_damaged_file_is_replaced(content: bytes, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    tiny_bert(folder)
    path = load(folder)
    path.write_bytes(content)

    load(folder)

    assert read_results(path) is not None
    assert not warnings(caplog)


def test_a_folder_that_cannot_be_written_is_no_error(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tiny_bert(folder)
    (tmp_path / "file").touch()
    monkeypatch.setenv(CACHE_FOLDER_VARIABLE, str(tmp_path / "file"))

    load(folder)

    assert "cannot be stored" in caplog.text


def test_a_check_that_fails_does_not_keep_the_model_from_loading(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("out of memory\ndetails")

    tiny_bert(folder)
    monkeypatch.setattr(NativeExecutor, "start", fail)

    assert not load(folder).exists()
    assert "self-check failed: RuntimeError: out of memory" in caplog.text


def test_it_can_be_turned_off(folder: Path) -> None:
    tiny_bert(folder)

    assert not load(folder, self_check=False).exists()


def test_it_is_not_counted_as_a_request(folder: Path) -> None:
    tiny_bert(folder)
    with LLM(str(folder), device="cpu") as llm:
        families = {family.name: family for family in llm.engine.metrics.registry.snapshot()}
        counted = ("cenote_prompt_tokens_total", "cenote_requests_total", "cenote_inputs_total")

        assert not any(series.value for name in counted for series in families[name].series)


def test_old_files_are_removed(folder: Path, tmp_path: Path) -> None:
    tiny_bert(folder)
    path = load(folder)
    results = read_results(path)
    assert results is not None
    for number in range(MAX_FILES):
        write_results(path.parent / f"{number}.safetensors", replace(results, by_task={}))

    assert len(list(path.parent.iterdir())) == MAX_FILES
    assert not path.exists()


def test_sparse_vectors_are_compared_by_token() -> None:
    first = CheckValues(np.array([1.0, 2.0], dtype=np.float32), np.array([3, 9]))
    second = CheckValues(np.array([1.0, 1e-6, 2.0], dtype=np.float32), np.array([3, 5, 9]))
    third = CheckValues(np.array([1.0, 2.0], dtype=np.float32), np.array([3, 8]))

    assert compute_similarity(first, second) == pytest.approx(1.0)
    assert compute_similarity(first, third) == pytest.approx(0.2)
