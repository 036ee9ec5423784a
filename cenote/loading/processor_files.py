"""Read the settings of image processors."""

from __future__ import annotations

from collections.abc import Mapping

from cenote.loading.checkpoint import Checkpoint
from cenote.models.image_spec import ProcessorFiles


def read_processor_files(checkpoint: Checkpoint) -> ProcessorFiles:
    """Return the settings of the image processor."""
    processor = checkpoint.read_json_object("processor_config.json")
    nested = processor.get("image_processor")
    image_processor = checkpoint.read_json_object("preprocessor_config.json")
    return ProcessorFiles({**(nested if isinstance(nested, Mapping) else {}), **image_processor}, processor)
