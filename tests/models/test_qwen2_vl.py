"""Qwen2-VL equals Transformers on tiny random checkpoints: embedder, classifier, jina-reranker-m0, ColQwen2."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.testing import assert_close
from transformers import Qwen2VLForConditionalGeneration

from cenote import LLM, PoolingParams
from cenote.errors import LoadError
from tests.factories import LLMFactory
from tests.models.qwen2_vl import TOWER, save_colqwen2_hf
from tests.models.qwen_vl import (
    FIRST,
    INPUTS,
    PLACEHOLDER,
    TALL,
    TEXT,
    WIDE,
    assert_last_token_is_embedding,
    assert_token_states_match,
    expected_states,
    opened,
    prompts,
    reference_inputs,
    save_qwen_vl,
)
from tests.tiny import change_config, randomize

RAW = PoolingParams(use_activation=False)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("qwen2_vl")
    return folder, save_qwen_vl(folder, Qwen2VLForConditionalGeneration, TOWER)


@pytest.fixture(scope="module")
def llm(saved: tuple[Path, Any], open_llm: LLMFactory) -> LLM:
    return open_llm(saved[0])


def test_every_token_of_texts_and_images_equals_transformers(llm: LLM, saved: tuple[Path, Any]) -> None:
    assert_token_states_match(llm, saved[0], saved[1].model)


def test_the_last_token_is_the_embedding(llm: LLM, saved: tuple[Path, Any]) -> None:
    assert_last_token_is_embedding(llm, saved[0], saved[1].model)


def test_half_precision_and_int8_stay_near(llm: LLM, saved: tuple[Path, Any]) -> None:
    exact = [item.outputs.data for item in llm.encode(prompts(), pooling_task="embed", use_tqdm=False)]

    for options in ({"dtype": "bfloat16"}, {"quantization": "int8"}):
        with LLM(str(saved[0]), device="cpu", limit_mm_per_prompt={"image": 4}, **options) as rough:
            near = [item.outputs.data for item in rough.encode(prompts(), pooling_task="embed", use_tqdm=False)]

        assert min(float(one @ other) for one, other in zip(exact, near, strict=True)) > 0.97


def test_both_halves_may_go_by_their_newer_names(saved: tuple[Path, Any], llm: LLM, tmp_path: Path) -> None:
    renamed(saved[0], tmp_path, {"visual.": "model.visual.", "model.": "model.language_model."})

    with LLM(str(tmp_path), dtype="float32", device="cpu", limit_mm_per_prompt={"image": 4}) as newer:
        expected = newer.embed(prompts(), use_tqdm=False)

    for mine, other in zip(llm.embed(prompts(), use_tqdm=False), expected, strict=True):
        assert other.outputs.embedding == mine.outputs.embedding


def test_sections_that_do_not_fill_a_head_are_refused(saved: tuple[Path, Any], tmp_path: Path) -> None:
    renamed(saved[0], tmp_path, {})

    with pytest.raises(LoadError, match=r"mrope_section is \[16, 24, 24\], 64 pairs .* a head has 4"):
        LLM(str(tmp_path), device="cpu", hf_overrides={"rope_parameters": {"mrope_section": [16, 24, 24]}})


def test_a_classifier_judges_texts_with_images(saved: tuple[Path, Any], tmp_path: Path) -> None:
    folder, reference = saved
    score = head(32, 3, bias=False)
    renamed(folder, tmp_path, {}, {"score.weight": score.weight})
    change_config(tmp_path, architectures=["Qwen2VLForSequenceClassification"], num_labels=3)

    with opened(tmp_path) as llm:
        actual = llm.classify(prompts(), use_tqdm=False)

    for (text, images), mine in zip(INPUTS, actual, strict=True):
        logits = score(expected_states(reference.model, folder, text, images)[-1])
        assert_close(torch.tensor(mine.outputs.probs), logits.softmax(-1), atol=1e-4, rtol=0)


class Jina(NamedTuple):
    folder: Path
    reference: Any  # without its head
    dense: torch.nn.Linear
    last: torch.nn.Linear

    def expected(self, query: str, document: str, images: list[Any], mean: float = 2.65) -> float:
        """Return the score of a pair as in the published model: document first, score token last."""
        read = reference_inputs(self.folder, f"**Document**:\n{document}\n**Query**:\n{query}", images)
        read["input_ids"] = torch.cat((read["input_ids"], torch.tensor([[100]])), dim=1)
        read["mm_token_type_ids"] = torch.cat((read["mm_token_type_ids"], torch.tensor([[0]])), dim=1)
        with torch.inference_mode():
            last = self.reference(**read).last_hidden_state[0, -1]
            return float((self.last(self.dense(last).relu()) - mean).sigmoid())


@pytest.fixture(scope="module")
def jina(saved: tuple[Path, Any], tmp_path_factory: pytest.TempPathFactory) -> Jina:
    """Rewrite to the published layout: text config at the top level, old Qwen2-VL names, no lm_head."""
    folder = tmp_path_factory.mktemp("jina_vl")
    dense, last = head(32, 32, seed=1), head(32, 1, seed=2)
    heads = {
        f"score.{place}.{name}": value
        for place, part in ((0, dense), (2, last))
        for name, value in part.state_dict().items()
    }
    renamed(saved[0], folder, {"lm_head.": None}, heads)
    config = json.loads((folder / "config.json").read_text())
    text = config.pop("text_config")
    turning = text.pop("rope_parameters")
    flat = {"rope_theta": turning["rope_theta"], "rope_scaling": {"type": "mrope", "mrope_section": [2, 1, 1]}}
    config = {**text, **config, **flat, "architectures": ["JinaVLForRanking"]}
    (folder / "config.json").write_text(json.dumps(config))
    return Jina(folder, saved[1].model, dense, last)


@pytest.fixture(scope="module")
def reranker(jina: Jina, open_llm: LLMFactory) -> LLM:
    return open_llm(jina.folder)


def test_jinas_reranker_scores_images_and_texts_for_a_query(reranker: LLM, jina: Jina) -> None:
    mixed = {"content": [{"type": "image_pil", "image_pil": TALL}, {"type": "text", "text": "an old book"}]}
    documents = [{"image": FIRST}, "a red bird", mixed, {"image": WIDE}]

    actual = reranker.score("where is the cat?", documents, use_tqdm=False)

    read = [(PLACEHOLDER, [FIRST]), ("a red bird", []), (f"{PLACEHOLDER}\nan old book", [TALL]), (PLACEHOLDER, [WIDE])]
    reference_output = [jina.expected("where is the cat?", document, images) for document, images in read]
    assert [item.outputs.score for item in actual] == pytest.approx(reference_output, abs=1e-4)
    assert len({round(score, 3) for score in reference_output}) == len(reference_output)


def test_jinas_reranker_reads_the_images_of_the_document_before_those_of_the_query(reranker: LLM, jina: Jina) -> None:
    (actual,) = reranker.score({"image": FIRST}, {"image": TALL}, use_tqdm=False)

    assert actual.outputs.score == pytest.approx(jina.expected(PLACEHOLDER, PLACEHOLDER, [TALL, FIRST]), abs=1e-4)
    assert actual.prompt_token_ids[-1] == 100


def test_a_cut_pair_still_ends_with_the_token_that_is_judged(reranker: LLM) -> None:
    pair = ("the cat", "a red bird, a blue fish " * 20)

    (cut,) = reranker.score(*pair, tokenization_kwargs={"truncate_prompt_tokens": 60}, use_tqdm=False)

    assert len(cut.prompt_token_ids) == 60
    assert cut.prompt_token_ids[-1] == 100


def test_logit_mean_of_the_pooler_config_takes_precedence(jina: Jina) -> None:
    with LLM(str(jina.folder), dtype="float32", device="cpu", pooler_config={"logit_mean": 0.5}) as llm:
        (actual,) = llm.score("the cat", "a red bird", use_tqdm=False)

    assert actual.outputs.score == pytest.approx(jina.expected("the cat", "a red bird", [], mean=0.5), abs=1e-4)


def test_colqwen2_gives_every_token_a_short_vector(saved: tuple[Path, Any], tmp_path: Path) -> None:
    folder, _ = saved
    reference = save_colqwen2_hf(tmp_path)

    with opened(tmp_path) as llm:
        actual = llm.encode(prompts(), pooling_task="token_embed", use_tqdm=False)

    assert llm.model_config.max_model_len == TEXT["max_position_embeddings"]
    for (text, images), mine in zip(INPUTS, actual, strict=True):
        states = reference.embedding_proj_layer(expected_states(reference.vlm, folder, text, images))
        assert_close(mine.outputs.data, states / states.norm(dim=-1, keepdim=True), atol=1e-4, rtol=0)


def renamed(
    source: Path, folder: Path, prefixes: Mapping[str, str | None], added: Mapping[str, torch.Tensor] | None = None
) -> None:
    """Copy a checkpoint with other prefixes, removed tensors and additional ones."""
    shutil.copytree(source, folder, dirs_exist_ok=True)
    tensors = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        old = next((prefix for prefix in prefixes if name.startswith(prefix)), "")
        new = prefixes.get(old, "")
        if new is not None:
            tensors[new + name.removeprefix(old)] = tensor
    save_file({**tensors, **(added or {})}, folder / "model.safetensors", metadata={"format": "pt"})


def head(inputs: int, outputs: int, *, bias: bool = True, seed: int = 0) -> torch.nn.Linear:
    layer = torch.nn.Linear(inputs, outputs, bias=bias).requires_grad_(False)
    randomize(layer, seed)
    return layer
