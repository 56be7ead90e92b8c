"""Says why lmx can't be installed with this Python on this machine, before pip does in its words:

    python3 deploy/supported.py

Standard library only, and no syntax that an older Python would not read.
"""

import platform
import sys


def problem(version, system, machine, mac_release):  # type: ignore[no-untyped-def]
    """Return what is in the way, as a sentence; an empty text if nothing is. Pure."""
    if not (3, 11) <= tuple(version[:2]) < (3, 15):
        return (
            "lmx needs Python 3.11 to 3.14, and this is %d.%d. Name another one: "
            "make install PYTHON=python3.12" % tuple(version[:2])
        )
    if system != "Darwin":
        return ""
    if machine != "arm64":
        return (
            "lmx needs a Mac with Apple Silicon and a Python for it, and this Python is for %s: "
            "this is an Intel Mac, or a Python that Rosetta runs." % machine
        )
    if int(mac_release.split(".")[0] or 0) < 14:
        return "lmx needs macOS 14 or newer, and this is %s: MLX has no packages for it." % (
            mac_release
        )
    return ""


if __name__ == "__main__":
    sys.exit(
        problem(sys.version_info, platform.system(), platform.machine(), platform.mac_ver()[0]) or 0
    )
