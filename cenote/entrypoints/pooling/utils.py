"""Binary responses under their names in `vllm.entrypoints.pooling.utils`."""

from cenote.utils.serial_utils import MetadataItem, build_metadata_items, decode_pooling_output

__all__ = ["MetadataItem", "build_metadata_items", "decode_pooling_output"]
