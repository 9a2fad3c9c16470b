"""Start the process that asks NVML, with little memory: it is on every node with a GPU.

    python -I -S -OO nvml_process.py PYNVML LOOK_SECONDS PROC LIBRARY...

``PYNVML`` is the file of the module pynvml of ``nvidia-ml-py``; the other arguments are those of ``nvml_worker.py``. Of
pynvml's 8,000 lines the functions that the worker names are compiled, and what those need. A child does that, and gives
back bytecode: what a compiler uses is not returned to the system.
"""

from __future__ import annotations

import marshal
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ast
    from collections.abc import Iterator
    from types import CodeType, ModuleType

WORKER = os.path.join(os.path.dirname(__file__), "nvml_worker.py")


def compiled(pynvml: str) -> tuple[CodeType, CodeType]:
    """Compile the worker, and what it needs of pynvml."""
    import ast

    def parse(path: str) -> ast.Module:
        with open(path, encoding="utf-8") as source:
            return ast.parse(source.read(), path)

    worker, library = parse(WORKER), parse(pynvml)
    library.body = _needed(library.body, _names(worker))
    return _code(worker, WORKER), _code(library, pynvml)


def _code(tree: ast.Module, path: str) -> CodeType:
    return compile(tree, path, "exec", dont_inherit=True, optimize=2)


def _names(tree: ast.AST) -> set[str]:
    """What a syntax tree names: variables, attributes (``nvml.nvmlInit``) and texts (``ask("nvmlDeviceGetUUID")``)."""
    import ast

    found: set[object] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.Constant(value=name):
                found.add(name)
    return {name for name in found if isinstance(name, str)}


def _needed(statements: list[ast.stmt], names: set[str]) -> list[ast.stmt]:
    """The statements of a module that bind these names, and what those name in turn."""
    binding: dict[str, list[ast.stmt]] = {}
    for statement in statements:
        for name in _bound(statement):
            binding.setdefault(name, []).append(statement)
    chosen = set()
    names = {"*", *names}  # from ctypes import *
    while names:
        for statement in binding.pop(names.pop(), ()):
            chosen.add(statement)
            names |= _names(statement)
    return [statement for statement in statements if statement in chosen]


def _bound(statement: ast.stmt) -> Iterator[str]:
    import ast

    match statement:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            yield from (alias.asname or alias.name for alias in names)
        case ast.Assign(targets=targets):
            yield from (target.id for target in targets if isinstance(target, ast.Name))


def load(pynvml: str) -> CodeType:
    """Make the module ``pynvml`` as far as it is needed; return the worker's code."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.close(reading)  # else it would wait for a reader for ever if its parent is killed
            with open(writing, "wb") as pipe:
                marshal.dump(compiled(pynvml), pipe)
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        worker, library = marshal.loads(pipe.read())
    os.waitpid(child, 0)
    module: ModuleType = type(sys)("pynvml")
    sys.modules["pynvml"] = module
    exec(library, vars(module))  # noqa: S102  what `import pynvml` would do
    return worker  # type: ignore[no-any-return]


if __name__ == "__main__":
    path = sys.argv.pop(1)
    exec(load(path), {"__name__": "__main__"})  # noqa: S102
