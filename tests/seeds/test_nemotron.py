"""Seed row `Qwen3VLNemotronEmbedModel`: nvidia/nemotron-colembed-vl-* on a tiny checkpoint of the same layout.

As published: Qwen3-VL with its language model head under the names of Transformers, attention in both directions, no
projection (an embedding is a normalised hidden state), `pooling` in config.json and prefixes in the processor's file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import PIL.Image
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import normalize
from torch.testing import assert_close
from transformers import Qwen3VLForConditionalGeneration

from cenote import LLM
from cenote.errors import Unsupported
from tests.api.app_client import make_client
from tests.api.image_helpers import data_uri
from tests.models.tiny_qwen3_vl import IMAGE, INPUTS, SQUARE, WIDE, save_tiny_qwen3_vl, states_of
from tests.tiny import change_config

QUERY = "where is the old river"


class Nemotron(NamedTuple):
    llm: LLM
    reference: Qwen3VLForConditionalGeneration
    folder: Path

    def token_embeddings(self, prompt: str, images: Sequence[PIL.Image.Image] = ()) -> Tensor:
        return normalize(states_of(self.reference, self.folder, prompt, images), dim=-1)

    def max_sim(self, query: Tensor, document: Tensor) -> float:
        return float((query @ document.T).amax(dim=1).sum())


@pytest.fixture(scope="module")
def nemotron(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nemotron]:
    folder = tmp_path_factory.mktemp("nemotron-colembed-vl-4b-v2")
    reference = save_tiny_qwen3_vl(folder)
    reference.model.language_model.config.is_causal = False
    change_config(
        folder,
        architectures=["Qwen3VLNemotronEmbedModel"],
        model_type="qwen3_vl_nemotron_embed",
        auto_map={"AutoModel": "modeling_qwen3_vl_nemotron_embed.Qwen3VLNemotronEmbedModel"},
        pooling="colbert",
        text_config=reference.config.text_config.to_dict() | {"is_causal": False},
    )
    processor = {"processor_class": "Qwen3VLNemotronEmbedProcessor", "q_max_length": 512, "p_max_length": 4096}
    (folder / "processor_config.json").write_text(json.dumps(processor | {"query_prefix": "query:"}))
    with LLM(str(folder), dtype="float32", device="cpu", runner="pooling", trust_remote_code=True) as llm:
        yield Nemotron(llm, reference, folder)


def image_part(image: PIL.Image.Image) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_uri(image)}}


def test_the_checkpoint_has_the_published_weight_names(nemotron: Nemotron) -> None:
    names = set(load_file(nemotron.folder / "model.safetensors"))

    assert {"lm_head.weight", "model.language_model.embed_tokens.weight", "model.visual.pos_embed.weight"} <= names
    assert not any("proj_layer" in name or "text_proj" in name for name in names)


def test_nemotron_token_embed_of_texts_and_images(nemotron: Nemotron) -> None:
    assert nemotron.llm.supported_tasks == ("token_embed",)
    prompts = [
        {"prompt": text, "multi_modal_data": {"image": list(images)}} if images else text for text, images in INPUTS
    ]

    outputs = nemotron.llm.encode(prompts, pooling_task="token_embed", use_tqdm=False)

    for output, (text, images) in zip(outputs, INPUTS, strict=True):
        assert_close(output.outputs.data, nemotron.token_embeddings(text, images), atol=1e-4, rtol=0)
    with pytest.raises(Unsupported, match="Unsupported|not supported"):
        nemotron.llm.classify("a", use_tqdm=False)


def test_nemotron_attends_in_both_directions(nemotron: Nemotron) -> None:
    short, long = (
        output.outputs.data[0]
        for output in nemotron.llm.encode(["the", "the fish"], pooling_task="token_embed", use_tqdm=False)
    )

    assert (short - long).abs().max() > 0.01


def test_nemotron_score_of_texts_and_images(nemotron: Nemotron) -> None:
    documents = ["the river is old", {"content": [image_part(WIDE)]}, {"content": [image_part(SQUARE)]}]
    query = nemotron.token_embeddings(QUERY)
    expected = [
        nemotron.max_sim(query, nemotron.token_embeddings(text, images))
        for text, images in (("the river is old", []), (IMAGE, [WIDE]), (IMAGE, [SQUARE]))
    ]

    offline = [output.outputs.score for output in nemotron.llm.score(QUERY, documents, use_tqdm=False)]
    reply = make_client(nemotron.llm).post("/score", json={"data_1": QUERY, "data_2": documents})

    assert offline == pytest.approx(expected, abs=1e-3)
    assert [item["score"] for item in reply.json()["data"]] == pytest.approx(expected, abs=1e-3)


def test_nemotron_rerank_and_pooling_routes(nemotron: Nemotron) -> None:
    client = make_client(nemotron.llm)
    documents = ["the river is old", {"content": [image_part(WIDE)]}]

    ranked = client.post("/rerank", json={"query": QUERY, "documents": documents, "top_n": 1}).json()["results"]
    messages = [{"role": "user", "content": [image_part(WIDE), {"type": "text", "text": "a fish"}]}]
    pooled = client.post("/pooling", json={"messages": messages}).json()["data"][0]["data"]

    query = nemotron.token_embeddings(QUERY)
    scores = [
        nemotron.max_sim(query, nemotron.token_embeddings(text, images))
        for text, images in (("the river is old", []), (IMAGE, [WIDE]))
    ]
    assert ranked[0]["index"] == scores.index(max(scores))
    assert ranked[0]["relevance_score"] == pytest.approx(max(scores), abs=1e-3)
    prompt = f"<|im_start|>user\n{IMAGE}a fish<|im_end|>\n"
    assert_close(torch.tensor(pooled), nemotron.token_embeddings(prompt, [WIDE]), atol=1e-4, rtol=0)
