"""T5Gemma 2: Gemma 3 layers as encoder and decoder; the decoder's attention also reads the encoder's states.

Rerankers (KaLM-Reranker-V1) score by the logits of the decoder's last token. The vision tower is not read.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cenote.errors import LoadError
from cenote.layers.spec import BackboneSpec
from cenote.models.architecture import Architecture, HFConfig, make_linear_head, makes
from cenote.models.gemma import gemma3
from cenote.models.text_format import PairLengths
from cenote.models.weight_table import WeightTable

if TYPE_CHECKING:
    from torch import nn

    from cenote.layers.backbone import Backbone

NOT_READ = ("lm_head.*", "encoder.vision_tower.*", "encoder.multi_modal_projector.*")
PROMPT_TOKENS = 512  # room for the instruction and the template, beside the longest query and document


def t5gemma2(config: HFConfig) -> Architecture:
    """Return the encoder, whose language model is the encoder-decoder."""
    vision, decoder_config = config.sub_config("encoder"), config.sub_config("decoder", sliding_window=4096)
    text = vision.sub_config("text_config", sliding_window=4096)
    _check_supported(config, decoder_config)
    encoder, decoder = _gemma_layers(text, is_causal=False), _gemma_layers(decoder_config, is_causal=True)
    tables = tuple(
        {**_under(prefix, encoder.weights), "embed.image_end": f"{prefix}embed_tokens.eoi_embedding"}
        for prefix in ("encoder.text_model.", "encoder.")
    )
    window = text.sliding_window or 0  # split between both sides: if it is even, one token less before the query
    image_end = vision.get("eoi_token_index", 256_000)

    @makes("embedding of the end of an image")
    def embedding(spec: BackboneSpec) -> nn.Module:
        from cenote.layers.encoder_decoder import EmbeddingWithImageEnd

        return EmbeddingWithImageEnd(image_end, spec)

    @makes("uneven attention window")
    def mixer(spec: BackboneSpec, layer: int) -> nn.Module:
        from cenote.layers.encoder_decoder import UnevenWindowAttention

        return UnevenWindowAttention((window - 1) // 2, spec, layer)

    @makes("decoder beside the encoder")
    def backbone(*arguments: Any) -> Backbone:
        from cenote.layers.encoder_decoder import EncoderDecoder

        return EncoderDecoder(decoder.backbone, config.values.get("encoder_chunk_size", 4), *arguments)

    base = replace(
        encoder,
        pooling="MEAN",
        backbone=replace(encoder.backbone, window=window // 2),
        weights=tables[0],
        alternative_weights=tables[1:],
        unused_weights=(*NOT_READ, "decoder.*"),
        sequence_head=None,
        token_head=None,
        make_embedding=embedding,
        make_mixer=mixer,
    )
    own = {
        f"decoder.{path}": name
        for layer in range(decoder.backbone.num_layers)
        for path, name in _under("decoder.", decoder.weights, layer).items()
        if path != "embed.tokens"
    }
    lengths = PairLengths(config.get("query_max_length", 512), config.get("document_max_length", 1024))
    reranker = replace(
        base,
        pooling="LAST",
        weights={**tables[0], **own},
        alternative_weights=tuple({**table, **own} for table in tables[1:]),
        unused_weights=(*NOT_READ, "decoder.embed_tokens.*"),  # tied to the encoder's
        backbone_class=backbone,
        sequence_head=make_linear_head("lm_head", bias=False, pooling="LAST"),
        pair_lengths=lengths,
        required_tokens=("<bos>", "<start_of_turn>", "<end_of_turn>"),
        max_length=lengths.query + lengths.document + PROMPT_TOKENS,
    )
    return replace(base, language_model=reranker)


def _check_supported(config: HFConfig, decoder: HFConfig) -> None:
    """Raise LoadError for what would change the scores of the decoder."""
    rope = (decoder.get("rope_parameters") or {}).get("full_attention") or decoder.get("rope_scaling") or {}
    for source, key, value, supported in (
        (config.source, "tie_word_embeddings", config.values.get("tie_word_embeddings", True), (True,)),
        (decoder.source, "final_logit_softcapping", decoder.get("final_logit_softcapping"), (None,)),
        (decoder.source, "rope_type", rope.get("rope_type", "default"), ("default", "linear")),
    ):
        if value not in supported:
            raise LoadError(f"{source}: {key} {value!r} is not supported; model_impl='transformers' embeds with it")


def _gemma_layers(config: HFConfig, *, is_causal: bool) -> Architecture:
    base = gemma3(HFConfig({**config.values, "is_causal": is_causal}, config.source))
    norms = {"layers.*.mixer_norm": "pre_self_attn", "layers.*.mixer_out_norm": "post_self_attn"}
    stored = {path: f"layers.*.{name}_layernorm" for path, name in norms.items()}
    return replace(base, weights={**base.weights, **stored})


def _under(prefix: str, table: WeightTable, layer: int | None = None) -> dict[str, str | list[str]]:
    """Return the table with a prefix before the stored names, of all layers or one."""

    def stored(name: str) -> str:
        return prefix + (name if layer is None else name.replace("*", str(layer)))

    return {
        path if layer is None else path.replace("*", str(layer)): stored(names)
        if isinstance(names, str)
        else [stored(name) for name in names]  # type: ignore[union-attr]  # Gemma derives no weights
        for path, names in table.items()
    }
