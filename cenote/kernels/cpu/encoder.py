"""All layers of a transformer in one call of the C library."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from cenote.kernels.cpu import library
from cenote.kernels.cpu.library import CPULevel, Format, address_of
from cenote.kernels.cpu.packed_linear import PackedLinear
from cenote.kernels.cpu.threads import MIN_WORK_OF_ENCODER, count_workers, num_threads
from cenote.utils.arrays import Array
from cenote.utils.dtypes import Dtype, to_numpy_dtype

NO_ROPE, ROPE, LOCAL_ROPE = range(3)  # as in encoder.h


@dataclass(frozen=True, slots=True)
class NormWeights:
    """A LayerNorm or RMSNorm; the weight of an RMSNorm includes its offset."""

    weight: Array | None
    bias: Array | None
    eps: float
    is_rms: bool


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. `norms` are those of LevelLayer in encoder.h, in this order; None: the layer has no such norm.

    The norms of mixer and MLP come before them, or after their residual adds if the encoder is post-norm; the out norms
    come after them, before their residual adds.
    """

    qkv: PackedLinear
    out: PackedLinear
    up: PackedLinear
    down: PackedLinear
    norms: tuple[NormWeights | None, ...]  # mixer, MLP, mixer out, MLP out, query, key
    rope: int  # NO_ROPE, ROPE or LOCAL_ROPE
    window: int | None


@dataclass(frozen=True, slots=True)
class TableWeights:
    """Tables of token, position and token type embeddings, whose rows are summed and normalized.

    All are float32 or all are bfloat16.
    """

    tokens: Array
    positions: Array | None
    types: Array | None
    position_offset: int
    norm: NormWeights


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderShape:
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    causal: bool
    is_post_norm: bool
    softcap: float | None = None
    residual_scale: float = 1.0
    has_interleaved_rope: bool = False
    has_full_width_qk_norm: bool = False
    gate_activation: str | None = None  # None: the MLP is not gated
    has_bias: bool = False  # of attention, by the distance of the key


@dataclass(frozen=True, slots=True)
class RotaryRows:
    """Cosine and sine of every token: [tokens, half] each."""

    cosine: Array
    sine: Array


@dataclass(frozen=True, slots=True)
class PositionTables:
    """What the positions of a batch give to its layers; None: the model has no such table."""

    rotary: RotaryRows | None
    local_rotary: RotaryRows | None
    bias: Array | None  # of attention: [heads, 2 * longest sequence - 1], by the distance key - query
    # [sequences], int64: the leading tokens of each sequence that its queries attend to; not for rows in tiles
    num_keys: Array | None = None


