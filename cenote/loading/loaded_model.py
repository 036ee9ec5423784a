"""LoadedModel: a model that is ready to run, with its tokenizer and adapters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cenote.loading.fingerprint import Fingerprint
from cenote.loading.model_description import ModelDescription
from cenote.loading.tokenizer_files import TokenizerFiles
from cenote.models.image_spec import ProcessorFiles
from cenote.pooling.pooler import Pooler

if TYPE_CHECKING:
    from cenote.kernels.cpu.format_search import MatmulReport
    from cenote.loading.lora import LoRARegistry


@dataclass(frozen=True, slots=True)
class LoadedModel:
    description: ModelDescription
    backbone: Any  # of its runtime: maps a PackedBatch to token states
    pooler: Pooler
    tokenizer: TokenizerFiles
    adapters: LoRARegistry | None = None  # None: LoRA is not enabled
    processor_files: ProcessorFiles = ProcessorFiles()  # image preprocessing settings
    is_batch_invariant: bool = False  # with `deterministic`: batches give the same bits as sequences that run alone
    fingerprint: Fingerprint | None = None
    products: MatmulReport | None = None  # of the linear layers, on a CPU with kernels of ours
    ranks: Any = None  # RankProcesses of a tensor-parallel model
