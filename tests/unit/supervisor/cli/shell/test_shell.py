"""What a shell sees: help in sections that cuts nothing, two names for a command, completion."""

import os
import re
from pathlib import Path

import click
import pytest
from click.shell_completion import BashComplete
from click.testing import CliRunner

from lmx.protocol.messages.status import GetStatus, Status
from lmx.supervisor.cli.main import main
from lmx.supervisor.config.known_models import KNOWN_MODELS
from lmx.supervisor.config.sources import HubSource, default_model_id, parse_source
from lmx.supervisor.state.home import Home
from tests.support.fakes.fake_supervisor import fake_supervisor, model_line, status
from tests.support.rigs.rig import ROOT


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    for name in [name for name in os.environ if name.startswith("LMX_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("LMX_HOME", str(tmp_path))
    return Home(tmp_path)


def test_the_help_has_sections_examples_and_whole_sentences() -> None:
    said = CliRunner().invoke(main, ["-h"]).output
    for title in ("Serve:", "Talk:", "Models:", "Memory:", "Watch:", "Recover:", "Configure:"):
        assert f"\n{title}\n" in said
    assert "lmx serve qwen3-8b" in said
    assert "..." not in said.replace("[ARGS]...", "")


def test_every_command_is_in_a_section_or_hidden_and_says_what_it_does() -> None:
    context = click.Context(main)
    listed = main.list_commands(context)
    for name, command in main.commands.items():
        assert command.hidden != (name in listed), name
        assert command.get_short_help_str(), name
        assert CliRunner().invoke(main, [name, "-h"]).exit_code == 0, name


@pytest.mark.parametrize(("ours", "theirs"), [("download", "pull"), ("available", "list"),
                                              ("delete", "rm")])  # fmt: skip
def test_names_that_other_programs_have(ours: str, theirs: str) -> None:
    assert main.commands[ours] is main.commands[theirs]


def test_every_command_stands_in_the_table_of_operating() -> None:
    table = (ROOT / "docs" / "operating.md").read_text().partition("`lmx --url")[0]
    named = {word for code in re.findall(r"`([^`]+)`", table) for word in code.split()}
    shown = {name for name, one in main.commands.items() if not one.hidden}
    assert shown - named == set()


def test_pull_lists_the_short_names_with_their_repositories() -> None:
    said = CliRunner().invoke(main, ["pull", "-h"]).output
    assert "qwen3-8b" in said
    assert "mlx-community/Qwen3-8B-4bit" in said


def test_short_names_are_well_formed_and_each_names_a_repository_of_its_own() -> None:
    for name, repository in KNOWN_MODELS.items():
        assert re.fullmatch(r"[a-z]+[0-9.]*(-[a-z0-9.]+)+", name), name
        source = parse_source(repository)
        assert isinstance(source, HubSource), name
        assert source.revision is None, name
        # What the name says is in the repository's: its size, and its family.
        plain = repository.lower().replace("-", "")
        assert all(part in plain for part in name.split("-")), name
        assert default_model_id(source) == repository
    assert len(set(KNOWN_MODELS.values())) == len(KNOWN_MODELS)


def test_a_name_that_is_nearly_one_is_said_before_anything_is_asked(home: Home) -> None:
    done = CliRunner().invoke(main, ["pull", "Qwen3:8B"])
    assert (done.exit_code, "did you mean qwen3-8b?" in done.output) == (1, True)
    done = CliRunner().invoke(main, ["pull", "nothing-like-it"])
    assert (done.exit_code, "known are qwen3-embedding-0.6b" in done.output) == (1, True)
    assert "org/name" in done.output
    done = CliRunner().invoke(main, ["pull", "org/na me"])
    assert (done.exit_code, "letters, digits" in done.output) == (1, True)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(shell: str) -> None:
    done = CliRunner().invoke(main, ["completion", shell])
    assert done.exit_code == 0, done.output
    assert f"_LMX_COMPLETE={shell}_complete" in done.output


def completed(*words: str, typed: str = "") -> list[str]:
    found = BashComplete(main, {}, "lmx", "_LMX_COMPLETE").get_completions(list(words), typed)
    return [one.value for one in found]


def test_models_are_completed(home: Home) -> None:
    models = status(model_line("qwen", aliases=["quick"]), model_line("other"))
    with fake_supervisor(home, {GetStatus: lambda _: Status(models)}):
        assert completed("load", typed="q") == ["qwen", "quick"]
        assert completed("chat") == ["qwen", "quick", "other"]
    home.default_config.write_text("models: [{id: cold, source: /x}]")
    assert completed("load") == ["cold"]
    home.default_config.write_text("{")
    assert completed("load") == []


def test_short_names_are_completed_where_they_may_stand(home: Home) -> None:
    home.default_config.write_text("models: [{id: qwen3-mine, source: /x}]")
    known = [name for name in KNOWN_MODELS if name.startswith("qwen3-")]
    assert completed("pull", typed="qwen3-") == completed("add", "id", typed="qwen3-") == known
    for command in ("estimate", "run", "serve", "start"):
        assert completed(command, typed="qwen3-") == ["qwen3-mine", *known], command
    home.default_config.write_text("{")
    assert completed("serve", typed="qwen3-") == known


def test_serve_and_start_take_the_same() -> None:
    serve, start = main.commands["serve"], main.commands["start"]
    reported = [[(each.name, each.opts, getattr(each, "help", None)) for each in one.params]
            for one in (serve, start)]  # fmt: skip
    assert reported[0] == reported[1]


def test_commands_are_completed() -> None:
    assert completed(typed="do") == ["download", "downloads", "doctor"]
    assert "--take-over" in completed("serve", typed="--")
