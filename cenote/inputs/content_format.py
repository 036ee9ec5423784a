"""How a chat template reads the content of a message: as one string, or part by part."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, TypeAlias

from jinja2 import nodes

from cenote.inputs.jinja_sandbox import SANDBOX

# one string; parts, even where a string was given; or either of the two as it was given
ResolvedContentFormat: TypeAlias = Literal["string", "openai", "either"]
# what a name in a template may stand for
VariableKind: TypeAlias = Literal["messages", "message", "content"]

# filters that look into every element of what they get
ELEMENTWISE_FILTERS = ("map", "selectattr", "rejectattr")


@lru_cache(maxsize=32)
def detect_content_format(template: str) -> ResolvedContentFormat:
    """Parts if the template goes through the content of a message, else one string."""
    tree = SANDBOX.parse(template)
    kinds = _VariableKinds(tree)
    through = [loop.iter for loop in tree.find_all(nodes.For)]
    through += [
        each.node for each in tree.find_all(nodes.Filter) if each.name in ELEMENTWISE_FILTERS and each.node is not None
    ]
    if not any("content" in kinds.infer(expression) for expression in through):
        return "string"
    tests = (test for test in tree.find_all(nodes.Test) if test.name == "string")
    return "either" if any("content" in kinds.infer(test.node) for test in tests) else "openai"


class _VariableKinds:
    """What the names of a template may stand for, wherever in it they are used."""

    def __init__(self, tree: nodes.Template) -> None:
        self.kinds_by_name: dict[str, set[VariableKind]] = {"messages": {"messages"}}
        self.macros = {macro.name: macro for macro in tree.find_all(nodes.Macro)}
        known = 0
        while known < (known := self._propagate(tree)):  # a name may get its meaning from one further down
            pass

    def _propagate(self, tree: nodes.Template) -> int:
        for assignment in tree.find_all(nodes.Assign):
            self._record(assignment.target, self.infer(assignment.node))
        for loop in tree.find_all(nodes.For):
            self._record(loop.target, {"message"} if "messages" in self.infer(loop.iter) else set())
        for call in tree.find_all(nodes.Call):
            if isinstance(call.node, nodes.Name) and (macro := self.macros.get(call.node.name)) is not None:
                for target, value in zip(macro.args, call.args, strict=False):
                    self._record(target, self.infer(value))
                for pair in call.kwargs:
                    self._record(nodes.Name(pair.key, "store"), self.infer(pair.value))
        return sum(map(len, self.kinds_by_name.values()))

    def _record(self, target: nodes.Node, kinds: set[VariableKind]) -> None:
        if kinds and isinstance(target, nodes.Name):
            self.kinds_by_name.setdefault(target.name, set()).update(kinds)
        elif kinds and isinstance(target, nodes.NSRef):
            self.kinds_by_name.setdefault(f"{target.name}.{target.attr}", set()).update(kinds)

    def infer(self, expression: nodes.Node | None) -> set[VariableKind]:
        match expression:
            case nodes.Name(name=name):
                return self.kinds_by_name.get(name, set())
            case nodes.Filter(node=inner):
                return self.infer(inner)
            case (
                nodes.CondExpr(expr1=one, expr2=other)
                | nodes.Or(left=one, right=other)
                | nodes.And(right=other, left=one)
            ):
                return self.infer(one) | self.infer(other)
            case nodes.Add(left=one, right=other):  # a system message and the rest
                return (self.infer(one) | self.infer(other)) - {"content"}
            case nodes.Getitem(node=inner, arg=nodes.Slice()):
                return self.infer(inner)
            case nodes.Getitem(node=inner, arg=nodes.Const(value=str(key))) | nodes.Getattr(node=inner, attr=key):
                return self._infer_entry(inner, key)
            case nodes.Getitem(node=inner):
                return {"message"} if "messages" in self.infer(inner) else set()
            case nodes.Call(node=nodes.Getattr(node=inner, attr="get"), args=[nodes.Const(value=str(key)), *_]):
                return self._infer_entry(inner, key)
        return set()

    def _infer_entry(self, inner: nodes.Node, key: str) -> set[VariableKind]:
        if key == "content" and "message" in self.infer(inner):
            return {"content"}
        return self.kinds_by_name.get(f"{inner.name}.{key}", set()) if isinstance(inner, nodes.Name) else set()
