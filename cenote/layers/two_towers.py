"""Texts and images in one space: a tower for each, and an input goes through one of them."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, compress

import torch
from torch import Tensor

from cenote.errors import Unsupported
from cenote.layers.backbone import Backbone, MakeEmbedding, MakeMixer, MakeMLP
from cenote.layers.linear import Linear
from cenote.layers.spec import BackboneSpec
from cenote.packed_batch import PackedBatch, PackedImages


class TwoTowers(Backbone):
    """A text has a row for every token, an image one for every patch; the last row of either is what is compared."""

    def __init__(
        self,
        spec: BackboneSpec,
        make_embedding: MakeEmbedding,
        make_mixer: MakeMixer,
        make_mlp: MakeMLP,
        *,
        size: int,
        bias: bool,
    ) -> None:
        super().__init__(spec, make_embedding, make_mixer, make_mlp)
        self.projection = Linear(spec.hidden_size, size, bias=bias)

    def forward(self, batch: PackedBatch) -> Tensor:
        if (images := batch.images) is None:
            return self.projection(super().forward(batch))  # type: ignore[no-any-return]
        if any(batch.adapters or ()):
            raise Unsupported("adapters change how texts are read; an image is read without one", param="model")
        rows: Tensor = self.seen(images).rows
        states = rows.new_empty(batch.num_tokens, rows.shape[-1])
        states[images.rows] = rows[images.sources]
        texts, places = without_images(batch, images)
        if texts is not None:
            states[places] = self.projection(super().forward(texts))
        return states


def without_images(batch: PackedBatch, images: PackedImages) -> tuple[PackedBatch | None, Tensor]:
    """The sequences of a batch that are texts, and the rows that they have in it."""
    pictured = torch.zeros(batch.num_tokens, dtype=torch.bool, device=batch.device)
    pictured[images.rows] = True
    are_texts = (~pictured[batch.offsets[:-1]]).tolist()
    places = (~pictured).nonzero().squeeze(1)
    if not any(are_texts):
        return None, places
    lengths = tuple(compress(batch.host_lengths, are_texts))
    texts = replace(
        batch,
        token_ids=batch.token_ids[places],
        positions=batch.positions[places],
        offsets=torch.tensor([*accumulate(lengths, initial=0)], device=batch.device),
        host_lengths=lengths,
        token_types=None if batch.token_types is None else batch.token_types[places],
        feature_rows=None if batch.feature_rows is None else torch.searchsorted(places, batch.feature_rows),
        host_attended=None if batch.host_attended is None else tuple(compress(batch.host_attended, are_texts)),
        images=None,
        skip=None,  # these two are for pooling, which sees the whole batch
        kept=None,
        adapters=None,
    )
    return texts, places
