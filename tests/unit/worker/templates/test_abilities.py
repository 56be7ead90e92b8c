"""What is assumed of a chat template that can't be tried; others are in tests/engine/model."""

from typing import Any

import pytest

from lmx.worker.templates.capabilities import TemplateCapabilities, probe_capabilities
from lmx.worker.templates.fitting import Fitting
from lmx.worker.templates.renderer import RenderingEndedError, TextTooLongError
from lmx.worker.templates.thinking import EFFORTS


class Failing:
    """A template that fails in one way, and counts how often it was tried."""

    def __init__(self, error: Exception) -> None:
        self._error = error
        self.tries = 0

    def apply(self, *_: Any) -> str:
        self.tries += 1
        raise self._error


def abilities_of(template: Any) -> TemplateCapabilities:
    return probe_capabilities(template, mentions_tools=True, efforts=None)


def test_a_template_that_does_not_end_is_tried_once() -> None:
    template = Failing(RenderingEndedError("had not come to an end"))
    assert abilities_of(template) == TemplateCapabilities(Fitting(tools_as_text=False))
    assert template.tries == 1


def test_a_text_that_is_too_long_is_no_refusal_of_an_effort() -> None:
    found = abilities_of(Failing(TextTooLongError(9000)))
    assert (found.efforts, found.distinguishes_efforts) == (EFFORTS, False)
    assert found.fitting.remedies == {}


def test_no_process_to_render_it_fails_the_load() -> None:
    with pytest.raises(OSError):
        abilities_of(Failing(OSError("no more processes")))
