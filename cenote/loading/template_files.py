"""Read Jinja templates given as text or as a path."""

from __future__ import annotations

from pathlib import Path

from cenote.errors import LoadError


def read_template_text(value: str | None, option: str) -> str | None:
    """Return the template text; read the file if `value` is a path. `option` is named in errors."""
    if value is None or "{" in value or "\n" in value:
        return value
    try:
        return Path(value).read_text(encoding="utf-8")
    except OSError as error:
        raise LoadError(f"{option} {value!r} is neither Jinja text nor a file: {error.strerror}") from error
