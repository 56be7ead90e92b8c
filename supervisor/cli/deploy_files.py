"""The files of ``deploy/`` that commands use: in a checkout, and in an installation."""

from importlib import metadata
from pathlib import Path

from lmx.protocol.errors import ErrorCode, OperationError


def deploy_file(name: str) -> Path:
    """Return the path of a file. Raises :class:`OperationError` if the installation lacks it."""
    checkout = Path(__file__).resolve().parents[2] / "deploy" / name
    if checkout.is_file():
        return checkout
    for file in metadata.files("lmx") or ():
        if file.name == name and file.parent.name == "lmx":
            path = Path(str(file.locate()))
            if path.is_file():
                return path
    raise OperationError(
        ErrorCode.INTERNAL, f"this installation lacks share/lmx/{name}: install lmx again"
    )
