"""The C library records the inputs of linear layers as hooks of torch see them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from cenote.kernels.cpu.encoder import LevelEncoder, PositionTables
from cenote.kernels.cpu.library import CPULevel
from cenote.layers.backbone import Backbone, Block
from cenote.layers.fused_encoder import try_fuse_encoder
from cenote.layers.pack_linears import list_linears, pack_linears
from cenote.layers.torch_dtypes import to_array
from cenote.packed_batch import PackedBatch
from cenote.utils.arrays import Array
from tests.kernels.backbones import DECODER, LOCAL_ENCODER, SPEC, batch_of, make_backbone
from tests.kernels.levels import LEVELS, needs_level, use_level

pytestmark = needs_level

LENGTHS = [1, 5, 16, 33, 100, 7]


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[CPULevel]:
    with use_level(request.param, monkeypatch) as found:
        assert found is not None
        yield found


def record_with_hooks(backbone: Backbone, batch: PackedBatch) -> list[Array]:
    """Return the inputs of the linear layers of all blocks."""
    inputs: dict[nn.Module, list[Array]] = {}

    def record(layer: nn.Module, arguments: tuple[torch.Tensor, ...]) -> None:
        inputs.setdefault(layer, []).append(to_array(arguments[0]))

    hooks = [linear.register_forward_pre_hook(record) for _, _, linear in list_linears(backbone)]
    with torch.inference_mode():
        backbone(batch)
    for hook in hooks:
        hook.remove()
    blocks = [block for block in backbone.layers if isinstance(block, Block)]
    linears = [x for block in blocks for x in (block.mixer.qkv, block.mixer.out, block.mlp.up, block.mlp.down)]  # type: ignore[union-attr]
    return [np.concatenate(inputs[linear]) for linear in linears]  # type: ignore[index]


def fuse(backbone: Backbone) -> LevelEncoder:
    assert pack_linears(backbone, "float32")
    backbone.fused_encoder = try_fuse_encoder(backbone)
    assert backbone.fused_encoder is not None
    return backbone.fused_encoder.encoder


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("change", [{}, LOCAL_ENCODER, DECODER])
def test_the_largest_inputs_are_those_of_hooks(level: CPULevel, change: dict[str, object], threads: int) -> None:
    backbone, batch = make_backbone(replace(SPEC, **change)), batch_of(LENGTHS)  # type: ignore[arg-type]
    expected = [np.abs(rows).max(axis=0) for rows in record_with_hooks(backbone, batch)]
    encoder, before = fuse(backbone), torch.get_num_threads()

    torch.set_num_threads(threads)
    found = encoder.record_input_max(lambda: backbone(batch))
    torch.set_num_threads(before)

    assert len(found) == len(expected) == 4 * len(backbone.layers)
    for ours, theirs in zip(found, expected, strict=True):
        assert np.allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_all_rows_of_inputs_are_recorded(level: CPULevel) -> None:
    backbone, batch = make_backbone(SPEC), batch_of(LENGTHS)
    expected = record_with_hooks(backbone, batch)
    encoder = fuse(backbone)

    found = encoder.record_inputs(lambda: backbone(batch), batch.num_tokens)

    for ours, theirs in zip(found, expected, strict=True):
        assert np.allclose(ours[np.lexsort(ours.T)], theirs[np.lexsort(theirs.T)], rtol=1e-4, atol=1e-4)


def test_a_record_changes_no_bit_and_ends_with_its_call(level: CPULevel) -> None:
    backbone, batch = make_backbone(SPEC), batch_of(LENGTHS)
    encoder, states = fuse(backbone), []
    plain = backbone(batch)

    recorded = encoder.record_input_max(lambda: states.append(backbone(batch)))
    copies = [x.copy() for x in recorded]
    backbone(batch_of([64, 3]))

    assert torch.equal(states[0], plain)
    assert all(np.array_equal(x, copy) for x, copy in zip(recorded, copies, strict=True))


def test_nan_is_recorded(level: CPULevel) -> None:
    encoder = fuse(make_backbone(SPEC))
    rows = np.ones((3, SPEC.hidden_size), np.float32)
    rows[1, 5] = np.nan

    found = encoder.record_input_max(
        lambda: encoder.encode_embeds(rows, np.array([0, 3]), PositionTables(None, None, None))
    )

    assert np.flatnonzero(np.isnan(found[0])).tolist() == [5]


def test_layers_that_share_weights_share_their_record(level: CPULevel) -> None:
    backbone, batch = make_backbone(SPEC), batch_of(LENGTHS)
    backbone.layers[1] = backbone.layers[0]
    encoder = fuse(backbone)

    maxima = encoder.record_input_max(lambda: backbone(batch))
    rows = encoder.record_inputs(lambda: backbone(batch), batch.num_tokens)

    assert maxima[0] is maxima[4] and rows[0].shape == (2 * batch.num_tokens, SPEC.hidden_size)
    assert np.array_equal(np.abs(rows[0]).max(axis=0), maxima[0])
