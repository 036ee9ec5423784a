"""The regular expressions of an adapter are matched as in PEFT, and cannot hold the server."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cenote.errors import LoadError
from cenote.loading import layer_patterns
from cenote.loading.layer_patterns import match_layers
from cenote.loading.peft_files import compute_scalings, read_lora_pairs
from cenote.loading.weights import CheckpointWeights
from cenote.utils.arrays import Array

NAMES = ["layers.0.q_proj", "layers.1.q_proj", "layers.10.q_proj", "layers.1.mlp.q_proj"]


def make_pairs(*modules: str, rank: int = 4) -> dict[str, tuple[Array, Array]]:
    return {module: (np.ones((rank, 8), np.float32), np.ones((8, rank), np.float32)) for module in modules}


@pytest.mark.parametrize(
    ("patterns", "rows"),
    [
        ([], [None] * 4),
        (["q_proj"], [0, 0, 0, 0]),
        (["1.q_proj", "q_proj"], [1, 0, 1, 1]),  # a part of a name begins after a dot
        (["proj"], [None] * 4),
        ([r".*\.1\..*", "layers.0.q.proj", r"layers\.\d+\.(q|k)_proj"], [1, 0, 2, 0]),
    ],
)
def test_the_first_pattern_that_matches_the_end_of_a_name_counts(patterns: list[str], rows: list[int | None]) -> None:
    assert match_layers(patterns, NAMES, "field") == rows


def test_an_expression_of_exponential_time_is_refused_and_other_threads_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_patterns, "MAX_CPU_S", 1)
    ticks: list[float] = []
    stopped = threading.Event()

    def tick() -> None:
        while not stopped.wait(0.02):
            ticks.append(time.monotonic())

    thread = threading.Thread(target=tick)
    thread.start()
    with pytest.raises(LoadError, match=r"alpha_pattern: matching '\(a\+\)\+b' with the names .* takes more than 1 s"):
        match_layers(["(a+)+b"], ["a" * 60], "alpha_pattern")
    stopped.set()
    thread.join()

    assert max(later - earlier for earlier, later in zip(ticks, ticks[1:], strict=False)) < 0.5


@pytest.mark.parametrize(
    ("patterns", "names", "words"),
    [
        (["a" * 1001], ["a"], "has 1,001 characters; the limit is 1,000"),
        (["a"], ["a" * 1001], "has 1,001 characters; the limit is 1,000"),
        (["a"] * 10_001, ["a"], "has 10,001 patterns; the limit is 10,000"),
        (["(a"], ["a"], r"field: '\(a' is not a regular expression: missing \), unterminated subpattern"),
        (["a{99999999999999999999}"], ["a"], "is not a regular expression: the repetition number is too large"),
    ],
)
def test_patterns_beyond_a_limit_are_refused(patterns: list[str], names: list[str], words: str) -> None:
    with pytest.raises(LoadError, match=words):
        match_layers(patterns, names, "field")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"alpha_pattern": ["q_proj"]}, r"alpha_pattern=\['q_proj'\] is invalid; expected an object"),
        ({"alpha_pattern": {"q_proj": [1]}}, r"alpha \[1\] is invalid; expected a number"),
        ({"lora_alpha": 10**400}, "is invalid; expected a number"),
        ({"lora_alpha": "NaN"}, "alpha 'NaN' is invalid; expected a number"),
        ({"lora_alpha": None}, "alpha None is invalid; expected a number"),
    ],
)
def test_an_alpha_that_is_no_number_is_refused(config: dict[str, Any], words: str) -> None:
    with pytest.raises(LoadError, match=words):
        compute_scalings(json.loads(json.dumps(config)), make_pairs("q_proj"), "adapter_config.json")


@pytest.mark.parametrize("down", [np.ones((0, 8), np.float32), np.ones(8, np.float32), np.ones((), np.float32)])
def test_matrices_without_a_rank_are_refused(down: Array) -> None:
    weights = CheckpointWeights(Path("adapter_model.safetensors"))
    weights.add("base_model.model.q_proj.lora_A.weight", Path("file"), lambda: down)
    weights.add("base_model.model.q_proj.lora_B.weight", Path("file"), lambda: np.ones((8, 4), np.float32))

    with pytest.raises(LoadError, match="q_proj has LoRA matrices of shapes"):
        read_lora_pairs(weights)
