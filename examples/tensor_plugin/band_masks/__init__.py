"""Finds which class every pixel of a satellite image belongs to."""


def plugin() -> str:
    """What the entry point names: only if somebody selects this plugin, its class is imported."""
    return "band_masks.processor.BandMasks"
