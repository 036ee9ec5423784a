"""GLiNER2 with the span architecture: entities of the labels in a request, found by a DeBERTa encoder."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from tokenizers import AddedToken, Tokenizer

from cenote.errors import LoadError
from cenote.models.architecture import Architecture, HFConfig
from cenote.models.deberta import deberta_v2
from cenote.models.weight_table import WeightTable
from cenote.protocol.spans import LabelPrompt, SpanHeadSpec

ENCODER_PREFIX = "encoder."
# tokens of all tasks, in the order in which the gliner2 package adds them to a tokenizer
PROMPT_TOKENS = (
    *("[SEP_STRUCT]", "[SEP_TEXT]", "[P]", "[C]", "[E]", "[R]", "[L]"),
    *("[EXAMPLE]", "[OUTPUT]", "[DESCRIPTION]"),
)
PROMPT = LabelPrompt(
    label_token="[E]",
    before_labels=("(", "[P]", "entities", "("),
    after_labels=(")", ")", "[SEP_TEXT]"),
    context_word=1,
    adds_special_tokens=False,
    splits_as_gliner2=True,
)
# our layer -> MLP in the checkpoint, which has a dropout before its second matrix
MLPS = {
    "start": "span_rep.span_rep_layer.project_start",
    "end": "span_rep.span_rep_layer.project_end",
    "span": "span_rep.span_rep_layer.out_project",
}
SPAN_WEIGHTS: WeightTable = {
    "count": "count_pred",
    **{f"{layer}.{ours}": f"{stored}.{theirs}" for layer, stored in MLPS.items() for ours, theirs in ((0, 0), (2, 3))},
    "label": "count_embed",
    "label.position": "count_embed.pos_embedding",
    "label.down": "count_embed.transformer.in_projector",
    "label.mixer": "count_embed.transformer.transformer",
    "label.up": "count_embed.transformer.out_projector",
}


def gliner2(config: HFConfig) -> Architecture:
    """`gliner` of the config holds config.json; the rest is that of the encoder."""
    settings = config.sub_config("gliner")
    spec = SpanHeadSpec(
        input_size=config.hidden_size,
        size=config.hidden_size,
        max_width=settings.get("max_width", 8),
        num_rnn_layers=0,
        max_words=2048,
        prompt=PROMPT,
        counting_layer=settings.get("counting_layer", "count_lstm"),
        separates_labels=True,
    )
    return replace(
        deberta_v2(config),
        prefixes=(ENCODER_PREFIX,),
        sequence_head=None,
        token_head=None,
        masked_head=None,
        span_head=spec,
        span_weights=SPAN_WEIGHTS,
        unused_weights=("classifier.*",),  # of the task classification
        max_length=2048,  # as for GLiNER: positions are relative, and the gliner2 package has no limit
        add_tokens=partial(_add_schema_tokens, config),
    )


def _add_schema_tokens(config: HFConfig, tokenizer: Tokenizer) -> None:
    """Add the tokens of the prompt that the files leave to the gliner2 package; check that they have embeddings."""
    missing = [token for token in PROMPT_TOKENS if tokenizer.token_to_id(token) is None]
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in missing])
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    last = max(PROMPT_TOKENS, key=vocabulary.__getitem__)
    if vocabulary[last] >= config.vocab_size:
        raise LoadError(
            f"{config.source}: the tokenizer gives {last!r} the id {vocabulary[last]}, the checkpoint has "
            f"{config.vocab_size} embeddings; set the tokenizer option to that of the model"
        )
