"""Who is shown how far training is: whoever asks, and whoever works in a notebook."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

Progress = Callable[[Iterable[Any]], Iterable[Any]]


def choose_progress(progress: Progress | bool | None, what: str) -> Progress | None:
    """What shows the steps of ``what``: a function of them, a bar (True), or nothing (False).

    None is a bar in a notebook, and nothing elsewhere.
    """
    if progress is None:
        progress = in_notebook()
    if callable(progress):
        return progress
    return _bar(what) if progress else None


def in_notebook() -> bool:
    """Whether somebody looks at this through Jupyter."""
    shell = sys.modules.get("IPython")
    kernel = None if shell is None else shell.get_ipython()
    return type(kernel).__name__ == "ZMQInteractiveShell"


def _bar(what: str) -> Progress:
    from rich.progress import track

    return lambda steps: track(list(steps), description=what, transient=True)
