"""Models that no family of ours describes, run by the Transformers library: padded and slower, but they run."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from cenote.errors import LoadError
from cenote.layers.spec import BackboneSpec
from cenote.loading.checkpoint import Checkpoint, first_line
from cenote.models.architecture import Architecture, HFConfig, make_linear_head
from cenote.models.registry import ArchitectureEntry, CheckpointKind, kind_from_name
from cenote.packed_batch import PackedBatch

logger = logging.getLogger("cenote")

TRANSFORMERS_INSTALL_HINT = "pip install 'cenote[transformers]'"
# which of the library's classes gives what we pool
AUTO_CLASSES: dict[CheckpointKind, str] = {
    "sequence": "AutoModelForSequenceClassification",
    "token": "AutoModelForTokenClassification",
    "embed": "AutoModel",
}


def is_available() -> bool:
    return find_spec("transformers") is not None


def supports(names: list[str], config: HFConfig) -> bool:
    """Whether the installed library has a model of that name and type."""
    library: Any = import_module("transformers")
    return config.get("model_type") in library.CONFIG_MAPPING and any(hasattr(library, name) for name in names)


def transformers_entry(names: list[str], source: str) -> ArchitectureEntry:
    """An architecture that the library may know, as if it were one of ours."""
    if not names:
        raise LoadError(f"{source} names no architecture, so there is nothing to look for in the Transformers library")
    if not is_available():
        raise LoadError(f"model_impl='transformers' needs that library: {TRANSFORMERS_INSTALL_HINT}")
    form = kind_from_name(names[0])
    return ArchitectureEntry(
        names[0],
        transformers_architecture,
        form if form in AUTO_CLASSES or form == "causal" else "embed",
        is_native=False,
    )


def transformers_architecture(config: HFConfig) -> Architecture:
    """As much of a description as those need who never look inside the backbone."""
    text = HFConfig(config.get("text_config", config.values), config.source)
    size = text.get("hidden_size") or text.get("d_model") or text.get("n_embd") or text.get("dim")
    if size is None:
        raise LoadError(
            f"{config.source} has no hidden_size, d_model, n_embd or dim; the size of its states is unknown"
        )
    causal = _is_causal(config)
    return Architecture(
        backbone=BackboneSpec(
            vocab_size=text.vocab_size,
            hidden_size=size,
            intermediate_size=size,
            num_layers=1,
            num_heads=1,
        ),
        weights={},
        pooling="LAST" if causal else "CLS",
        # the library's own; they only say that there may be some
        sequence_head=make_linear_head("classifier", pooling="CLS"),
        token_head=make_linear_head("classifier"),
        pairs_with_separator=not causal,
    )


def _is_causal(config: HFConfig) -> bool:
    """Whether its tokens see only what is before them: then the first says nothing, and the last is the one to pool."""
    if kind_from_name(next(iter(config.get("architectures", [])), "")) == "causal":
        return True
    known: Any = import_module("transformers.models.auto.modeling_auto")
    kind = config.get("model_type")
    # a type that writes text and was never taught to fill gaps; T5 and its kin have an encoder, which sees everything
    writes = kind in known.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and kind not in known.MODEL_FOR_MASKED_LM_MAPPING_NAMES
    return writes and not config.get("is_encoder_decoder", False)


def load_transformers_backbone(
    checkpoint: Checkpoint, config: HFConfig, kind: CheckpointKind, dtype: torch.dtype, device: torch.device
) -> nn.Module:
    logger.warning(
        "%s is run by the Transformers library: its inputs are padded, so expect it to be slower than a model of ours",
        checkpoint.name,
    )
    library: Any = import_module("transformers")
    try:
        with _silence_logging(library.utils.logging):
            settings = library.AutoConfig.for_model(**config.values)
            made = getattr(library, AUTO_CLASSES.get(kind, "AutoModel")).from_pretrained(
                checkpoint.folder, config=settings, dtype=dtype, trust_remote_code=False
            )
    except (ValueError, KeyError, OSError, ImportError, RuntimeError, TypeError) as error:
        raise LoadError(
            f"{checkpoint.folder}: the Transformers library {library.__version__} cannot load it either: "
            f"{first_line(error)}"
        ) from error
    if kind == "embed" and hasattr(made, "decoder") and hasattr(made, "encoder"):
        made = made.get_encoder()
    return TransformersBackbone(made.to(device).eval().requires_grad_(False), kind)


@contextmanager
def _silence_logging(log: Any) -> Iterator[None]:
    """Without the library's report of what it did not load, which is for those who train."""
    before = log.get_verbosity()
    log.set_verbosity_error()
    try:
        yield
    finally:
        log.set_verbosity(before)


class TransformersBackbone(nn.Module):
    """States of tokens where it embeds; where it classifies, the logits, in every row of what they are about."""

    def __init__(self, model: Any, kind: CheckpointKind) -> None:
        super().__init__()
        self.model = model
        self.kind = kind
        self.has_token_types = getattr(model.config, "type_vocab_size", 0) > 1

    def forward(self, batch: PackedBatch) -> Tensor:
        if batch.inputs_embeds is not None:
            raise LoadError("prompt_embeds cannot be given to a model that the Transformers library runs")
        if self.kind == "sequence":
            # classifiers of the library look for the last token each in their own way, not all past padding
            logits = torch.cat([self._run_model(*part).logits for part in self._equal_length_batches(batch)])
            return logits[batch.segment_ids]
        real = torch.arange(batch.max_seqlen, device=batch.device) < batch.seq_lens[:, None]
        types = None if batch.token_type_ids is None else _pad(batch.token_type_ids, real)
        answer = self._run_model(_pad(batch.token_ids, real), types, real.long())
        rows: Tensor = answer.logits if self.kind == "token" else answer.last_hidden_state
        return rows[real]

    def _run_model(self, ids: Tensor, types: Tensor | None, mask: Tensor | None = None) -> Any:
        kinds = {"token_type_ids": types} if self.has_token_types and types is not None else {}
        return self.model(input_ids=ids, attention_mask=torch.ones_like(ids) if mask is None else mask, **kinds)

    def _equal_length_batches(self, batch: PackedBatch) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Neighbours of equal length, which need no padding: ids and types [count, length]."""
        for run in batch.equal_length_runs:
            rows = slice(run.start, run.start + run.num_seqs * run.seq_len)
            types = None if batch.token_type_ids is None else batch.token_type_ids[rows].view(run.num_seqs, run.seq_len)
            yield batch.token_ids[rows].view(run.num_seqs, run.seq_len), types


def _pad(values: Tensor, real: Tensor) -> Tensor:
    """[size, longest], filled up with zeros behind every sequence."""
    padded = torch.zeros(real.shape, dtype=values.dtype, device=values.device)
    padded[real] = values
    return padded
