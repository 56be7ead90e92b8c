"""Groups of models, as the configuration has them."""

from pydantic import Field

from lmx.supervisor.config.values import Name, Section


class GroupConfig(Section):
    """Models with a rule about what may be loaded together with them. A model is in one group at
    most; models without a group are a group of their own, without a rule."""

    name: Name = Field(examples=["coders"])
    """The name of the group."""
    models: tuple[Name, ...] = Field(min_length=1, examples=[["qwen-coder", "devstral"]])
    """The ids of its models."""
    swap: bool = False
    """Whether one of its models is loaded at a time."""
    exclusive: bool = False
    """Whether no model of another group is loaded while one of these is."""
    persistent: bool = False
    """Whether an exclusive group lets these models stay."""