class LevelEncoder:
    """Hold the C structures of a transformer and run it on packed batches."""

    def __init__(
        self,
        level: CPULevel,
        layers: Sequence[LayerWeights],
        shape: EncoderShape,
        tables: TableWeights | None,
        final_norm: NormWeights | None,
    ) -> None:
        self.level = level
        self.keeps_tiles = _keeps_tiles(level, layers, shape, tables)
        self.layers, self.shape, self.tables = layers, shape, tables
        self.linears = [linear for layer in layers for linear in _linears(layer)]
        self.hidden_size = layers[0].qkv.in_features
        self.dtype: Dtype = "bfloat16" if self.keeps_tiles else "float32"  # of inputs and results
        self._numpy_dtype = to_numpy_dtype(self.dtype)
        self._retained: list[Array] = []  # arrays that the C structures point to
        self._layers = (library.LevelLayer * len(layers))(*(self._make_layer(layer) for layer in layers))
        self._work_per_token = sum(x.in_features * x.out_features for x in self.linears)
        attention_format = _attention_format(level, {x.format for x in self.linears})
        self._encoder = library.LevelEncoder(
            level=level.pointer,
            layers=ctypes.addressof(self._layers),
            num_layers=len(layers),
            hidden=self.hidden_size,
            heads=shape.num_heads,
            kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            attention_format=library.FORMATS.index(attention_format),
            scale=shape.scale,
            softcap=shape.softcap or 0.0,
            residual_scale=shape.residual_scale,
            causal=shape.causal,
            is_post_norm=shape.is_post_norm,
            is_gated=shape.gate_activation is not None,
            gate_activation=library.ACTIVATION_CODES.index(shape.gate_activation),
            is_interleaved=shape.has_interleaved_rope,
            has_full_width_qk_norm=shape.has_full_width_qk_norm,
            keeps_tiles=self.keeps_tiles,
            final_norm=self._make_norm(final_norm),
            embedding=library.LevelEmbedding() if tables is None else self._make_embedding(tables),
        )

    def encode_ids(
        self, token_ids: Array, positions: Array, types: Array | None, cu_seqlens: Array, tables: PositionTables
    ) -> Array | None:
        """Return the hidden states [tokens, hidden], or None if an id is out of the range of its table.

        The arrays are of int64 and contiguous; cu_seqlens has the start of each sequence, and the end of the last.
        """
        if types is not None and (self.tables is None or self.tables.types is None or len(self.tables.types) == 1):
            types = None  # some tokenizers return a second type for a model that has only one
        return self._run(
            len(token_ids),
            cu_seqlens,
            tables,
            token_ids=address_of(token_ids),
            positions=address_of(positions),
            types=None if types is None else address_of(types),
        )

    def encode_embeds(self, rows: Array, cu_seqlens: Array, tables: PositionTables) -> Array:
        """Return the hidden states [tokens, hidden] for given input embeddings."""
        rows = np.ascontiguousarray(rows, self._numpy_dtype)  # this reference keeps the copy alive during the call
        states = self._run(len(rows), cu_seqlens, tables, rows=address_of(rows))
        assert states is not None
        return states

    def record_input_max(self, encode: Callable[[], object]) -> list[Array]:
        """Return the largest absolute value of each input of all `linears` while `encode` calls this encoder.

        A layer that several blocks share has one array for all of them.
        """
        return [maxima for maxima, _ in self._record(encode, num_tokens=0)]

    def record_inputs(self, encode: Callable[[], object], num_tokens: int) -> list[Array]:
        """Return the inputs of all `linears` while `encode` calls this encoder once, with so many tokens.

        The rows are in any order. A layer that several blocks share has one array with the rows of all of them.
        """
        return [rows for _, rows in self._record(encode, num_tokens)]

    def _record(self, encode: Callable[[], object], num_tokens: int) -> list[tuple[Array, Array]]:
        """Return the largest values and the rows; without a number of tokens, rows are not kept."""
        assert not self.keeps_tiles, "the rows of tiles are not recorded"
        found: dict[PackedLinear, tuple[Array, Array]] = {}
        records: list[library.InputRecord] = []
        for linear in dict.fromkeys(self.linears):
            num_rows = num_tokens * self.linears.count(linear)
            maxima = np.zeros(linear.in_features, np.float32)
            rows = np.empty((num_rows, linear.in_features), np.float32)
            found[linear] = maxima, rows
            records.append(library.InputRecord(max=address_of(maxima), rows=address_of(rows) if num_rows else None))
            self._set_record(linear, ctypes.addressof(records[-1]))
        try:
            encode()
        finally:
            for linear in found:
                self._set_record(linear, None)
        return [found[linear] for linear in self.linears]

    def _set_record(self, linear: PackedLinear, record: int | None) -> None:
        for weights, layer in zip(self.layers, self._layers, strict=True):
            for name in ("qkv", "out", "up", "down"):
                if getattr(weights, name) is linear:
                    getattr(layer, name).record = record

    def _run(self, num_tokens: int, cu_seqlens: Array, tables: PositionTables, **inputs: int | None) -> Array | None:
        out = np.empty((num_tokens, self.hidden_size), self._numpy_dtype)
        retained: list[Array] = []  # copies that the C code reads during the call
        for prefix, rotary in (("", tables.rotary), ("local_", tables.local_rotary)):
            if rotary is not None:
                retained += (np.ascontiguousarray(x, np.float32) for x in (rotary.cosine, rotary.sine))
                inputs[f"{prefix}cosine"], inputs[f"{prefix}sine"] = (address_of(x) for x in retained[-2:])
                inputs[f"{prefix}rotary_half"] = rotary.cosine.shape[-1]
        if tables.bias is not None:
            retained.append(np.ascontiguousarray(tables.bias, np.float32))
            inputs["bias"], inputs["max_length"] = address_of(retained[-1]), (tables.bias.shape[1] + 1) // 2
        if tables.num_keys is not None:
            assert not self.keeps_tiles, "attention over tiles reads all keys"
            inputs["num_keys"] = address_of(tables.num_keys)
        failed = self.level.library.cenote_level_encode(
            ctypes.byref(self._encoder),
            ctypes.byref(library.LevelInput(offsets=address_of(cu_seqlens), out=address_of(out), **inputs)),
            address_of(cu_seqlens),
            len(cu_seqlens) - 1,
            num_threads(),
            count_workers(num_tokens, self._work_per_token, MIN_WORK_OF_ENCODER),
        )
        if failed == 1:
            longest = int(np.diff(cu_seqlens).max())
            raise MemoryError(f"cannot allocate scratch memory for {num_tokens} tokens (longest sequence: {longest})")
        return out if failed == 0 else None

    def _make_layer(self, layer: LayerWeights) -> library.LevelLayer:
        return library.LevelLayer(
            *(linear.descriptor for linear in _linears(layer)),
            *(self._make_norm(norm) for norm in layer.norms),
            layer.rope,
            library.NO_WINDOW if layer.window is None else layer.window,
        )

    def _make_norm(self, norm: NormWeights | None) -> library.Norm:
        if norm is None:
            return library.Norm(kind=library.NO_NORM)
        return library.Norm(
            weight=None if norm.weight is None else self._retain(norm.weight.astype(np.float32, copy=False)),
            bias=None if norm.bias is None else self._retain(norm.bias.astype(np.float32, copy=False)),
            eps=norm.eps,
            kind=library.RMS_NORM if norm.is_rms else library.LAYER_NORM,
        )

    def _make_embedding(self, tables: TableWeights) -> library.LevelEmbedding:
        parts = (tables.tokens, tables.positions, tables.types)
        return library.LevelEmbedding(
            *(None if part is None else self._retain(part) for part in parts),
            *(0 if part is None else len(part) for part in parts),
            tables.position_offset,
            tables.tokens.dtype.name == "bfloat16",
            self._make_norm(tables.norm),
        )

    def _retain(self, values: Array) -> int:
        self._retained.append(np.ascontiguousarray(values))
        return address_of(self._retained[-1])


