"""Sentences of ``data.public``, and what they mean; torch is not loaded.

A run publishes how many classes it tells apart. Where nobody stated that, it was read off private
labels, and a sentence says how. :func:`class_source` is the one place that looks for them.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from typing import Literal

ClassSource = Literal["stated", "number", "names", "declared"]

NUMBER_READ_OFF = "the number of classes, read off the labels"
UNNAMED = (
    "which classes there are, read off the labels: they are numbered in the order of their names, "
    "which are not published"
)
DECLARED_PUBLIC = "DECLARED PUBLIC"  # units of the data itself, by somebody's word
DECLARED = "which classes there are, read off the labels: the owner says that they are public"
LEFT_OUT = (  # with small classes: nothing protects it
    "which classes have at least {0} {1}s, and whose {1}s were left out with the others, read off "
    f"the labels: {DECLARED_PUBLIC}"
)


def class_source(lines: Iterable[str]) -> ClassSource:
    """Where the classes come from, by the public ``lines`` of data or of a certificate.

    ========  ====================================================================================
    stated    their number or names were stated; nothing was read off labels
    number    nobody stated their number: it was read off the labels
    names     their names were read off the labels, give the numbers, and are not published
    declared  number or names were read off the labels; the owner says that they are public
    ========  ====================================================================================
    """
    known = set(lines)
    sources: dict[str, ClassSource] = {
        UNNAMED: "names",
        DECLARED: "declared",
        NUMBER_READ_OFF: "number",
    }
    return next((source for line, source in sources.items() if line in known), "stated")


def shorten(names: Sequence[str], most: int = 20) -> str:
    """Names in one plain line; of many the first, and how many more there are."""
    lines = [plain(name[:60]) + ("..." if len(name) > 60 else "") for name in names[:most]]
    more = [f"and {len(names) - most:,} more"] if len(names) > most else []
    return ", ".join([*lines, *more])


def plain(text: str) -> str:
    """A text as a certificate may print it: signs that would make tags or bars by their names."""
    return "".join(
        f"[{unicodedata.name(sign, '').lower() or f'U+{ord(sign):04X}'}]"
        if sign in "<>|`" or not sign.isprintable()
        else sign
        for sign in text
    )
