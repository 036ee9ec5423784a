"""Pooling gives the same results in NumPy and in torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from cenote.config.options import Sourced
from cenote.config.pooler import PoolerConfig
from cenote.kernels.cpu.library import Format, supports_format
from cenote.layers.activation_names import ACTIVATION_NAMES
from cenote.layers.spec import GatingSpec, HeadSpec
from cenote.packed_batch import PackedBatch, PackedImages, pack_arrays
from cenote.pooling import activation_names, max_sim, sparse
from cenote.pooling.heads import Classifier, GatedRewards, Heads, ModuleClassifier, SpladeHead, TokenWeights
from cenote.pooling.layers import LayerFactory, LinearLayer, ResidualLayer, Sequential, TanhInt8
from cenote.pooling.methods import POOLING_METHODS
from cenote.pooling.numpy_layers import NumpyLayers
from cenote.pooling.ops import Batch, Rows
from cenote.pooling.plan import PoolingPlan, resolve_plan
from cenote.pooling.pooler import Pooler, PoolingSpec
from cenote.pooling.torch_layers import TorchLayers
from cenote.protocol.matryoshka import Matryoshka
from cenote.protocol.params import PoolingOptions, Task
from cenote.utils.arrays import Array
from cenote.utils.dtypes import Dtype

WIDTH, NUM_LABELS, VOCAB_SIZE = 24, 5, 50
LENGTHS = (5, 1, 3, 40, 9, 1, 12)
NUM_TOKENS = sum(LENGTHS)
FIRST, LAST, TAG = 1, 2, 3  # token ids
RUNTIMES: tuple[LayerFactory, LayerFactory] = (NumpyLayers(), TorchLayers(torch.device("cpu")))


def make_values(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape, np.float32)


def make_batch(**fields: Any) -> PackedBatch[Array]:
    ids = np.random.default_rng(5).integers(4, VOCAB_SIZE, NUM_TOKENS)
    ids[::4] = TAG
    sequences = [[FIRST, *part[1:-1].tolist(), LAST][: len(part)] for part in np.split(ids, np.cumsum(LENGTHS)[:-1])]
    return replace(pack_arrays(sequences), **fields)


def to_torch(batch: PackedBatch[Array]) -> PackedBatch:
    names = ("token_ids", "positions", "cu_seqlens", "num_unpooled", "row_mask")
    arrays = {name: array for name in names if (array := getattr(batch, name)) is not None}
    images = None
    if (ours := batch.images) is not None:
        parts = (ours.patches, ours.token_indices, ours.feature_indices)
        images = PackedImages((), *map(torch.from_numpy, parts))
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    return PackedBatch(**tensors, seq_lens_cpu=batch.seq_lens_cpu, images=images)


def make_plan(**fields: Any) -> PoolingPlan:
    plan = resolve_plan(
        model="tiny",
        pooler_config=PoolerConfig(),
        file_settings=None,
        method=Sourced("MEAN", "test"),
        activation=Sourced("auto", "test"),
        tasks=("embed", "token_embed", "classify", "token_classify"),
        matryoshka=Matryoshka(is_supported=True, sizes=(), full_size=WIDTH),
    )
    return replace(plan, **fields)


def make_linear(
    layers: LayerFactory, size_out: int, size_in: int = WIDTH, activation: str | None = None, *, bias: bool = True
) -> LinearLayer:
    """Return a layer of random weights, which keeps the size of the rows."""
    weight = layers.put(make_values(size_out, size_in, seed=1) / np.float32(size_in**0.5), "float32")
    return layers.make_linear(
        weight, layers.put(make_values(size_out, seed=2), "float32") if bias else None, activation
    )


def check(
    specs: Sequence[PoolingSpec],
    batch: PackedBatch[Array] | None = None,
    *,
    make_heads: Callable[[LayerFactory], Heads] = lambda layers: Heads(),
    operands: Sequence[Array | None] | None = None,
    states: Array | None = None,
    **plan: Any,
) -> Mapping[PoolingSpec, Array]:
    """Pool the batch in NumPy and in torch, compare the results, and return them; `specs`: of the sequences in turn."""
    batch = batch or make_batch()
    states = make_values(NUM_TOKENS, WIDTH) if states is None else states
    inputs: list[tuple[Rows, Batch]] = [(states, batch), (torch.from_numpy(states), to_torch(batch))]
    results = []
    for layers, (hidden, packed) in zip(RUNTIMES, inputs, strict=True):
        pooler = Pooler(make_plan(**plan), make_heads(layers), layers.ops, "float32")
        each = [(specs[index % len(specs)],) for index in range(batch.num_seqs)]
        before = states.copy()
        results.append(pooler(hidden, packed, each, operands))
        assert np.array_equal(states, before), "pooling does not change the states"
    ours, theirs = results
    for group, expected in zip(ours, theirs, strict=True):
        assert group._replace(rows=None) == expected._replace(rows=None)
        assert isinstance(group.rows, np.ndarray) and group.rows.dtype == np.float32
        assert_allclose(group.rows, expected.rows.numpy(), atol=1e-6, rtol=1e-6)
    return {group.spec: group.rows for group in ours}


def embed(**options: Any) -> PoolingSpec:
    return PoolingSpec("embed", PoolingOptions(**options))


def spec_of(task: Task, **options: Any) -> PoolingSpec:
    return PoolingSpec(task, PoolingOptions(**options))


# pooling methods


@pytest.mark.parametrize("num_unpooled", [None, (2, 0, 2, 20, 8, 0, 4)])
@pytest.mark.parametrize("name", [*POOLING_METHODS])
def test_every_method(name: str, num_unpooled: tuple[int, ...] | None) -> None:
    batch = make_batch(num_unpooled=None if num_unpooled is None else np.array(num_unpooled))

    check([embed(), embed(use_activation=False)], batch, seq_pooling_types=Sourced((name,), "test"))


@pytest.mark.parametrize("num_unpooled", [None, (2, 0, 2, 20, 8, 0, 4)])
@pytest.mark.parametrize("name", ["IMAGE_MEAN", "TEXT_MEAN"])
def test_methods_that_treat_images_differently(name: str, num_unpooled: tuple[int, ...] | None) -> None:
    indices = np.array([1, 2, 3, 20, 21])
    batch = make_batch(
        images=PackedImages((), make_values(1, 1), indices, np.arange(5)),
        num_unpooled=None if num_unpooled is None else np.array(num_unpooled),
    )

    check([embed(use_activation=False)], batch, seq_pooling_types=Sourced((name,), "test"))


def test_concatenated_methods() -> None:
    check([embed()], seq_pooling_types=Sourced(("CLS", "MEAN", "MAX"), "test"))


def test_means_without_some_tokens() -> None:
    batch = make_batch()
    batch.token_ids[5:6] = TAG  # a sequence of nothing else

    rows = check([embed(use_activation=False)], batch, unpooled_token_ids=(TAG, 7))

    assert not rows[embed(use_activation=False)][1].any()


def test_means_of_the_rows_of_a_table() -> None:
    check([embed()], pools_table=True)


def test_states_of_other_strides() -> None:
    wide = make_values(NUM_TOKENS, 2 * WIDTH)

    check([embed(), spec_of("token_embed")], states=wide[:, ::2])


# options of tasks


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"use_activation": False},
        {"dimensions": 7},
        {"dimensions": 7, "use_activation": False},
        {"returned_token_ids": (3, 0, 11)},
        {"step_tag_id": TAG},
        {"step_tag_id": TAG, "returned_token_ids": (2,), "use_activation": False},
    ],
)
@pytest.mark.parametrize("has_mask", [False, True])
def test_options_of_token_rows(options: dict[str, Any], has_mask: bool) -> None:
    batch = make_batch(row_mask=np.arange(NUM_TOKENS) % 3 > 0 if has_mask else None)

    check([spec_of("token_embed", **options), embed(), spec_of("token_classify", **options)], batch)
    check([spec_of("token_embed", **options)], batch, edge_token_ids={"token_embed": (FIRST, LAST)})


@pytest.mark.parametrize(
    "options",
    [{"dimensions": 8}, {"dimensions": 8, "use_activation": False}, {"returned_token_ids": (1, 5)}, {}],
)
@pytest.mark.parametrize("matryoshka", [{}, {"has_layer_norm": True}, {"default_size": 9}])
def test_sizes_of_embeddings(options: dict[str, Any], matryoshka: dict[str, Any]) -> None:
    plan = Matryoshka(is_supported=True, sizes=(), full_size=WIDTH, **matryoshka)

    check([embed(**options)], matryoshka=plan)


@pytest.mark.parametrize("task", ["embed", "token_embed"])
@pytest.mark.parametrize("chunk_size", [None, 4, 100])
@pytest.mark.parametrize("skips", [False, True])
def test_late_chunking(task: Task, chunk_size: int | None, skips: bool) -> None:
    starts = np.zeros(NUM_TOKENS, bool)
    starts[np.cumsum([0, *LENGTHS[:-1]])] = True
    starts[12::10] = True
    batch = make_batch(row_mask=starts, num_unpooled=np.array([1, 0, 2, 5, 0, 0, 3]) if skips else None)
    spec = spec_of(task, late_chunking=True, chunk_size=chunk_size)

    check([spec], batch)
    check([spec, embed()], batch)


# heads


@pytest.mark.parametrize("activation", ACTIVATION_NAMES)
def test_every_activation_of_a_layer(activation: str) -> None:
    check(
        [embed(use_activation=False)],
        make_heads=lambda layers: Heads(projector=make_linear(layers, 30, activation=activation)),
    )


@pytest.mark.parametrize("activation", activation_names.ACTIVATION_NAMES)
@pytest.mark.parametrize("num_labels", [1, NUM_LABELS])
def test_every_activation_of_logits(activation: str, num_labels: int) -> None:
    def make_heads(layers: LayerFactory) -> Heads:
        return Heads(classifier=Classifier(layers.ops, HeadSpec(), make_linear(layers, num_labels)))

    check(
        [spec_of("classify"), spec_of("token_classify"), spec_of("classify", use_activation=False)],
        make_heads=make_heads,
        activation=Sourced(activation, "test"),
        logit_mean=0.3,
        logit_sigma=1.7,
    )


@pytest.mark.parametrize(
    "spec",
    [
        HeadSpec(has_dense=True),
        HeadSpec(has_dense=True, has_norm=True, dense_activation="gelu", norm_bias=False),
        HeadSpec(has_dense=True, has_norm=True, pool_after_dense=True, softcap=2.0),
        HeadSpec(has_dense=True, full_head_per_token=True, bias=False),
    ],
)
@pytest.mark.parametrize("columns", [None, (3, 1)])
def test_classifiers(spec: HeadSpec, columns: tuple[int, ...] | None) -> None:
    def make_heads(layers: LayerFactory) -> Heads:
        norm = None
        if spec.has_norm:
            bias = layers.put(make_values(WIDTH, seed=4), "float32") if spec.norm_bias else None
            norm = layers.make_layer_norm(layers.put(make_values(WIDTH, seed=3), "float32"), bias, spec.norm_eps)
        dense = make_linear(layers, WIDTH, activation=spec.dense_activation)
        last = make_linear(layers, NUM_LABELS, bias=bool(spec.bias))
        return Heads(classifier=Classifier(layers.ops, spec, last, dense=dense, norm=norm))

    specs = [spec_of("classify", returned_token_ids=columns), spec_of("token_classify", returned_token_ids=columns)]
    check(specs, make_heads=make_heads)


@pytest.mark.skipif(not supports_format("float32"), reason="the C library is not built")
@pytest.mark.parametrize("activation", ["tanh", "gelu", "gelu_tanh", "relu", "silu", None])
def test_packed_layers(activation: str | None) -> None:
    def make_heads(layers: LayerFactory) -> Heads:
        packed = make_linear(layers, 30, activation=activation)
        packed.pack("float32")
        return Heads(projector=packed)

    check([embed(use_activation=False)], make_heads=make_heads)


@pytest.mark.parametrize("format", ["float32", "float16", "bfloat16"])
def test_a_packed_layer_equals_the_same_layer_unpacked(format: Format) -> None:
    dtype: Dtype = "bfloat16" if format == "bfloat16" else "float32"
    states = make_values(9, WIDTH)
    for layers in RUNTIMES:
        weight, bias = (layers.put(make_values(*shape), dtype) for shape in ((70, WIDTH), (70,)))
        layer = layers.make_linear(weight, bias, "gelu")
        expected = layer(layers.put(states, dtype))
        layer.pack(format)  # does nothing where the CPU has no such kernel

        found = layer(layers.put(states, dtype))

        assert found.dtype == expected.dtype
        tolerance = 1e-5 if format == "float32" else 0.05
        ours, theirs = (layers.ops.to_host(layers.ops.to_dtype(rows, "float32")) for rows in (found, expected))
        assert_allclose(ours, theirs, atol=tolerance, rtol=tolerance)


def test_projectors_of_several_layers() -> None:
    def make_heads(layers: LayerFactory) -> Heads:
        narrow = ResidualLayer(make_linear(layers, 16, activation="tanh"), make_linear(layers, 16, bias=False))
        same = ResidualLayer(make_linear(layers, 16, 16), None)
        norm = layers.make_layer_norm(*(layers.put(make_values(16, seed=seed), "float32") for seed in (6, 7)), 1e-5)
        return Heads(projector=Sequential([narrow, same, norm]), token_projector=narrow)

    check([embed(), spec_of("token_embed")], make_heads=make_heads)


def test_embeddings_of_whole_numbers() -> None:
    rows = check([embed(use_activation=False)], make_heads=lambda layers: Heads(projector=TanhInt8(layers.ops)))

    assert all(np.array_equal(values, values.round()) for values in rows.values())


@pytest.mark.parametrize("columns", [None, (1,)])
def test_classifiers_of_modules(columns: tuple[int, ...] | None) -> None:
    def make_heads(layers: LayerFactory) -> Heads:
        last = ResidualLayer(make_linear(layers, NUM_LABELS), make_linear(layers, NUM_LABELS, bias=False))
        chain = [make_linear(layers, WIDTH, activation="relu"), last]
        return Heads(classifier=ModuleClassifier(layers.ops, chain))

    check([spec_of("classify", returned_token_ids=columns), spec_of("token_classify")], make_heads=make_heads)


def test_gated_rewards() -> None:
    gating = GatingSpec(num_objectives=4, num_layers=2, hidden_size=10, temperature=3.0)

    def make_heads(layers: LayerFactory) -> Heads:
        rewards = GatedRewards(
            layers.ops,
            HeadSpec(gating=gating, bias=False),
            make_linear(layers, 4, bias=False),
            transform=layers.put(make_values(4, 4, seed=8), "float32"),
            gate=[make_linear(layers, 10, activation="relu"), make_linear(layers, 4, 10)],
            gate_scale=layers.put(make_values(1, seed=9), "float32"),
        )
        return Heads(classifier=rewards)

    batch = make_batch(num_unpooled=np.array([3, 0, 2, 17, 4, 0, 11]))
    pooling = Sourced(("LAST_AND_PROMPT_END",), "test")

    check([spec_of("classify", use_activation=False)], batch, make_heads=make_heads, seq_pooling_types=pooling)
    check([spec_of("classify", returned_token_ids=(0,))], batch, make_heads=make_heads, seq_pooling_types=pooling)


@pytest.mark.parametrize("max_logits", [1 << 26, 10 * VOCAB_SIZE])
@pytest.mark.parametrize(("strategy", "num_logs"), [("max", 1), ("sum", 1), ("max", 2), ("sum", 0)])
def test_splade(strategy: str, num_logs: int, max_logits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse, "MAX_LOGITS", max_logits)

    def make_heads(layers: LayerFactory) -> Heads:
        dense = make_linear(layers, WIDTH, activation="gelu")
        head = Classifier(layers.ops, HeadSpec(), make_linear(layers, VOCAB_SIZE), dense=dense)
        return Heads(splade=SpladeHead(layers.ops, head, strategy=strategy, num_logs=num_logs))

    rows = check([embed(), spec_of("sparse_embed")], make_heads=make_heads)

    assert {row.shape[1] for row in rows.values()} == {VOCAB_SIZE, 2}


@pytest.mark.parametrize("sums", [False, True])
def test_weights_of_static_models(sums: bool) -> None:
    batch = make_batch()
    states = np.abs(make_values(VOCAB_SIZE, 1))[batch.token_ids]

    check(
        [embed(), spec_of("sparse_embed")],
        batch,
        states=states,
        make_heads=lambda layers: Heads(splade=TokenWeights(layers.ops, 40, table_size=VOCAB_SIZE, sums=sums)),
    )


def test_weights_of_tokens() -> None:
    check(
        [spec_of("sparse_embed"), spec_of("token_embed"), spec_of("token_classify")],
        make_heads=lambda layers: Heads(classifier=Classifier(layers.ops, HeadSpec(), make_linear(layers, 1))),
        activation=Sourced("relu", "test"),
        excluded_token_ids=(FIRST, LAST),
        scalar_tasks=("token_classify",),
    )


@pytest.mark.parametrize("max_similarities", [1 << 24, 300, 1])
@pytest.mark.parametrize("num_queries", [1, 3])
def test_max_sim(num_queries: int, max_similarities: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(max_sim, "MAX_SIMILARITIES", max_similarities)
    queries = [make_values(length, WIDTH) for length in (6, 1, 9)[:num_queries]]
    operands = [queries[index % num_queries] for index in range(len(LENGTHS))]
    batch = make_batch(row_mask=np.repeat([index != 2 for index in range(len(LENGTHS))], LENGTHS))

    rows = check([spec_of("token_embed").with_operand()], batch, operands=operands)

    assert rows[spec_of("token_embed").with_operand()][2] == 0  # no token of it has a row
    check([spec_of("token_embed").with_operand(), embed()], operands=operands)


# dtypes


@pytest.mark.parametrize("name", [*POOLING_METHODS])
def test_states_of_16_bits_are_pooled_in_float32(name: str) -> None:
    ours, theirs = RUNTIMES
    batch = make_batch()
    states = theirs.put(make_values(NUM_TOKENS, WIDTH), "bfloat16")
    array = ours.put(states.float().numpy(), "bfloat16")

    pooled = POOLING_METHODS[name](ours.ops, array, batch)
    expected = POOLING_METHODS[name](theirs.ops, states, to_torch(batch))

    assert pooled.dtype.name == str(expected.dtype).removeprefix("torch.")
    assert_allclose(pooled.astype(np.float32), expected.float(), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_layers_of_16_bits_round_only_their_results(dtype: Any) -> None:
    states, weight, bias = make_values(7, WIDTH), make_values(9000, WIDTH), make_values(9000)
    results: list[Array] = []
    for layers in RUNTIMES:
        layer = layers.make_linear(layers.put(weight, dtype), layers.put(bias, dtype), "gelu")
        rounded = layers.put(states, dtype)
        out = layer(rounded)
        assert layer.dtype == dtype and out.dtype == rounded.dtype
        results.append(np.asarray(layers.ops.to_dtype(out, "float32")))

    assert_allclose(results[0], results[1], atol=0.02, rtol=0.02)


def test_probabilities_of_extreme_logits_are_finite() -> None:
    logits = np.array([[-200.0, 0.0, 200.0], [-1e30, 1e30, 88.0]], np.float32)

    with np.errstate(all="raise", under="ignore"):
        for name in ("sigmoid", "tanh", "silu"):
            ours, theirs = (layers.ops.activate(layers.put(logits, "float32"), name) for layers in RUNTIMES)
            assert_allclose(ours, theirs, atol=1e-6, rtol=1e-6)
        ours, theirs = (layers.ops.softmax(layers.put(logits, "float32")) for layers in RUNTIMES)
    assert_allclose(ours, theirs, atol=1e-6)
