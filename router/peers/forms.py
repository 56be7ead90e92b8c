"""What goes with a request to another machine besides its JSON: a form with a sound that is to be
transcribed, and the contents of files."""

import io
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp import web

from lmx.router.byte_budget import ByteShare
from lmx.router.http.bodies.form import FormField, Upload
from lmx.router.peers.named_files import NamedPart

_MOST_NAME_CHARACTERS = 200

GiveContents = Callable[[web.Request, list[NamedPart], str, ByteShare], Awaitable[None]]
"""Puts the contents of files in the place of their ids, for the machine of that name. They are
counted in the share."""


@dataclass(frozen=True, slots=True)
class Form:
    """A form as it is sent to peers."""

    fields: Mapping[str, Sequence[FormField]]

    @property
    def size_bytes(self) -> int:
        """How much its files have."""
        return sum(
            len(value.content)
            for values in self.fields.values()
            for value in values
            if isinstance(value, Upload)
        )

    @property
    def values(self) -> dict[str, Any]:
        """The values of its fields that are no files and stand once."""
        return {
            name: values[0]
            for name, values in self.fields.items()
            if len(values) == 1 and isinstance(values[0], str)
        }

    def of_model(self, name: str) -> "Form":
        """Return the form with another model."""
        return Form({**self.fields, "model": (name,)})

    def data(self) -> aiohttp.FormData:
        """Return it as a client sends it once."""
        data = aiohttp.FormData(default_to_multipart=True)
        for name, values in self.fields.items():
            for value in values:
                if isinstance(value, str):
                    data.add_field(name, value)
                else:
                    filename = value.filename[:_MOST_NAME_CHARACTERS]
                    data.add_field(name, io.BytesIO(value.content), filename=filename)
        return data
