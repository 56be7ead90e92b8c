"""The page of GET /docs: Swagger UI with this server's own description of its API. Pure."""

from __future__ import annotations

from html import escape
from typing import Final

POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "base-uri 'none'",
        "connect-src 'self'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        # Swagger UI's pictures are in its style sheet.
        "img-src 'self' data:",
        "script-src 'self'",
        # It sets some sizes in the style of single elements.
        "style-src 'self' 'unsafe-inline'",
    )
)
"""What the page may load and run: this server's own files, and no script that stands in it."""

START_SCRIPT: Final = """\
"use strict";
window.addEventListener("load", () => {
  window.ui = SwaggerUIBundle({
    url: new URL("openapi.json", document.baseURI).href,
    dom_id: "#api",
    deepLinking: true,
    filter: true,
    displayRequestDuration: true,
    defaultModelsExpandDepth: 0,
    docExpansion: "list",
    // The keys stay in this tab; a check by the outside validator would send the document out.
    persistAuthorization: false,
    validatorUrl: null,
  });
});
"""

PAGE_STYLE: Final = """\
body { margin: 0; background: #fafafa; font-family: sans-serif; }
header { padding: 12px 24px; background: #1b1b1b; color: #ffffff; }
header h1 { margin: 0; font-size: 20px; }
header small { font-weight: normal; opacity: 0.75; }
noscript { display: block; padding: 24px; }
"""


def page(version: str) -> str:
    """Return the page. Its links are relative, so that it works below a proxy's path."""
    return f"""\
<!DOCTYPE html>
<html lang="en">
<head>
  <meta charset="utf-8">
  <meta name="viewport" content="width=device-width, initial-scale=1">
  <title>lmx {escape(version)}: API</title>
  <link rel="icon" href="data:,">
  <link rel="stylesheet" href="docs/swagger-ui.css">
  <link rel="stylesheet" href="docs/page.css">
  <script src="docs/swagger-ui-bundle.js" defer></script>
  <script src="docs/start.js" defer></script>
</head>
<body>
  <header><h1>lmx <small>{escape(version)}</small></h1></header>
  <noscript>This page needs JavaScript; <a href="openapi.json">the description</a> does not.\
</noscript>
  <div id="api"></div>
</body>
</html>
"""
