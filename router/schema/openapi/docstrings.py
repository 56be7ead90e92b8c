"""Reads the docstrings below the fields of a class.

They are read from the source when somebody asks for them. Pydantic can read them itself
(``use_attribute_docstrings``), but does so as it makes each class: that costs 0.1 s at every start
of a router, whose description is rarely requested.
"""

from __future__ import annotations

import ast
import inspect
import sys
from functools import cache
from itertools import pairwise

from pydantic import BaseModel


@cache
def field_docstrings(cls: type) -> dict[str, str]:
    """Return the docstring of each field of a model or a ``TypedDict`` that has one, including
    inherited fields. A class whose source is missing has none."""
    found: dict[str, str] = {}
    # The bases of a TypedDict are kept there alone.
    for base in reversed(cls.__dict__.get("__orig_bases__", cls.__bases__)):
        if isinstance(base, type) and base not in (BaseModel, object):
            found |= field_docstrings(base)
    return found | _own(cls)


def _own(cls: type) -> dict[str, str]:
    definition = _classes(cls.__module__).get(cls.__name__)
    if definition is None:
        return {}
    found = {}
    for field, docstring in pairwise(definition.body):
        match field, docstring:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str() as text)),
            ):
                found[name] = inspect.cleandoc(text)
    return found


@cache
def _classes(module: str) -> dict[str, ast.ClassDef]:
    """Read a module's source once: ``inspect.getsource`` would for each of its classes."""
    try:
        source = inspect.getsource(sys.modules[module])
    except OSError:
        return {}
    return {node.name: node for node in ast.walk(ast.parse(source)) if type(node) is ast.ClassDef}
