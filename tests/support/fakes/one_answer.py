"""An HTTP server that gives one answer to every request."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer


@dataclass
class Asked:
    """A request."""

    headers: dict[str, str]
    body: bytes


@contextmanager
def one_answer(status: int, body: bytes, **headers: str) -> Iterator[tuple[str, list[Asked]]]:
    """Serve until the end of the block; yields the address and the requests."""
    asked: list[Asked] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            asked.append(Asked(dict(self.headers), self.rfile.read(length)))
            self.send_response_only(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{made.server_port}", asked
        finally:
            made.shutdown()
            thread.join()
