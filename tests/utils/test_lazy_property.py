"""lazy_property computes once per instance, also of frozen classes."""

from __future__ import annotations

from dataclasses import dataclass, field

from cenote.utils.lazy_property import lazy_property


@dataclass(frozen=True)
class Circle:
    radius: int
    computed: list[int] = field(default_factory=list)

    @lazy_property
    def diameter(self) -> int:
        """Twice the radius."""
        self.computed.append(self.radius)
        return 2 * self.radius


def test_a_value_is_computed_once_for_each_instance() -> None:
    small, large = Circle(1), Circle(5)
    assert [small.diameter, small.diameter, large.diameter] == [2, 2, 10]
    assert small.computed == [1]
    assert large.computed == [5]


def test_the_class_shows_the_docstring() -> None:
    assert Circle.diameter.__doc__ == "Twice the radius."
