"""Sparse embeddings: bge-m3 (with dense and token embeddings), SPLADE, and masked language models."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from sentence_transformers import SparseEncoder
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sparse_encoder.modules import SpladePooling
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close
from transformers import PreTrainedModel, Qwen3ForCausalLM

from cenote import LLM, PoolerConfig, PoolingParams
from cenote.errors import BadRequest, LoadError, NumericalError, Unsupported
from cenote.outputs import RequestError
from cenote.pooling import sparse
from cenote.pooling.heads import SpladeHead
from tests.layouts.builders import models_2026
from tests.models.parity import assert_same, opened
from tests.tiny import (
    SEQUENCES,
    change_config,
    compute_hidden_states,
    compute_logits,
    save_tiny,
    tiny_bert,
    tiny_bge_m3,
    tiny_splade,
)

# with repeated words, an unknown word, and an empty text
TEXTS = ["the cat and the dog and the bird", "a ☃ in the city", "two ☃", "", "how big is the old river in berlin?"]
SPECIAL = (0, 1, 2, 3)  # <s> <pad> </s> <unk>
RAW = PoolingParams(use_activation=False)


def encoded(llm: LLM, task: str, prompts: Any = TEXTS, params: PoolingParams | None = None) -> list[Any]:
    return [output.outputs for output in llm.encode(prompts, params, pooling_task=task, use_tqdm=False)]


@contextmanager
def counted(llm: LLM) -> Iterator[list[int]]:
    """Record the sizes of the batches that run."""
    executor, sizes = llm.engine.core.loop.executor, list[int]()
    start = executor.start

    def counting(batch: Any) -> Any:
        sizes.append(len(batch))
        return start(batch)

    executor.start = counting  # type: ignore[method-assign]
    try:
        yield sizes
    finally:
        executor.start = start  # type: ignore[method-assign]


# bge-m3


class FlagEmbedding:
    """Formulas of FlagEmbedding, one text at a time, with dictionaries as results."""

    def __init__(self, model: PreTrainedModel, sparse_linear: nn.Linear, colbert_linear: nn.Linear) -> None:
        self.model, self.sparse_linear, self.colbert_linear = model, sparse_linear, colbert_linear

    def dense(self, ids: list[int]) -> Tensor:
        return F.normalize(self.states(ids)[0], dim=-1)

    def token_weights(self, ids: list[int]) -> Tensor:
        return torch.relu(self.sparse_linear(self.states(ids)))[:, 0]

    def lexical_weights(self, ids: list[int]) -> dict[int, float]:
        found: dict[int, float] = {}
        for token, weight in zip(ids, self.token_weights(ids).tolist(), strict=True):
            if token not in SPECIAL and weight > found.get(token, 0.0):
                found[token] = weight
        return found

    def colbert(self, ids: list[int]) -> Tensor:
        return F.normalize(self.colbert_linear(self.states(ids)[1:]), dim=-1)

    def states(self, ids: list[int]) -> Tensor:
        return compute_hidden_states(self.model, [ids])[0]


def check_against(reference: FlagEmbedding, llm: LLM) -> None:
    outputs = llm.encode(TEXTS, pooling_task="embed", use_tqdm=False)
    ids = [output.prompt_token_ids for output in outputs]
    assert all(each[0] == 0 and each[-1] == 2 for each in ids) and any(3 in each for each in ids)

    assert_same([output.outputs.data for output in outputs], [reference.dense(each) for each in ids])
    weights = [output.data for output in encoded(llm, "token_classify")]
    assert_same(weights, [reference.token_weights(each)[1:-1] for each in ids])
    assert_same([output.data for output in encoded(llm, "token_embed")], [reference.colbert(each) for each in ids])
    for output, each in zip(llm.sparse_embed(TEXTS, use_tqdm=False), ids, strict=True):
        expected = reference.lexical_weights(each)
        assert output.outputs.token_ids == sorted(expected)
        assert output.outputs.weights == pytest.approx([expected[token] for token in sorted(expected)], abs=1e-4)
    everything = [pair for each in ids for pair in zip(each, reference.token_weights(each).tolist(), strict=True)]
    assert all(any(token == special and weight > 0 for token, weight in everything) for special in (0, 2, 3))
    assert any(token > 3 and weight == 0 for token, weight in everything)


def test_bge_m3_is_known_by_its_files_and_gives_all_three(tmp_path: Path) -> None:
    expected = FlagEmbedding(*tiny_bge_m3(tmp_path))

    with opened(tmp_path) as llm:
        assert llm.supported_tasks == ("embed", "token_embed", "token_classify", "sparse_embed")
        check_against(expected, llm)


def test_bge_m3_by_its_vllm_name_is_the_same(tmp_path: Path) -> None:
    expected = FlagEmbedding(*tiny_bge_m3(tmp_path))

    with opened(tmp_path, hf_overrides={"architectures": ["BgeM3EmbeddingModel"]}) as llm:
        check_against(expected, llm)


def test_the_heads_may_be_safetensors(tmp_path: Path) -> None:
    reference, *heads = tiny_bge_m3(tmp_path)
    for name, head in zip(("sparse_linear", "colbert_linear"), heads, strict=True):
        (tmp_path / f"{name}.pt").unlink()
        save_file(dict(head.state_dict()), tmp_path / f"{name}.safetensors")

    with opened(tmp_path) as llm:
        check_against(FlagEmbedding(reference, *heads), llm)


def test_the_colbert_head_may_be_smaller_than_the_hidden_size(tmp_path: Path) -> None:
    reference, sparse_linear, _ = tiny_bge_m3(tmp_path)
    narrow = nn.Linear(32, 8).requires_grad_(False)
    torch.save(narrow.state_dict(), tmp_path / "colbert_linear.pt")

    with opened(tmp_path) as llm:
        check_against(FlagEmbedding(reference, sparse_linear, narrow), llm)


def test_weights_without_activation_may_be_below_zero(tmp_path: Path) -> None:
    reference, sparse_linear, _ = tiny_bge_m3(tmp_path)

    with opened(tmp_path) as llm:
        raw = [output.data for output in encoded(llm, "token_classify", SEQUENCES, RAW)]
        found = [output.data for output in encoded(llm, "sparse_embed", SEQUENCES)]

    assert_same(
        raw, [sparse_linear(rows)[:, 0] for rows in compute_hidden_states(reference)]
    )  # no special tokens, all rows
    assert any((rows < 0).any() for rows in raw)
    assert all((rows[:, 1] > 0).all() for rows in found)


def test_one_head_alone_is_a_plain_embedder(tmp_path: Path) -> None:
    tiny_bge_m3(tmp_path)
    (tmp_path / "colbert_linear.pt").unlink()

    with opened(tmp_path) as llm:
        assert llm.supported_tasks == ("embed", "token_embed")


def test_the_vllm_name_needs_both_heads(tmp_path: Path) -> None:
    tiny_bge_m3(tmp_path)
    (tmp_path / "sparse_linear.pt").unlink()

    with pytest.raises(LoadError, match=r"has no sparse_linear\.pt and colbert_linear\.pt"):
        LLM(str(tmp_path), hf_overrides={"architectures": ["BgeM3EmbeddingModel"]})


@pytest.mark.parametrize(
    ("stored", "words"),
    [
        ({"weight": torch.zeros(2, 32), "bias": torch.zeros(2)}, r"has shape \[2, 32\]; expected \[1, 32\]"),
        ({"weight": torch.zeros(1, 16)}, r"has shape \[1, 16\]; expected \[1, 32\]"),
        ({"weight": torch.zeros(1, 32), "bias": torch.zeros(3)}, r"bias has shape \[3\]"),
        ({"bias": torch.zeros(1)}, "contains bias; expected one linear layer"),
        ({"a.weight": torch.zeros(1, 32), "b.weight": torch.zeros(1, 32)}, "expected one linear layer"),
        (print, "could run code"),
    ],
)
def test_a_head_that_does_not_fit_is_refused(stored: Any, words: str, tmp_path: Path) -> None:
    tiny_bge_m3(tmp_path)
    torch.save(stored, tmp_path / "sparse_linear.pt")

    with pytest.raises(LoadError, match=words):
        LLM(str(tmp_path))


def test_a_nan_output_is_an_error_and_not_an_empty_vector(tmp_path: Path) -> None:
    tiny_bge_m3(tmp_path)
    torch.save({"weight": torch.full((1, 32), torch.nan), "bias": torch.zeros(1)}, tmp_path / "sparse_linear.pt")

    with opened(tmp_path) as llm:
        (output,) = llm.sparse_embed("the cat", use_tqdm=False)

    assert output.error == RequestError("numerical_error", "the model output for this input contains NaN or infinity")
    with pytest.raises(NumericalError):
        _ = output.outputs


# several tasks at once


def test_a_combined_request_equals_separate_ones_and_reads_every_text_once(tmp_path: Path) -> None:
    tiny_bge_m3(tmp_path)
    tasks = ("embed", "sparse_embed", "token_embed", "token_classify")

    with opened(tmp_path) as llm:
        with counted(llm) as sizes:
            combined = encoded(llm, "&".join(tasks))
        assert sum(sizes) == len(TEXTS)
        for task in tasks:
            for one, other in zip(combined, encoded(llm, task), strict=True):
                assert_close(one[task].data, other.data, atol=1e-5, rtol=0)
        assert [output["sparse_embed"].tokens for output in combined] == [
            output.outputs.tokens for output in llm.sparse_embed(TEXTS, use_tqdm=False)
        ]


def test_the_combined_task_of_vllm_is_one_row_of_both(tmp_path: Path) -> None:
    tiny_bge_m3(tmp_path)

    with opened(tmp_path, pooler_config=PoolerConfig(task="embed&token_classify")) as llm:
        assert llm.supported_tasks == ("embed", "token_classify")
        (output,) = encoded(llm, "embed&token_classify", TEXTS[0])

    assert output.data.shape == (32 + 8,)
    assert torch.equal(output.data, torch.cat([output["embed"].data, output["token_classify"].data]))
    with pytest.raises(LookupError, match="available: embed, token_classify"):
        output["token_embed"]


def test_every_task_of_a_combined_one_takes_the_parameters_that_it_knows(tmp_path: Path) -> None:
    tiny_bge_m3(tmp_path)
    change_config(tmp_path, matryoshka_dimensions=[8, 32])
    params = PoolingParams(dimensions=8, use_activation=False)

    with opened(tmp_path) as llm:
        (combined,) = encoded(llm, "embed&token_classify&sparse_embed", TEXTS[0], params)
        assert_same([combined["embed"].data], [encoded(llm, "embed", TEXTS[0], params)[0].data])
        assert_same([combined["token_classify"].data], [encoded(llm, "token_classify", TEXTS[0], RAW)[0].data])
        assert_same([combined["sparse_embed"].data], [encoded(llm, "sparse_embed", TEXTS[0])[0].data])
        with pytest.raises(BadRequest, match="'token_classify&sparse_embed' only supports"):
            encoded(llm, "token_classify&sparse_embed", TEXTS[0], PoolingParams(dimensions=8))
        with pytest.raises(Unsupported, match="classify"):
            encoded(llm, "embed&classify", TEXTS[0])


def test_any_model_supports_several_tasks_per_request(tmp_path: Path) -> None:
    tiny_bert(tmp_path)

    with opened(tmp_path) as llm, counted(llm) as sizes:
        (output,) = encoded(llm, "token_embed&embed", TEXTS[0])
        assert sizes == [1]

    assert output["token_embed"].data.shape == (10, 32)
    assert_close(output["embed"].data, output["token_embed"].data[0])


# SPLADE


def test_a_combined_request_runs_the_head_over_the_vocabulary_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_splade(tmp_path)

    with opened(tmp_path) as llm:
        calls = list[int]()
        compute = SpladeHead.__call__
        monkeypatch.setattr(SpladeHead, "__call__", lambda *arguments: calls.append(1) or compute(*arguments))
        with counted(llm) as sizes:
            combined = encoded(llm, "embed&sparse_embed")
        assert len(calls) == len(sizes)
        separate = encoded(llm, "sparse_embed")

    for both, one in zip(combined, separate, strict=True):
        vector = torch.zeros(160)
        vector[both["sparse_embed"].token_ids] = torch.tensor(both["sparse_embed"].weights)
        assert torch.equal(vector, both["embed"].data)
        assert_close(one.data, both["sparse_embed"].data, atol=1e-5, rtol=0)


@pytest.mark.parametrize("activation", ["relu", "log1p_relu"])
@pytest.mark.parametrize("strategy", ["max", "sum"])
@pytest.mark.parametrize("family", ["Bert", "DistilBert"])
def test_splade_matches_sentence_transformers(family: Any, strategy: Any, activation: Any, tmp_path: Path) -> None:
    (tmp_path / "encoder").mkdir()
    save_tiny(tmp_path / "encoder", f"{family}ForMaskedLM")
    parts = [Transformer(str(tmp_path / "encoder"), transformer_task="fill-mask"), SpladePooling(strategy, activation)]
    model = SparseEncoder(modules=parts, device="cpu")
    model.save(str(tmp_path / "whole"), create_model_card=False)
    expected = model.encode(TEXTS, convert_to_sparse_tensor=False, show_progress_bar=False)

    with opened(tmp_path / "whole") as llm:
        assert llm.supported_tasks == ("embed", "token_embed", "sparse_embed")
        dense = [output.outputs.data for output in llm.embed(TEXTS, use_tqdm=False)]
        pairs = llm.sparse_embed(TEXTS, use_tqdm=False)

    assert_same(dense, list(expected))
    for output, vector in zip(pairs, expected, strict=True):
        assert output.outputs.token_ids == vector.nonzero()[:, 0].tolist()
        assert output.outputs.weights == pytest.approx(vector[vector > 0].tolist(), abs=1e-4)
        assert 0 < len(output.outputs.token_ids) < 160


def test_the_older_layout_reads_the_same(tmp_path: Path) -> None:
    reference = tiny_splade(tmp_path, pooling_strategy="sum", activation_function="log1p_relu")

    with opened(tmp_path) as llm:
        actual = [output.data for output in encoded(llm, "embed", SEQUENCES)]

    assert_same(actual, [rows.relu().log1p().log1p().sum(0) for rows in compute_logits(reference)])


@pytest.mark.parametrize("family", ["Bert", "DistilBert"])
def test_the_vllm_name_makes_a_masked_language_model_splade(family: str, tmp_path: Path) -> None:
    reference = save_tiny(tmp_path, f"{family}ForMaskedLM")

    with opened(tmp_path, hf_overrides={"architectures": [f"{family}SpladeSparseEmbeddingModel"]}) as llm:
        actual = [output.data for output in encoded(llm, "embed", SEQUENCES)]
        rows = [output.data for output in encoded(llm, "token_embed", SEQUENCES, RAW)]

    assert_same(actual, [row.relu().log1p().amax(0) for row in compute_logits(reference)])
    assert_same(rows, compute_hidden_states(reference))


@pytest.mark.parametrize("strategy", ["max", "sum"])
def test_logits_are_computed_in_chunks(strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_splade(tmp_path, pooling_strategy=strategy)

    with opened(tmp_path) as llm:
        whole = [output.data for output in encoded(llm, "sparse_embed", SEQUENCES)]
        widest = list[int]()
        splade = llm.engine.model.pooler.heads.splade
        assert isinstance(splade, SpladeHead) and splade.head.norm is not None
        norm = splade.head.norm

        def record_rows(states: Any) -> Any:
            widest.append(len(states))
            return norm(states)

        monkeypatch.setattr(splade.head, "norm", record_rows)
        monkeypatch.setattr(sparse, "MAX_LOGITS", 160 * 15)
        pieces = [output.data for output in encoded(llm, "sparse_embed", SEQUENCES)]

    assert max(widest) <= 15 < max(map(len, SEQUENCES))
    assert_same(pieces, whole)


def test_splade_vectors_are_as_wide_as_the_vocabulary(tmp_path: Path) -> None:
    tiny_splade(tmp_path)

    with opened(tmp_path) as llm:
        assert llm.engine.model_info.embedding_size == llm.model_config.embedding_size == 160
        with pytest.raises(Unsupported, match="does not support matryoshka"):
            encoded(llm, "embed", TEXTS, PoolingParams(dimensions=8))
        with pytest.raises(BadRequest, match="does not support"):
            encoded(llm, "sparse_embed", TEXTS, RAW)


def test_splade_does_not_average_chunks(tmp_path: Path) -> None:
    tiny_splade(tmp_path)

    with pytest.raises(LoadError, match="enable_chunked_processing is not supported for SPLADE models"):
        LLM(str(tmp_path), pooler_config=PoolerConfig(enable_chunked_processing=True))


@pytest.mark.parametrize(
    ("modules", "words"),
    [
        (["MLMTransformer", "SpladePooling", "Normalize"], "MLMTransformer, SpladePooling, Normalize is not supported"),
        (["MLMTransformer"], "MLMTransformer is not supported"),
        (["MLMTransformer", "Pooling"], "MLMTransformer, Pooling is not supported"),
    ],
)
def test_modules_that_make_no_splade_are_refused(modules: list[str], words: str, tmp_path: Path) -> None:
    tiny_splade(tmp_path)
    listed = [{"type": f"sentence_transformers.models.{name}", "path": ""} for name in modules]
    (tmp_path / "modules.json").write_text(json.dumps(listed))

    with pytest.raises(LoadError, match=words):
        LLM(str(tmp_path))


@pytest.mark.parametrize("is_tied", [True, False])
def test_a_decoder_with_splade_modules_weighs_the_vocabulary_by_its_lm_head(is_tied: bool, tmp_path: Path) -> None:
    models_2026.splade_code(tmp_path)
    if not is_tied:
        save_tiny(tmp_path, "Qwen3ForCausalLM", is_causal=False, tie_word_embeddings=False)
    reference = Qwen3ForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert reference.config.is_causal is False
    assert is_tied == (reference.lm_head.weight is reference.model.embed_tokens.weight)

    with opened(tmp_path) as llm:
        assert llm.supported_tasks == ("embed", "token_embed", "sparse_embed")
        actual = [output.data for output in encoded(llm, "embed", SEQUENCES)]

    assert_same(actual, [rows.relu().log1p().amax(0) for rows in compute_logits(reference)])


def test_a_decoder_that_changes_its_logits_makes_no_splade(tmp_path: Path) -> None:
    models_2026.splade_code(tmp_path)
    change_config(tmp_path, final_logit_softcapping=30.0)

    with pytest.raises(LoadError, match="config.json: final_logit_softcapping is 30.0, which is not supported"):
        LLM(str(tmp_path), dtype="float32", device="cpu")


@pytest.mark.parametrize(("key", "value"), [("pooling_strategy", "mean"), ("activation_function", "tanh")])
def test_an_unknown_splade_setting_is_refused(key: str, value: str, tmp_path: Path) -> None:
    tiny_splade(tmp_path, **{key: value})

    with pytest.raises(LoadError, match=f"unknown {key} {value!r}; expected one of: "):
        LLM(str(tmp_path))


# masked language models


@pytest.mark.parametrize("family", ["Bert", "DistilBert"])
def test_a_masked_language_model_returns_vocabulary_logits_per_token(family: str, tmp_path: Path) -> None:
    reference = save_tiny(tmp_path, f"{family}ForMaskedLM")

    with opened(tmp_path) as llm:
        assert llm.supported_tasks == ("token_classify", "embed", "token_embed")
        probabilities = [output.data for output in encoded(llm, "token_classify", SEQUENCES)]
        vectors = [output.data for output in encoded(llm, "embed", SEQUENCES)]
        rows = [output.data for output in encoded(llm, "token_embed", SEQUENCES)]

    assert_same(probabilities, [row.softmax(-1) for row in compute_logits(reference)])
    assert_same(rows, [F.normalize(row, dim=-1) for row in compute_hidden_states(reference)])
    assert_same(vectors, [row[0] for row in rows])


# scores


@pytest.mark.parametrize("make", [tiny_bge_m3, tiny_splade])
def test_the_sparse_score_is_the_product_of_two_sparse_vectors(make: Callable[[Path], Any], tmp_path: Path) -> None:
    make(tmp_path)

    with opened(tmp_path) as llm:
        scores = [output.outputs.score for output in llm.score(TEXTS[0], TEXTS, score_type="sparse", use_tqdm=False)]
        found = [
            dict(zip(output.outputs.token_ids, output.outputs.weights, strict=True))
            for output in llm.sparse_embed(TEXTS, use_tqdm=False)
        ]

    expected = [sum(weight * found[0].get(token, 0.0) for token, weight in each.items()) for each in found]
    assert scores == pytest.approx(expected, abs=1e-4)
    assert expected[0] > 0


def test_splade_scores_by_sparse_vectors_and_bge_m3_by_dense_ones_by_default(tmp_path: Path) -> None:
    for name, make in (("splade", tiny_splade), ("m3", tiny_bge_m3)):
        (tmp_path / name).mkdir()
        make(tmp_path / name)

    with opened(tmp_path / "splade") as splade, opened(tmp_path / "m3") as m3:
        assert splade.engine.model_info.score_types == ("sparse", "bi-encoder", "late-interaction")
        assert m3.engine.model_info.score_types == ("bi-encoder", "late-interaction", "sparse")


# outputs


def test_an_output_has_ids_weights_and_tokens_and_survives_pickling(tmp_path: Path) -> None:
    tiny_bge_m3(tmp_path)

    with opened(tmp_path) as llm:
        (output,) = llm.sparse_embed(TEXTS[0], use_tqdm=False)
        (combined,) = encoded(llm, "embed&sparse_embed", TEXTS[0])
        vocabulary = llm.get_tokenizer()
        copies = [pickle.loads(pickle.dumps(each)) for each in (output.outputs, combined["sparse_embed"])]
        restored = pickle.loads(pickle.dumps(combined))

    assert output.outputs.tokens == [vocabulary.id_to_token(token) for token in output.outputs.token_ids]
    assert set(output.outputs.tokens) <= {"the", "cat", "and", "dog", "bird"}
    for copy in copies:
        assert copy.tokens == output.outputs.tokens
        assert copy.weights == pytest.approx(output.outputs.weights, abs=1e-5)
    assert torch.equal(restored["embed"].data, combined["embed"].data)
