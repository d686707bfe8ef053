"""One run is trained and tested; what came of it is plain values, which a file can keep.

Besides the figures that every run has, a shape may want more: ``wrong`` (which test records are
wrong), ``curve`` (the loss step by step), ``kept`` (the edges that explanations keep) and
``places`` (test records in the plane). What compares two runs is computed from their outcomes
later, so that each is run once, in any order.

*Guarantee*: none for outcomes, which are read off the labels of test records.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from graphveil._errors import GraphveilError, InvalidInputError, RefusedError
from graphveil.bench.requests import Outcome, Request, unstated
from graphveil.graph.targets import is_labelled
from graphveil.methods.measures import METRICS, OF_LINKS

if TYPE_CHECKING:
    from torch import Tensor
    from torch_geometric.data import Data

    from graphveil.methods import Method
    from graphveil.runs import Arranged, Source

# What a row may have a figure of; those after METRICS belong to shapes.
MEASURES = (*METRICS, *OF_LINKS, "stay_hard", "loss", "iou_reference", "iou_original")
EXTRAS = {
    "hard-cases": "wrong",
    "curves": "curve",
    "explanations": "kept",
    "embedding": "places",
    "confusion": "confusion",
}
LOOKS = 50  # points of a curve
GRAPHS = 10  # explained
NODES = 600  # drawn in the plane


def measure_outcome(
    request: Request, source: Source, data: Data, extra: str | None = None, start: int = 0
) -> Outcome:
    """Train and test one method on a loaded graph; a refusal is an outcome, too.

    ``extra`` is one of :data:`EXTRAS`; ``start`` draws where explanations start.
    """
    method, arranged = request.make(source.seed), source.arrange(data)
    begun = time.monotonic()
    try:
        more = _fit(method, arranged, extra)
    except RefusedError as error:
        return {"refused": str(error)}
    chances: Any = None
    if method.record == "link":
        outcome = _outcome_of_links(method, arranged, extra)
    else:
        chances = method.infer(arranged.testing, arranged.mode)
        task = method.task(method.plan_.facts)
        outcome = _outcome(method, task.measure_test(chances, arranged.testing, method.record))
    outcome["seconds"] = time.monotonic() - begun
    outcome["made_with"] = unstated(method, request.settings)
    confusion = outcome.pop("confusion")
    if extra == "confusion":
        if confusion is None:
            raise InvalidInputError("There are too many classes for a matrix of them.")
        more["confusion"] = confusion
    elif extra == "wrong":
        more["wrong"] = _wrong(method, arranged.testing, chances)
    elif extra == "kept":
        more["kept"] = _kept(method, arranged.testing, source.seed * 3 + start)
    elif extra == "places":
        more["places"] = _places(method, arranged, chances)
    outcome["scores"] |= more.pop("scores", {})
    return outcome | more


def try_outcome(
    request: Request, source: Source, data: Data, extra: str | None = None, start: int = 0
) -> Outcome:
    """As :func:`measure_outcome`; whatever graphveil refuses is an outcome."""
    try:
        return measure_outcome(request, source, data, extra, start)
    except GraphveilError as error:
        return {"refused": str(error)}


def _outcome_of_links(method: Method, arranged: Arranged, extra: str | None) -> Outcome:
    """Of links there are figures, and nothing besides."""
    from graphveil.runs.training import measure

    if extra is not None:
        raise InvalidInputError(
            f"A shape of links must be one of figures alone. Got one with {extra!r} instead; take "
            "data of labelled records."
        )
    return _outcome(method, measure(method, arranged))


def _outcome(method: Method, scores: Outcome) -> Outcome:
    if not scores[f"test_{method.record}s"]:
        raise InvalidInputError("The 'test_mask' must hold a labelled record. Got none instead.")
    certificate = method.certificate_
    proven = certificate.guarantee.epsilon
    total = sum(scores["class_count"])
    return {
        "unit": certificate.guarantee.unit,
        "epsilon": proven if math.isfinite(proven) else None,  # JSON has no infinity
        "delta": certificate.guarantee.delta,
        "claimed_epsilon": None if certificate.claim is None else certificate.claim.epsilon,
        "noise_multiplier": method.plan_.details.get("noise_multiplier"),
        "void_because": list(certificate.void_because),
        "task": scores["task"],
        "metric": scores["metric"],
        "baseline": scores["baseline"],
        "learnt": scores["learnt"],
        "constant": scores["constant"],
        "scores": {metric: scores.get(f"test_{metric}") for metric in (*METRICS, *OF_LINKS)},
        "class_accuracy": scores["class_accuracy"],
        "class_share": [count / total for count in scores["class_count"]],
        "confusion": scores["confusion"],
    }


# --- what shapes want besides ---------------------------------------------------------------------


def _fit(method: Method, arranged: Arranged, extra: str | None) -> Outcome:
    """Train; with a look at the loss every few steps, if that is wanted."""
    if extra != "curve":
        method.fit(arranged.training)
        return {}
    from graphveil.bench.curves import fit_with_curve

    steps = int(getattr(method, "steps", None) or LOOKS)
    curve = fit_with_curve(arranged, method, method.name, every=max(1, steps // LOOKS))
    return {
        "curve": {"steps": list(curve.steps), "loss": [round(loss, 5) for loss in curve.loss]},
        "scores": {"loss": curve.loss[-1]},
    }


def _wrong(method: Method, testing: Data, chances: Tensor) -> dict[str, Any]:
    """Which of the labelled test records are wrong: a bit each, first ones first, in hex."""
    import numpy as np

    tested = testing.test_mask & is_labelled(testing.y)
    wrong = (method.task(method.plan_.facts).decide(chances) != testing.y)[tested].numpy()
    return {"records": len(wrong), "bits": np.packbits(wrong).tobytes().hex()}


def _kept(method: Method, testing: Data, start: int) -> dict[str, Any]:
    """The edges that explanations of a few test graphs keep: 1 or 0 for each, sorted."""
    from graphveil import explain

    numbers = explain.with_edges(testing, testing.test_mask)[:GRAPHS]
    if not len(numbers):
        raise InvalidInputError("The test graphs must hold one with an edge. Got none instead.")
    explanations = explain.explain(method, testing, numbers, seed=start)
    return {
        "graphs": numbers.tolist(),
        "bits": [
            "".join("1" if value >= explain.THRESHOLD else "0" for value in one.by_edge.values())
            for one in explanations
        ],
    }


def _places(method: Method, arranged: Arranged, chances: Tensor) -> dict[str, Any]:
    """Test records in the plane, by t-SNE of what the network knows before its last layer."""
    from sklearn.manifold import TSNE

    from graphveil.bench.hidden import hidden_states

    testing = arranged.testing
    tested = (testing.test_mask & is_labelled(testing.y)).nonzero().flatten()
    tested = tested[:: max(1, -(-len(tested) // NODES))]
    if len(tested) < 4:
        raise InvalidInputError(
            f"A picture of test records needs four of them. Got {len(tested)} instead."
        )
    try:
        states, of = hidden_states(method, testing, arranged.mode), "hidden states"
    except InvalidInputError:  # it has none
        states, of = chances.clamp_min(1e-12).log(), "log-probabilities"
    rows = states[tested].double().numpy()
    spread = min(30.0, (len(rows) - 1) / 3)
    places = TSNE(perplexity=spread, init="random", random_state=0).fit_transform(rows)
    return {
        "of": of,
        "x": [round(float(x), 1) for x in places[:, 0]],
        "y": [round(float(y), 1) for y in places[:, 1]],
        "class": testing.y[tested].tolist(),
    }


# --- what compares two outcomes -------------------------------------------------------------------


def compare_outcomes(shape: str, outcome: Outcome, reference: Outcome) -> dict[str, float | None]:
    """The figures of a shape that set one run beside another one."""
    if shape == "hard-cases":
        return {"stay_hard": _stay_hard(outcome["wrong"], reference["wrong"])}
    if shape == "explanations":
        return _ious(outcome["kept"], reference["kept"])
    return {}


def unpack_wrong(wrong: dict[str, Any]) -> list[bool]:
    """Whether each test record is wrong."""
    import numpy as np

    bits = np.frombuffer(bytes.fromhex(wrong["bits"]), dtype=np.uint8)
    return [bool(bit) for bit in np.unpackbits(bits)[: wrong["records"]]]


def _stay_hard(wrong: dict[str, Any], reference: dict[str, Any]) -> float | None:
    """The share of the reference's wrong records that are wrong here, too."""
    here, there = unpack_wrong(wrong), unpack_wrong(reference)
    if len(here) != len(there):
        raise InvalidInputError(
            f"Two runs must be tested on the same records. Got {len(here)} and {len(there)}."
        )
    both = sum(a and b for a, b in zip(here, there, strict=True))
    return both / sum(there) if any(there) else None


def _ious(kept: dict[str, Any], reference: dict[str, Any]) -> dict[str, float | None]:
    """Mean IoU of kept edges with all edges, and with those that the reference keeps."""
    if kept["graphs"] != reference["graphs"]:
        raise InvalidInputError("Two runs must be explained on the same graphs. Got others.")
    originals = [bits.count("1") / len(bits) for bits in kept["bits"]]
    shared = [_iou(*pair) for pair in zip(kept["bits"], reference["bits"], strict=True)]
    return {"iou_original": _mean(originals), "iou_reference": _mean(shared)}


def _iou(one: str, other: str) -> float:
    either = sum("1" in pair for pair in zip(one, other, strict=True))
    both = sum(pair == ("1", "1") for pair in zip(one, other, strict=True))
    return both / either if either else 1.0


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
