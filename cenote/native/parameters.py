"""The parameters of a transformer that is described by a spec alone: their names and shapes."""

from __future__ import annotations

from collections.abc import Iterator

from cenote.layers.spec import BackboneSpec

Shape = tuple[int, ...]


def list_parameters(spec: BackboneSpec) -> dict[str, Shape]:
    """Return the shapes by name, the names being those of weight tables; a bias comes before its weight.

    A linear layer can then be packed as soon as its weight is read.
    """
    return dict(_iter_parameters(spec))


def _iter_parameters(spec: BackboneSpec) -> Iterator[tuple[str, Shape]]:
    size = spec.embedding_size or spec.hidden_size
    yield "embed.tokens.weight", (spec.vocab_size, size)
    if spec.num_learned_positions:
        yield "embed.positions.weight", (spec.num_learned_positions, size)
    if spec.num_token_types:
        yield "embed.token_types.weight", (spec.num_token_types, size)
    if spec.has_embed_norm:
        yield from _norm("embed.norm", spec, size)
    if size != spec.hidden_size:
        yield from _linear("embed.projection", size, spec.hidden_size, bias=True)
    for layer in range(spec.num_layers):
        yield from _layer(f"layers.{layer}", spec, layer)
    if spec.has_final_norm:
        yield from _norm("norm", spec, spec.hidden_size)
    if spec.relative_bias is not None and spec.relative_bias.num_buckets:
        yield "bias.weight", (spec.relative_bias.num_buckets, spec.num_heads)


def _layer(prefix: str, spec: BackboneSpec, layer: int) -> Iterator[tuple[str, Shape]]:
    hidden, intermediate = spec.hidden_size, spec.intermediate_size
    query, key = spec.num_heads * spec.head_size, spec.num_key_value_heads * spec.head_size
    yield from _linear(f"{prefix}.mixer.qkv", hidden, query + 2 * key, bias=spec.qkv_bias)
    yield from _linear(f"{prefix}.mixer.out", query, hidden, bias=spec.out_bias)
    if spec.qk_norm is not None:
        yield from _norm(f"{prefix}.mixer.query_norm", spec, query if spec.qk_norm == "width" else spec.head_size)
        yield from _norm(f"{prefix}.mixer.key_norm", spec, key if spec.qk_norm == "width" else spec.head_size)
    up = 2 * intermediate if spec.is_gated_mlp else intermediate
    yield from _linear(f"{prefix}.mlp.up", hidden, up, bias=spec.mlp_bias)
    yield from _linear(f"{prefix}.mlp.down", intermediate, hidden, bias=spec.mlp_bias)
    for name in list_layer_norms(spec, layer):
        yield from _norm(f"{prefix}.{name}", spec, hidden)


def list_layer_norms(spec: BackboneSpec, layer: int) -> list[str]:
    """Return the names of the norms around the sublayers of a layer."""
    names = []
    if spec.norm_order != "output":
        names += ["mixer_norm"] if layer or spec.has_first_norm else []
        names += ["mlp_norm"]
    if spec.norm_order in ("sandwich", "output"):
        names += ["mixer_out_norm", "mlp_out_norm"]
    return names


def _linear(path: str, inputs: int, outputs: int, *, bias: bool) -> Iterator[tuple[str, Shape]]:
    if bias:
        yield f"{path}.bias", (outputs,)
    yield f"{path}.weight", (outputs, inputs)


def _norm(path: str, spec: BackboneSpec, size: int) -> Iterator[tuple[str, Shape]]:
    if spec.norm == "rms" or spec.norm_affine:
        yield f"{path}.weight", (size,)
    if spec.norm == "layer" and spec.norm_affine and spec.norm_bias:
        yield f"{path}.bias", (size,)
