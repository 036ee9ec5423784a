"""Published Matryoshka models are recognised by their names and files, without an override."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from cenote import LLM, PoolingParams
from cenote.config.engine import EngineConfig
from cenote.errors import BadRequest, Unsupported
from cenote.loading.describe import describe_model
from cenote.protocol.matryoshka import Matryoshka
from tests.tiny import TEXTS, change_config, compute_hidden_states, tiny_bert

ANY_SIZE = "Qwen3-Embedding-0.6B"


def read_matryoshka(folder: Path, **overrides: object) -> Matryoshka:
    return describe_model(EngineConfig(model=str(folder), hf_overrides=overrides)).plan.matryoshka


@pytest.mark.parametrize(
    ("name", "size", "sizes", "min_size"),
    [
        ("nomic-embed-text-v1.5", 768, (), 64),
        ("mxbai-embed-large-v1", 1024, (), 64),
        (ANY_SIZE, 1024, (), 32),
        ("embeddinggemma-300m", 768, (128, 256, 512, 768), 1),
        ("snowflake-arctic-embed-m-v1.5", 768, (256, 768), 1),
        ("snowflake-arctic-embed-l-v2.0", 1024, (256, 1024), 1),
        ("jina-embeddings-v5-text-nano", 768, (32, 64, 128, 256, 512, 768), 1),
        ("jina-code-embeddings-0.5b", 896, (64, 128, 256, 512, 896), 1),
        ("jina-code-embeddings-1.5b", 1536, (128, 256, 512, 1024, 1536), 1),
        ("granite-embedding-311m-multilingual-r2", 768, (128, 256, 384, 512, 768), 1),
        ("pplx-embed-v1-4b", 2560, (), 128),
        ("voyage-4-nano", 2048, (256, 512, 1024, 2048), 1),
    ],
)
def test_a_published_model_is_recognised_by_its_folder(
    name: str, size: int, sizes: tuple[int, ...], min_size: int, tmp_path: Path
) -> None:
    folder = tmp_path / name
    folder.mkdir()
    tiny_bert(folder)
    change_config(folder, hidden_size=size)

    found = read_matryoshka(folder)

    has_layer_norm = name.startswith("nomic-embed-text")
    assert found == Matryoshka(True, sizes, size, min_size, f"the name {name}", has_layer_norm=has_layer_norm)


def test_files_identify_a_model_whose_folder_has_another_name(tmp_path: Path) -> None:
    tiny_bert(tmp_path)

    assert not read_matryoshka(tmp_path).is_supported
    assert read_matryoshka(tmp_path, _name_or_path="Qwen/Qwen3-Embedding-4B").source == (
        "config.json _name_or_path Qwen/Qwen3-Embedding-4B"
    )
    (tmp_path / "README.md").write_text("---\nmodel-index:\n- name: mxbai-embed-large-v1\n---\n")
    assert read_matryoshka(tmp_path).source == "README.md model-index mxbai-embed-large-v1"
    (tmp_path / "README.md").write_text("---\ntags:\n- loss:MatryoshkaLoss\n---\n")
    assert read_matryoshka(tmp_path).source == "README.md tag loss:MatryoshkaLoss"


def test_a_fine_tuned_model_is_not_its_base_model(tmp_path: Path) -> None:
    tiny_bert(tmp_path)
    (tmp_path / "README.md").write_text("---\nbase_model: Qwen/Qwen3-Embedding-0.6B\n---\n")

    assert not read_matryoshka(tmp_path).is_supported


def test_a_model_of_that_name_with_another_size_is_another_model(tmp_path: Path) -> None:
    folder = tmp_path / "embeddinggemma-300m"
    folder.mkdir()
    tiny_bert(folder)

    assert not read_matryoshka(folder).is_supported


def test_config_json_comes_first(tmp_path: Path) -> None:
    folder = tmp_path / ANY_SIZE
    folder.mkdir()
    tiny_bert(folder)

    assert read_matryoshka(folder, matryoshka_dimensions=[8, 16]).sizes == (8, 16)
    assert not read_matryoshka(folder, is_matryoshka=False).is_supported


def test_sizes_below_the_smallest_trained_one_are_refused() -> None:
    known = Matryoshka(True, (), 1024, min_size=32)

    known.check_dimensions(32, "m")
    with pytest.raises(BadRequest, match=r"range \[32, 1024\], got 31"):
        known.check_dimensions(31, "m")
    with pytest.raises(Unsupported, match="does not support matryoshka"):
        Matryoshka(False, (), 1024).check_dimensions(32, "m")


@pytest.mark.parametrize("normalizes", [True, False])
def test_nomic_layer_norms_before_a_cut_as_its_card_does(normalizes: bool, tmp_path: Path) -> None:
    folder = tmp_path / "nomic-embed-text-v1.5"
    folder.mkdir()
    reference = tiny_bert(folder, hidden_size=96, intermediate_size=48)
    modules = [
        {"path": path, "type": f"sentence_transformers.models.{kind}"}
        for path, kind in (("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize"))[
            : 2 + normalizes
        ]
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text('{"word_embedding_dimension": 96, "pooling_mode_mean_tokens": true}')

    with LLM(str(folder), dtype="float32", device="cpu") as llm:
        outputs = {
            size: [
                item.outputs.data
                for item in llm.embed(TEXTS, pooling_params=PoolingParams(dimensions=size), use_tqdm=False)
            ]
            for size in (None, 96, 64)
        }
        ids = [item.prompt_token_ids for item in llm.embed(TEXTS, use_tqdm=False)]

    pooled = torch.stack([rows.mean(0) for rows in compute_hidden_states(reference, ids)])
    card = F.normalize(F.layer_norm(pooled, (96,))[:, :64], dim=-1)
    whole = F.normalize(pooled, dim=-1) if normalizes else pooled
    assert_close(torch.stack(outputs[64]), card, atol=1e-4, rtol=0)
    assert_close(torch.stack(outputs[None]), whole, atol=1e-4, rtol=0)
    assert_close(torch.stack(outputs[96]), whole, atol=1e-4, rtol=0)  # nothing is cut
    assert (card - F.normalize(pooled[:, :64], dim=-1)).abs().max() > 1e-3


def test_a_pooler_config_without_activation_leaves_the_cut_of_nomic_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "nomic-embed-text-v1.5"
    folder.mkdir()
    tiny_bert(folder, hidden_size=96)

    with LLM(str(folder), dtype="float32", device="cpu", pooler_config={"use_activation": False}) as llm:
        (output,) = llm.embed(TEXTS[0], pooling_params=PoolingParams(dimensions=64), use_tqdm=False)

    assert output.outputs.data.norm() > 2  # a layer norm over 96 values
