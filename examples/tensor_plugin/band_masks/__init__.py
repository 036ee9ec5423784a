"""Classify every pixel of a satellite image."""


def plugin() -> str:
    """Entry point: return the class of the plugin, which is imported only if the plugin is selected."""
    return "band_masks.processor.BandMasks"
