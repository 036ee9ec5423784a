"""Dual encoders (CLIP, SigLIP, jina-clip), of texts and images in one space, and models that read images only."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, compress
from typing import Any

import torch
from torch import Tensor, nn

from cenote.errors import Unsupported
from cenote.layers.backbone import Backbone
from cenote.layers.linear import Linear
from cenote.layers.spec import BackboneSpec
from cenote.packed_batch import PackedBatch, PackedImages


class TwoTowers(Backbone):
    """Text backbone with a vision tower; the last row of an image is its embedding.

    `out_size` is that of a projection of text states; None: they are in the common space already.
    """

    def __init__(
        self,
        spec: BackboneSpec,
        *factories: Any,
        out_size: int | None = None,
        bias: bool = False,
    ) -> None:
        super().__init__(spec, *factories)
        self.projection = nn.Identity() if out_size is None else Linear(spec.hidden_size, out_size, bias=bias)

    def forward(self, batch: PackedBatch) -> Tensor:
        if (images := batch.images) is None:
            return self.projection(super().forward(batch))  # type: ignore[no-any-return]
        if any(batch.lora_names or ()):
            raise Unsupported("LoRA adapters apply to texts only; this request has images", param="model")
        states = place_image_rows(self.encode_images(images).rows, batch, images)
        texts, text_rows = select_texts(batch, images)
        if texts is not None:
            states[text_rows] = self.projection(super().forward(texts))
        return states


class ImageEncoder(Backbone):
    """A vision tower without a text model; `spec` describes the encoder of the tower."""

    def __init__(self, spec: BackboneSpec, *factories: Any) -> None:
        super().__init__(replace(spec, num_layers=0, rope=None, has_final_norm=False), lambda spec: nn.Identity())
        self.spec = spec

    def forward(self, batch: PackedBatch) -> Tensor:
        if batch.images is None:
            raise Unsupported("this model reads images only")
        return place_image_rows(self.encode_images(batch.images).rows, batch, batch.images)


def place_image_rows(rows: Tensor, batch: PackedBatch, images: PackedImages) -> Tensor:
    """Return states for the whole batch from the rows of a vision tower; the rows of texts are not set."""
    states = rows.new_empty(batch.num_tokens, rows.shape[-1])
    states[images.token_indices] = rows[images.feature_indices]
    return states


def select_texts(batch: PackedBatch, images: PackedImages) -> tuple[PackedBatch | None, Tensor]:
    """Return the text sequences of a batch (None if there are none) and their rows in it."""
    is_image = torch.zeros(batch.num_tokens, dtype=torch.bool, device=batch.device)
    is_image[images.token_indices] = True
    are_texts = (~is_image[batch.cu_seqlens[:-1]]).tolist()
    text_rows = (~is_image).nonzero().squeeze(1)
    if not any(are_texts):
        return None, text_rows
    lengths = tuple(compress(batch.seq_lens_cpu, are_texts))
    texts = replace(
        batch,
        token_ids=batch.token_ids[text_rows],
        positions=batch.positions[text_rows],
        cu_seqlens=torch.tensor([*accumulate(lengths, initial=0)], device=batch.device),
        seq_lens_cpu=lengths,
        token_type_ids=None if batch.token_type_ids is None else batch.token_type_ids[text_rows],
        inputs_embeds_rows=None
        if batch.inputs_embeds_rows is None
        else torch.searchsorted(text_rows, batch.inputs_embeds_rows),
        attended_lens_cpu=None
        if batch.attended_lens_cpu is None
        else tuple(compress(batch.attended_lens_cpu, are_texts)),
        images=None,
        num_unpooled=None,  # this and row_mask are for pooling, which runs on the whole batch
        row_mask=None,
        lora_names=None,
    )
    return texts, text_rows
