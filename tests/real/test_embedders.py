"""Real embedders return the embeddings of Sentence Transformers for many kinds of text, alone and batched."""

from __future__ import annotations

import csv
import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer
from torch import Tensor
from torch.nn import functional as F

from cenote import LLM
from tests.real.conftest import model_folder, shared_folder
from tests.real.texts import TEXTS

MODELS = ("default", "granite-embedding-30m-english")
TRUNCATE = {"truncate_prompt_tokens": -1}  # Sentence Transformers truncates by default


def opened(name: str, **options: Any) -> LLM:
    folder = model_folder(name)  # also for the default model: skips if it is not installed
    return LLM(None if name == "default" else str(folder), device="cpu", **options)


def embedded(llm: LLM, texts: list[str]) -> Tensor:
    return torch.stack([item.outputs.data for item in llm.embed(texts, use_tqdm=False, tokenization_kwargs=TRUNCATE)])


def cosines(actual: Tensor, expected: Tensor) -> Tensor:
    return F.cosine_similarity(actual.double(), expected.double())


@pytest.fixture(scope="module", params=MODELS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def llm(name: str) -> Iterator[LLM]:
    with opened(name, dtype="float32") as llm:
        yield llm


@pytest.fixture(scope="module")
def reference(name: str) -> Callable[[list[str]], Tensor]:
    precise = {"dtype": torch.float32}
    model = SentenceTransformer(str(model_folder(name)), device="cpu", local_files_only=True, model_kwargs=precise)
    return lambda texts: model.encode(texts, batch_size=8, convert_to_tensor=True, show_progress_bar=False)


@pytest.fixture(scope="module")
def expected(reference: Callable[[list[str]], Tensor]) -> Tensor:
    """Embeddings of all texts by Sentence Transformers."""
    return reference(TEXTS)


def test_every_text_gets_the_embedding_of_sentence_transformers(llm: LLM, expected: Tensor) -> None:
    actual = embedded(llm, TEXTS)

    for text, cosine in zip(TEXTS, cosines(actual, expected).tolist(), strict=True):
        assert cosine >= 0.99999, f"{cosine} for {text[:40]!r}"
    assert (actual - expected).abs().max() < 1e-5


@pytest.mark.slow
def test_bfloat16_stays_as_close_as_it_can(name: str, expected: Tensor) -> None:
    with opened(name, dtype="bfloat16") as llm:
        actual = embedded(llm, TEXTS)

    for text, cosine in zip(TEXTS, cosines(actual, expected).tolist(), strict=True):
        assert cosine >= 0.9995, f"{cosine} for {text[:40]!r}"


@pytest.mark.slow
def test_the_batch_changes_nothing(llm: LLM) -> None:
    words = " ".join(TEXTS[:38]).split()
    draw = random.Random(5)
    mates = [" ".join(draw.choices(words, k=draw.randint(1, 60))) for _ in range(64)]
    probes = TEXTS[:6] + TEXTS[36:]

    alone = torch.cat([embedded(llm, [text]) for text in probes])
    place = 31
    together = embedded(llm, mates[:place] + probes + mates[place:])[place : place + len(probes)]

    assert (alone - together).abs().max() <= 2.1e-6


def test_similar_sentences_get_similar_ranks(llm: LLM, reference: Callable[[list[str]], Tensor]) -> None:
    file = shared_folder("data", "stsb-ccbysa") / "stsb_images_track5.tsv"
    with file.open(newline="") as lines:
        rows = list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))[-100:]
    sides = [[row["sentence1"] for row in rows], [row["sentence2"] for row in rows]]
    gold = [float(row["score"]) for row in rows]

    actual = spearmanr(cosines(*(embedded(llm, side) for side in sides)), gold).statistic
    expected = spearmanr(cosines(*(reference(side) for side in sides)), gold).statistic

    assert actual == pytest.approx(expected, abs=1e-3)
    assert actual > 0.7


def copied(folder: Path, *, without: tuple[str, ...]) -> Path:
    """A copy of the default model without some files."""
    shutil.copytree(model_folder("default"), folder, ignore=shutil.ignore_patterns(*without))
    return folder


def assert_embeds_like_the_default(folder: Path) -> None:
    texts = TEXTS[:34]
    with opened("default", dtype="float32") as default, LLM(str(folder), dtype="float32", device="cpu") as other:
        first, second = (llm.embed(texts, use_tqdm=False) for llm in (default, other))
    for text, one, two in zip(texts, first, second, strict=True):
        assert one.prompt_token_ids == two.prompt_token_ids, text
        assert torch.equal(one.outputs.data, two.outputs.data)


def test_a_folder_with_nothing_but_a_vocabulary_tokenizes_the_same(tmp_path: Path) -> None:
    folder = copied(tmp_path / "model", without=("tokenizer.json",))
    assert (folder / "vocab.txt").is_file()

    assert_embeds_like_the_default(folder)


def test_a_folder_of_an_older_age_loads_the_same(tmp_path: Path) -> None:
    folder = copied(tmp_path / "model", without=("model.safetensors",))
    tensors = load_file(model_folder("default") / "model.safetensors")
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}

    def older(name: str) -> str:
        for today, before in old.items():
            name = name.replace(today, before)
        return f"bert.{name}"

    save_file({older(name): tensor for name, tensor in tensors.items()}, folder / "model.safetensors")

    assert_embeds_like_the_default(folder)


def test_the_default_model_needs_no_name() -> None:
    with opened("default") as llm:
        output = llm.embed("The harbour was empty when the last ferry left.", use_tqdm=False)[0]

    assert len(output.outputs.embedding) == 384
    assert sum(x * x for x in output.outputs.embedding) == pytest.approx(1, abs=1e-4)
    assert json.loads((model_folder("default") / "config.json").read_text())["hidden_size"] == 384
