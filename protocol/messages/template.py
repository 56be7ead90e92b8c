"""What a worker found out about its model's chat template."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class TemplateFacts:
    """What a chat template takes, tried at the load. Empty before that."""

    efforts: tuple[str, ...] = ()
    """The words for a reasoning effort that it distinguishes, the least first. A request with
    another word gets the nearest of those that it takes."""
    fitted: tuple[str, ...] = ()
    """The shapes of conversations that it does not take as they are: lmx fits them to it, and no
    text is lost. Their names are those of ``lmx.worker.templates.fitting.SHAPES``."""
    refused: tuple[str, ...] = ()
    """The shapes that it refuses, or drops a text of, whatever is done."""


UNKNOWN_TEMPLATE: Final = TemplateFacts()
