"""No private part of a library is used that ``private_parts`` doesn't name."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from lmx.protocol.host.python_source import python_tree
from tests.support.references.private_parts import FIELDS, PARTS, Part, find

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[3]
# Documented, whatever its name says; and what a NamedTuple has.
PUBLIC = {"_exit", "_replace", "_asdict", "_fields", "_make"}
ANY = "*"
# Documented settings of Pillow's; objects of lmx's own, of which fields are set by name; and what
# makes the methods of dataclasses, which is Python's own, and looked for before it is replaced.
MEANT_TO_BE_SET = {
    ("protocol/host/dataclass_methods.py", ANY),
    ("worker/media/decoding/pictures.py", "DEFAULT_MAX_THREADS"),
    ("worker/media/decoding/pictures.py", "MAX_IMAGE_PIXELS"),
    ("router/metrics/requests.py", ANY),
    ("router/usage/tables.py", ANY),
    ("supervisor/cli/command.py", ANY),
}
NAMED = {
    (file, part.where.rpartition(":")[2].rpartition(".")[2])
    for parts in PARTS.values()
    for part in parts
    for file in part.files
} | {(file, name) for fields in FIELDS.values() for name, file, _ in fields}


@cache
def trees() -> dict[str, ast.Module]:
    """Return the code of lmx, by file."""
    return {
        path.relative_to(ROOT).as_posix(): python_tree(path.read_text())
        for room in ("protocol", "router", "supervisor", "worker")
        for path in (ROOT / room).rglob("*.py")
    }


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in PUBLIC


def foreign_names(tree: ast.AST) -> set[str]:
    """Return the names that a file imports from elsewhere."""
    return {
        one.asname or one.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for one in node.names
        if not (getattr(node, "module", None) or one.name).startswith("lmx")
    }


def own_names() -> set[str]:
    """Return the private names that are defined anywhere in this tree."""
    found: set[str] = set()
    for tree in trees().values():
        for node in ast.walk(tree):
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                    found.add(node.name)
                case ast.Attribute(value=ast.Name(id="self" | "cls"), ctx=ast.Store()):
                    found.add(node.attr)
                case ast.AnnAssign(target=ast.Name(id=name)):
                    found.add(name)
                case ast.Assign():
                    found |= {one.id for one in node.targets if isinstance(one, ast.Name)}
    return found


def touches(tree: ast.AST, own: set[str]) -> Iterator[str]:
    foreign = foreign_names(tree)
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom() if not (node.module or "").startswith("lmx"):
                module_is = any(map(is_private, (node.module or "").split(".")))
                yield from (one.name for one in node.names if module_is or is_private(one.name))
            case ast.Attribute(attr=name) if is_private(name):
                of_import = isinstance(node.value, ast.Name) and node.value.id in foreign
                if of_import or name not in own:
                    yield name
            case ast.Call(
                func=ast.Name(id="getattr" | "setattr" | "hasattr"),
                args=[_, ast.Constant(value=str(name)), *_],
            ) if is_private(name) and name not in own:
                yield name


def replacements(tree: ast.AST) -> Iterator[str]:
    """Yield the attributes of what a file imports that it assigns; ANY for those whose names are
    known only at run time."""
    foreign = foreign_names(tree)
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name, ctx=ast.Store()) if root_of(node) in foreign:
                yield name
            case ast.Call(func=ast.Name(id="setattr"), args=[_, ast.Name(), *_]):
                yield ANY


def root_of(node: ast.expr) -> str | None:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def test_what_is_replaced_while_lmx_runs_is_named() -> None:
    found = {(file, name) for file, tree in trees().items() for name in replacements(tree)}
    unnamed = found - NAMED - {(file, ANY) for file, _ in NAMED} - MEANT_TO_BE_SET
    assert not unnamed, (
        "parts of libraries that lmx replaces, and tests/support/references/private_parts.py does "
        f"not name: {sorted(unnamed)}. Give each a line there, or do without it."
    )
    assert {("worker/mlx/device/cpu.py", "rope"), ("worker/mlx/media/slices.py", ANY)} <= found


def test_every_private_part_that_is_used_is_named() -> None:
    own = own_names()
    found = {(file, name) for file, tree in trees().items() for name in touches(tree, own)}
    assert not found - NAMED, (
        "private parts of libraries that tests/support/references/private_parts.py does not name: "
        f"{sorted(found - NAMED)}. Give each a line there, or do without it."
    )
    assert ("worker/mlx/model/batch_slots.py", "_extend_cache") in found


def test_what_is_named_is_used() -> None:
    unused = {(file, name) for file, name in NAMED if name not in (ROOT / file).read_text()}
    # Loaded by its file's name, and looked at through what it gives out.
    unused -= {("worker/formats/forms/library.py", "SPECS")}
    assert not unused, f"lines of private_parts.py that no file needs any more: {sorted(unused)}"


@pytest.mark.parametrize(
    ("where", "takes", "broken"),
    [
        ("json:_gone", None, "it is gone: module 'json' has no attribute '_gone'"),
        ("json_gone:loads", None, "it is gone: No module named 'json_gone'"),
        ("json:loads", ("s", "speed"), "it takes no speed"),
        ("json:loads", (), "it must be given s too"),
    ],
)
def test_what_broke_is_named(where: str, takes: tuple[str, ...] | None, broken: str) -> None:
    with pytest.raises(AssertionError) as raised:
        find("pytest", Part(where, ("worker/a.py", "worker/b.py"), "reading JSON", takes))
    words = f"{where} of pytest is used in worker/a.py and worker/b.py for reading JSON; in version"
    assert str(raised.value).startswith(words)
    assert broken in str(raised.value)
