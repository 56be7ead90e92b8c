"""One renderer of chat templates for all tests of a process."""

import functools

from lmx.worker.templates.renderer import Renderer


@functools.cache
def renderer() -> Renderer:
    """Return it; its process ends with this one."""
    return Renderer(20.0)
