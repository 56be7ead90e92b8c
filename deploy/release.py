"""What ``make release`` does before and after the checks; RELEASING.md has the whole order.

    python deploy/release.py ready         refuse unless this tree can be released
    python deploy/release.py build         build into dist/ from the commit, and check the files
    python deploy/release.py tag           tag the commit

It publishes nothing: neither the tag nor the files leave this machine.
"""

import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
DIST: Final = ROOT / "dist"
_SECTION: Final = re.compile(r"^## \[([^]]+)\] - (\S+)$", re.MULTILINE)


def problems(
    version: str, changelog: str, branch: str, changed: Iterable[str], tags: Iterable[str]
) -> list[str]:
    """Return why this can't be released, in words; nothing if it can. Pure.

    ``changed`` are the files that differ from the commit, as ``git status --porcelain`` has them.
    """
    found = []
    if branch != "main":
        found.append(f"the branch is {branch or 'none'}: releases are made from main")
    files = list(changed)
    if files:
        found.append(f"not committed: {', '.join(line[3:] for line in files)}")
    section = _SECTION.search(changelog)
    if section is None:
        found.append("CHANGELOG.md has no section like `## [0.1.0] - 2026-11-27`")
    else:
        named, date = section.groups()
        if named != version:
            found.append(
                f"pyproject.toml says {version}, the first section of CHANGELOG.md {named}"
            )
        if not re.fullmatch(r"\d{4}-\d\d-\d\d", date):
            found.append(f"the section {named} of CHANGELOG.md has no date but {date!r}")
    if f"v{version}" in tags:
        found.append(f"the tag v{version} is there already: raise `version` in pyproject.toml")
    return found


def version_of(root: Path) -> str:
    """Return the version that a checkout's pyproject.toml has."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    return str(project["version"])


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    )
    return done.stdout


def ready() -> int:
    """Say what keeps this tree from being released; return the exit status."""
    found = problems(
        version_of(ROOT),
        (ROOT / "CHANGELOG.md").read_text(),
        _git("branch", "--show-current").strip(),
        _git("status", "--porcelain").splitlines(),
        _git("tag").split(),
    )
    for one in found:
        sys.stderr.write(f"release: {one}\n")
    return 1 if found else 0


def build() -> int:
    """Build the source archive, and from it the wheel; have twine check both. Return 0.

    Raises ``CalledProcessError`` when a step fails. Files that are not in the commit have no part
    in it, because it works on a clone.
    """
    shutil.rmtree(DIST, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["git", "clone", "--quiet", str(ROOT), folder], check=True)
        subprocess.run(
            [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(DIST), folder],
            check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
    built = sorted(DIST.iterdir())
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *built], check=True)
    for path in built:
        print(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  dist/{path.name}")
    return 0


def tag() -> int:
    """Tag the commit. Return 0."""
    name = f"v{version_of(ROOT)}"
    _git("tag", "--annotate", "--message", f"lmx {name[1:]}", name)
    print(f"Tagged {name}. To publish it: git push origin main {name}; RELEASING.md has the rest.")
    return 0


if __name__ == "__main__":
    sys.exit({"ready": ready, "build": build, "tag": tag}[sys.argv[1]]())
