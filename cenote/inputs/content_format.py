"""How a chat template reads the content of a message: as one string, or part by part."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, TypeAlias

from jinja2 import nodes

from cenote.inputs.jinja_sandbox import SANDBOX

# one string; parts, even where a string was given; or either of the two as it was given
Reading: TypeAlias = Literal["string", "openai", "either"]
# what a name in a template may stand for
Kind: TypeAlias = Literal["messages", "message", "content"]

# filters that look into every element of what they get
ELEMENTWISE = ("map", "selectattr", "rejectattr")


@lru_cache(maxsize=32)
def reading_of(template: str) -> Reading:
    """Parts if the template goes through the content of a message, else one string."""
    tree = SANDBOX.parse(template)
    kinds = _Kinds(tree)
    through = [loop.iter for loop in tree.find_all(nodes.For)]
    through += [each.node for each in tree.find_all(nodes.Filter) if each.name in ELEMENTWISE and each.node is not None]
    if not any("content" in kinds.of(expression) for expression in through):
        return "string"
    tests = (test for test in tree.find_all(nodes.Test) if test.name == "string")
    return "either" if any("content" in kinds.of(test.node) for test in tests) else "openai"


class _Kinds:
    """What the names of a template may stand for, wherever in it they are used."""

    def __init__(self, tree: nodes.Template) -> None:
        self.names: dict[str, set[Kind]] = {"messages": {"messages"}}
        self.macros = {macro.name: macro for macro in tree.find_all(nodes.Macro)}
        known = 0
        while known < (known := self._follow(tree)):  # a name may get its meaning from one further down
            pass

    def _follow(self, tree: nodes.Template) -> int:
        for assignment in tree.find_all(nodes.Assign):
            self._note(assignment.target, self.of(assignment.node))
        for loop in tree.find_all(nodes.For):
            self._note(loop.target, {"message"} if "messages" in self.of(loop.iter) else set())
        for call in tree.find_all(nodes.Call):
            if isinstance(call.node, nodes.Name) and (macro := self.macros.get(call.node.name)) is not None:
                for target, value in zip(macro.args, call.args, strict=False):
                    self._note(target, self.of(value))
                for pair in call.kwargs:
                    self._note(nodes.Name(pair.key, "store"), self.of(pair.value))
        return sum(map(len, self.names.values()))

    def _note(self, target: nodes.Node, kinds: set[Kind]) -> None:
        if kinds and isinstance(target, nodes.Name):
            self.names.setdefault(target.name, set()).update(kinds)
        elif kinds and isinstance(target, nodes.NSRef):
            self.names.setdefault(f"{target.name}.{target.attr}", set()).update(kinds)

    def of(self, expression: nodes.Node | None) -> set[Kind]:
        match expression:
            case nodes.Name(name=name):
                return self.names.get(name, set())
            case nodes.Filter(node=inner):
                return self.of(inner)
            case (
                nodes.CondExpr(expr1=one, expr2=other)
                | nodes.Or(left=one, right=other)
                | nodes.And(right=other, left=one)
            ):
                return self.of(one) | self.of(other)
            case nodes.Add(left=one, right=other):  # a system message and the rest
                return (self.of(one) | self.of(other)) - {"content"}
            case nodes.Getitem(node=inner, arg=nodes.Slice()):
                return self.of(inner)
            case nodes.Getitem(node=inner, arg=nodes.Const(value=str(key))) | nodes.Getattr(node=inner, attr=key):
                return self._entry(inner, key)
            case nodes.Getitem(node=inner):
                return {"message"} if "messages" in self.of(inner) else set()
            case nodes.Call(node=nodes.Getattr(node=inner, attr="get"), args=[nodes.Const(value=str(key)), *_]):
                return self._entry(inner, key)
        return set()

    def _entry(self, inner: nodes.Node, key: str) -> set[Kind]:
        if key == "content" and "message" in self.of(inner):
            return {"content"}
        return self.names.get(f"{inner.name}.{key}", set()) if isinstance(inner, nodes.Name) else set()
