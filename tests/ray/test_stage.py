"""CenoteStage without a cluster: every task adds its columns, and rows that fail keep their reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cenote import LLM
from cenote.errors import BadRequest
from cenote.files.sources import InputRow
from cenote.ray import CenoteStage
from cenote.ray.dataset import map_task, split_options
from cenote.ray.stage import split_by_tokens
from tests.models.tiny_qwen3_vl import IMAGE, save_tiny_qwen3_vl
from tests.tiny import tiny_bert_classifier, tiny_bert_token_classifier, tiny_splade

pa = pytest.importorskip("pyarrow")
OPTIONS = {"dtype": "float32", "device": "cpu"}


def run(folder: Path, task: str, table: Any, **options: Any) -> tuple[Any, CenoteStage]:
    stage = CenoteStage(task, engine_options={"model": str(folder), **OPTIONS}, **options)
    return pa.concat_tables(list(stage(table))), stage


def test_rows_with_null_and_rows_that_fail_keep_their_place_and_reason(default_folder: Path, llm: LLM) -> None:
    texts = ["a cat", None, "word " * 400, "", "a dog"]

    table, _ = run(default_folder, "embed", pa.table({"key": list("abcde"), "text": texts}), batch_tokens=50)

    assert table["key"].to_pylist() == list("abcde")
    assert [error and error[:30] for error in table["error"].to_pylist()][1] == "column 'text' holds null"
    assert "256" in table["error"].to_pylist()[2]  # the limit of the model
    vectors = table["embedding"].to_pylist()
    assert [vector is None for vector in vectors] == [False, True, True, False, False]
    expected = [output.outputs.embedding for output in llm.embed(["a cat", "", "a dog"], use_tqdm=False)]
    assert np.array_equal(np.array([vectors[0], vectors[3], vectors[4]], np.float32), np.array(expected, np.float32))
    assert table.schema.field("embedding").type == pa.list_(pa.float32(), 384)


def test_a_block_without_a_valid_row_has_the_type_of_the_others(default_folder: Path) -> None:
    table, stage = run(default_folder, "embed", pa.table({"text": pa.array([None, None], pa.string())}))

    assert table["embedding"].null_count == 2
    assert table.schema.equals(pa.concat_tables(list(stage(pa.table({"text": ["a"]})))).schema)
    assert list(stage(pa.table({"text": pa.array([], pa.string())})))[0].schema.equals(table.schema)


def test_a_classifier_adds_label_and_probabilities(tmp_path: Path) -> None:
    tiny_bert_classifier(tmp_path)

    table, stage = run(tmp_path, "classify", pa.table({"text": ["the cat", None]}))

    (expected,) = stage.llm.classify(["the cat"], use_tqdm=False)
    assert table["probs"].to_pylist() == [expected.outputs.probs, None]
    assert table["label"].to_pylist() == [f"LABEL_{int(np.argmax(expected.outputs.probs))}", None]


def test_score_and_rerank_compare_the_two_columns(default_folder: Path, llm: LLM) -> None:
    query, documents = "a cat", ["a dog", "a small cat", "the sea"]
    pairs = pa.table({"query": [query, query], "document": [documents[0], None]})
    lists = pa.table({"query": [query, "b", query], "documents": [documents, [], None]})
    scores = [output.outputs.score for output in llm.score(query, documents, use_tqdm=False)]

    scored, _ = run(default_folder, "score", pairs, columns=("query", "document"))
    ranked, _ = run(default_folder, "rerank", lists, columns=("query", "documents"), task_options={"top_n": 2})

    assert scored["score"].to_pylist() == [pytest.approx(scores[0], abs=1e-6), None]
    best, empty, failed = ranked["ranking"].to_pylist()
    assert [item["index"] for item in best] == sorted(range(3), key=lambda index: -scores[index])[:2]
    assert best[0]["relevance_score"] == pytest.approx(max(scores), abs=1e-6)
    assert (empty, failed) == ([], None)
    assert ranked["error"].to_pylist() == [None, None, "column 'documents' holds null"]


def test_token_embeddings_have_a_vector_per_token(default_folder: Path, llm: LLM) -> None:
    table, _ = run(default_folder, "token_embed", pa.table({"text": ["a cat", "b"]}))

    first, _ = llm.encode(["a cat", "b"], pooling_task="token_embed", use_tqdm=False)
    assert torch.equal(torch.tensor(table["token_embeddings"].to_pylist()[0]), first.outputs.data)


def test_sparse_embeddings_have_ids_and_weights(tmp_path: Path) -> None:
    tiny_splade(tmp_path)

    table, stage = run(tmp_path, "sparse_embed", pa.table({"text": ["the cat", None]}))

    (expected,) = stage.llm.sparse_embed(["the cat"], use_tqdm=False)
    outputs = expected.outputs
    assert table["sparse_embedding"].to_pylist() == [{"token_ids": outputs.token_ids, "weights": outputs.weights}, None]


def test_entities_are_spans_of_each_text(tmp_path: Path) -> None:
    tiny_bert_token_classifier(tmp_path, id2label={0: "O", 1: "B-A", 2: "I-A"}, label2id={"O": 0, "B-A": 1, "I-A": 2})

    table, stage = run(tmp_path, "entities", pa.table({"text": ["the cat is in berlin", None, "a"]}))

    expected = stage.llm.entities(["the cat is in berlin", "a"], use_tqdm=False)
    starts = [[item["start"] for item in items or []] for items in table["entities"].to_pylist()]
    assert starts[0] == [entity.start for entity in expected[0].outputs.entities]
    assert table["error"].to_pylist() == [None, "column 'text' holds null", None]


def test_images_come_from_a_column_of_bytes(tmp_path: Path) -> None:
    import io

    from PIL import Image

    save_tiny_qwen3_vl(tmp_path)
    stream = io.BytesIO()
    Image.new("RGB", (32, 32), "red").save(stream, "PNG")
    rows = pa.table({"text": [f"{IMAGE} cat", "no image"], "image": [stream.getvalue(), None]})

    table, stage = run(tmp_path, "embed", rows, image_column="image")

    prompt = {"prompt": f"{IMAGE} cat", "multi_modal_data": {"image": stream.getvalue()}}
    (expected,) = stage.llm.embed([prompt], use_tqdm=False)
    assert table["embedding"].to_pylist() == [expected.outputs.embedding, None]
    assert table["error"].to_pylist() == [None, "column 'image' holds null"]


def test_a_column_of_the_dataset_is_never_replaced(default_folder: Path) -> None:
    stage = CenoteStage("embed", engine_options={"model": str(default_folder), **OPTIONS})

    with pytest.raises(BadRequest, match="a column 'error' already; rename it, or set suffix"):
        list(stage(pa.table({"text": ["a"], "error": [None]})))
    stage.suffix = "_2"
    (table,) = stage(pa.table({"text": ["a"], "error": [None]}))
    assert table.column_names == ["text", "error", "embedding_2", "num_tokens_2", "error_2"]


def test_a_task_that_the_model_lacks_fails_before_any_row(tmp_path: Path) -> None:
    tiny_bert_classifier(tmp_path)

    with pytest.raises(BadRequest, match="sparse_embed"):
        CenoteStage("sparse_embed", engine_options={"model": str(tmp_path), **OPTIONS})


def test_slices_are_bounded_by_tokens_and_the_same_every_time() -> None:
    rows = [InputRow(index, ("x" * (index % 50) * 3,)) for index in range(200)]

    slices = list(split_by_tokens(rows, 100))

    assert [row for some in slices for row in some] == rows
    assert all(sum(len(row.texts[0]) // 3 + 8 for row in some) <= 100 or len(some) == 1 for some in slices)
    assert slices == list(split_by_tokens(rows, 100))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: CenoteStage("embd"), "unknown task 'embd'; expected one of: embed"),
        (lambda: split_options("embed", {"top_n": 3}), "unknown option 'top_n' of the task embed"),
        (lambda: map_task(None, "score", columns=("a",)), "score reads 2 columns, got 1: a"),
    ],
)
def test_invalid_options_are_refused_in_the_driver(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        call()
