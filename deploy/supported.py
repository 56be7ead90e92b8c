"""Says why lmx can't be installed with this Python on this machine, before pip does in its words:

    python3 deploy/supported.py

Standard library only, and no syntax that Python 3.6 would not read.
"""

import platform
import sys


def problem(version: "tuple[int, ...]", system: str, machine: str, mac_release: str) -> str:
    """Return what is in the way, as a sentence; an empty text if nothing is. Pure."""
    if not (3, 11) <= tuple(version[:2]) < (3, 15):
        return (
            f"lmx needs Python 3.11 to 3.14, and this is {version[0]}.{version[1]}. Name another "
            "one: make install PYTHON=python3.12"
        )
    if system != "Darwin":
        return ""
    if machine != "arm64":
        return (
            f"lmx needs a Mac with Apple Silicon and a Python for it, and this Python is for "
            f"{machine}: this is an Intel Mac, or a Python that Rosetta runs."
        )
    if int(mac_release.split(".")[0] or 0) < 14:
        return (
            f"lmx needs macOS 14 or newer, and this is {mac_release}: MLX has no packages for it."
        )
    return ""


if __name__ == "__main__":
    sys.exit(
        problem(sys.version_info[:2], platform.system(), platform.machine(), platform.mac_ver()[0])
        or 0
    )
