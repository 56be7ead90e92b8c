"""One renderer of chat templates for all tests of a process."""

import functools

from lmx.worker.templates.renderer import Renderer


class _Shared(Renderer):
    def kill(self) -> None:
        """End its process alone: an engine that closes ends its renderer for good, and this one
        belongs to others too."""
        self.close()


@functools.cache
def renderer() -> Renderer:
    """Return it; its process ends with this one."""
    return _Shared(20.0)
