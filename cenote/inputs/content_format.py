"""Detect whether a chat template takes message content as a string or as a list of parts."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, TypeAlias

from jinja2 import nodes

from cenote.inputs.jinja_sandbox import SANDBOX

# string; list of parts, also for content given as a string; or either, as given
ResolvedContentFormat: TypeAlias = Literal["string", "openai", "either"]
# what a variable of a template may hold
VariableKind: TypeAlias = Literal["messages", "message", "content"]

# filters that access the elements of their input
ELEMENTWISE_FILTERS = ("map", "selectattr", "rejectattr")


@lru_cache(maxsize=32)
def detect_content_format(template: str) -> ResolvedContentFormat:
    """Return "openai" or "either" if the template iterates over message content, else "string"."""
    tree = SANDBOX.parse(template)
    kinds = _VariableKinds(tree)
    iterated = [loop.iter for loop in tree.find_all(nodes.For)]
    iterated += [
        expression.node
        for expression in tree.find_all(nodes.Filter)
        if expression.name in ELEMENTWISE_FILTERS and expression.node is not None
    ]
    if not any("content" in kinds.infer(expression) for expression in iterated):
        return "string"
    tests = (test for test in tree.find_all(nodes.Test) if test.name == "string")
    return "either" if any("content" in kinds.infer(test.node) for test in tests) else "openai"


class _VariableKinds:
    """Flow-insensitive inference of what the variables of a template may hold."""

    def __init__(self, tree: nodes.Template) -> None:
        self.kinds_by_name: dict[str, set[VariableKind]] = {"messages": {"messages"}}
        self.macros = {macro.name: macro for macro in tree.find_all(nodes.Macro)}
        num_inferred = 0
        # until a fixed point: a variable may depend on one that is assigned later in the template
        while num_inferred < (num_inferred := self._propagate(tree)):
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
                nodes.CondExpr(expr1=first, expr2=second)
                | nodes.Or(left=first, right=second)
                | nodes.And(left=first, right=second)
            ):
                return self.infer(first) | self.infer(second)
            case nodes.Add(left=first, right=second):  # list concatenation, e.g. a system message + the others
                return (self.infer(first) | self.infer(second)) - {"content"}
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
