"""What follows from a changed configuration: every key says it, and nothing else notices."""

from typing import Any

import pytest

from docs.make.generate import IN_WORDS
from lmx.supervisor.config.diff import ModelChanges, changed_values, compare
from lmx.supervisor.config.needs import Needs, needs_of
from lmx.supervisor.config.schema import Config, ModelConfig
from lmx.supervisor.config.values import Section

ALPHA = {"id": "alpha", "source": "/a", "context_length": 2048}
BETA = {"id": "beta", "source": "/b"}


def config(*models: dict[str, Any], **sections: Any) -> Config:
    return Config.model_validate({"models": list(models), **sections})


def test_every_key_says_what_a_change_of_it_needs() -> None:
    sections = {name: type(value) for name, value in Config() if isinstance(value, Section)}
    assert set(sections) | set(needs_of(Config)) | {"models"} == set(Config.model_fields)
    for name, section in sections.items():
        assert set(needs_of(section)) == set(section.model_fields), name
    # The id says which model it is.
    assert set(needs_of(ModelConfig)) | {"id"} == set(ModelConfig.model_fields)


def test_all_that_a_change_may_need_has_words() -> None:
    sections: list[type[Section]] = [Config, ModelConfig]
    sections += [type(value) for _, value in Config() if isinstance(value, Section)]
    assert {one for section in sections for one in needs_of(section).values()} == set(IN_WORDS)


def test_the_same_configuration_changes_nothing() -> None:
    diff = compare(config(ALPHA, BETA), config(ALPHA, BETA))
    assert (diff.sections, diff.models, diff.sentences) == ((), ModelChanges(), ())
    assert not diff.router


def test_only_the_models_that_changed_are_named() -> None:
    gamma = {"id": "gamma", "source": "/g", "preload": False}
    old = config(ALPHA, BETA, {"id": "gone", "source": "/x"})
    new = config({**ALPHA, "context_length": 4096}, {**BETA, "keep_alive": "5m"}, gamma)
    diff = compare(old, new)
    assert diff.models == ModelChanges(("gamma",), ("gone",), ("alpha",), ("beta",))
    assert diff.sections == ("models",)
    assert not diff.router
    assert diff.sentences == (
        "gone: unloaded after its streams, it is no longer configured",
        "alpha: reloaded once its streams have ended, if loaded (context_length 2048 -> 4096)",
        "beta: now in effect (keep_alive none -> 5m)",
        "gamma: new, loaded with its first request",
    )


@pytest.mark.parametrize(
    ("changed", "needs"),
    [
        ({"server": {"max_requests": 3}}, Needs.ROUTER),
        ({"server": {"port": 9000}}, Needs.ADDRESS),
        ({"logs": {"level": "debug"}}, Needs.ROUTER),
        ({"timing": {"shutdown_grace_s": 5}}, Needs.ROUTER),
        ({"timing": {"drain_timeout_s": 5}}, Needs.NOTHING),
        ({"memory": {"budget_fraction": 0.5}}, Needs.NOTHING),
        ({"restart": {"max_failures": 9}}, Needs.NOTHING),
        ({"groups": [{"name": "g", "models": ["alpha"]}]}, Needs.NOTHING),
        ({"default_model": "beta"}, Needs.NOTHING),
        ({"routing": {"code": ["beta"], "patterns": {"gpt-*": "beta"}}}, Needs.NOTHING),
        ({"security": {"api_keys": ["k" * 16]}}, Needs.ROUTER),
        ({"jobs": {"max_count": 5}}, Needs.ROUTER),
        ({"peers": [{"name": "studio", "url": "http://studio:8000"}]}, Needs.NOTHING),
    ],
)
def test_sections_never_touch_models_and_the_router_only_where_it_must(
    changed: dict[str, Any], needs: Needs
) -> None:
    diff = compare(config(ALPHA, BETA), config(ALPHA, BETA, **changed))
    assert diff.models == ModelChanges()
    assert diff.sections == tuple(changed)
    assert diff.router == bool(needs)
    assert diff.moved == (needs is Needs.ADDRESS)
    assert len(diff.sentences) == 1


