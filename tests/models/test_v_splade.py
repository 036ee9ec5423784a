"""V-SPLADE equals its published arithmetic: pages and texts by the encoder, queries by the table of token weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.testing import assert_close

from cenote import LLM
from cenote.errors import LoadError
from tests.api.app_client import make_client
from tests.api.image_helpers import data_uri
from tests.models.modernvbert import make_image
from tests.models.v_splade import ADDED, CONFIG, NUM_WORDS, SPECIAL_IDS, TEXT, PlainModel, save_v_splade

PAGES = [make_image(80, 60), make_image(33, 120, 1), make_image(32, 32, 2)]
TEXTS = ["the cat is in the city", "a", "how big is the old river?"]
QUERIES = ["the cat", "the the the", "a [CLS] <image> [PAD] river", "<end_of_utterance>"]


@pytest.fixture(scope="module", params=[False, True], ids=["authors' files", "with modules.json"])
def loaded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[PlainModel, LLM]]:
    folder = tmp_path_factory.mktemp("sparse-pages")  # a name that says nothing
    plain = save_v_splade(folder, with_modules=request.param)
    with opened(folder) as llm:
        yield plain, llm


def opened(folder: Path) -> LLM:
    return LLM(str(folder), dtype="float32", device="cpu")


def vectors(llm: LLM, inputs: list[Any], **options: Any) -> Tensor:
    return torch.stack([item.outputs.data for item in llm.embed(inputs, use_tqdm=False, **options)])


def page(image: Any) -> dict[str, Any]:
    return {"prompt": "", "multi_modal_data": {"image": image}}


def test_pages_have_the_vectors_of_the_published_arithmetic(loaded: tuple[PlainModel, LLM]) -> None:
    plain, llm = loaded

    found = vectors(llm, [page(image) for image in PAGES])

    assert found.shape == (len(PAGES), NUM_WORDS)
    assert_close(found, torch.stack([plain.document(image) for image in PAGES]), atol=1e-4, rtol=0)


def test_texts_without_a_role_are_documents(loaded: tuple[PlainModel, LLM]) -> None:
    plain, llm = loaded

    assert_close(vectors(llm, TEXTS), torch.stack([plain.document(text) for text in TEXTS]), atol=1e-4, rtol=0)


def test_queries_add_up_the_weights_of_their_tokens(loaded: tuple[PlainModel, LLM]) -> None:
    plain, llm = loaded

    found = vectors(llm, QUERIES, input_type="query")

    assert_close(found, torch.stack([plain.query(text) for text in QUERIES]), atol=1e-5, rtol=0)
    assert found[1].count_nonzero() == 2  # "the" and " " + "the"
    assert not found[:, list(SPECIAL_IDS)].any() and not found[3].any()


def test_a_query_is_scored_against_pages_by_the_dot_product(loaded: tuple[PlainModel, LLM]) -> None:
    plain, llm = loaded
    pages = [{"content": [{"type": "image_pil", "image_pil": image}]} for image in PAGES]

    found = [item.outputs.score for item in llm.score(QUERIES[0], pages, use_tqdm=False)]

    assert found == pytest.approx([float(plain.query(QUERIES[0]) @ plain.document(image)) for image in PAGES], abs=1e-3)


def test_a_page_in_a_message_has_the_same_prompt(loaded: tuple[PlainModel, LLM]) -> None:
    plain, llm = loaded
    parts = [{"type": "image_url", "image_url": {"url": data_uri(PAGES[0])}}]

    reply = make_client(llm).post("/v1/embeddings", json={"messages": [{"role": "user", "content": parts}]})

    assert reply.status_code == 200, reply.text
    assert_close(torch.tensor(reply.json()["data"][0]["embedding"]), plain.document(PAGES[0]), atol=1e-4, rtol=0)


def test_a_config_that_counts_words_only_is_the_same_model(tmp_path: Path) -> None:
    plain = save_v_splade(tmp_path, text_config=TEXT | {"vocab_size": NUM_WORDS})

    with opened(tmp_path) as llm:
        assert_close(vectors(llm, TEXTS[:1])[0], plain.document(TEXTS[0]), atol=1e-4, rtol=0)


def test_the_dense_model_of_that_architecture_is_still_refused(tmp_path: Path) -> None:
    save_v_splade(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    kept = {name.removeprefix("encoder.encoder."): tensors[name] for name in tensors if ".model." in name}
    save_file(kept, file)

    with pytest.raises(
        LoadError, match="config.json: BiModernVBert is not supported: bimodernvbert .*use ModernVBERT/"
    ):
        opened(tmp_path).close()


def test_the_additional_tokens_are_those_of_the_published_model() -> None:
    assert len(ADDED) == 40 and CONFIG["image_token_id"] == NUM_WORDS + len(ADDED) - 1
