"""Ways to predict: what each reads, what it says on the certificate, what it charges.

============  ==========================================================  ====================
mode          a prediction reads                                          costs
============  ==========================================================  ====================
visible       rows of a graph in the open (its own, or its neighbours')   nothing, and promises
                                                                          nothing to them
noisy         neighbours through noise                                    a release at each call
cached        the noisy sums that training made                           nothing
disjoint      another graph than the one trained on                       nothing
============  ==========================================================  ====================
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from graphveil import _validate
from graphveil._errors import InvalidInputError, UnprovenError
from graphveil.mechanisms import Gaussian
from graphveil.methods.parts import Release
from graphveil.methods.plan import NOISY
from graphveil.privacy.accounting import calibrate
from graphveil.privacy.events import repeated
from graphveil.privacy.guarantee import check_delta

if TYPE_CHECKING:
    from torch import Tensor
    from torch_geometric.data import Data

NEIGHBOURS = (
    "visible: a prediction reads its neighbours' rows in the open; nothing is promised to the "
    "neighbours of whoever sees it"
)
OWN_ROW = "visible: a prediction reads its own node's row and no other"
OWN_GRAPH = "visible: a prediction reads its own graph and no other"
NOTHING_PROMISED = "visible: nothing is promised to anybody"
PAID_FOR_PREDICTION = "a noisy prediction"
_DISJOINT = "disjoint: predictions are made on another graph than the one trained on"
_CACHED = {
    True: "cached: a prediction reads its own node's row and the noisy sums that were cached, at "
    "no further cost; it is shown to its own node only",
    False: "cached: a prediction reads features, which are public under this unit, and the noisy "
    "sums that were cached, at no further cost",
}


class Inference(Protocol):
    """A way to predict."""

    @property
    def mode(self) -> str:
        """Its name."""

    def says(self, method: Any, unit: str) -> str:
        """What the certificate says of predictions made in this way."""

    def predict(self, method: Any, data: Data, epsilon: float | None) -> Tensor:
        """Class probabilities of every record."""


@dataclass(frozen=True)
class Visible:
    """In the open; ``sentence`` says what is read, and the attribute ``reach`` how far away."""

    mode: ClassVar[str] = "visible"

    sentence: str = NEIGHBOURS
    reach: str | None = None

    def says(self, method: Any, unit: str) -> str:
        """What a prediction reads."""
        steps = 1 if self.reach is None else int(getattr(method, self.reach))
        far = f"; it reads rows up to {steps} steps away" if steps > 1 else ""
        return self.sentence + far

    def predict(self, method: Any, data: Data, epsilon: float | None) -> Tensor:
        """From the records of ``data`` as they are."""
        return method.answers(method.outputs(data, self.mode))


@dataclass(frozen=True)
class Disjoint:
    """On another graph; ``student`` names a setting that has all its rows read once more."""

    mode: ClassVar[str] = "disjoint"

    student: str | None = None

    def says(self, method: Any, unit: str) -> str:
        """That it is another graph, and whether a student reads it."""
        taught = self.student is not None and getattr(method, self.student)
        return _DISJOINT + ("; a student reads every row of that graph" if taught else "")

    def predict(self, method: Any, data: Data, epsilon: float | None) -> Tensor:
        """From the records of ``data`` as they are."""
        return method.answers(method.outputs(data, self.mode))


@dataclass(frozen=True)
class Cached:
    """From noisy sums that training made for the nodes of this very graph."""

    mode: ClassVar[str] = "cached"

    def says(self, method: Any, unit: str) -> str:
        """What is read, and who may see it."""
        return _CACHED[unit == "node"]

    def predict(self, method: Any, data: Data, epsilon: float | None) -> Tensor:
        """From a node's own row and its cached ones."""
        return method.answers(method.outputs_from(data, take_cache(method, data)))


