"""Let the reference show the examples of docstrings as code.

The docstrings of this project say "Example:", which the parser of mkdocstrings takes for a note and
renders as prose; as "Examples:" it knows it as doctests.
"""

from __future__ import annotations

import re
from typing import Any, final

import griffe

_HEADING = re.compile(r"^Example:$", re.MULTILINE)


@final
class Examples(griffe.Extension):
    """Rename the section before it is parsed."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:  # noqa: ANN401 - griffe's signature
        """Edit the docstring of one object.

        Args:
            obj: A module, class, function or attribute.
        """
        if obj.docstring is not None:
            obj.docstring.value = _HEADING.sub("Examples:", obj.docstring.value)
