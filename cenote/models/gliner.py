"""GLiNER: a DeBERTa encoder of labels and words, whose spans of words are scored against the labels."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from tokenizers import AddedToken, Tokenizer

from cenote.errors import LoadError
from cenote.models.architecture import Architecture, HFConfig
from cenote.models.deberta import deberta_v2
from cenote.models.weight_table import WeightTable
from cenote.protocol.spans import LabelPrompt, SpanHeadSpec

ENCODER_PREFIX = "token_rep_layer.bert_layer.model."
# our layer -> MLP in the checkpoint, which has a dropout before its second matrix
MLPS = {
    "start": "span_rep_layer.span_rep_layer.project_start",
    "end": "span_rep_layer.span_rep_layer.project_end",
    "span": "span_rep_layer.span_rep_layer.out_project",
    "label": "prompt_rep_layer",
}
UNUSED_TOKEN = "[FLERT]"  # added before the two tokens of the prompt
WORD_WEIGHTS: WeightTable = {"projection": "token_rep_layer.projection", "rnn": "rnn.lstm"}
SPAN_WEIGHTS: WeightTable = {
    **WORD_WEIGHTS,
    **{f"{layer}.{ours}": f"{stored}.{theirs}" for layer, stored in MLPS.items() for ours, theirs in ((0, 0), (2, 3))},
}
TOKEN_LEVEL_WEIGHTS: WeightTable = {
    **WORD_WEIGHTS,
    "word": "scorer.proj_token",
    "label": "scorer.proj_label",
    "score.0": "scorer.out_mlp.0",
    "score.2": "scorer.out_mlp.3",
}


def gliner(config: HFConfig) -> Architecture:
    """GLiNER with span mode markerV0 or token_level; `gliner` of the config holds gliner_config.json."""
    settings = config.sub_config("gliner")
    is_token_level = settings.get("span_mode", "markerV0") == "token_level"
    spec = SpanHeadSpec(
        input_size=config.hidden_size,
        size=settings.get("hidden_size", 512),
        max_width=None if is_token_level else settings.get("max_width", 12),
        # has_rnn: the key of older versions
        num_rnn_layers=settings.get("num_rnn_layers", int(settings.get("has_rnn", True))),
        max_words=settings.get("max_len", 384),
        prompt=LabelPrompt(
            label_token=settings.get("ent_token", "<<ENT>>"), after_labels=(settings.get("sep_token", "<<SEP>>"),)
        ),
        reads_label_token=settings.get("embed_ent_token", True),
    )
    return replace(
        deberta_v2(config),
        prefixes=(ENCODER_PREFIX,),
        sequence_head=None,
        token_head=None,
        masked_head=None,
        span_head=spec,
        span_weights=TOKEN_LEVEL_WEIGHTS if is_token_level else SPAN_WEIGHTS,
        # positions are relative, and the gliner package limits only the words: most texts of that many words fit
        max_length=2048,
        add_tokens=partial(_add_prompt_tokens, config, spec),
    )


def _add_prompt_tokens(config: HFConfig, spec: SpanHeadSpec, tokenizer: Tokenizer) -> None:
    """Add the tokens of the prompt if the files leave this to the gliner package; check that they have embeddings."""
    settings, tokens = config.sub_config("gliner"), (spec.prompt.label_token, spec.prompt.after_labels[-1])
    expected = settings.get("class_token_index", -1)
    if expected == -1 or settings.get("vocab_size", -1) == -1:
        tokenizer.add_special_tokens([AddedToken(token, special=True) for token in (UNUSED_TOKEN, *tokens)])
        if (size := tokenizer.get_vocab_size(with_added_tokens=True)) != config.vocab_size:
            raise LoadError(
                f"{config.source}: the tokenizer has {size} tokens with those of the prompt, the checkpoint has "
                f"{config.vocab_size} embeddings; set the tokenizer option to that of the model's encoder"
            )
    for text, row in ((tokens[0], expected), (tokens[1], -1)):
        found = tokenizer.token_to_id(text)
        if found is None or found >= config.vocab_size or row not in (-1, found):
            raise LoadError(
                f"{config.source}: the tokenizer gives {text!r} the id {found}, expected "
                f"{row if row != -1 else f'one below {config.vocab_size}'}; set the tokenizer option"
            )
