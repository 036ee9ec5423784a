"""The table of captured graphs, without a device: what shares a graph, and which graph is evicted."""

from __future__ import annotations

import pytest
from numpy.testing import assert_array_equal

from cenote.engine.execution.cuda_graphs import make_graph_spec
from cenote.engine.execution.graph_table import GraphTable
from cenote.loading.loaded_model import LoadedModel
from cenote.packed_batch import pack_arrays
from cenote.pooling.pooler import PoolingSpec
from cenote.protocol.params import PoolingOptions
from tests.tiny import SEQUENCES


class Captures:
    def __init__(self, max_graphs: int, min_idle_lookups: int) -> None:
        self.events: list[str] = []
        self.table = GraphTable(self.capture, lambda: self.events.append("wait"), max_graphs, min_idle_lookups)

    def capture(self, key: str) -> str:
        self.events.append(key)
        return f"graph {key}"


def test_the_least_recently_used_graph_is_evicted_once_it_is_idle() -> None:
    captures = Captures(max_graphs=2, min_idle_lookups=4)
    table = captures.table

    assert [table.get(key) for key in "abab"] == ["graph a", "graph b", "graph a", "graph b"]
    assert table.get("c") is None  # both are in use: it runs without a graph
    assert [table.get(key) for key in "bb"] == ["graph b"] * 2
    assert table.get("c") == "graph c"  # a was not used by the last four batches
    assert table.get("a") is None
    assert captures.events == ["a", "b", "wait", "c"]  # the device is idle before memory is freed
    assert (len(table), table.num_evicted) == (2, 1)


def test_a_graph_that_was_found_is_in_use() -> None:
    captures = Captures(max_graphs=2, min_idle_lookups=2)
    table = captures.table

    assert table.find("a") is None
    assert [table.get(key) for key in "ab"] == ["graph a", "graph b"]
    assert [table.find("a") for _ in range(3)] == ["graph a"] * 3
    assert table.get("c") == "graph c"
    assert table.find("b") is None
    assert captures.events == ["a", "b", "wait", "c"]


def test_traffic_over_more_keys_than_graphs_does_not_capture_all_the_time() -> None:
    captures = Captures(max_graphs=8, min_idle_lookups=512)
    for _ in range(100):
        for key in map(str, range(12)):
            captures.table.get(key)

    assert len(captures.events) == 8


def test_a_failed_capture_leaves_no_entry() -> None:
    def fail(key: str) -> str:
        raise RuntimeError("out of memory")

    table = GraphTable(fail, lambda: None, 2)
    with pytest.raises(RuntimeError):
        table.get("a")
    assert len(table) == 0


@pytest.mark.parametrize(
    "options",
    [
        PoolingOptions(dimensions=8),
        PoolingOptions(dimensions=16, use_activation=False),
        PoolingOptions(returned_token_ids=(3, 1)),
    ],
)
def test_embeddings_with_any_options_come_from_one_graph(options: PoolingOptions, loaded: LoadedModel) -> None:
    spec, default = PoolingSpec("embed", options), PoolingSpec("embed", PoolingOptions())
    assert make_graph_spec(spec) == make_graph_spec(default)
    batch = pack_arrays(SEQUENCES)

    hidden = loaded.backbone(batch)
    (expected,) = loaded.pooler(hidden, batch, [(spec,)] * batch.num_seqs)
    raw = loaded.pooler.pool_raw(hidden, batch, make_graph_spec(spec))
    assert_array_equal(loaded.pooler.finish(raw, "embed", options), expected.rows)


def test_columns_of_a_classifier_are_part_of_the_graph() -> None:
    first, second = (PoolingSpec("classify", PoolingOptions(returned_token_ids=ids)) for ids in ((1,), (2,)))
    logits = PoolingSpec("classify", PoolingOptions(use_activation=False, returned_token_ids=(1,)))

    assert make_graph_spec(first) != make_graph_spec(second)
    assert make_graph_spec(first) == make_graph_spec(logits)
    assert make_graph_spec(first) != make_graph_spec(PoolingSpec("embed", PoolingOptions()))
