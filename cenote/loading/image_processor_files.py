"""The files of a checkpoint that say how images are read."""

from __future__ import annotations

from collections.abc import Mapping

from cenote.loading.checkpoint import Checkpoint
from cenote.models.vision_spec import ProcessorFiles


def read_processor_files(checkpoint: Checkpoint) -> ProcessorFiles:
    whole = checkpoint.read_json_object("processor_config.json")
    inside = whole.get("image_processor")
    own = checkpoint.read_json_object("preprocessor_config.json")
    return ProcessorFiles({**(inside if isinstance(inside, Mapping) else {}), **own}, whole)
