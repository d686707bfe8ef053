"""ONNX graphs, put together by hand: values, layers of graphveil, and the file.

By hand, as ``torch.onnx`` needs packages of its own and writes other graphs with every version of
them. Operators are those of one opset; a layer that is not known here is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from graphveil import __version__
from graphveil._errors import InvalidInputError
from graphveil.nn.mlp import FUNCTIONS, MLP, Activated

OPSET, IR_VERSION = 17, 8
_LARGEST = 2_000_000_000  # bytes of one file
_ROOT_OF_HALF = 0.7071067811865476


class Graph:
    """A graph that grows: every method adds operators and returns the name of what they give."""

    def __init__(self) -> None:
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._inputs: list[Any] = []
        self._size = 0

    # --- values ----------------------------------------------------------------------------------

    def input(self, name: str, *shape: int) -> str:
        """Rows of numbers that are given: (records, *shape)."""
        self._inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", *shape]))
        return name

    def constant(self, value: Any, kind: Any = np.float32) -> str:
        """Numbers that stand in the file."""
        array = value.detach().numpy() if isinstance(value, Tensor) else np.asarray(value)
        array = np.ascontiguousarray(array.astype(kind)).reshape(array.shape)
        self._size += array.nbytes
        if self._size > _LARGEST:
            raise InvalidInputError(
                "An ONNX file must stay below 2 GB. Got a model with more instead; train with "
                "fewer columns (--set project_above, --set projection)."
            )
        name = f"c{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(array, name))
        return name

    def add(self, operator: str, *given: str, **attributes: Any) -> str:
        """One operator; what it gives."""
        name = f"v{len(self._nodes)}"
        self._nodes.append(helper.make_node(operator, list(given), [name], **attributes))
        return name

    # --- arithmetic ------------------------------------------------------------------------------

    def times(self, value: str, factor: float) -> str:
        """A value times a number."""
        return value if factor == 1 else self.add("Mul", value, self.constant(factor))

    def at_least(self, value: str, least: float) -> str:
        """A value, no smaller than a number."""
        return self.add("Max", value, self.constant(least))

    def join(self, parts: Sequence[str]) -> str:
        """Columns side by side."""
        return parts[0] if len(parts) == 1 else self.add("Concat", *parts, axis=1)

    def take(self, value: str, first: int, last: int) -> str:
        """Places ``first`` to ``last - 1`` of the second dimension."""
        places = (self.constant([number], np.int64) for number in (first, last, 1))
        return self.add("Slice", value, *places)

    def mean(self, values: Sequence[str]) -> str:
        """The mean of several values."""
        if len(values) == 1:
            return values[0]
        return self.times(self.add("Sum", *values), 1 / len(values))

    def normalise(self, value: str, axis: int = 1) -> str:
        """Length 1 along an axis; zeros stay zeros."""
        length = self.add("ReduceL2", value, axes=[axis], keepdims=1)
        return self.add("Div", value, self.at_least(length, 1e-12))

    # --- layers ----------------------------------------------------------------------------------

    def linear(self, value: str, layer: nn.Linear) -> str:
        """A linear layer."""
        given = [value, self.constant(layer.weight)]
        if layer.bias is not None:
            given.append(self.constant(layer.bias))
        return self.add("Gemm", *given, transB=1)

    def activated(self, value: str, layer: nn.Module) -> str:
        """What follows a hidden layer, dropout left out as in every prediction."""
        if isinstance(layer, nn.Identity):
            return value
        known = isinstance(layer, Activated) and isinstance(layer.norm, nn.Identity)
        names = [name for name, function in FUNCTIONS.items() if known and _is(layer, function)]
        if not names:
            raise InvalidInputError(
                "A layer must be linear, or one of the activations "
                f"{', '.join(FUNCTIONS)}, to be exported. Got {type(layer).__name__} instead."
            )
        return _ACTIVATIONS[names[0]](self, value)

    def mlp(self, value: str, layers: MLP) -> str:
        """Linear layers, and what follows each but the last."""
        for place, linear in enumerate(layers.linears):
            if place:
                value = self.activated(value, layers.between[place - 1])
            assert isinstance(linear, nn.Linear)
            value = self.linear(value, linear)
        return value

    # --- file ------------------------------------------------------------------------------------

    def file(self, output: str, name: str, width: int, metadata: Mapping[str, str]) -> bytes:
        """The model as bytes, checked; its only output has ``width`` columns."""
        self._nodes.append(helper.make_node("Identity", [output], [name]))
        answer = helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", width])
        graph = helper.make_graph(
            self._nodes, "graphveil", self._inputs, [answer], initializer=self._constants
        )
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="graphveil",
            producer_version=__version__,
            doc_string=metadata["reads"],
        )
        helper.set_model_props(model, dict(metadata))
        onnx.checker.check_model(model, full_check=True)
        content: bytes = model.SerializeToString()
        return content


def _is(layer: Any, function: Callable[[Tensor], Tensor]) -> bool:
    return layer.activation is function


def _gelu(graph: Graph, value: str) -> str:
    below = graph.add("Erf", graph.times(value, _ROOT_OF_HALF))
    return graph.times(graph.add("Mul", value, graph.add("Add", below, graph.constant(1.0))), 0.5)


_ACTIVATIONS: Mapping[str, Callable[[Graph, str], str]] = {
    "tanh": lambda graph, value: graph.add("Tanh", value),
    "relu": lambda graph, value: graph.add("Relu", value),
    "elu": lambda graph, value: graph.add("Elu", value, alpha=1.0),
    "selu": lambda graph, value: graph.add("Selu", value),
    "gelu": _gelu,
    "leaky_relu": lambda graph, value: graph.add("LeakyRelu", value, alpha=0.01),
    "softplus": lambda graph, value: graph.add("Softplus", value),
}
