"""Models that read images only: a vision tower without a text model."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn

from cenote.errors import Unsupported
from cenote.layers.backbone import Backbone, EmbeddingFactory, MixerFactory, MLPFactory
from cenote.layers.spec import BackboneSpec
from cenote.layers.two_towers import place_image_rows
from cenote.packed_batch import PackedBatch


class ImageEncoder(Backbone):
    """Backbone without text layers; `spec` describes the encoder of its vision tower."""

    def __init__(
        self, spec: BackboneSpec, make_embedding: EmbeddingFactory, make_mixer: MixerFactory, make_mlp: MLPFactory
    ) -> None:
        super().__init__(replace(spec, num_layers=0, rope=None, has_final_norm=False), lambda spec: nn.Identity())
        self.spec = spec

    def forward(self, batch: PackedBatch) -> Tensor:
        if batch.images is None:
            raise Unsupported("this model reads images only")
        return place_image_rows(self.encode_images(batch.images).rows, batch, batch.images)