def supports(layers: Sequence[LayerWeights]) -> bool:
    """Return whether all layers have the same shapes, and activations only where the C code applies them."""
    shapes = {tuple((x.in_features, x.out_features) for x in _linears(layer)) for layer in layers}
    return len(shapes) == 1 and all(
        x.activation is None for layer in layers for x in (layer.qkv, layer.out, layer.down)
    )


def _keeps_tiles(
    level: CPULevel, layers: Sequence[LayerWeights], shape: EncoderShape, tables: TableWeights | None
) -> bool:
    """Return whether the rows between the layers stay in the layout of tiles: see TileLayers in encoder.h.

    The layers are those of BERT, with widths of whole tiles.
    """
    linears = [x for layer in layers for x in _linears(layer)]
    formats = {x.format for x in linears}
    if level.name != "amx" or len(formats) > 1 or (tables is not None and tables.tokens.dtype.name != "bfloat16"):
        return False
    tile_width = 32 if formats == {"bfloat16"} else 64
    widths = {shape.num_heads * shape.head_dim, *(x.in_features for x in linears)}
    is_plain = shape.softcap is None and not shape.has_bias and shape.residual_scale == 1.0
    has_two_norms = all([norm is not None for norm in x.norms] == [True] * 2 + [False] * 4 for x in layers)
    is_bert = shape.is_post_norm and shape.gate_activation is None and has_two_norms
    has_no_rope = all(layer.rope == NO_ROPE for layer in layers)
    return is_plain and is_bert and has_no_rope and all(width % tile_width == 0 for width in widths)


def _attention_format(level: CPULevel, linear_formats: set[Format]) -> Format:
    if level.name == "amx":
        return "bfloat16"
    # also for bfloat16 layers: float16 is more precise, and its words of one input need no pairs of keys
    return "float16" if "float16" in level.products and "float32" not in linear_formats else "float32"


def _linears(layer: LayerWeights) -> tuple[PackedLinear, ...]:
    return layer.qkv, layer.out, layer.up, layer.down
