"""A scenario gives figures with targets."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict, dataclass

from lab.chaos.session import ChaosOptions


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured value and what it must be; without limits it is only shown."""

    name: str
    value: float
    unit: str = ""
    at_most: float | None = None
    at_least: float | None = None
    note: str = ""

    @property
    def is_met(self) -> bool:
        too_large = self.at_most is not None and not self.value <= self.at_most  # NaN is no value
        return not too_large and not (self.at_least is not None and not self.value >= self.at_least)

    @property
    def target(self) -> str:
        if self.at_most is not None:
            return f"at most {self.at_most:,.4g}"
        return "" if self.at_least is None else f"at least {self.at_least:,.4g}"

    def to_json(self) -> dict[str, object]:
        return {**asdict(self), "is_met": self.is_met}


RunScenario = Callable[[ChaosOptions], Coroutine[None, None, list[Figure]]]


@dataclass(frozen=True, slots=True)
class Scenario:
    description: str
    run: RunScenario


def format_figures(figures: Sequence[Figure]) -> str:
    width = max(len(figure.name) for figure in figures)
    lines = []
    for figure in figures:
        verdict = "" if not figure.target else "met" if figure.is_met else "MISSED"
        value = f"{figure.value:,.4g} {figure.unit}".strip()
        lines.append(f"{figure.name:<{width}}  {value:>14}  {figure.target:<20} {verdict:<6} {figure.note}".rstrip())
    return "\n".join(lines)
