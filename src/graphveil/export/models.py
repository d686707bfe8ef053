"""Fitted methods as ONNX files, where one row is all that the network reads.

=====================  ============================================================================
method                 what is exported
=====================  ============================================================================
``dp-mlp``, ``mlp``    all of it: a record's own row to answers
``late-graph``         the head, as it predicts with ``rounds=0``; the graph is not read
``dpar``, its open     the head, as it predicts with ``smoothing_steps=0``; the graph is not read
twin ``open-dpar``
``gap``                the classifier: a node's own row, and the sums that were cached for it
=====================  ============================================================================

Features are prepared inside the file: raw rows go in. Nothing here reads data.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphveil import __version__
from graphveil._errors import InvalidInputError
from graphveil.export.files import write_whole
from graphveil.methods.features import Features
from graphveil.methods.given_data import refuse_links

if TYPE_CHECKING:
    from graphveil.export.onnx_graph import Graph
    from graphveil.methods import Method

_HEAD_ONLY = (
    "a node's own row, and nothing else: a head only. The graph is not read; answers are those of "
    "{method} with {setting}=0"
)
_OWN_ROW = "a record's own row, and nothing else"
_SUMS = (
    "a node's own row (x) and the noisy sums that were cached for it (sums: its row of 'sums' in "
    "the run's cache.safetensors); the file holds no sums"
)
_READS = {
    "dp-mlp": _OWN_ROW,
    "mlp": _OWN_ROW,
    "late-graph": _HEAD_ONLY.format(method="late-graph", setting="rounds"),
    "dpar": _HEAD_ONLY.format(method="dpar", setting="smoothing_steps"),
    "open-dpar": _HEAD_ONLY.format(method="open-dpar", setting="smoothing_steps"),
    "gap": _SUMS,
}


def check_model(path: str | Path) -> None:
    """Refuse a name that no model can have here, and a missing package; before data is read."""
    if Path(path).suffix != ".onnx":
        raise InvalidInputError(f"A model must end in .onnx. Got {str(path)!r} instead.")
    if find_spec("onnx") is None:
        raise InvalidInputError(
            "ONNX files need onnx, which is not installed: pip install 'graphveil[onnx]'."
        )


def to_onnx(
    method: Method,
    path: str | Path,
    *,
    class_names: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Write a fitted method as an ONNX file, and return what the file says of itself.

    Its input ``x`` are raw feature rows as float32; ``gap`` has a second input, ``sums``. Its
    output is ``probabilities``, of classes or of labels, or the ``value`` of a regression. The
    metadata have method, task, unit, epsilon and delta, what is read and who may see an answer, and
    the names of classes and columns, which must be public if given.

    *Guarantee*: that of the weights, which the metadata state. An answer is a prediction: it reads
    its row in the open.
    """
    check_model(path)
    _check(method)
    from graphveil.export.onnx_graph import OPSET, Graph

    facts = method.plan_.facts
    task: Any = method.task(facts)
    for name, given, size in (
        ("class_names", class_names, facts.num_classes),
        ("columns", columns, facts.num_features),
    ):
        if given is not None and len(given) != size:
            raise InvalidInputError(
                f"The '{name}' parameter must have {size} names. Got {len(given)} instead."
            )
    graph = Graph()
    x = graph.input("x", facts.num_features)
    shapes = {"x": ["n", facts.num_features]}
    if method.name == "gap":
        from graphveil.export.gap_graph import add_gap

        shape = method.cache_.shape[1:]  # type: ignore[attr-defined]
        shapes["sums"] = ["n", *shape]
        outputs = add_gap(graph, method, x, graph.input("sums", *shape))
    else:
        outputs = _add_own_row(graph, method, x)
    answers = _add_answers(graph, task, outputs)
    about = _describe(method, class_names, columns)
    name = "value" if task.name == "regression" else "probabilities"
    content = graph.file(answers, name, len(task.columns(None)), about)
    write_whole(path, content, private=not _is_proven(method))
    return {**about, "inputs": _say_shapes(shapes), "output": name, "opset": OPSET}


def _check(method: Method) -> None:
    """Refuse what reads neighbours, was not fitted, or was changed since."""
    if method.name not in _READS:
        refuse_links(method.record, "A model that is exported")
        whole = method.record == "graph"
        what = "reads whole graphs" if whole else "reads neighbours inside its network"
        raise InvalidInputError(
            f"Only models of single rows can be exported. Got '{method.name}' instead, which "
            f"{what}; predict by 'graphveil predict'"
            + ("." if whole else ", or train dp-mlp, late-graph, dpar or gap.")
        )
    if not hasattr(method, "network_"):
        from graphveil._errors import NotFittedError  # which loads scikit-learn

        raise NotFittedError(f"This {type(method).__name__} has not been fitted; call 'fit'.")
    now, then = method.training_settings(), method.plan_.settings
    if changed := sorted(name for name in now if now[name] != then.get(name)):
        raise InvalidInputError(
            f"The settings must be those of the fit. Got another {', '.join(changed)} instead; "
            "set it back, or fit again."
        )


