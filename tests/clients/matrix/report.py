"""Verdicts of the checks, as a table for the terminal or for docs/clients.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Row:
    client: str
    package: str
    version: str
    setting: str
    client_bug: str
    error: str
    seconds: float

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Row:
        return cls(**values)

    @property
    def has_failed(self) -> bool:
        """Whether the check failed though the client can work."""
        return bool(self.error and not self.client_bug)

    @property
    def verdict(self) -> str:
        if self.has_failed:
            return f"FAILED: {self.error}"
        if self.error:
            return f"client bug: {self.client_bug}"
        if self.client_bug:
            return "OK: the client bug that the check expects is gone"
        return f"OK with {self.setting}" if self.setting else "OK"


def print_table(rows: Sequence[Row]) -> None:
    widths = [max(len(getattr(row, name)) for row in rows) for name in ("client", "version")]
    for row in rows:
        print(f"{row.client:{widths[0]}}  {row.version:{widths[1]}}  {row.verdict}")
    failed = sum(row.has_failed for row in rows)
    bugs = sum(bool(row.error) for row in rows) - failed
    print(f"{len(rows)} checks: {len(rows) - failed - bugs} OK, {bugs} client bugs, {failed} failed")


def format_markdown(rows: Sequence[Row]) -> str:
    """Return the rows as a table in Markdown."""
    lines = ["| client | version | verdict |", "|---|---|---|"]
    lines += [f"| {row.client} | {row.version} | {row.verdict.replace('|', chr(92) + '|')} |" for row in rows]
    return "\n".join(lines) + "\n"
