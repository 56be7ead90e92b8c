"""The files of fastapi-offline that lmx serves: the package is never imported."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.references.private_parts import API_PAGE, said

LIBRARY = "fastapi-offline"


@pytest.mark.parametrize(
    ("name", "has"),
    [("swagger-ui-bundle.js", b"SwaggerUIBundle"), ("swagger-ui.css", b".swagger-ui")],
)
def test_swagger_ui_is_where_it_is_served_from(name: str, has: bytes) -> None:
    words = said(LIBRARY, f"static/{name}", (API_PAGE,), "the page at /docs")
    spec = find_spec("fastapi_offline")
    assert spec is not None and spec.origin is not None, f"{words}the package is gone"
    path = Path(spec.origin).parent / "static" / name
    assert path.is_file(), f"{words}it is gone"
    assert has in path.read_bytes(), f"{words}it is something else: {has.decode()} is not in it"