def take_cache(method: Any, data: Data) -> Tensor:
    """The cached sums of the nodes of ``data``: by their ids where both sides have some.

    A graph that they cannot be of is refused.
    """
    from graphveil.graph.checks import ids_of

    cache: Tensor | None = getattr(method, "cache_", None)
    if cache is None:
        raise InvalidInputError(
            "The mode 'cached' must have the noisy sums that training made, which a published "
            "model has not; predict where it was trained, or in the mode 'noisy', 'visible' or "
            "'disjoint'."
        )
    nodes, trained, ids = len(cache), method.cache_ids_, ids_of(data)
    if trained is not None and ids is not None and list(ids) != trained:
        places = {name: place for place, name in enumerate(trained)}
        unknown = [name for name in ids if name not in places]
        if unknown:
            raise InvalidInputError(
                "The mode 'cached' must be given nodes that were trained on: it reads the noisy "
                f"sums that were made for each. Got {_validate.shown(unknown[0])} instead, which "
                "has none; other nodes need the mode 'noisy', 'visible' or 'disjoint'."
            )
        return cache[[places[name] for name in ids]]
    if len(data.x) != nodes:
        raise InvalidInputError(
            "The mode 'cached' must be given the graph that was trained on, with "
            f"{nodes} nodes in the same order. Got {len(data.x)} nodes instead; other graphs need "
            "the mode 'noisy', 'visible' or 'disjoint'."
        )
    return cache


@dataclass(frozen=True)
class Noisy:
    """Through noise: a release of ``method.noisy_outputs``, charged before it is made.

    ``sums`` names the setting that says how many sums, each with noise, a prediction makes.
    """

    mode: ClassVar[str] = "noisy"

    sums: str | None = None

    def says(self, method: Any, unit: str) -> str:
        """What reaches a node, and who may see it."""
        return NOISY

    def part(self, method: Any, epsilon: float, sensitivity: float = 1.0) -> Release:
        """The release that a prediction makes for so much more epsilon. Touches no data."""
        if method.plan_.unit == "owner":
            raise UnprovenError(
                "A noisy prediction must be charged for one node each: how far an owner with "
                "several moves the sums is not proven. Got a plan for owners instead; use the mode "
                "'visible' or 'disjoint'."
            )
        times = 1 if self.sums is None else int(getattr(method, self.sums))
        noise = calibrate(
            lambda noise: repeated(
                Gaussian(noise_multiplier=noise, sensitivity=1.0).event(), times
            ),
            epsilon=_validate.number("epsilon", epsilon, "(0, inf)"),
            delta=method.plan_.delta,
            safe=1e7,
            risky=1e-3,
        )
        return Release(
            name="prediction",
            paid_for=PAID_FOR_PREDICTION,
            mechanism=Gaussian(noise_multiplier=noise, sensitivity=sensitivity),
            times=times,
        )

    def predict(self, method: Any, data: Data, epsilon: float | None) -> Tensor:
        """From a node's own row and what its neighbours say through noise."""
        plan = method.plan_
        if plan.sampled_at < 1:
            raise UnprovenError(
                "A noisy prediction must come after training on all nodes: what a secret sample "
                "amplifies is not composed with more. Got a 'graph_rate' of "
                f"{plan.sampled_at:g} instead; use the mode 'visible' or 'disjoint'."
            )
        # This graph may have more units than the one trained on, whose number delta was made for.
        facts = replace(plan.facts, num_nodes=max(len(data.x), plan.facts.num_train))
        check_delta(plan.delta, method.num_units(facts))
        assert epsilon is not None
        outputs: Tensor = method.noisy_outputs(data, epsilon)
        return method.answers(outputs)


