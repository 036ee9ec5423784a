"""Check the package versions that a Sentence Transformers model declares as required."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# the newest release of Sentence Transformers whose files are known
KNOWN_VERSION = "6.2.0"
PACKAGE_NAMES = ("sentence-transformers", "sentence_transformers")


def find_version_doubt(settings: Mapping[str, Any], file: str) -> str | None:
    """Return a warning if `requirements` ask for a newer Sentence Transformers: its files may mean more than is known.

    Requirements on other packages do not matter, since they are not used to run the model.
    """
    requirements: Any = settings.get("requirements")
    for name in PACKAGE_NAMES if isinstance(requirements, Mapping) else ():
        value = requirements.get(name)
        specifier = value.get("specifier") if isinstance(value, Mapping) else value
        if specifier is not None and not _is_satisfied(str(specifier)):
            reason = f" ({value['reason']})" if isinstance(value, Mapping) and value.get("reason") else ""
            return (
                f"{file}: the model requires {name} {specifier}{reason}, but the formats of versions up to "
                f"{KNOWN_VERSION} are known; compare its results with Sentence Transformers"
            )
    return None


def _is_satisfied(specifier: str) -> bool:
    # a dependency of huggingface_hub, needed only for the few models that declare requirements
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        return SpecifierSet(specifier, prereleases=True).contains(KNOWN_VERSION)
    except InvalidSpecifier:
        return False