def test_another_order_of_the_patterns_is_another_configuration() -> None:
    """The first pattern that matches counts."""
    patterns = {"claude-*": "alpha", "claude-opus*": "beta"}
    old = config(ALPHA, BETA, routing={"patterns": patterns})
    new = config(ALPHA, BETA, routing={"patterns": dict(reversed(patterns.items()))})
    diff = compare(old, new)
    assert diff.sections == ("routing",)
    (sentence,) = diff.sentences
    assert sentence.startswith('routing: now in effect (patterns {"claude-*": "alpha"')
    assert compare(old, config(ALPHA, BETA, routing={"patterns": dict(patterns)})).sections == ()


def test_a_section_within_a_model_is_listed_key_by_key() -> None:
    new = {**ALPHA, "prefix_cache": {"disk": False}, "engine_options": {"x": 1}}
    (sentence,) = compare(config(ALPHA), config(new)).sentences
    assert "prefix_cache.disk true -> false" in sentence
    assert 'engine_options none -> {"x": 1}' in sentence


def test_values_are_reported_in_words_for_people() -> None:
    old = config(ALPHA, memory={"keep_alive": "forever"})
    new = config({**ALPHA, "aliases": ["aa", "ab"]}, memory={"keep_alive": "90m"})
    assert compare(old, new).sentences == (
        "memory: now in effect (keep_alive forever -> 1h30m)",
        "alpha: now in effect (aliases none -> aa, ab)",
    )


def test_what_is_in_effect_at_once_is_no_reason_for_a_load() -> None:
    new = {**ALPHA, "aliases": ["aa"], "context_length": 4096}
    diff = compare(config(ALPHA), config(new))
    assert diff.models == ModelChanges(respawned=("alpha",))
    assert diff.sentences == (
        "alpha: now in effect (aliases none -> aa)",
        "alpha: reloaded once its streams have ended, if loaded (context_length 2048 -> 4096)",
    )


def test_another_order_of_the_models_only_moves_the_default() -> None:
    diff = compare(config(ALPHA, BETA), config(BETA, ALPHA))
    assert (diff.models, diff.sentences) == (ModelChanges(), ("default model: alpha -> beta",))


def test_no_sentence_has_a_key() -> None:
    old = config(ALPHA, security={"api_keys": ["sk-0123456789abcdef"]})
    new = config(
        ALPHA, security={"api_keys": ["sk-fedcba9876543210"], "admin_key": "sk-admin-0123456"}
    )
    diff = compare(old, new)
    assert (diff.sections, diff.router) == (("security",), True)
    (sentence,) = diff.sentences
    assert "(api_keys 1 added, 1 removed, admin_key added)" in sentence
    assert "sk-" not in sentence


def test_another_adapter_is_for_another_worker() -> None:
    diff = compare(config(ALPHA), config({**ALPHA, "adapters": {"sql": "/lora/sql"}}))
    assert diff.models == ModelChanges(respawned=("alpha",))
    (sentence,) = diff.sentences
    assert 'adapters none -> {"sql": "/lora/sql"}' in sentence


def test_an_adapter_may_be_the_default_model() -> None:
    new = config({**ALPHA, "adapters": {"sql": "/lora/sql"}}, default_model="sql")
    assert new.default_model_id == "sql"


def test_a_route_that_is_called_like_a_method_changes_with_its_models_alone() -> None:
    one, same, other = (
        config(ALPHA, BETA, routing={"copy": [name]}) for name in ("alpha", "alpha", "beta")
    )
    assert changed_values(one.routing, same.routing) == {}
    assert changed_values(one.routing, other.routing) == {"copy": (("alpha",), ("beta",))}
