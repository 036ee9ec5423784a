"""Qwen3-VL as embedder, reranker and multi-vector retriever equals Transformers on the same inputs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import PIL.Image
import pytest
import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.functional import normalize
from torch.testing import assert_close
from transformers import Qwen3VLForConditionalGeneration, Qwen3VLModel

from cenote import LLM
from cenote.errors import LoadError
from cenote.inputs.pairs import render_pair
from cenote.loading.rerankers import load_builtin_template
from cenote.protocol.input_types import TextPair
from tests.api.app_client import make_client
from tests.api.image_helpers import image_part
from tests.factories import LLMFactory
from tests.models.parity import assert_same
from tests.models.tiny_qwen3_vl import (
    IMAGE,
    INPUTS,
    SQUARE,
    WIDE,
    save_tiny_colqwen3,
    save_tiny_qwen3_vl,
    states_of,
)
from tests.tiny import change_config

OVERRIDES = {
    "architectures": ["Qwen3VLForSequenceClassification"],
    "classifier_from_token": ["no", "yes"],
    "is_original_qwen3_reranker": True,
}


class Tiny(NamedTuple):
    llm: LLM
    reference: Qwen3VLForConditionalGeneration
    folder: Path

    def states(self, prompt: str, images: Sequence[PIL.Image.Image] = ()) -> Tensor:
        return states_of(self.reference, self.folder, prompt, images)


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory, open_llm: LLMFactory) -> Tiny:
    folder = tmp_path_factory.mktemp("embedder")
    reference = save_tiny_qwen3_vl(folder)
    return Tiny(open_llm(folder), reference, folder)


@pytest.fixture(scope="module")
def retriever(tmp_path_factory: pytest.TempPathFactory, open_llm: LLMFactory) -> tuple[Tiny, torch.nn.Linear]:
    folder = tmp_path_factory.mktemp("retriever")
    reference, projection = save_tiny_colqwen3(folder)
    return Tiny(open_llm(folder), reference, folder), projection


def asked(prompt: str, images: Sequence[PIL.Image.Image], **more: Any) -> Any:
    return {"prompt": prompt, "multi_modal_data": {"image": list(images)}, **more} if images else prompt


def token_vectors(llm: LLM) -> list[Tensor]:
    prompts = [asked(prompt, images) for prompt, images in INPUTS]
    return [out.outputs.data.float() for out in llm.encode(prompts, pooling_task="token_embed", use_tqdm=False)]


# embeddings


def test_texts_and_images_in_one_batch_equal_transformers(embedder: Tiny) -> None:
    prompts = [asked(prompt, images) for prompt, images in INPUTS]

    outputs = embedder.llm.embed(prompts, use_tqdm=False)

    expected = [normalize(embedder.states(*item)[-1], dim=-1) for item in INPUTS]
    assert_same([torch.tensor(output.outputs.embedding) for output in outputs], expected)
    assert [len(output.prompt_token_ids) for output in outputs] == [len(embedder.states(*item)) for item in INPUTS]


def test_every_token_of_a_prompt_with_an_image_equals_transformers(embedder: Tiny) -> None:
    expected = [normalize(embedder.states(*item), dim=-1) for item in INPUTS]

    assert_same(token_vectors(embedder.llm), expected)


def test_a_conversation_is_written_by_the_checkpoints_own_template(embedder: Tiny) -> None:
    messages = [
        {"role": "system", "content": "search the city"},
        {"role": "user", "content": [image_part(WIDE), {"type": "text", "text": "a red bird"}]},
    ]

    reply = make_client(embedder.llm).post("/v1/embeddings", json={"messages": messages})

    assert reply.status_code == 200, reply.text
    prompt = f"<|im_start|>system\nsearch the city<|im_end|>\n<|im_start|>user\n{IMAGE}a red bird<|im_end|>\n"
    expected = normalize(embedder.states(prompt, [WIDE])[-1], dim=-1)
    assert_close(torch.tensor(reply.json()["data"][0]["embedding"]), expected, atol=1e-4, rtol=0)


def test_a_request_may_ask_for_fewer_pixels(embedder: Tiny) -> None:
    usual, smaller = (
        embedder.llm.embed([asked(IMAGE, [WIDE], mm_processor_kwargs=options)], use_tqdm=False)[0]
        for options in ({}, {"max_pixels": 16 * 16 * 4})
    )

    assert len(smaller.prompt_token_ids) < len(usual.prompt_token_ids)


def test_the_backbone_by_itself_has_other_names_for_the_same_weights(embedder: Tiny, tmp_path: Path) -> None:
    save_tiny_qwen3_vl(tmp_path)
    inner = embedder.reference.model
    assert isinstance(inner, Qwen3VLModel)
    inner.save_pretrained(tmp_path)

    with LLM(str(tmp_path), dtype="float32") as llm:
        assert llm.engine.model_info.architecture == "Qwen3VLModel"
        assert_same(token_vectors(llm), [normalize(embedder.states(*item), dim=-1) for item in INPUTS])


def test_files_of_older_programs_write_rotary_positions_elsewhere(embedder: Tiny, tmp_path: Path) -> None:
    save_tiny_qwen3_vl(tmp_path)
    text = embedder.reference.config.text_config.to_dict()
    turning = text.pop("rope_parameters")
    text |= {"rope_theta": turning.pop("rope_theta"), "rope_scaling": turning}
    change_config(tmp_path, text_config=text)

    with LLM(str(tmp_path), dtype="float32") as llm:
        assert_same(token_vectors(llm), [normalize(embedder.states(*item), dim=-1) for item in INPUTS])


# rerankers


def prompt_of(query: str, document: str) -> str:
    return (
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
        'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
        "<Instruct>: Given a search query, retrieve relevant candidates that answer the query."
        f"<Query>:{query}\n<Document>:{document}<|im_end|>\n<|im_start|>assistant\n"
    )


def yes_against_no(reference: Qwen3VLForConditionalGeneration, folder: Path, state: Tensor) -> Tensor:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    yes, no = (reference.lm_head(state)[tokenizer.token_to_id(word)] for word in ("yes", "no"))
    return torch.sigmoid(yes - no)


@pytest.mark.parametrize("tied", [False, True])
def test_a_reranker_reads_images_in_its_documents(tied: bool, tmp_path: Path) -> None:
    folder = tmp_path / ("Qwen3-VL-Reranker-2B" if tied else "other")
    folder.mkdir()
    reference = save_tiny_qwen3_vl(folder, tied=tied)
    documents = ["the old river", {"content": [image_part(SQUARE), {"type": "text", "text": "a fish"}]}]

    with LLM(str(folder), dtype="float32", hf_overrides=None if tied else OVERRIDES) as llm:
        scores = [output.outputs.score for output in llm.score("where is it", documents, use_tqdm=False)]

    states = [
        states_of(reference, folder, prompt_of("where is it", "the old river"))[-1],
        states_of(reference, folder, prompt_of("where is it", f"{IMAGE}\na fish"), [SQUARE])[-1],
    ]
    expected = torch.stack([yes_against_no(reference, folder, state) for state in states])
    assert_close(torch.tensor(scores), expected, atol=1e-4, rtol=0)


def test_the_template_writes_every_blank_and_line_that_the_model_was_trained_with() -> None:
    written = render_pair(TextPair("where", "there"), {}, load_builtin_template("qwen3_vl_reranker"))

    assert written == prompt_of("where", "there")


# token embeddings


def without_outer(name: str) -> str:
    return name.removeprefix("model.")


def nested(name: str) -> str:
    return name.removeprefix("model.").replace("language_model.", "language_model.model.")


CASES: dict[str, dict[str, Any]] = {
    "Tomoro's": {},
    "without a bias": {"projection": "custom_text_proj", "bias": False, "renamed": str, "embed_dim": None, "dim": 8},
    "OpenSearch's": {
        "architecture": "OpsColQwen3Model",
        "projection": "custom_text_proj",
        "renamed": without_outer,
        "dims": 8,
    },
    "nested": {"architecture": "OpsColQwen3Model", "projection": "custom_text_proj", "renamed": nested},
    "NVIDIA's": {"architecture": "Qwen3VLNemotronEmbedModel", "projection": "", "renamed": str, "embed_dim": None},
}


@pytest.mark.parametrize("case", CASES)
def test_every_publishers_names_are_read(case: str, tmp_path: Path) -> None:
    reference, layer = save_tiny_colqwen3(tmp_path, **CASES[case])
    project = layer if case != "NVIDIA's" else torch.nn.Identity()

    with LLM(str(tmp_path), dtype="float32") as llm:
        actual = token_vectors(llm)

    assert_same(actual, [normalize(project(states_of(reference, tmp_path, *item)), dim=-1) for item in INPUTS])


def test_the_text_config_decides_whether_tokens_see_what_follows(tmp_path: Path) -> None:
    reference, _ = save_tiny_colqwen3(tmp_path, **CASES["NVIDIA's"])
    change_config(tmp_path, text_config=reference.config.text_config.to_dict() | {"is_causal": False})
    reference.model.language_model.config.is_causal = False

    with LLM(str(tmp_path), dtype="float32") as llm:
        actual = token_vectors(llm)

    assert_same(actual, [normalize(states_of(reference, tmp_path, *item), dim=-1) for item in INPUTS])


def test_a_query_is_matched_with_images_token_by_token(retriever: tuple[Tiny, torch.nn.Linear]) -> None:
    tiny, projection = retriever
    documents = ["the old river", {"content": [image_part(SQUARE), {"type": "text", "text": "a fish"}]}]

    scores = [output.outputs.score for output in tiny.llm.score("where is it", documents, use_tqdm=False)]

    query, *others = (
        normalize(projection(tiny.states(prompt, images)), dim=-1)
        for prompt, images in (("where is it", []), ("the old river", []), (f"{IMAGE}\na fish", [SQUARE]))
    )
    expected = torch.stack([(query @ other.T).amax(dim=1).sum() for other in others])
    assert_close(torch.tensor(scores), expected, atol=1e-4, rtol=0)


def test_a_checkpoint_without_its_projection_is_refused(tmp_path: Path) -> None:
    save_tiny_colqwen3(tmp_path, projection="")

    with pytest.raises(LoadError, match="custom_text_proj"):
        LLM(str(tmp_path), dtype="float32")
