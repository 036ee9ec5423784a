"""The format in which the linear layers of a native backbone multiply, checked against float32 on a sample."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from cenote.kernels.cpu.encoder import LevelEncoder
from cenote.kernels.cpu.format_search import MatmulReport, check_format, relative_error, summarize_states
from cenote.kernels.cpu.library import Format, unquantized_format
from cenote.kernels.cpu.packed_linear import PackedLinear
from cenote.kernels.cpu.quantize import absolute_max, make_calibration_tokens, smooth_scales
from cenote.loading.native_backbone import BackboneReader
from cenote.native.backbone import NativeBackbone
from cenote.packed_batch import pack_arrays
from cenote.utils.arrays import Array

logger = logging.getLogger("cenote")


def make_backbone(
    reader: BackboneReader, format: Format, sample: Sequence[Sequence[int]] | None
) -> tuple[NativeBackbone, MatmulReport | None]:
    """Read a backbone whose linear layers multiply in a format, unless its results on the sample differ too much.

    `sample` are the token ids of a few texts; None: they are not in the vocabulary, and random ids take their place.
    """
    if reader.level is None or not reader.spec.num_layers:
        return reader.make("float32"), None
    if format in ("float32", "bfloat16"):
        return reader.make(format), MatmulReport(format, reader.level.name)
    model = SampledBackbone(reader, sample or make_calibration_tokens(reader.spec.vocab_size))
    reference = model.summarize()
    model.set_format(format)
    report = check_format(model, MatmulReport(format, reader.level.name), reference)
    logger.info("%s", report)
    return model.backbone, report


class SampledBackbone:
    """A backbone that is read again in other formats, and a sample of its inputs: a FormatModel.

    Its layers are the paths of the linear layers. It starts in float32.
    """

    def __init__(self, reader: BackboneReader, sample: Sequence[Sequence[int]]) -> None:
        self.reader = reader
        self.batch = pack_arrays(sample)
        self.backbone = reader.make("float32")
        self.smooth_scales: dict[str, Array] | None = None

    def summarize(self) -> Array:
        return summarize_states(self.backbone(self.batch), self.batch.seq_lens_cpu)

    def rank_layers(self) -> list[str]:
        self.set_format("float32")
        encoder = self._encoder()
        inputs = encoder.record_inputs(lambda: self.backbone(self.batch), self.batch.num_tokens)
        rows = dict(zip(map(id, encoder.linears), inputs, strict=True))
        errors = {
            path: self._int8_error(path, linear, rows[id(linear)])
            for path, linear in self.backbone.linears.items()
            if id(linear) in rows
        }
        return sorted(errors, key=lambda path: -errors[path])

    def set_format(self, format: Format, unquantized: Collection[str] = ()) -> None:
        scales = self._get_smooth_scales() if format == "int8" else {}
        own_formats = dict.fromkeys(unquantized, unquantized_format())
        self.backbone = self.reader.make(format, own_formats, scales)

    def _get_smooth_scales(self) -> dict[str, Array]:
        """Return the SmoothQuant scales by path, computed once with the layers in float32."""
        if self.smooth_scales is None:
            encoder = self._encoder()
            tokens = pack_arrays(make_calibration_tokens(self.reader.spec.vocab_size))
            maxima = encoder.record_input_max(lambda: self.backbone(tokens))
            by_layer = dict(zip(map(id, encoder.linears), maxima, strict=True))
            # only layers with more outputs than inputs: they read normalized states with stable outlier channels
            self.smooth_scales = {
                path: smooth_scales(absolute_max([self.reader.read_weight(path)]), by_layer[id(linear)])
                for path, linear in self.backbone.linears.items()
                if id(linear) in by_layer and linear.out_features > linear.in_features
            }
        return self.smooth_scales

    def _int8_error(self, path: str, linear: PackedLinear, rows: Array) -> float:
        scales = self._get_smooth_scales().get(path)
        quantized = PackedLinear(self.reader.read_weight(path), None, None, "int8", scales, level=linear.level)
        return relative_error(quantized(rows), rows @ self.reader.read_weight(path).T)

    def _encoder(self) -> LevelEncoder:
        assert self.backbone.encoder is not None, "a table has no format"
        return self.backbone.encoder
