"""Resolves what `pip install` would install on a Mac with Apple Silicon, for each Python that lmx
supports:

    python deploy/resolve_pins.py

It needs uv, and a package index as uv is set up for. It fails where there is no version that fits,
where a package has no wheel, and where one is not pinned in constraints.txt.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")
OLDEST_MACOS: Final = "14.0"
_PINNED: Final = re.compile(r"^([\w.-]+)==([\w.]+)")


def pins(lines: Iterable[str]) -> dict[str, str]:
    """Return the version of each package that these lines name. Pure."""
    matches = (_PINNED.match(line) for line in lines)
    return {_name(found.group(1)): found.group(2) for found in matches if found is not None}


def unpinned(resolved: dict[str, str], constraints: dict[str, str]) -> list[str]:
    """Return the packages that another day could bring in another version. Pure."""
    return sorted(name for name in resolved if constraints.get(name) != resolved[name])


def resolve(python: str) -> dict[str, str]:
    """Return what a Mac would install. Raises ``CalledProcessError`` when nothing fits."""
    done = subprocess.run(
        [
            *("uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--no-build"),
            *("--python-platform", "aarch64-apple-darwin", "--python-version", python),
            *("--extra", "dev", "--constraint", "constraints.txt", "pyproject.toml"),
        ],
        cwd=ROOT,
        env={**os.environ, "MACOSX_DEPLOYMENT_TARGET": OLDEST_MACOS},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return pins(done.stdout.splitlines())


def main() -> int:
    """Resolve for each Python; return the exit status."""
    constraints = pins((ROOT / "constraints.txt").read_text().splitlines())
    status = 0
    for python in PYTHONS:
        try:
            resolved = resolve(python)
        except FileNotFoundError:
            sys.stderr.write("uv is not there: pip install uv\n")
            return 1
        except subprocess.CalledProcessError:
            print(f"Python {python}: nothing fits")
            status = 1
            continue
        loose = unpinned(resolved, constraints)
        print(
            f"Python {python}: {len(resolved)} packages, not pinned: {', '.join(loose) or 'none'}"
        )
        status = status or bool(loose)
    return int(status)


def _name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    sys.exit(main())
