"""What the owner of data states of its classes: a number, their names, or that they are public.

Read before any data is, and without the libraries that read data. What becomes of a statement is
said in :mod:`graphveil.data.classes`.
"""

from __future__ import annotations

import csv
import re
from typing import Any, NoReturn

from graphveil import _validate
from graphveil._errors import InvalidInputError

PUBLIC = "public"


class Notice(UserWarning):
    """What the owner of data should know, and what is no error."""


Stated = int | str | tuple[str, ...] | None


def parse_classes(classes: Any) -> Stated:
    """The statement ``classes``, checked: a number, a tuple of names, "public", or None.

    Text is read as on the command line: a number, names with commas between them, or the word.
    """
    if isinstance(classes, str):
        text = classes.strip()
        if text == PUBLIC:
            return PUBLIC
        classes = int(text) if re.fullmatch(r"[0-9]{1,9}", text) else _between_commas(text)
    if classes is None:
        return None
    if isinstance(classes, (list, tuple)):
        names = tuple(name.strip() if isinstance(name, str) else name for name in classes)
        if len(names) < 2 or not all(isinstance(name, str) and name for name in names):
            _refuse(classes)
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise InvalidInputError(f"The 'classes' parameter names {twice[0]!r} more than once.")
        return names
    if isinstance(classes, bool) or not isinstance(classes, int):
        _refuse(classes)
    return _validate.integer("classes", classes, "[2, 1e6]")


def _between_commas(text: str) -> list[str]:
    try:
        return next(csv.reader([text]), [])
    except csv.Error:
        _refuse(f"{text[:40]}...")


def _refuse(classes: Any) -> NoReturn:
    raise InvalidInputError(
        "The 'classes' parameter must be the number of classes, two names or more with commas "
        f"between them, or the word 'public'. Got {classes!r} instead."
    )
