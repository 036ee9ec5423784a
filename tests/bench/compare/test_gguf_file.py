"""The tensors of a BERT checkpoint have their names in GGUF."""

from __future__ import annotations

from pathlib import Path

from safetensors import safe_open

from cenote.bench.peers.gguf_file import LAYER_TENSORS, TENSORS, gguf_name

UNUSED = {"pooler.dense.weight", "pooler.dense.bias", "embeddings.position_ids"}


def test_every_tensor_that_embeddings_need_has_a_name_of_its_own(default_folder: Path) -> None:
    with safe_open(default_folder / "model.safetensors", framework="np") as file:
        names = set(file.keys()) - UNUSED

    found = {name: gguf_name(name) for name in names}

    assert None not in found.values() and len(set(found.values())) == len(names)
    assert found["encoder.layer.5.attention.output.LayerNorm.bias"] == "blk.5.attn_output_norm.bias"
    layers = {name.split(".")[1] for name in found.values() if name is not None and name.startswith("blk.")}
    assert len(names) == 6 * 16 + 5 and len(layers) == 6
    assert {str(name).split(".")[-2] for name in found.values()} == {*TENSORS.values(), *LAYER_TENSORS.values()}


def test_tensors_of_a_head_are_left_out() -> None:
    assert gguf_name("classifier.weight") is None
    assert gguf_name("bert.embeddings.word_embeddings.weight") == "token_embd.weight"
