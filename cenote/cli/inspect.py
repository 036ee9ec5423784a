"""`cenote inspect`: print every resolved setting of a model, its source, and the fingerprint of the model."""

from __future__ import annotations

import json

from cenote.cli.model_settings import resolve_settings, settings_to_json
from cenote.config.engine import EngineConfig

MAX_COLUMN = 80  # longer values, such as doubts, do not make all rows as long as themselves


def inspect_model(config: EngineConfig, *, as_json: bool, with_checksums: bool) -> int:
    settings = resolve_settings(config, with_checksums=with_checksums)
    if as_json:
        print(json.dumps(settings_to_json(settings), indent=2, ensure_ascii=False))
        return 0
    rows = [setting.format_row() for setting in settings]
    widths = [max(len(row[column]) for row in rows if len(row[column]) <= MAX_COLUMN) for column in (0, 1)]
    for name, value, source in rows:
        print(f"{name:<{widths[0]}}  {value:<{widths[1]}}  {f'from {source}' if source else ''}".rstrip())
    return 0
