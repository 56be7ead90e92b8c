"""Prints the figures of the code's shape, for each package, for all of them, and for the tests.

    python -m docs.make.figures [checkout]

Code lines are those without blanks, comments, docstrings and imports; header lines those before the
first statement that is neither. An import counts once for each pair of files.
"""

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path
from typing import Final

PACKAGES: Final = ("protocol", "router", "worker", "supervisor")
_NO_CODE: Final = {"COMMENT", "NL", "NEWLINE", "INDENT", "DEDENT", "ENCODING", "ENDMARKER"}
_DEFINED: Final = (ast.FunctionDef, ast.AsyncFunctionDef)


def figures_of(path: Path) -> Counter[str]:
    """Return the figures of a file, by the names of their rows."""
    text = path.read_text()
    tree = ast.parse(text)
    nodes = [one for one in ast.walk(tree) if isinstance(one, ast.stmt)]
    without = {n for one in nodes if _is_bare(one) for n in _span(one)}
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    code = (one for one in tokens if tokenize.tok_name[one.type] not in _NO_CODE)
    filled = {n for one in code for n in range(one.start[0], one.end[0] + 1)}
    functions = [len(_span(one)) for one in nodes if isinstance(one, _DEFINED)]
    figures = Counter({"files": 1, "lines": text.count("\n"), "functions": len(functions)})
    figures["code lines"] = len(filled - without)
    starts = (one.lineno - 1 for one in tree.body if not _is_bare(one))
    figures["header lines"] = next(starts, figures["lines"])
    figures["function lines"] = sum(functions)
    figures["functions > 40"] = sum(length > 40 for length in functions)
    figures |= {"folders": path.name == "__init__.py", "fmt: skip": text.count("# fmt: skip")}
    return figures


def _is_bare(node: ast.stmt) -> bool:
    """Whether a statement is an import or a docstring."""
    text = getattr(node.value, "value", None) if isinstance(node, ast.Expr) else None
    return isinstance(node, ast.Import | ast.ImportFrom) or isinstance(text, str)


def _span(node: ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or 0) + 1)


def imports(root: Path) -> dict[str, set[str]]:
    """Return all files of the code as modules, each with the modules of the code it imports."""
    paths = [path for top in PACKAGES for path in (root / top).rglob("*.py")]
    names = {".".join(("lmx", *one.relative_to(root).with_suffix("").parts)): one for one in paths}
    files = {name.removesuffix(".__init__"): path for name, path in names.items()}
    graph: dict[str, set[str]] = {name: set() for name in files}
    for name, path in files.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                inner = {f"{node.module}.{one.name}" for one in node.names} & files.keys()
                graph[name] |= inner or {str(node.module)} & files.keys()
    return graph


def in_circles(graph: dict[str, set[str]]) -> set[str]:
    """Return the modules that reach themselves by imports."""
    reach = {name: set(found) for name, found in graph.items()}
    for middle in graph:
        for found in (one for one in reach.values() if middle in one):
            found |= reach[middle]
    return {name for name, found in reach.items() if name in found}


def main() -> None:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[2]
    files = {top: (root / top).rglob("*.py") for top in (*PACKAGES, "all", "tests")}
    columns = {top: sum(map(figures_of, paths), Counter()) for top, paths in files.items()}
    graph = imports(root)
    importers = Counter(one for found in graph.values() for one in found)
    circles = in_circles(graph)
    for name, found in graph.items():
        column = columns[name.split(".")[1]]
        column["import edges"] += len(found)
        column["files in circles"] += name in circles
        column["one importer"] += importers[name] == 1
    columns["all"] = sum((columns[top] for top in PACKAGES), Counter())
    print(f"{'':26}" + "".join(f"{name:>12}" for name in columns))
    for row in columns["all"]:
        print(f"{row:26}" + "".join(f"{one[row]:>12,}" for one in columns.values()))
    for part, of in (("header lines", "lines"), ("function lines", "functions")):
        name = f"{part} / {of}"
        print(f"{name:26}" + "".join(f"{one[part] / one[of]:>12.3f}" for one in columns.values()))


if __name__ == "__main__":
    main()
