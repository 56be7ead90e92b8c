"""A release is refused unless tree, version and changelog agree."""

import os
import subprocess
from pathlib import Path

import pytest

from deploy.release import problems

ROOT = Path(__file__).parents[2]
CHANGELOG = "# Changelog\n\n## [1.2.0] - 2026-11-27\n\n- A\n\n## [1.1.0] - 2026-10-01\n"


def test_what_agrees_can_be_released() -> None:
    assert problems("1.2.0", CHANGELOG, "main", [], ["v1.1.0"]) == []


@pytest.mark.parametrize(
    ("version", "changelog", "branch", "changed", "tags", "said"),
    [
        ("1.2.1", CHANGELOG, "main", [], [], "pyproject.toml says 1.2.1"),
        ("1.2.0", "# Changelog\n", "main", [], [], "no section"),
        ("1.2.0", CHANGELOG.replace("2026-11-27", "unreleased"), "main", [], [], "no date"),
        ("1.2.0", CHANGELOG, "h7", [], [], "the branch is h7"),
        ("1.2.0", CHANGELOG, "", [], [], "the branch is none"),
        ("1.2.0", CHANGELOG, "main", [" M a.py", "?? b"], [], "not committed: a.py, b"),
        ("1.2.0", CHANGELOG, "main", [], ["v1.2.0"], "the tag v1.2.0 is there already"),
    ],
)
def test_what_does_not_agree(
    version: str, changelog: str, branch: str, changed: list[str], tags: list[str], said: str
) -> None:
    (found,) = problems(version, changelog, branch, changed, tags)
    assert said in found


@pytest.mark.parametrize("dry", ["", "DRY=1"])
def test_the_tag_is_the_last_step(dry: str) -> None:
    done = subprocess.run(
        ["make", "-n", "release", *dry.split()],
        cwd=ROOT, check=True, capture_output=True, text=True,
        # Those of a `make release DRY=1` that runs this test are not its own.
        env={
            name: value for name, value in os.environ.items()
            if not name.startswith(("MAKE", "DRY"))
        },
    )  # fmt: skip
    steps = [
        step
        for step in ("release.py ready", "make check", "make test-all", "make installs",
                     "release.py build", "release.py tag")
        if step in done.stdout
    ]  # fmt: skip
    places = [done.stdout.index(step) for step in steps]
    assert places == sorted(places)
    assert len(steps) == (5 if dry else 6)