def hear_neighbours(method: Any, data: Data, epsilon: float) -> Tensor:
    r"""Every node's own log-probabilities, corrected by a noisy sum of its neighbours'.

    Message m_j is node j's prediction from its own row, centred and of norm at most 1. The sum over
    all rows but a node's own changes by at most ``bound`` when a unit is taken away, and noise goes
    on every row.
    """
    import torch

    from graphveil.graph.stored import edges_of
    from graphveil.methods.terms import on_own_rows
    from graphveil.rng import secret

    rows, plan = method.prepare(data), method.plan_
    task = method.task(plan.facts)
    # In float64: rounding in the row of a hub must not move it more than one message does.
    own = task.beliefs(on_own_rows(method.network_, rows).double())
    centred, width = _messages_of(task, own)
    centred = centred.nan_to_num(0.0)  # a row that overflows sends nothing, and stops nobody
    centred = centred / torch.linalg.vector_norm(centred, dim=1, keepdim=True).clamp_min(1.0)
    messages, bound = _weigh_senders(edges_of(data), len(rows), plan, method.seed)
    part = method.plan_prediction(epsilon, bound)
    total = messages.total(centred, weighted=True)
    method.charge(part)
    heard = part.mechanism.release(total, secret())
    # Evidence shrinks towards nothing as noise grows beyond one message.
    noise = part.mechanism.noise_multiplier * bound * width
    outputs: Tensor = (own + 2.0 * width * heard / (1.0 + noise**2)).float()
    return outputs


def _messages_of(task: Any, own: Tensor) -> tuple[Tensor, float]:
    """What nodes send of their beliefs, of norm 1 at most, and how small one answer is in it."""
    if task.name == "regression":
        raise UnprovenError(
            "A noisy prediction must be about classes or labels: how a noisy sum of values moves "
            "one's own is not worked out. Got a regression instead; use the mode 'visible' or "
            "'disjoint'."
        )
    if task.name == "multilabel":
        width = math.sqrt(task.num_classes)
        return (2 * own.sigmoid() - 1) / width, width
    classes = task.num_classes
    return (own.exp() - 1 / classes) / math.sqrt(1 - 1 / classes), 1.0


def _weigh_senders(edges: Any, nodes: int, plan: Any, seed: int) -> tuple[Any, float]:
    """All messages, of norm at most 1 each times a weight, and how far a unit moves their sums."""
    import torch

    from graphveil.graph.caps import cap_senders
    from graphveil.graph.lists import Lists
    from graphveil.graph.messages import Messages
    from graphveil.graph.stored_messages import StoredMessages

    stored = isinstance(edges, Lists)
    simple = edges if stored else cap_senders(edges, nodes, None, seed=seed)
    by_sender, bound = torch.ones(nodes, dtype=torch.float64), 1.0
    if plan.public_degree is not None:
        # Nobody sends more than the public degree, and no list of another node changes weight.
        check_degrees(simple, nodes, plan.public_degree)
        bound = math.sqrt(plan.public_degree)
    elif plan.unit != "node":
        bound = 1.0 if plan.unit == "edge-directed" else math.sqrt(2)
    else:
        # A node shares one unit of squared weight among all it sends to (soft cap, D = 1).
        by_sender = _count_sent(simple, nodes).clamp_min(1).double().rsqrt()
    nothing = torch.zeros(nodes)
    if stored:
        return StoredMessages(edges, nothing, lambda senders, _: by_sender[senders]), bound
    return Messages(simple, by_sender[simple[0]], nothing), bound


def _count_sent(edges: Any, nodes: int) -> Tensor:
    """How many messages each node sends."""
    import torch

    from graphveil.graph.lists import Lists

    if isinstance(edges, Lists):
        return torch.from_numpy(edges.offsets[1:] - edges.offsets[:-1])
    return torch.bincount(edges[0], minlength=nodes)


def check_degrees(edges: Any, num_nodes: int, public_degree: int) -> None:
    """Refuse a graph that breaks the promise a guarantee rests on; for the data's owner to read.

    ``edges`` are a tensor without repetition, or the lists of a store.
    """
    import torch

    from graphveil.graph.lists import Lists

    if isinstance(edges, Lists):
        both = edges.offsets, edges.transposed.offsets
        largest = max(int((ends[1:] - ends[:-1]).max()) for ends in both)
    else:
        largest = max(int(torch.bincount(end, minlength=num_nodes).max()) for end in edges)
    if largest > public_degree:
        raise InvalidInputError(
            "The 'public_degree' parameter must be a rule that the data obeys: no node lists more "
            f"others, nor is in more lists. Got {public_degree} for a graph with {largest} "
            "instead; state the rule as it is, or use relation 'withhold', which needs none."
        )
