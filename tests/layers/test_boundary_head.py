"""The boundary head of GLiNER2.5, by its parts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cenote.layers.boundary_head import BoundaryHead, sum_inside
from cenote.layers.boundary_layers import relate as relate_all
from cenote.layers.spec import BoundaryHeadSpec
from tests.models.gliner2_5 import Plain, relate

SIZE = 32


def make_head(num_starts: int, max_candidates: int, min_candidates: int) -> BoundaryHead:
    spec = BoundaryHeadSpec(
        input_size=SIZE,
        size=SIZE,
        num_rnn_layers=0,
        boundary_size=SIZE,
        candidate_size=SIZE,
        content_size=None,
        mlp_size=SIZE,
        num_attention_layers=0,
        num_attention_heads=1,
        attention_window=0,
        num_mlp_layers=0,
        num_candidate_layers=0,
        num_label_layers=0,
        num_candidate_heads=1,
        scores_inside=False,
        num_starts=num_starts,
        max_candidates=max_candidates,
        min_candidates=min_candidates,
        abstention_threshold=None,
        temperature=1.0,
    )
    return BoundaryHead(spec)


@pytest.mark.parametrize(
    ("num_starts", "max_candidates", "min_candidates"), [(20, 400, 3), (6, 12, 0), (8, 12, 3), (8, 5, 3), (8, 2, 1)]
)
@torch.no_grad()
def test_candidates_are_those_of_a_plain_implementation(
    num_starts: int, max_candidates: int, min_candidates: int, tmp_path: Path
) -> None:
    sizes = {"pool_boundary_top_k": num_starts, "pool_size": max_candidates, "min_pool_per_query": min_candidates}
    plain = Plain(tmp_path, boundary_dim=SIZE, **sizes)
    head = make_head(num_starts, max_candidates, min_candidates)
    for layer, name in ((head.pair_start, "start"), (head.pair_end, "end")):
        stored = f"boundary_head.shared_pool_builder.{name}_projection"
        layer.load_state_dict({key: plain.weights[f"{stored}.{key}"] for key in ("weight", "bias")})
    generator = torch.Generator().manual_seed(1)
    boundaries = torch.randn(14, SIZE, generator=generator)
    starts, ends = torch.randn(2, 4, 14, generator=generator) * 3  # of labels that want different pairs

    pairs, scores = head.propose(boundaries, starts, ends)

    expected = plain.propose(boundaries, starts.tolist(), ends.tolist())
    assert pairs.tolist() == [list(span) for span in expected]
    assert scores.tolist() == pytest.approx(list(expected.values()), abs=1e-4)


@torch.no_grad()
def test_a_text_without_a_start_before_an_end_has_no_candidates() -> None:
    head = BoundaryHead(replace(make_head(1, 4, 2).sizes, num_candidate_layers=1, num_label_layers=1))
    for parameter in head.parameters():
        torch.nn.init.constant_(parameter, 0.0)  # the best start and end are the first boundary
    states = torch.randn(4, SIZE, generator=torch.Generator().manual_seed(0))

    found = head.find_spans(states, torch.tensor([1, 2, 3]), torch.tensor([0]), 0.0)

    assert found == []


def test_two_spans_have_one_relation() -> None:
    spans = [(start, end) for start in range(4) for end in range(start + 1, 5)]

    found = relate_all(torch.tensor(spans))

    assert found.tolist() == [[relate(one, other) for other in spans] for one in spans]
    assert set(found.flatten().tolist()) == set(range(8))


def test_sums_of_long_texts_are_precise() -> None:
    values = torch.full((1, 4000), 1000.1)
    values[0, 3998] = 0.25

    sums = sum_inside(values, torch.tensor([[3998, 3999], [0, 1]]))

    assert sums[0].tolist() == pytest.approx([0.25, 1000.1], abs=1e-2)
