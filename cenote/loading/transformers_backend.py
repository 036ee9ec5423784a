"""Transformers backend: runs architectures without a native implementation, with padding and slower."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from cenote.errors import LoadError
from cenote.loading.checkpoint import ADAPTER_CONFIG, Checkpoint, first_line
from cenote.loading.transformers_entry import AUTO_CLASSES
from cenote.models.architecture import HFConfig
from cenote.models.registry import CheckpointKind
from cenote.packed_batch import PackedBatch
from cenote.utils.progress import shows_bars
from cenote.utils.text import list_first

logger = logging.getLogger("cenote")


class LastToken(NamedTuple):
    """A special token at the end of every input that has a token type of its own (<cls> of XLNet)."""

    token_id: int
    token_type: int


def load_transformers_backbone(
    checkpoint: Checkpoint,
    config: HFConfig,
    kind: CheckpointKind,
    dtype: torch.dtype,
    device: torch.device,
    last_token: LastToken | None = None,
) -> nn.Module:
    if checkpoint.base is not None:
        raise LoadError(
            f"{checkpoint.folder / ADAPTER_CONFIG}: adapters are merged only for architectures that cenote implements, "
            f"not for {config.get('architectures')}; merge it with merge_and_unload() of PEFT and load the result"
        )
    logger.warning(
        "%s runs on the Transformers backend: inputs are padded, so it is slower than native models",
        checkpoint.name,
    )
    library: Any = import_module("transformers")
    try:
        with _silence_logging(library.utils.logging):
            settings = library.AutoConfig.for_model(**config.values)
            model, report = getattr(library, AUTO_CLASSES.get(kind, "AutoModel")).from_pretrained(
                checkpoint.encoder_path,
                config=settings,
                dtype=dtype,
                trust_remote_code=False,
                output_loading_info=True,
            )
    except (ValueError, KeyError, OSError, ImportError, RuntimeError, TypeError) as error:
        raise LoadError(
            f"{checkpoint.folder}: Transformers {library.__version__} cannot load it either: {first_line(error)}"
        ) from error
    uses_encoder = kind in ("embed", "reward") and hasattr(model, "decoder") and hasattr(model, "encoder")
    _check_complete(checkpoint, report, library.__version__, unused=("decoder",) if uses_encoder else ())
    if uses_encoder:
        model = model.get_encoder()
    backbone = TransformersBackbone(model.to(device).eval().requires_grad_(False), kind, last_token)
    _check_outputs(checkpoint, backbone, device)
    return backbone


def _check_complete(checkpoint: Checkpoint, report: Any, version: str, *, unused: tuple[str, ...]) -> None:
    """Raise LoadError for weights that the library would fill with random numbers; a pooler is never used."""
    missing = sorted(name for name in report["missing_keys"] if not {"pooler", *unused}.intersection(name.split(".")))
    mismatched = sorted(str(item[0]) for item in report["mismatched_keys"])
    for problem, names in (("are missing", missing), ("have other shapes", mismatched)):
        if names:
            raise LoadError(
                f"{checkpoint.encoder_path}: weights {problem} in the checkpoint: {list_first(names, 4)}; Transformers "
                f"{version} would use random ones. Download the model again, or set architectures with hf_overrides"
            )


def _check_outputs(checkpoint: Checkpoint, backbone: TransformersBackbone, device: torch.device) -> None:
    """Raise LoadError for a model that returns neither hidden states nor logits, before a request fails."""
    name = "logits" if backbone.kind in ("sequence", "token") else "last_hidden_state"
    ids = torch.full((1, 4), backbone.probe_token_id, device=device)
    try:
        with torch.inference_mode():
            output = backbone.run_model(ids, None)
    except Exception as error:  # of any type: the model may need other inputs than text
        reason = f"it fails on a text: {first_line(error)}"
    else:
        if getattr(output, name, None) is not None:
            return
        reason = f"it returns no {name}"
    name = type(backbone.model).__name__
    raise LoadError(f"{checkpoint.encoder_path}: {name} cannot be used on the Transformers backend: {reason}")


@contextmanager
def _silence_logging(log: Any) -> Iterator[None]:
    """Suppress warnings about missing and unexpected weights, and the bar of their number where it fills a log."""
    before, has_bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    if not shows_bars():
        log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(before)
        if has_bars:
            log.enable_progress_bar()


class TransformersBackbone(nn.Module):
    """Return hidden states [tokens, hidden]; for classifiers, logits repeated for every token they apply to."""

    def __init__(self, model: Any, kind: CheckpointKind, last_token: LastToken | None = None) -> None:
        super().__init__()
        self.model = model
        self.kind = kind
        self.last_token = last_token
        self.has_token_types = getattr(model.config, "type_vocab_size", 0) > 1 or last_token is not None
        # some models look for the end of the text
        self.probe_token_id = _first_token_id(getattr(model.config, "eos_token_id", None))

    def forward(self, batch: PackedBatch) -> Tensor:
        if batch.inputs_embeds is not None:
            raise LoadError("prompt_embeds are not supported by the Transformers backend")
        if self.kind == "sequence":
            # without padding: some Transformers classifiers do not find the last token otherwise
            logits = torch.cat([self.run_model(*part).logits for part in self._equal_length_batches(batch)])
            return logits[batch.segment_ids]
        real = torch.arange(batch.max_seqlen, device=batch.device) < batch.seq_lens[:, None]
        token_types = self._token_types(batch)
        types = None if token_types is None else _pad(token_types, real)
        output = self.run_model(_pad(batch.token_ids, real), types, real.long())
        rows: Tensor = output.logits if self.kind == "token" else output.last_hidden_state
        return rows[real]

    def _token_types(self, batch: PackedBatch) -> Tensor | None:
        if self.last_token is None:
            return batch.token_type_ids
        types = torch.zeros_like(batch.token_ids) if batch.token_type_ids is None else batch.token_type_ids.clone()
        ends = batch.cu_seqlens[1:] - 1
        types[ends[batch.token_ids[ends] == self.last_token.token_id]] = self.last_token.token_type
        return types

    def run_model(self, ids: Tensor, types: Tensor | None, mask: Tensor | None = None) -> Any:
        kinds = {"token_type_ids": types} if self.has_token_types and types is not None else {}
        return self.model(input_ids=ids, attention_mask=torch.ones_like(ids) if mask is None else mask, **kinds)

    def _equal_length_batches(self, batch: PackedBatch) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Yield ids and token types [count, length] of consecutive sequences of equal length, which need no padding."""
        token_types = self._token_types(batch)
        for run in batch.equal_length_runs:
            rows = slice(run.start, run.start + run.num_seqs * run.seq_len)
            types = None if token_types is None else token_types[rows].view(run.num_seqs, run.seq_len)
            yield batch.token_ids[rows].view(run.num_seqs, run.seq_len), types


def _first_token_id(token_id: int | list[int] | None) -> int:
    return (token_id[0] if isinstance(token_id, list) else token_id) or 0


def _pad(values: Tensor, real: Tensor) -> Tensor:
    """Return [num_seqs, max_seqlen], padded with zeros on the right."""
    padded = torch.zeros(real.shape, dtype=values.dtype, device=values.device)
    padded[real] = values
    return padded
