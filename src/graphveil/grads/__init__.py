"""The clipped sum of per-example gradients, and the private training step made of it.

Names load on first use, so that :mod:`graphveil.grads.settings` does without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from graphveil.grads.clipped import ClippedSum
    from graphveil.grads.clipping import Automatic, Flat, Off, PerLayer, Quantile, make_clipping
    from graphveil.grads.examples import Examples, TensorExamples
    from graphveil.grads.rows import ragged
    from graphveil.grads.settings import CLIPPINGS, Sampling, Target
    from graphveil.grads.step import PrivateStep, make_private

__all__ = [
    "CLIPPINGS",
    "Automatic",
    "ClippedSum",
    "Examples",
    "Flat",
    "Off",
    "PerLayer",
    "PrivateStep",
    "Quantile",
    "Sampling",
    "Target",
    "TensorExamples",
    "make_clipping",
    "make_private",
    "ragged",
]

_MODULE_OF = {
    "ClippedSum": "clipped",
    **dict.fromkeys(
        ("Automatic", "Flat", "Off", "PerLayer", "Quantile", "make_clipping"), "clipping"
    ),
    **dict.fromkeys(("Examples", "TensorExamples"), "examples"),
    "ragged": "rows",
    **dict.fromkeys(("CLIPPINGS", "Sampling", "Target"), "settings"),
    **dict.fromkeys(("PrivateStep", "make_private"), "step"),
}


def __getattr__(name: str) -> Any:
    """Load a public name from its module the first time it is asked for."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value  # the next look-up finds it without coming here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