def _is_proven(method: Method) -> bool:
    certificate = method.certificate_
    return not math.isinf(certificate.guarantee.epsilon) and not certificate.void_because


# --- what the file says of itself -----------------------------------------------------------------


def _describe(
    method: Method, class_names: Sequence[str] | None, columns: Sequence[str] | None
) -> dict[str, str]:
    certificate = method.certificate_
    guarantee = certificate.guarantee
    about = {
        "graphveil": __version__,
        "method": method.name,
        "task": method.task(method.plan_.facts).name,
        "unit": guarantee.unit,
        "relation": guarantee.relation,
        "epsilon": repr(guarantee.epsilon),
        "delta": repr(guarantee.delta),
        "reads": _READS[method.name],
        "weights_seen_by": "anybody"
        if _is_proven(method)
        else "whoever may see all that the model was trained on: no epsilon is proven for it",
        "answers_seen_by": _who_sees_answers(method),
    }
    if certificate.void_because:
        about["void_because"] = json.dumps(list(certificate.void_because))
    if certificate.claim is not None:
        about["claimed_epsilon"] = repr(certificate.claim.epsilon)
    if class_names is not None:
        about["class_names"] = json.dumps(list(class_names))
    if columns is not None:
        about["columns"] = json.dumps(list(columns))
    return about


def _who_sees_answers(method: Method) -> str:
    """Who may see an answer, where the weights are anybody's."""
    unit = method.certificate_.guarantee.unit
    if not _is_proven(method):
        return "whoever may see all that the model was trained on"
    if unit.startswith("edge"):
        return "anybody: rows are public under this unit, and sums are noisy"
    if method.name == "gap":
        return "its own node only: it reads that node's row in the open, and its noisy sums"
    return "its own node, and whoever may see that node's row, which is read in the open"


def _say_shapes(shapes: Mapping[str, Sequence[Any]]) -> list[str]:
    return [f"{name}: float32 ({', '.join(map(str, shape))})" for name, shape in shapes.items()]


# --- graphs ---------------------------------------------------------------------------------------


def add_features(graph: Graph, features: Features, columns: int, x: str) -> str:
    """Rows as the network reads them; the steps of :meth:`Features.prepare`."""
    if features.how == "power":
        roots = graph.add("Sqrt", graph.add("Abs", x))
        x = graph.add("Mul", graph.add("Sign", x), roots)
    if columns > features.project_above:
        x = x if features.how == "raw" else graph.normalise(x)
        x = graph.add("MatMul", x, graph.constant(features.matrix(columns)))
    return x if features.how == "raw" else graph.times(graph.normalise(x), features.scale)


def _add_own_row(graph: Graph, method: Any, x: str) -> str:
    """What a network of own rows says: encoder, a convolution without messages, decoder."""
    network = method.network_
    rows = add_features(graph, Features.of(method), method.plan_.facts.num_features, x)
    rows = graph.activated(graph.mlp(rows, network.encoder), network.after[0])
    for conv, after in zip(network.convs, network.after[1:], strict=True):
        rows = graph.activated(graph.linear(rows, conv.lin), after)
    outputs = graph.mlp(rows, network.decoder)
    return _add_doubt(graph, method, outputs) if method.name == "late-graph" else outputs


def _add_doubt(graph: Graph, method: Any, outputs: str) -> str:
    """Beliefs before any neighbour is heard: drawn to the classes' shares, as noise demands.

    Of labels these are their odds. A value is believed as it is.
    """
    from graphveil.methods.own_row import trust

    task = method.plan_.facts.task
    if method.reading != "beliefs" or task == "regression":
        return outputs
    shares = method.network_.log_prior
    several = task == "multilabel"
    prior = graph.constant(shares - (-shares.expm1()).log() if several else shares)
    own = outputs if several else graph.add("LogSoftmax", outputs, axis=1)
    beyond = graph.add("Sub", own, prior)
    return graph.add("Add", prior, graph.times(beyond, trust(method)))


def _add_answers(graph: Graph, task: Any, outputs: str) -> str:
    """The probability of every class or label, or the value."""
    if task.name == "multilabel":
        return graph.add("Sigmoid", outputs)
    if task.name == "regression":
        inside = graph.add("Min", graph.at_least(outputs, -1.0), graph.constant(1.0))
        middle, half = (task.low + task.high) / 2, (task.high - task.low) / 2
        return graph.add("Add", graph.times(inside, half), graph.constant(middle))
    if not task.binary:
        return graph.add("Softmax", outputs, axis=1)
    chance = graph.add("Sigmoid", outputs)
    return graph.join([graph.add("Sub", graph.constant(1.0), chance), chance])
