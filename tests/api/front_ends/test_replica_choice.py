"""A request goes to the replica with the fewest tokens in flight; equal inputs go to the same one."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from cenote.api.admission.counters import Counters
from cenote.api.front_ends.replica_choice import (
    MIN_CPU_PART_TOKENS,
    SAME_INPUT_TOKENS,
    ReplicaChooser,
    ReplicaLoads,
    divide_inputs,
    divide_tokens,
    make_route,
)

TEXTS = [f"text number {number}" for number in range(40)]


def make_chooser(*tokens: float) -> ReplicaChooser:
    loads = ReplicaLoads(len(tokens), Counters(), 0)
    for replica, count in enumerate(tokens):
        loads.add(replica, count)
    return ReplicaChooser(loads)


def test_the_least_loaded_replica_is_chosen() -> None:
    chooser = make_chooser(300.0, 100.0, 200.0)

    assert {chooser.choose([0, 1, 2], make_route([text])) for text in TEXTS} == {1}
    assert {chooser.choose([0, 2], make_route([text])) for text in TEXTS} == {2}


def test_inputs_are_spread_over_idle_replicas_and_equal_ones_go_to_the_same() -> None:
    chosen = [make_chooser(0.0, 0.0).choose([0, 1], make_route([text])) for text in TEXTS]

    assert 10 < sum(chosen) < 30
    assert chosen == [make_chooser(0.0, 0.0).choose([0, 1], make_route([text])) for text in TEXTS]


def test_the_digest_of_an_input_is_the_same_in_every_process() -> None:
    """Python's own hashes of texts differ between processes."""
    code = (
        "from cenote.api.front_ends.replica_choice import make_route\n"
        "from cenote.protocol.input_types import TextPair\n"
        "print([make_route([item]).digest for item in ('a text', [1, 2, 3], TextPair('a', 'b'))])"
    )
    outputs = [
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, stdout=subprocess.PIPE, check=True
        ).stdout
        for seed in "12"
    ]

    assert outputs[0] == outputs[1]
    assert len(set(json.loads(outputs[0]))) == 3


def test_an_input_that_is_in_flight_is_computed_once_unless_its_replica_has_clearly_more_to_do() -> None:
    chooser = make_chooser(0.0, 0.0)
    route = make_route(["the same text"])
    first = chooser.choose([0, 1], route)
    with chooser.in_flight(first, route):
        chooser.loads.add(first, 1000.0)
        assert chooser.choose([0, 1], route) == first
        assert chooser.choose([0, 1], make_route(["another"])) == 1 - first
        chooser.loads.add(first, SAME_INPUT_TOKENS)
        assert chooser.choose([0, 1], route) == 1 - first


def test_what_was_in_flight_does_not_count_after_its_end() -> None:
    chooser = make_chooser(0.0, 0.0)
    route = make_route(["the same text"])
    with pytest.raises(ValueError, match="stop"), chooser.in_flight(0, route):
        assert chooser.loads.read()[0] == route.tokens
        raise ValueError("stop")

    assert list(chooser.loads.read()) == [0.0, 0.0]
    chooser.loads.add(0, 1000.0)
    assert chooser.choose([0, 1], route) == 1


def test_with_a_result_cache_an_input_is_looked_up_where_it_was_computed() -> None:
    chooser = make_chooser(0.0, 0.0)
    chooser.has_result_cache = True
    preferred = {text: chooser.choose([0, 1], make_route([text])) for text in TEXTS}

    chooser.loads.add(0, 1000.0)
    assert {text: chooser.choose([0, 1], make_route([text])) for text in TEXTS} == preferred

    parts = chooser.divide([0, 1], TEXTS, "cpu")
    assert {TEXTS[row]: part.replica for part in parts for row in part.rows} == preferred


def test_a_replica_that_is_not_available_keeps_the_inputs_of_others_where_they_are() -> None:
    chooser = make_chooser(0.0, 0.0, 0.0)
    routes = [make_route([text]) for text in TEXTS]
    with_all = [chooser.choose([0, 1, 2], route) for route in routes]
    without_one = [chooser.choose([0, 2], route) for route in routes]

    assert all(after == before for before, after in zip(with_all, without_one, strict=True) if before != 1)
    assert {after for before, after in zip(with_all, without_one, strict=True) if before == 1} == {0, 2}


def test_a_large_request_is_divided_so_that_all_parts_end_at_the_same_time() -> None:
    assert divide_tokens([0, 1], [0.0, 0.0], 1000.0, 64) == {0: 500.0, 1: 500.0}
    assert divide_tokens([0, 1], [400.0, 0.0], 1000.0, 64) == {1: 700.0, 0: 300.0}
    assert divide_tokens([0, 1, 2], [5000.0, 0.0, 0.0], 1000.0, 64) == {1: 500.0, 2: 500.0}


def test_a_request_is_not_divided_if_that_is_hardly_faster() -> None:
    assert divide_tokens([0, 1], [0.0, 0.0], 100.0, MIN_CPU_PART_TOKENS) == {0: 100.0}
    assert divide_tokens([0, 1], [900.0, 0.0], 1000.0, 10) == {1: 1000.0}


def test_inputs_are_divided_by_size_and_in_order() -> None:
    assert divide_inputs([10] * 10, [1.0, 1.0]) == [range(0, 5), range(5, 10)]
    assert divide_inputs([100, 10, 10, 10, 70], [1.0, 1.0]) == [range(0, 1), range(1, 5)]
    assert divide_inputs([100], [1.0, 1.0]) == [range(0, 1), range(1, 1)]
    assert divide_inputs([10] * 3, [0.0, 1.0, 2.0]) == [range(0, 0), range(0, 1), range(1, 3)]
