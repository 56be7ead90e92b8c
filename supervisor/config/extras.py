"""What a configuration needs that is installed only where it was requested."""

from __future__ import annotations

import shlex
import shutil
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from lmx.supervisor.config.schema import Config

Extra = Literal["mdns", "otel"]

PACKAGES: Final[dict[Extra, tuple[str, ...]]] = {
    "mdns": ("zeroconf>=0.154",),
    "otel": ("opentelemetry-exporter-otlp-proto-http>=1.45.2", "opentelemetry-sdk>=1.45.2"),
}
"""The packages of each extra, as in ``pyproject.toml``."""


def missing_extras(config: Config) -> list[str]:
    """Return a sentence for each extra of lmx that ``config`` needs and that is not installed. lmx
    serves without them."""
    wanted: tuple[tuple[bool, str, str, Extra], ...] = (
        (
            config.tracing.endpoint is not None,
            "opentelemetry.exporter.otlp.proto.http",
            "tracing.endpoint: nothing is traced without OpenTelemetry's SDK",
            "otel",
        ),
        (
            config.server.advertise,
            "zeroconf",
            "server.advertise: nothing is announced without zeroconf",
            "mdns",
        ),
    )
    return [
        f"{words}: {install_line(extra)}"
        for needed, module, words, extra in wanted
        if needed and not _is_installed(module)
    ]


def install_line(extra: Extra) -> str:
    """Return the command that installs an extra's packages into the environment that runs this.
    It names the packages, because lmx itself may be from a folder; an environment that uv has made
    has no pip."""
    pip = [sys.executable, "-m", "pip", "install", *PACKAGES[extra]]
    if _is_installed("pip"):
        return shlex.join(pip)
    if shutil.which("uv") is not None:
        return shlex.join(["uv", "pip", "install", "--python", sys.executable, *PACKAGES[extra]])
    return f"{shlex.join([sys.executable, '-m', 'ensurepip'])} && {shlex.join(pip)}"


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # a package above it is not there
        return False
