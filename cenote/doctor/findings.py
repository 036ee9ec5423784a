"""What the doctor has found: one line for each check, as a table or JSON."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from cenote.utils.tables import align_columns

# fail: a client gets a wrong or unreadable reply; warn: differs from what most servers do; absent: not served
Status = Literal["ok", "fail", "warn", "absent"]
ORDER: tuple[Status, ...] = ("fail", "warn", "ok", "absent")


@dataclass(frozen=True)
class Finding:
    api: str
    check: str
    status: Status
    message: str = ""


@dataclass
class Report:
    url: str
    model: str = ""
    findings: list[Finding] = field(default_factory=list)
    measured: dict[str, Any] = field(default_factory=dict)

    def add(self, api: str, check: str, status: Status, message: str = "") -> None:
        self.findings.append(Finding(api, check, status, message))

    def add_result(self, api: str, check: str, problem: str | None, success: str = "") -> None:
        """Add a failure if there is a problem, else a success."""
        self.add(api, check, "fail" if problem else "ok", problem or success)

    @property
    def has_failed(self) -> bool:
        return any(finding.status == "fail" for finding in self.findings)

    def status_of(self, api: str) -> Status:
        """Return the worst status of an API; absent if none of its requests is served."""
        found = {finding.status for finding in self.findings if finding.api == api}
        return next((status for status in ORDER if status in found), "absent")

    def to_json(self) -> str:
        counts = Counter(finding.status for finding in self.findings)
        body = {"url": self.url, "model": self.model, "failed": self.has_failed, "counts": dict(counts)}
        body |= {"measured": self.measured, "findings": [asdict(finding) for finding in self.findings]}
        return json.dumps(body, indent=2, ensure_ascii=False)

    def to_text(self) -> str:
        """Return a table; APIs of which nothing is served are one line together."""
        served = {finding.api for finding in self.findings if finding.status != "absent"}
        absent = sorted({finding.api for finding in self.findings} - {""} - served)
        rows = [finding for finding in self.findings if finding.api not in absent]
        lines = align_columns([(f"{row.status:<6}", row.api, row.check, row.message) for row in rows])
        if absent:
            lines.append(f"absent  {', '.join(absent)}")
        counts = Counter(finding.status for finding in self.findings)
        summary = ", ".join(f"{counts[status]} {status}" for status in ORDER if counts[status])
        heading = f"{self.url}, model {self.model}" if self.model else self.url
        return "\n".join([heading, *lines, summary])
