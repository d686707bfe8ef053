"""The clipped sum of per-example gradients, and the private training step made of it."""

from graphveil.grads.clipped import ClippedSum
from graphveil.grads.clipping import Automatic, Flat, Off, PerLayer, Quantile
from graphveil.grads.examples import Examples, TensorExamples
from graphveil.grads.rows import ragged
from graphveil.grads.step import PrivateStep, make_private

__all__ = [
    "Automatic",
    "ClippedSum",
    "Examples",
    "Flat",
    "Off",
    "PerLayer",
    "PrivateStep",
    "Quantile",
    "TensorExamples",
    "make_private",
    "ragged",
]
