"""Every setting and file that affects outputs changes its key in the result cache."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from cenote.config.engine import EngineConfig
from cenote.config.pooler import PoolerConfig
from cenote.kernels.cpu_features import CPUFeatures
from cenote.loading import cache_key as module
from cenote.loading import number_formats
from cenote.loading.cache_key import compute_cache_key
from cenote.loading.describe import describe_model
from tests.tiny import change_config, tiny_bert

SMALL = 10_000  # so that the weights (60 kB) count as a large file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny_bert(tmp_path)
    return tmp_path


def key_of(folder: Path, **options: Any) -> bytes:
    config = EngineConfig(model=str(folder), device="cpu", **options)
    return compute_cache_key(describe_model(config), config)


def test_the_same_model_has_the_same(folder: Path) -> None:
    assert key_of(folder) == key_of(folder, served_model_name="other name", max_num_seqs=3)


def test_options_that_affect_outputs_change_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    every_unit = CPUFeatures("x86", frozenset({"amx_tile", "amx_bf16", "amx_int8"}))
    monkeypatch.setattr(number_formats, "cpu_features", lambda: every_unit)
    options: list[dict[str, Any]] = [
        {"dtype": "float32"},
        {"dtype": "bfloat16"},
        {"dtype": "float32", "quantization": "int8"},
        {"dtype": "float32", "pooler_config": PoolerConfig(pooling_type="MEAN")},
        {"dtype": "float32", "pooler_config": PoolerConfig(use_activation=False)},
        {"dtype": "float32", "hf_overrides": {"layer_norm_eps": 0.5}},
    ]

    assert len({key_of(folder, **each) for each in options}) == len(options)


def test_what_a_cpu_computes_in_the_same_way_is_the_same(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(number_formats, "cpu_features", lambda: CPUFeatures("arm", frozenset()))

    plain = key_of(folder, dtype="float32")

    assert plain == key_of(folder, dtype="bfloat16")
    assert plain != key_of(folder, dtype="float32", quantization="int8")  # weights are quantized on every CPU


def test_other_weights_show_in_small_files_and_in_large_ones(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = folder / "model.safetensors"
    for whole_bytes in (module.MAX_FULL_READ_BYTES, SMALL):
        monkeypatch.setattr(module, "MAX_FULL_READ_BYTES", whole_bytes)
        monkeypatch.setattr(module, "SAMPLE_BYTES", 256)
        before, time = key_of(folder), weights.stat().st_mtime_ns
        raw = bytearray(weights.read_bytes())
        raw[-1] ^= 1
        weights.write_bytes(raw)
        os.utime(weights, ns=(time, time))

        assert key_of(folder) != before


def test_a_change_between_the_samples_shows_by_its_mtime(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_FULL_READ_BYTES", SMALL)
    monkeypatch.setattr(module, "SAMPLE_BYTES", 1)
    before = key_of(folder)

    os.utime(folder / "model.safetensors", ns=(1, 1))

    assert key_of(folder) != before


def test_config_and_modules_show(folder: Path) -> None:
    before = key_of(folder)
    change_config(folder, layer_norm_eps=1e-3)
    changed = key_of(folder)
    (folder / "1_Dense").mkdir()
    (folder / "1_Dense" / "config.json").write_text(json.dumps({"in_features": 32}))

    assert len({before, changed, key_of(folder)}) == 3


def test_the_hubs_cache_is_known_by_the_names_it_gives(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model downloaded again has new modification times and the same blobs."""
    monkeypatch.setattr(module, "MAX_FULL_READ_BYTES", SMALL)
    monkeypatch.setattr(module, "SAMPLE_BYTES", 256)
    blob, weights = folder / ("ab" * 32), folder / "model.safetensors"
    weights.rename(blob)
    weights.symlink_to(blob.name)
    before = key_of(folder)

    os.utime(blob, ns=(1, 1))
    assert key_of(folder) == before

    blob.rename(folder / ("cd" * 32))
    weights.unlink()
    weights.symlink_to("cd" * 32)
    assert key_of(folder) != before
