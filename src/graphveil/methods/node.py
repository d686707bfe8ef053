"""What all methods for nodes share: features, network, the private loop, three ways to predict.

A subclass says three things: which network it trains, which messages a loss term reads (and so how
many terms one unit touches), and how it predicts on a graph in the open.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Data

from graphveil import _validate
from graphveil._errors import InvalidInputError
from graphveil.grads import make_private
from graphveil.grads.step import PrivateStep
from graphveil.graph.caps import cap_senders
from graphveil.graph.checks import checked
from graphveil.graph.messages import Messages, normalised
from graphveil.graph.rooted import Rooted, RootedTerms
from graphveil.mechanisms import Gaussian
from graphveil.methods.base import MODES, Facts, Method, Plan, Progress, signal_to_noise
from graphveil.methods.training import Average, make_optimizer, prepared, seeded_weights
from graphveil.nn import RootedGNN
from graphveil.privacy.accounting import calibrate
from graphveil.privacy.events import SampledGaussianDpEvent, repeated
from graphveil.privacy.guarantee import Charge, check_delta, default_delta
from graphveil.rng import SecretStream, secret

INFERENCE = {
    "visible": "visible: a prediction reads its neighbours' rows in the open; nothing is promised "
    "to the neighbours of whoever sees it",
    "noisy": "noisy: neighbours' predictions reach a node only as a noisy sum, charged at every "
    "call; each prediction is shown to its own node only",
    "disjoint": "disjoint: predictions are made on another graph than the one trained on",
}


@dataclass(kw_only=True)
class NodeMethod(Method):
    """Settings every method for nodes has. The defaults were chosen in advance, on public graphs.

    ``features``: ``power`` takes the square root of every entry (keeping its sign) and scales each
    row to length ``feature_scale``; ``row`` scales only; ``raw`` leaves them. Where there are more
    columns than ``project_above`` they go through a random projection to ``projection`` columns,
    drawn without looking at data. All of it is row by row, and free.
    """

    network_: RootedGNN = field(init=False, repr=False, compare=False)

    features: str = "power"
    feature_scale: float = 4.0
    projection: int = 256
    project_above: int = 1024
    hidden_channels: int = 64
    activation: str = "tanh"
    learning_rate: float = 0.02
    seed: int = 0

    @abstractmethod
    def _network(self, facts: Facts) -> RootedGNN:
        """The network, with fresh weights."""

    @abstractmethod
    def _logits(self, x: Tensor, data: Data) -> Tensor:
        """Logits of every node, neighbours read in the open."""

    def _made(self, facts: Facts) -> RootedGNN:
        with seeded_weights(self.seed):
            return self._network(facts)

    def _prepared(self, x: Tensor) -> Tensor:
        return prepared(
            x, self.features, self.feature_scale, self.projection, self.project_above, self.seed
        )

    def _columns(self, facts: Facts) -> int:
        wide = facts.num_features > self.project_above
        return self.projection if wide else facts.num_features

    # --- prediction ----------------------------------------------------------------------------

    def predict_proba(
        self, data: Data, *, mode: str = "visible", epsilon: float | None = None
    ) -> Tensor:
        _validate.choice("mode", mode, MODES)
        x = self._readable(data)
        if (mode == "noisy") != (epsilon is not None):
            raise InvalidInputError(
                "The mode 'noisy' needs an 'epsilon', and no other mode takes one. Got mode "
                f"{mode!r} with epsilon={epsilon!r} instead."
            )
        self.network_.eval()
        with torch.no_grad():
            if epsilon is not None:
                return self._noisy(x, data, epsilon).softmax(1)
            return self._logits(x, data).softmax(1)

    def _readable(self, data: Data) -> Tensor:
        """The prepared features of a graph that this fitted method can read."""
        if not hasattr(self, "network_"):
            raise InvalidInputError(f"This {type(self).__name__} has not been fitted; call 'fit'.")
        checked(data, labels=False, masks=False)
        wanted = self.plan_.facts.num_features
        if data.x.shape[1] != wanted:
            raise InvalidInputError(
                f"The 'x' parameter must have {wanted} columns, as the training graph had. Got "
                f"{data.x.shape[1]} instead."
            )
        return self._prepared(data.x)

    def _noisy(self, x: Tensor, data: Data, epsilon: float) -> Tensor:
        raise InvalidInputError(
            f"The method '{self.name}' reads no neighbour when it predicts, so there is nothing to "
            "perturb; use the mode 'visible', which costs nothing here."
        )


@dataclass(kw_only=True)
class PrivateNodeMethod(NodeMethod):
    """Training by sampled, clipped, noisy steps; see docs/guarantees/node.md.

    ``epsilon`` and ``delta`` are all one must choose; ``delta`` is by default the largest power of
    ten below 1/nodes. ``averaged`` is the share of the last steps whose weights are averaged (what
    was released is averaged, so it costs nothing).
    """

    epsilon: float = 8.0
    delta: float | None = None
    steps: int = 150
    sample_rate: float = 0.5
    max_grad_norm: Any = 0.5
    clipping: str = "flat"
    optimizer: str = "adam"
    averaged: float = 0.2

    @abstractmethod
    def _influence(self, facts: Facts) -> tuple[int, int]:
        """How many loss terms one unit removes, and how many others it alters."""

    @abstractmethod
    def _read_in_training(self, data: Data) -> tuple[Messages, int]:
        """The messages that loss terms read, and how many hops."""

    def _unit(self, facts: Facts) -> str:
        return "node"

    def _relation(self) -> tuple[str, int | None]:
        return "withhold", None

    # --- plan ----------------------------------------------------------------------------------

    def plan(self, facts: Facts) -> Plan:
        delta = self._delta(facts)
        removed, altered = self._influence(facts)
        noise = self._noise_multiplier(facts, delta)
        relation, public_degree = self._relation()
        parameters = sum(p.numel() for p in self._made(facts).parameters())
        return Plan(
            method=self.name,
            facts=facts,
            unit=self._unit(facts),
            relation=relation,
            public_degree=public_degree,
            delta=delta,
            charges=(self._charge(self._step_event(facts, noise), self.steps),),
            details={
                "noise_multiplier": noise,
                "sample_rate": self.sample_rate,
                "steps": self.steps,
                "removed": removed,
                "altered": altered,
                "parameters": parameters,
                "signal_to_noise": signal_to_noise(facts, self.sample_rate, noise, parameters),
            },
            inference=tuple(INFERENCE.values())[:1],
        )

    def _delta(self, facts: Facts) -> float:
        """Checked against the public number of units, which is never below that of nodes."""
        if self.delta is None:
            return default_delta(facts.num_nodes)
        return check_delta(self.delta, facts.num_nodes)

    def _noise_multiplier(self, facts: Facts, delta: float) -> float:
        """The least noise with which all steps fit the budget."""
        epsilon = _validate.number("epsilon", self.epsilon, "(0, inf)")
        steps = _validate.integer("steps", self.steps, "[1, 1e9]")
        return calibrate(
            lambda noise: repeated(self._step_event(facts, noise), steps),
            epsilon=epsilon,
            delta=delta,
            safe=1e7,
            risky=1e-2,
        )

    def _step_event(self, facts: Facts, noise: float) -> Any:
        removed, altered = self._influence(facts)
        return SampledGaussianDpEvent(
            rate=_validate.number("sample_rate", self.sample_rate, "(0, 1]"),
            noise_multiplier=noise,
            removed=removed,
            altered=altered,
        )

    def _charge(self, event: Any, steps: int) -> Charge:
        return Charge(paid_for="training of the weights", event=repeated(event, steps))

    # --- fit -----------------------------------------------------------------------------------

    def fit(
        self,
        data: Data,
        *,
        directory: str | Path | None = None,
        progress: Progress | None = None,
        rng: SecretStream | None = None,
    ) -> Self:
        facts = Facts.of(data)
        self.plan_ = self.plan(facts)
        rng = secret() if rng is None else rng
        network = self._made(facts)
        step = self._make_step(network, data, rng, directory)
        average = Average(network, round(self.averaged * self.steps))
        done = range(step.taken, self.steps)
        for taken in done if progress is None else progress(done):
            step()
            average.note(self.steps - taken)
            if directory is not None and (taken + 1) % 10 == 0:
                step.save(directory)
        average.apply()
        self.network_ = network.eval()
        self.charges_ = [Charge(paid_for="training of the weights", event=step.event)]
        self.void_because_ = tuple(reason for reason in [rng.void_reason] if reason)
        self._certify()
        return self

    def _make_step(
        self, network: RootedGNN, data: Data, rng: SecretStream, directory: str | Path | None
    ) -> PrivateStep:
        messages, hops = self._read_in_training(data)
        roots = data.train_mask.nonzero().flatten()
        terms = RootedTerms(self._prepared(data.x), data.y, messages, roots, hops)
        removed, altered = self._influence(self.plan_.facts)
        step = make_private(
            network,
            make_optimizer(self.optimizer, network.parameters(), self.learning_rate),
            terms,
            losses=rooted_losses,
            noise_multiplier=self.plan_.details["noise_multiplier"],
            removed=removed,
            altered=altered,
            steps=self.steps,
            rng=rng,
            **self._step_settings(network, terms),
        )
        if directory is not None:
            started = (Path(directory) / "checkpoint.pt").exists()
            (step.resume if started else step.save)(directory)
        return step

    def _step_settings(self, network: RootedGNN, terms: RootedTerms) -> dict[str, Any]:
        """How batches are drawn and gradients bounded."""
        return {
            "sample_rate": self.sample_rate,
            "clipping": self.clipping,
            "max_grad_norm": self.max_grad_norm,
        }

    def _certify(self, inference: Sequence[str] = (), released_to: str = "anybody") -> None:
        self.certificate_ = self.plan_.certificate(
            self.charges_,
            void_because=self.void_because_,
            inference=inference,
            released_to=released_to,
        )

    # --- noisy prediction ------------------------------------------------------------------------

    def _noisy(self, x: Tensor, data: Data, epsilon: float) -> Tensor:
        r"""Every node's own prediction, corrected by a noisy sum of its neighbours'.

        Message m_j is node j's prediction from its own row, centred and of norm at most 1. The sum
        over all rows but a node's own changes by at most ``bound`` when a unit is taken away, and
        noise goes on every row.
        """
        nodes, classes = len(x), self.plan_.facts.num_classes
        own = self.network_.on_graph(x, alone(nodes)).log_softmax(1)
        centred = (own.exp() - 1 / classes) / math.sqrt(1 - 1 / classes)
        edges = cap_senders(data.edge_index, nodes, None, seed=self.seed)
        weight, bound = self._message_weights(edges, nodes)
        noise = calibrate(
            lambda sigma: Gaussian(noise_multiplier=sigma, sensitivity=bound).event(),
            epsilon=_validate.number("epsilon", epsilon, "(0, inf)"),
            delta=self.plan_.delta,
            safe=1e7,
            risky=1e-3,
        )
        mechanism = Gaussian(noise_multiplier=noise, sensitivity=bound)
        summed = Messages(edges, weight, torch.zeros(nodes)).total(centred, weighted=True)
        heard = mechanism.release(summed.double(), secret()).to(own)
        self.charges_.append(Charge(paid_for="a noisy prediction", event=mechanism.event()))
        self._certify([INFERENCE["noisy"]], "anybody; each prediction to its own node only")
        # Evidence shrinks towards nothing as noise grows beyond one message.
        return own + 2.0 * heard / (1.0 + (noise * bound) ** 2)

    def _message_weights(self, edges: Tensor, nodes: int) -> tuple[Tensor, float]:
        """Weights of messages of norm at most 1, and by how much a unit can move their sums."""
        unit = self.plan_.unit
        if self.plan_.relation == "remove":
            # Nobody sends more than the public degree, and no list of another node changes weight.
            return torch.ones(edges.shape[1]), math.sqrt(self.plan_.public_degree or 1)
        if unit != "node":
            return torch.ones(edges.shape[1]), 1.0 if unit == "edge-directed" else math.sqrt(2)
        # A node shares one unit of squared weight among all it sends to (soft cap, D = 1).
        lists = torch.bincount(edges[0], minlength=nodes).clamp_min(1)
        return lists.rsqrt()[edges[0]], 1.0


def rooted_losses(network: nn.Module, batch: tuple[Rooted, Tensor]) -> Tensor:
    """One loss for each root."""
    around, labels = batch
    return F.cross_entropy(network(around), labels, reduction="none")


def alone(num_nodes: int) -> Messages:
    """A graph without messages: every node by itself."""
    return normalised(torch.empty(2, 0, dtype=torch.long), num_nodes)
