"""GLiNER2.5: entities of the labels in a request, against a plain implementation on Transformers' DeBERTa."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from cenote import LLM
from cenote.errors import LoadError, Unsupported
from tests.layouts.builders.gliner2 import save_weights
from tests.layouts.builders.gliner2_5 import save_gliner2_5
from tests.models.gliner2_5 import Plain, choose
from tests.models.gliner_checks import LABELS, TAGGED, TEXTS, assert_entities_equal

ALL_TEXTS = [*TEXTS, TAGGED, "DEEP Water", "what is the query about and where is the deep water of the city"]
SMALL_POOL = {"boundary_dim": 32, "pair_dim": 48, "pool_boundary_top_k": 12, "pool_size": 4, "min_pool_per_query": 2}
ATTENTION = {"candidate_attention_layers": 2, "query_attention_layers": 2}
WITHOUT = {"enable_span_content": False, "use_inside_evidence": False, "enable_abstention": False}
CASES: dict[str, dict[str, Any]] = {
    "published": {},
    "attention of candidates and labels": ATTENTION,
    "few candidates": SMALL_POOL | {"boundary_attention_window": 2},
    "few boundaries": {"pool_boundary_top_k": 5, "pool_size": 9},
    "without parts": WITHOUT
    | {"boundary_attention_layers": 0, "boundary_refinement_layers": 2, "pair_temperature": 2.5},
}


def test_the_spans_that_this_file_chooses_have_the_highest_sum() -> None:
    probs = {(0, 2): 0.9, (0, 1): 0.5, (1, 3): 0.6, (2, 4): 0.3, (3, 4): 0.2}
    sums = [
        sum(probs[span] for span in spans)
        for count in range(len(probs) + 1)
        for spans in combinations(probs, count)
        if all(one[1] <= other[0] or other[1] <= one[0] for one, other in combinations(spans, 2))
    ]

    assert sum(choose(probs, 4).values()) == pytest.approx(max(sums))


@pytest.mark.parametrize("case", CASES)
def test_entities_equal_those_of_a_plain_implementation(case: str, tmp_path: Path) -> None:
    plain = Plain(tmp_path, **CASES[case])

    with LLM(str(tmp_path), dtype="float32", device="cpu") as llm:
        assert_entities_equal(llm, lambda text, least: plain.find(text, LABELS, least), ALL_TEXTS, (0.0, 0.5, 0.8))


def test_a_label_has_no_entities_if_that_is_more_probable(tmp_path: Path) -> None:
    plain = Plain(tmp_path)
    for bias, has_entities in ((-99.0, True), (99.0, False)):
        plain.weights["boundary_head.null_projection.bias"].fill_(bias)
        save_weights(tmp_path, plain.encoder, plain.weights)

        with LLM(str(tmp_path), dtype="float32", device="cpu") as llm:
            (output,) = llm.entities(TEXTS[0], labels=LABELS, threshold=0.0, use_tqdm=False)

        assert bool(output.outputs.entities) == has_entities


def test_other_tasks_of_the_model_are_refused(tmp_path: Path) -> None:
    save_gliner2_5(tmp_path)

    with (
        LLM(str(tmp_path), device="cpu") as llm,
        pytest.raises(Unsupported, match="entities only .* classification, relations and records .* gliner2 package"),
    ):
        llm.classify(TEXTS[0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"candidate_pool": "per_query"}, "candidate_pool 'per_query' is not supported, only 'shared'"),
        ({"content_soft_max_pool": True}, "content_soft_max_pool True is not supported, only False"),
        ({"adaptive_threshold": True}, "adaptive_threshold True is not supported, only False"),
        ({"overlap_policy": "nested"}, "overlap_policy 'nested' is not supported, only 'flat'"),
    ],
)
def test_other_settings_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    save_gliner2_5(tmp_path, **changes)

    with pytest.raises(LoadError, match=rf"config.json: {message}; use a model such as fastino/gliner2.5-base-v1"):
        LLM(str(tmp_path), device="cpu")
