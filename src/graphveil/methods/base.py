"""The contract of every method: settings in the constructor, a plan before any data, then `fit`.

    method = DPGNN(epsilon=8.0)
    print(method.plan(Facts(num_nodes=20_000, ...)).certificate())   # nothing was touched yet
    method.fit(data)
    method.certificate_, method.predict(data)

A method is a keyword-only dataclass, hence a scikit-learn estimator: ``get_params``,
``set_params``, ``clone`` and ``repr`` come for nothing. What `fit` learns ends in an underscore; no
private data stays on the object.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from sklearn.base import BaseEstimator
from torch import Tensor
from torch_geometric.data import Data

from graphveil import _validate
from graphveil._errors import InvalidInputError
from graphveil.graph.checks import (
    checked,
    directed_of,
    num_classes_of,
    num_records,
    public_of,
    record_of,
    void_of,
)
from graphveil.methods.training import seeded_weights
from graphveil.privacy.guarantee import Certificate, Charge, Claimed, certify

ALSO_RELEASED = "RELEASED, TOO: "
Progress = Callable[[Iterable[int]], Iterable[int]]


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is public of a graph, or of a set of them: all that a plan may depend on.

    ``num_nodes`` counts the records: nodes of one graph, or whole graphs if a ``record`` is one.
    ``directed`` says whether edges have a direction, None that nobody stated it; only the unit
    ``edge`` asks.
    """

    num_nodes: int
    num_features: int
    num_classes: int
    num_train: int
    directed: bool | None = None
    record: str = "node"

    def __post_init__(self) -> None:
        _validate.integer("num_nodes", self.num_nodes, "[1, 1e12]")
        _validate.integer("num_features", self.num_features, "[1, 1e9]")
        _validate.integer("num_classes", self.num_classes, "[2, 1e9]")
        _validate.integer("num_train", self.num_train, f"[1, {self.num_nodes}]")
        _validate.choice("record", self.record, ("node", "graph"))
        if not (self.directed is None or isinstance(self.directed, bool)):
            raise InvalidInputError(
                f"The 'directed' parameter must be True, False or None. Got {self.directed!r} "
                "instead."
            )

    @classmethod
    def of(cls, data: Data) -> Facts:
        """The facts of a graph at hand, after checking it; none is measured on its edges."""
        checked(data)
        return cls(
            num_nodes=num_records(data),
            num_features=data.x.shape[1],
            num_classes=num_classes_of(data),
            num_train=int(data.train_mask.sum()),
            directed=directed_of(data),
            record=record_of(data),
        )


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What ``fit`` will run *and* what it will be charged; made without looking at data.

    ``charges`` are the planned releases. ``details`` are the numbers a person may want to see
    before spending: noise, rate, steps, influence, expected signal-to-noise. ``settings`` are those
    that must still be the same when the fitted method is used.
    """

    method: str
    facts: Facts
    unit: str
    delta: float
    charges: tuple[Charge, ...]
    details: Mapping[str, float] = field(default_factory=dict)
    relation: str = "withhold"
    public_degree: int | None = None
    released: str = "model weights"
    released_to: str = "anybody"
    public: tuple[str, ...] = ()
    inference: tuple[str, ...] = ()
    voided_by: tuple[str, ...] = ()
    void_because: tuple[str, ...] = ()
    claim: Claimed | None = None
    settings: Mapping[str, object] = field(default_factory=dict)

    def certificate(
        self,
        charges: Sequence[Charge] | None = None,
        *,
        void_because: Sequence[str | None] = (),
        inference: Sequence[str] = (),
        released_to: str | None = None,
    ) -> Certificate:
        """The certificate of the plan, or of the ``charges`` that a run really made."""
        return certify(
            self.charges if charges is None else charges,
            unit=self.unit,
            delta=self.delta,
            released=self.released,
            released_to=released_to or self.released_to,
            relation=self.relation,
            public_degree=self.public_degree,
            public=self.public,
            inference=(*self.inference, *inference),
            voided_by=self.voided_by,
            void_because=(*self.void_because, *void_because),
            claim=self.claim,
        )

    def taking(self, public: Sequence[str], void_because: Sequence[str] = ()) -> Plan:
        """The same plan on data that takes more as public, or for which no guarantee holds."""
        return replace(
            self,
            public=(*self.public, *public),
            void_because=(*self.void_because, *void_because),
        )

    def resting_on(self, public: Sequence[str], voided_by: Sequence[str] = ()) -> Plan:
        """The same plan, whose certificate names more that it takes as public and is voided by.

        A line of ``public`` that begins with ALSO_RELEASED names more that it releases instead.
        """
        more = [line for line in public if line.startswith(ALSO_RELEASED)]
        return replace(
            self.taking([line for line in public if line not in more]),
            released=", ".join(
                [self.released, *(line.removeprefix(ALSO_RELEASED) for line in more)]
            ),
            voided_by=(*self.voided_by, *voided_by),
        )

    @property
    def epsilon(self) -> float:
        """What the whole plan costs."""
        return self.certificate().guarantee.epsilon


@dataclass(kw_only=True)
class Method(BaseEstimator, ABC):
    """A way to train on a graph. Subclasses declare settings, and say what they run and cost."""

    name: ClassVar[str]
    record: ClassVar[str] = "node"  # what is classified, and what a step draws
    _sizes_its_steps: ClassVar[bool] = False  # whether a plan finds a learning rate by itself
    modes: ClassVar[tuple[str, ...]] = ("visible", "noisy", "disjoint")  # the first is the default

    learning_rate: float = 0.02
    seed: int = 0

    # Told the training loss of every step, in the open: private, and outside every certificate.
    on_loss: Callable[[float], None] | None = field(
        default=None, init=False, repr=False, compare=False
    )

    # Remembers what was released apart from the files of a run, if there is anybody who does.
    witness: Any = field(default=None, init=False, repr=False, compare=False)

    # Set by fit.
    plan_: Plan = field(init=False, repr=False, compare=False)
    certificate_: Certificate = field(init=False, repr=False, compare=False)
    network_: Any = field(init=False, repr=False, compare=False)
    charges_: list[Charge] = field(init=False, repr=False, compare=False)

    @abstractmethod
    def _network(self, facts: Facts) -> Any:
        """The network, with fresh weights."""

    def _made(self, facts: Facts) -> Any:
        if facts.record != self.record:
            kinds = {"node": "one graph of nodes", "graph": "many graphs"}
            raise InvalidInputError(
                f"The method '{self.name}' must have {kinds[self.record]} to train on. Got "
                f"{kinds[facts.record]} instead; take another method, or other data."
            )
        with seeded_weights(self.seed):
            return self._network(facts)

    def _check_settings(self) -> None:
        """Refuse here, before anything is spent, what would only be noticed later."""
        for setting in fields(self):
            value = getattr(self, setting.name, None)
            if str(setting.type).startswith("int") and isinstance(value, float):
                raise InvalidInputError(
                    f"The '{setting.name}' parameter must be a whole number. Got {value!r} "
                    "instead; write it without a point."
                )
        if self.learning_rate is not None or not self._sizes_its_steps:
            _validate.number("learning_rate", self.learning_rate, "(0, inf)")

    @abstractmethod
    def plan(self, facts: Facts) -> Plan:
        """What training on such a graph will run and cost. Touches no data."""

    def _started(self, plan: Plan, data: Data) -> None:
        """Forget an earlier fit: were this one cut short, nothing of the two would mix."""
        for name in [name for name in vars(self) if name.endswith("_")]:
            delattr(self, name)
        self.plan_ = plan.taking(public_of(data), void_of(data))

    @abstractmethod
    def fit(
        self, data: Data, *, directory: str | Path | None = None, progress: Progress | None = None
    ) -> Self:
        """Train on ``data`` (``x``, ``edge_index``, ``y`` and the three masks).

        With a ``directory`` every step is noted there before it is taken, and a run that was killed
        goes on from its last checkpoint, charged for every step it ever began.
        """

    @abstractmethod
    def predict_proba(
        self, data: Data, *, mode: str | None = None, epsilon: float | None = None
    ) -> Tensor:
        """Class probabilities of every node, or every graph: (records, classes).

        The ``mode`` is one of ``modes``, by default the first of them. ``visible`` lets a node see
        its neighbours' features and promises the neighbours nothing.
        ``noisy`` perturbs what it sees, for ``epsilon`` more, added to ``certificate_`` at every
        call. ``disjoint`` says that ``data`` is another graph than the one trained on. ``cached``
        (``gap``) reads the noisy sums made in training: ``data`` is that graph, node by node.
        """

    def _predicted(self, mode: str) -> None:
        """Put what a prediction promises on the certificate, where there is a promise."""
        return

    def predict(
        self, data: Data, *, mode: str | None = None, epsilon: float | None = None
    ) -> Tensor:
        """The most probable class of every node."""
        return self.predict_proba(data, mode=mode, epsilon=epsilon).argmax(1)

    def score(self, data: Data, *, mode: str | None = None, mask: str = "test_mask") -> float:
        """Accuracy on the labelled nodes of a mask. Outside the guarantee: it reads labels."""
        checked(data, labels=False, masks=False)
        if "y" not in data:
            raise InvalidInputError("The data must have labels, 'y', to be scored by. Got none.")
        if mask not in data:
            raise InvalidInputError(
                f"The 'mask' parameter must name a mask of the data. Got {mask!r} instead; "
                "graphveil.graph.splits.split(data) draws the three usual ones."
            )
        wanted = data[mask] & (data.y >= 0)
        if not wanted.any():
            raise InvalidInputError(
                f"The '{mask}' must hold a labelled node. Got none instead; name another mask."
            )
        found = self.predict(data, mode=mode)
        return float((found[wanted] == data.y[wanted]).float().mean())


def signal_to_noise(batch: float, noise: float, parameters: int) -> float:
    """The largest a step's clipped sum can be, over the size of its noise.

    Were all gradients of a batch to agree, their sum would be ``batch`` bounds long; the noise on
    ``parameters`` coordinates is ``noise * sqrt(parameters)`` bounds long.
    """
    return math.inf if noise == 0 else batch / (noise * math.sqrt(parameters))
