"""Find near-duplicate texts."""


def plugin() -> str:
    """Entry point: return the class of the plugin, which is imported only if the plugin is selected."""
    return "near_duplicates.processor.NearDuplicates"
