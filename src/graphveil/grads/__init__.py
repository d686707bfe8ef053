"""The clipped sum of per-example gradients, and the private training step made of it.

Names load on first use, so that :mod:`graphveil.grads.settings` does without torch.
"""

from typing import TYPE_CHECKING

from graphveil._lazy import lazy_names

if TYPE_CHECKING:
    from graphveil.grads.clipped import ClippedSum
    from graphveil.grads.clipping import Automatic, Flat, Off, PerLayer, Quantile, make_clipping
    from graphveil.grads.examples import Examples, TensorExamples
    from graphveil.grads.rows import ragged
    from graphveil.grads.settings import CLIPPINGS, Sampling, Target
    from graphveil.grads.step import PrivateStep, make_private

__all__ = [
    "CLIPPINGS", "Automatic", "ClippedSum", "Examples", "Flat", "Off", "PerLayer", "PrivateStep",
    "Quantile", "Sampling", "Target", "TensorExamples", "make_clipping", "make_private", "ragged",
]  # fmt: skip

_NAMES_OF = {
    "graphveil.grads.clipped": "ClippedSum",
    "graphveil.grads.clipping": "Automatic Flat Off PerLayer Quantile make_clipping",
    "graphveil.grads.examples": "Examples TensorExamples",
    "graphveil.grads.rows": "ragged",
    "graphveil.grads.settings": "CLIPPINGS Sampling Target",
    "graphveil.grads.step": "PrivateStep make_private",
}
__getattr__, __dir__ = lazy_names(globals(), _NAMES_OF)
