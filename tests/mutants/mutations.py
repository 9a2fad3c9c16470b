"""Find small changes that break a module: a condition, a statement or an argument less, or another constant. Pure."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

from msgspec import Struct

OPPOSITE: dict[type[ast.cmpop], str] = {
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
}


class Mutation(Struct, frozen=True):
    """``text`` instead of the bytes from ``start`` to ``end``; ``what`` was changed in ``line``, for people."""

    start: int
    end: int
    text: str
    line: int
    what: str

    def apply(self, source: str) -> str:
        """Return the module with this change."""
        data = source.encode()
        return (data[: self.start] + self.text.encode() + data[self.end :]).decode()


class _Module:
    """A module's text by position: the parser counts lines from 1, and columns in bytes."""

    def __init__(self, source: str) -> None:
        self.tree = ast.parse(source)
        self._data = source.encode()
        self._starts = [0]
        for line in self._data.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self.members: dict[str, list[str]] = defaultdict(list)  # of the enums that the module names
        for node in ast.walk(self.tree):
            if (name := _member(node)) and name[1] not in self.members[name[0]]:
                self.members[name[0]].append(name[1])

    def text(self, node: ast.AST) -> str:
        start, end = self._span(node)
        found = self._data[start:end].decode()
        return f"({found})" if isinstance(node, ast.NamedExpr) else found

    def mutation(self, node: ast.AST, text: str, what: str) -> Mutation:
        start, end = self._span(node)
        line: int = node.lineno  # type: ignore[attr-defined]
        return Mutation(start, end, text, line, what)

    def _span(self, node: ast.AST) -> tuple[int, int]:
        at: dict[str, int] = node.__dict__
        return (
            self._starts[at["lineno"] - 1] + at["col_offset"],
            self._starts[at["end_lineno"] - 1] + at["end_col_offset"],
        )


def mutations(source: str) -> list[Mutation]:
    """Return every change of a module's text, in its order. What is logged, annotated or documented stays."""
    module = _Module(source)
    found = [one for node in _living(module.tree) for one in _of(module, node)]
    return sorted(found, key=lambda one: (one.start, one.end, one.text))


def _living(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that decide what the module does."""
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_params", "bases"):
            continue
        if isinstance(node, ast.ClassDef) and name == "keywords":  # frozen: the type checker sees who assigns
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not _is_silent(child):
                yield from _living(child)


def _is_silent(node: ast.AST) -> bool:
    """Tell whether a statement changes nothing but what people read, or what types say."""
    match node:
        case ast.Expr(value=ast.Constant()) | ast.JoinedStr():
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="log")))):
            return True
        case ast.If(body=body, orelse=other) if all(map(_is_silent, (*body, *other))):  # it decides what is logged
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.Raise() | ast.Import() | ast.ImportFrom():
            return True
    return False


def _of(module: _Module, node: ast.AST) -> Iterator[Mutation]:
    match node:
        case ast.BoolOp():
            word = " and " if isinstance(node.op, ast.And) else " or "
            for left_out in node.values:
                rest = word.join(f"({module.text(one)})" for one in node.values if one is not left_out)
                yield module.mutation(node, f"({rest})", f"without {module.text(left_out)!r}")
        case ast.UnaryOp(op=ast.Not()):
            yield module.mutation(node, f"({module.text(node.operand)})", "without not")
        case ast.Compare(left=left, ops=[operator], comparators=[right]) if type(operator) in OPPOSITE:
            text = f"({module.text(left)} {OPPOSITE[type(operator)]} {module.text(right)})"
            yield module.mutation(node, text, f"{text} for {module.text(node)!r}")
        case ast.If() | ast.IfExp():
            for constant in ("True", "False"):
                yield module.mutation(node.test, constant, f"{constant} for {module.text(node.test)!r}")
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.Delete() | ast.AugAssign() | ast.Continue() | ast.Break():
            yield module.mutation(node, "pass", f"without {module.text(node)!r}")
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield module.mutation(node, "pass", f"without {module.text(node)!r}")
        case ast.Constant(value=bool(value)):
            yield module.mutation(node, str(not value), f"{not value} for {value}")
        case ast.Call(keywords=[_, *_]):
            for one in node.keywords:
                if one.arg is not None and not _is_task_name(node, one):
                    arguments = [module.text(other) for other in (*node.args, *node.keywords) if other is not one]
                    text = f"{module.text(node.func)}({', '.join(arguments)})"
                    yield module.mutation(node, text, f"without {module.text(one)!r}")
        case ast.Attribute() if name := _member(node):
            for other in module.members[name[0]]:
                if other != name[1]:
                    yield module.mutation(node, f"{name[0]}.{other}", f"{other} for {module.text(node)}")


def _is_task_name(call: ast.Call, argument: ast.keyword) -> bool:
    """Tell whether an argument is the name of a task, which only people read."""
    return argument.arg == "name" and isinstance(call.func, ast.Attribute) and call.func.attr == "create_task"


def _member(node: ast.AST) -> tuple[str, str] | None:
    """Return the enum and the member that a node names."""
    match node:
        case ast.Attribute(value=ast.Name(id=owner), attr=attr, ctx=ast.Load()) if owner[:1].isupper():
            return (owner, attr) if attr.isupper() and not owner.isupper() else None
    return None
