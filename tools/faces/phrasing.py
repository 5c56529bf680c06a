"""Turn the code of async classes into that of their faces."""

from __future__ import annotations

import ast
import copy
from collections.abc import Collection, Mapping, Sequence

from .specials import ADDED, COPIED, INSTEAD, SPECIALS
from .words import blocking_words

CONTEXT = {"__aenter__": "__enter__", "__aexit__": "__exit__"}
HELD = {"__aenter__": "run(self._inner.__aenter__())\nreturn self", "__aexit__": "self.close()"}
"""The bodies of a face's context manager, if it holds what it is the face of."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Blocking(ast.NodeTransformer):
    """Replaces ``await`` by ``run``, docstrings by their blocking words, and the names of async classes by the faces'.

    ``own`` are methods that block in the face, so that they are only called there. With ``inner`` the face holds what
    it is the face of, and passes that on instead of itself.
    """

    def __init__(self, faces: Mapping[str, str], own: Collection[str] = (), *, inner: bool = False) -> None:
        self._faces = faces
        self._own = own
        self._inner = inner

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if self._inner and node.id == "self":
            return _expression("self._inner")
        return ast.Name(self._faces.get(node.id, node.id), node.ctx)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        return node if _is_self(node.value) else self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        if ast.unparse(node.value) == "Coroutine" and isinstance(node.slice, ast.Tuple):
            result: ast.AST = self.visit(node.slice.elts[-1])
            return result
        return self.generic_visit(node)

    def visit_Await(self, node: ast.Await) -> ast.expr:
        called = node.value.func if isinstance(node.value, ast.Call) else None
        method = called.attr if isinstance(called, ast.Attribute) and _is_self(called.value) else ""
        if method in INSTEAD:
            return _expression(INSTEAD[method])
        value: ast.expr = self.visit(node.value)
        return value if method in self._own else ast.Call(ast.Name("run", ast.Load()), [value], [])

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        return self._visit_function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.FunctionDef:
        return self._visit_function(node)

    def visit_AsyncWith(self, node: ast.AsyncWith) -> ast.AST:
        return self.generic_visit(ast.With(**dict(ast.iter_fields(node))))

    def visit_AsyncFor(self, node: ast.AsyncFor) -> ast.AST:
        return self.generic_visit(ast.For(**dict(ast.iter_fields(node))))

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        self.generic_visit(node)
        node.name = self._faces.get(node.name, node.name)
        _translate_docstring(node)
        return node

    def _visit_function(self, node: Function) -> ast.FunctionDef:
        self.generic_visit(node)
        made = ast.FunctionDef(**dict(ast.iter_fields(node)))
        made.name = CONTEXT.get(node.name, node.name)
        _translate_docstring(made)
        return made


def rephrase(kind: ast.ClassDef, faces: Mapping[str, str], own: Collection[str]) -> ast.ClassDef:
    """Return the code of a class without ``await``; ``own`` are the coroutines that it and its bases phrase."""
    made: ast.ClassDef = Blocking(faces, own).visit(copy.deepcopy(kind))
    made.body = [node for node in made.body if _name_of(node) not in INSTEAD]
    for node in made.body:
        special = SPECIALS.get(f"{kind.name}.{_name_of(node)}")
        if isinstance(node, ast.FunctionDef) and special is not None:
            node.body = [*_docstring_of(node), *ast.parse(special.body).body]
    return made


def wrap(kind: ast.ClassDef, bases: Sequence[str], faces: Mapping[str, str]) -> ast.ClassDef:
    """Return the code of a class that holds one of this ``kind``, and passes each call on to it."""
    body = [*_docstring_of(kind), *ast.parse(ADDED.get(kind.name, f"_inner: {kind.name}")).body]
    for node in public_members(kind):
        body.append(_face_of(kind, node, faces))
        after = kind.body[kind.body.index(node) + 1 :][:1]
        body += [each for each in after if isinstance(node, ast.AnnAssign) and isinstance(each, ast.Expr)]
    made = ast.ClassDef(faces[kind.name], [ast.Name(base, ast.Load()) for base in bases], [], body, [])
    _translate_docstring(made)
    return made


def public_members(kind: ast.ClassDef) -> list[ast.stmt]:
    """Return the functions and the annotated attributes of a class that users see, constructors included."""
    dunder = ("__init__", *CONTEXT)
    return [node for node in kind.body if not _name_of(node).startswith("_") or _name_of(node) in dunder]


def _face_of(kind: ast.ClassDef, node: ast.stmt, faces: Mapping[str, str]) -> ast.stmt:
    """Return the code of a member of a class that holds one of this ``kind``."""
    special = SPECIALS.get(f"{kind.name}.{_name_of(node)}")
    copied = special is not None and special.body is COPIED
    made: ast.stmt = Blocking(faces, inner=copied).visit(copy.deepcopy(node))
    if copied or not isinstance(node, Function) or not isinstance(made, ast.FunctionDef):
        return made if special is None or copied else ast.parse(special.body).body[0]
    text = _pass_on(kind, node) if special is None else special.body.replace("OTHERS", _arguments(node, 1))
    made.body = [*_docstring_of(made), *Blocking(faces).visit(ast.parse(text)).body]
    return made


def _pass_on(kind: ast.ClassDef, node: Function) -> str:
    """Return a body that passes a call on to what the face holds, or to its class."""
    decorators = [ast.unparse(each) for each in node.decorator_list]
    given = _arguments(node)
    if "overload" in decorators:
        return "..."
    if node.name in HELD:
        return HELD[node.name]
    if node.name == "__init__":
        return f"self._inner = Blocking{kind.name}({given})"
    if f"{node.name}.setter" in decorators:
        return f"self._inner.{node.name} = {given}"
    if "property" in decorators:
        return f"return self._inner.{node.name}"
    overloaded = sum(_name_of(each) == node.name for each in kind.body) > 1
    holder = f"Blocking{kind.name}" if "classmethod" in decorators else "inner" if overloaded else "self._inner"
    call = f"{holder}.{node.name}({given})"
    call = f"run({call})" if isinstance(node, ast.AsyncFunctionDef) else call
    returns = "None" if node.returns is None else ast.unparse(node.returns)
    call = f"{node.args.args[0].arg}._of({call})" if returns == "Self" else call
    if overloaded:
        return f"inner: Any = self._inner\nanswer: {returns} = {call}\nreturn answer"
    return call if returns == "None" else f"return {call}"


def _arguments(node: Function, first: int = 0) -> str:
    """Return the arguments of a function as it passes them on, without ``self`` and those before the ``first``."""
    given = node.args
    listed = [each.arg for each in [*given.posonlyargs, *given.args][1 + first :]]
    listed += [f"*{given.vararg.arg}"] if given.vararg else []
    listed += [f"{each.arg}={each.arg}" for each in given.kwonlyargs]
    return ", ".join([*listed, *([f"**{given.kwarg.arg}"] if given.kwarg else [])])


def _name_of(node: ast.stmt) -> str:
    """Return the name of a function or of an annotated attribute; ``_`` for anything else."""
    if isinstance(node, Function):
        return node.name
    return ast.unparse(node.target) if isinstance(node, ast.AnnAssign) else "_"


def _docstring_of(node: ast.ClassDef | Function) -> list[ast.stmt]:
    return node.body[:1] if ast.get_docstring(node) is not None else []


def _translate_docstring(node: ast.ClassDef | Function) -> None:
    text = ast.get_docstring(node)
    if text is not None:
        text = blocking_words(text)
        node.body[0] = ast.Expr(ast.Constant(f"{text}\n" if "\n" in text else text))


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body
