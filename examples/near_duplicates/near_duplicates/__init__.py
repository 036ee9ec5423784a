"""Finds texts that say nearly the same."""


def plugin() -> str:
    """What the entry point names: only if somebody selects this plugin, its class is imported."""
    return "near_duplicates.processor.NearDuplicates"
