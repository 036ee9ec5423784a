"""Load a model: describe it, load its tokenizer, and its weights for the runtime that computes it."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from cenote.config.engine import EngineConfig
from cenote.errors import LoadError
from cenote.loading.describe import describe_model
from cenote.loading.fingerprint import check_fingerprint, compute_fingerprint
from cenote.loading.loaded_model import LoadedModel
from cenote.loading.model_description import ModelDescription
from cenote.loading.tokenizer_checks import check_tokenizer, warn_of_token_types
from cenote.loading.tokenizer_files import (
    TokenizerFiles,
    append_eos,
    empty_tokenizer_files,
    load_tokenizer_files,
    remove_special_tokens,
)
from cenote.loading.weights import CheckpointWeights
from cenote.pooling.plan import PoolingPlan

if TYPE_CHECKING:
    from cenote.loading.tensor_parallel import StartRanks

logger = logging.getLogger("cenote")


def load_model(
    options: EngineConfig,
    route: str | None = None,
    start_ranks: StartRanks | None = None,
    *,
    weights: CheckpointWeights | None = None,
) -> LoadedModel:
    """Load a model; `route` is that of a model with a Router, None: its default; `weights` replace the checkpoint's.

    `start_ranks` starts the other ranks of a tensor-parallel model, when it is known that the model can be split.
    """
    description = describe_model(options, route)
    if options.tensor_parallel_size > 1:
        # imported on use, here and below: most models are not split, and every module makes the start slower
        from cenote.loading.tensor_parallel import check_can_split

        check_can_split(description, options)
    fingerprint = compute_fingerprint(description, options)
    if options.expect_fingerprint is not None:
        check_fingerprint(fingerprint, options.expect_fingerprint, description.name)
    for doubt in description.doubts:
        logger.warning("%s", doubt)
    tokenizer = _load_tokenizer(description)
    description = replace(description, plan=_complete_plan(description, tokenizer))
    if description.runtime.value == "native":
        from cenote.loading.native_model import load_native_model

        model = load_native_model(options, description, tokenizer, weights)
    else:
        from cenote.loading.torch_model import load_torch_model

        model = load_torch_model(options, description, tokenizer, start_ranks, weights)
    return replace(model, fingerprint=fingerprint)


def _load_tokenizer(description: ModelDescription) -> TokenizerFiles:
    architecture = description.architecture
    if not architecture.reads_texts or description.kind.value == "tensors":
        return empty_tokenizer_files()
    checkpoint = description.find_tokenizer()
    files = load_tokenizer_files(
        checkpoint,
        is_plain=architecture.has_plain_tokenizer,
        text_suffix=description.sentence_transformers.text_suffix,
    )
    if architecture.add_tokens is not None:
        architecture.add_tokens(files.tokenizer)
    for token in architecture.required_tokens:
        if files.tokenizer.token_to_id(token) is None:
            raise LoadError(f"{checkpoint.folder}: the tokenizer has no token {token!r}, which scores need")
    check_tokenizer(files, description.config, architecture.backbone.vocab_size, checkpoint.folder)
    if description.kind.value == "sequence":
        warn_of_token_types(files, description.config, checkpoint.folder)
    if architecture.appends_eos:
        append_eos(files)
    if not architecture.adds_special_tokens:
        remove_special_tokens(files.tokenizer)
    return files


def _complete_plan(description: ModelDescription, tokenizer: TokenizerFiles) -> PoolingPlan:
    """Return the plan with the special tokens that it treats differently."""
    if description.kind.value == "hybrid":
        return _exclude_special_tokens(description, tokenizer)
    architecture = description.architecture
    if not architecture.is_static:
        return description.plan
    unknown_id = tokenizer.unk_token_id if architecture.drops_unknown_tokens else None
    return replace(description.plan, pools_table=True, unpooled_token_ids=() if unknown_id is None else (unknown_id,))


def _exclude_special_tokens(description: ModelDescription, tokenizer: TokenizerFiles) -> PoolingPlan:
    """Return the bge-m3 plan: special tokens get no lexical weight, the first no embedding; weights are scalars."""

    def token_id(*names: str) -> int | None:
        texts = (tokenizer.special_tokens.get(name) for name in names)
        token_ids = (None if text is None else tokenizer.tokenizer.token_to_id(text) for text in texts)
        in_config = (description.config.get(f"{name}_id") for name in names)
        return next((token for token in (*token_ids, *in_config) if token is not None), None)

    first, last = token_id("cls_token", "bos_token"), token_id("eos_token", "sep_token")
    special = (first, last, tokenizer.pad_token_id, tokenizer.unk_token_id)
    return replace(
        description.plan,
        edge_token_ids={"token_classify": (first, last), "token_embed": (first, None)},
        scalar_tasks=("token_classify",),
        excluded_token_ids=tuple(token for token in special if token is not None),
    )
