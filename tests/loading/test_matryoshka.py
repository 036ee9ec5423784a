"""Published Matryoshka models are recognised by their names and files, without an override."""

from __future__ import annotations

from pathlib import Path

import pytest

from cenote.config.engine import EngineConfig
from cenote.errors import BadRequest, Unsupported
from cenote.loading.describe import describe_model
from cenote.protocol.matryoshka import Matryoshka
from tests.tiny import change_config, tiny_bert

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

    assert found == Matryoshka(True, sizes, size, min_size=min_size, source=f"the name {name}")


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
