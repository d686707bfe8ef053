"""What the owner of data should know while a command goes on: a line on stderr each."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

from graphveil.cli._output import say


@contextlib.contextmanager
def notices() -> Iterator[None]:
    """Say each :class:`~graphveil.data.classes.Notice` in a line, and once."""
    from graphveil.data.classes import Notice

    with warnings.catch_warnings():
        before, shown = warnings.showwarning, set[str]()
        warnings.simplefilter("always", Notice)

        def show(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
            if not issubclass(category, Notice):
                before(message, category, *rest, **more)
            elif str(message) not in shown:
                shown.add(str(message))
                say(str(message))

        warnings.showwarning = show
        yield
