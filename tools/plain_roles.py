"""Docstrings for the site: roles such as ``:func:`name` `` become plain code."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:py:)?(?:class|func|meth|mod|attr|data|exc|obj):`~?([^`]+)`")


class PlainRoles(griffe.Extension):
    """Rewrite the docstring of every object that is read."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Take roles out of one docstring."""
        if obj.docstring is not None:
            text = _ROLE.sub(r"``\1``", obj.docstring.value)
            obj.docstring.value = text
