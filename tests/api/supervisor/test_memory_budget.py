"""What a model will need is estimated from the files in its folder, of which a few are looked at."""

from __future__ import annotations

from pathlib import Path

from cenote.api.supervisor.memory_keeper import estimate_weights
from cenote.config.model_table import ModelTable


def write(file: Path, num_bytes: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(bytes(num_bytes))


def test_weights_deep_in_a_folder_are_not_searched_for(tmp_path: Path) -> None:
    write(tmp_path / "model-1.safetensors", 100)
    write(tmp_path / "part" / "model-2.safetensors", 10)
    write(tmp_path / "a" / "b" / "model-3.safetensors", 1)

    (entry,) = ModelTable.from_sources([str(tmp_path)], {}).entries

    assert estimate_weights(entry) == 110


def test_a_link_to_a_file_that_is_gone_is_left_to_the_engine_process(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "blob")

    (entry,) = ModelTable.from_sources([str(tmp_path)], {}).entries

    assert estimate_weights(entry) == 0
