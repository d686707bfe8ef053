"""What all methods for nodes share: features, network, the private loop, three ways to predict.

A subclass says three things: which network it trains, which messages a loss term reads (and so how
many terms one unit touches), and how it predicts on a graph in the open.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import dp_accounting as dpa
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Data

from graphveil import _validate
from graphveil._errors import InvalidInputError
from graphveil._files import write_file
from graphveil.grads import make_private
from graphveil.grads.clipped import Losses
from graphveil.grads.step import PrivateStep
from graphveil.graph.caps import cap_senders
from graphveil.graph.checks import checked
from graphveil.graph.messages import Messages, normalised
from graphveil.graph.rooted import Rooted, RootedTerms
from graphveil.mechanisms import Gaussian
from graphveil.methods.base import Facts, Method, Plan, Progress, signal_to_noise
from graphveil.methods.training import (
    CLIPPINGS,
    FEATURES,
    OPTIMIZERS,
    Average,
    make_optimizer,
    prepared,
    seeded_weights,
)
from graphveil.nn import RootedGNN
from graphveil.privacy.accounting import calibrate
from graphveil.privacy.events import SampledGaussianDpEvent, repeated
from graphveil.privacy.guarantee import Charge, check_delta, default_delta
from graphveil.rng import SecretStream, secret

INFERENCE = {
    "visible": "visible: a prediction reads its neighbours' rows in the open; nothing is promised "
    "to the neighbours of whoever sees it",
    "noisy": "noisy: neighbours' predictions reach a node only as a noisy sum, charged at every "
    "call; under the unit node each prediction is shown to its own node only",
    "disjoint": "disjoint: predictions are made on another graph than the one trained on",
}
OWN_ONLY = "anybody; each prediction to its own node only"
LOUDEST = 1e8  # a noise multiplier beyond which a plan does not look


def rooted_losses(network: nn.Module, batch: tuple[Rooted, Tensor]) -> Tensor:
    """One loss for each root."""
    around, labels = batch
    return F.cross_entropy(network(around), labels, reduction="none")


@dataclass(kw_only=True)
class NodeMethod(Method):
    """Settings every method for nodes has. The defaults were chosen on public graphs.

    ``features``: ``power`` takes the square root of every entry (keeping its sign) and scales each
    row to length ``feature_scale``; ``row`` scales only; ``raw`` leaves them. Where there are more
    columns than ``project_above`` they go through a random projection to ``projection`` columns,
    drawn without looking at data. All of it is row by row, and free.
    """

    network_: Any = field(init=False, repr=False, compare=False)
    _sizes_its_steps: ClassVar[bool] = False  # whether a plan finds a learning rate by itself

    features: str = "power"
    feature_scale: float = 4.0
    projection: int = 256
    project_above: int = 1024
    hidden_channels: int = 64
    activation: str = "tanh"
    learning_rate: float = 0.02
    seed: int = 0

    @abstractmethod
    def _network(self, facts: Facts) -> Any:
        """The network, with fresh weights."""

    @abstractmethod
    def _logits(self, x: Tensor, data: Data) -> Tensor:
        """Logits of every node, neighbours read in the open."""

    def _check_settings(self) -> None:
        """Refuse here, before anything is spent, what would only be noticed later."""
        for setting in fields(self):
            value = getattr(self, setting.name, None)
            if str(setting.type).startswith("int") and isinstance(value, float):
                raise InvalidInputError(
                    f"The '{setting.name}' parameter must be a whole number. Got {value!r} "
                    "instead; write it without a point."
                )
        _validate.choice("features", self.features, FEATURES)
        _validate.number("feature_scale", self.feature_scale, "(0, inf)")
        _validate.integer("projection", self.projection, "[1, inf)")
        _validate.integer("project_above", self.project_above, "[1, inf)")
        if self.learning_rate is not None or not self._sizes_its_steps:
            _validate.number("learning_rate", self.learning_rate, "(0, inf)")

    def _made(self, facts: Facts) -> Any:
        with seeded_weights(self.seed):
            return self._network(facts)

    def _mlp(self, facts: Facts, layers: int, dropout: float = 0.0) -> RootedGNN:
        """A network of each node's own row."""
        return RootedGNN(
            self._columns(facts),
            self.hidden_channels,
            facts.num_classes,
            num_layers=0,
            encoder_layers=_validate.integer("num_layers", layers, "[1, 10]") - 1,
            decoder_layers=1,
            activation=self.activation,
            dropout=dropout,
        )

    def _prepared(self, x: Tensor) -> Tensor:
        return prepared(
            x, self.features, self.feature_scale, self.projection, self.project_above, self.seed
        )

    def _columns(self, facts: Facts) -> int:
        wide = facts.num_features > self.project_above
        return self.projection if wide else facts.num_features

    # --- prediction ----------------------------------------------------------------------------

    def predict_proba(
        self, data: Data, *, mode: str | None = None, epsilon: float | None = None
    ) -> Tensor:
        mode = _validate.choice("mode", self.modes[0] if mode is None else mode, self.modes)
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
            logits = self._logits_apart if mode == "disjoint" else self._logits
            found = logits(x, data).softmax(1)
        self._predicted(mode)
        return found

    def _logits_apart(self, x: Tensor, data: Data) -> Tensor:
        """Logits of every node of a graph that was not trained on."""
        return self._logits(x, data)

    def _predicted(self, mode: str) -> None:
        """Put what a prediction promises on the certificate, where there is a promise."""
        return

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
            "The mode 'noisy' must belong to a private method that reads neighbours when it "
            f"predicts. Got the method '{self.name}' instead; use the mode 'visible'."
        )


@dataclass(kw_only=True)
class PrivateNodeMethod(NodeMethod):
    """Training by sampled, clipped, noisy steps; see docs/guarantees/node.md.

    ``epsilon`` and ``delta`` are all one must choose; ``delta`` is by default the largest power of
    ten below 1/nodes. ``averaged`` is the share of the last steps whose weights are averaged (what
    was released is averaged, so it costs nothing).
    """

    _visible: ClassVar[str] = INFERENCE["visible"]

    epsilon: float = 8.0
    delta: float | None = None
    steps: int = 150
    sample_rate: float = 0.5
    max_grad_norm: Any = 0.5
    clipping: str = "flat"
    optimizer: str = "adam"
    averaged: float = 0.2

    def _check_settings(self) -> None:
        super()._check_settings()
        _validate.choice("optimizer", self.optimizer, OPTIMIZERS)
        _validate.number("averaged", self.averaged, "[0, 1]")
        _validate.choice("clipping", self.clipping, CLIPPINGS)
        if not (self._by_layer and isinstance(self.max_grad_norm, Mapping)):
            _validate.number("max_grad_norm", self.max_grad_norm, "(0, inf)")

    @property
    def _by_layer(self) -> bool:
        """Whether every layer has a bound of its own."""
        return self.clipping == "per_layer"

    def _unit(self, facts: Facts) -> str:
        return "node"

    def _relation(self) -> tuple[str, int | None]:
        return "withhold", None

    def _delta(self, facts: Facts) -> float:
        units = self._units(facts)
        return default_delta(units) if self.delta is None else check_delta(self.delta, units)

    def _units(self, facts: Facts) -> int:
        """The public number of units; delta stays below one in so many."""
        return facts.num_nodes

    def _trained(
        self,
        network: nn.Module,
        step: PrivateStep,
        *,
        target: float = math.inf,
        directory: str | Path | None = None,
        progress: Progress | None = None,
    ) -> dpa.DpEvent:
        """Take all steps with ``network``; what they cost, an earlier attempt's included."""
        if math.isfinite(target):
            step.target = (target, self.plan_.delta)
        if directory is not None:
            (step.resume if steps_begun(directory) else step.save)(directory)
        # Fewer than planned where an earlier attempt, under other settings, spent some already.
        steps = self.steps if step.max_steps is None else step.max_steps
        average = Average(network, round(self.averaged * steps))
        left = range(step.taken, steps)
        for taken in left if progress is None else progress(left):
            self._pace(step.optimizer, taken / steps)
            step()
            average.note(steps - taken)
            if directory is not None and ((taken + 1) % 10 == 0 or taken + 1 == steps):
                step.save(directory)
        average.apply()
        network.eval()
        if directory is not None:
            # The checkpoint has the last weights, not their average: a part that was finished
            # before a crash is what later parts were made from.
            finished = Path(directory) / "finished.safetensors"
            if len(left) or not finished.exists():
                write_file(finished, safetensors.torch.save(network.state_dict()))
            network.load_state_dict(safetensors.torch.load(finished.read_bytes()))
        return step.event

    def _pace(self, optimizer: torch.optim.Optimizer, done: float) -> None:
        """Set the learning rate of the next step, when a share of them is ``done``."""
        return

    def _make_step(
        self,
        network: nn.Module,
        terms: Any,
        noise: float,
        influence: tuple[int, int],
        rng: SecretStream,
        losses: Losses,
    ) -> PrivateStep:
        removed, altered = influence
        step = make_private(
            network,
            make_optimizer(self.optimizer, network.parameters(), self._learning_rate),
            terms,
            losses=losses,
            noise_multiplier=noise,
            removed=removed,
            altered=altered,
            steps=self.steps,
            rng=rng,
            **self._step_settings(network, terms),
        )
        step.promise = "; ".join(self._promised())
        return step

    def _promised(self) -> list[str]:
        """What an event is the price of: it says nothing about another unit or relation."""
        plan = self.plan_
        return [plan.unit, plan.relation, f"degree {plan.public_degree}", *plan.void_because]

    @property
    def _learning_rate(self) -> float:
        return self.learning_rate

    def _step_settings(self, network: Any, terms: Any) -> dict[str, Any]:
        """How batches are drawn and gradients bounded."""
        return {
            "sample_rate": self.sample_rate,
            "clipping": self.clipping,
            "max_grad_norm": self.max_grad_norm,
        }

    def _fitted(self, network: Any, charges: list[Charge], rng: SecretStream) -> None:
        self.network_ = network.eval()
        self.charges_ = charges
        self.void_because_ = tuple(reason for reason in [rng.void_reason] if reason)
        self.inference_: list[str] = []
        self._certify()

    def _certify(self) -> None:
        plan = self.plan_
        noisy = INFERENCE["noisy"] in self.inference_ and plan.unit == "node"
        self.certificate_ = plan.certificate(
            self.charges_,
            void_because=self.void_because_,
            inference=self.inference_,
            released_to=OWN_ONLY if noisy and plan.released_to == "anybody" else None,
        )

    def _predicted(self, mode: str) -> None:
        if mode != self.modes[0] and self._said_of(mode) not in self.certificate_.inference:
            self.inference_.append(self._said_of(mode))
            self._certify()

    def _said_of(self, mode: str) -> str:
        """What the certificate says of predictions in a mode."""
        return INFERENCE[mode]

    # --- noisy prediction --------------------------------------------------------------------

    def _noisy(self, x: Tensor, data: Data, epsilon: float) -> Tensor:
        r"""Every node's own prediction, corrected by a noisy sum of its neighbours'.

        Message m_j is node j's prediction from its own row, centred and of norm at most 1. The sum
        over all rows but a node's own changes by at most ``bound`` when a unit is taken away, and
        noise goes on every row.
        """
        nodes, classes = len(x), self.plan_.facts.num_classes
        # This graph may have more units than the one trained on, whose number delta was made for.
        facts = replace(self.plan_.facts, num_nodes=max(nodes, self.plan_.facts.num_train))
        check_delta(self.plan_.delta, self._units(facts))
        # In float64: rounding in the row of a hub must not move it more than one message does.
        own = self.network_.on_graph(x, alone(nodes)).double().log_softmax(1)
        centred = (own.exp() - 1 / classes) / math.sqrt(1 - 1 / classes)
        centred = centred.nan_to_num(0.0)  # a row that overflows sends nothing, and stops nobody
        centred = centred / torch.linalg.vector_norm(centred, dim=1, keepdim=True).clamp_min(1.0)
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
        # Charged first: whatever comes after it, a release was made.
        self.charges_.append(Charge(paid_for="a noisy prediction", event=mechanism.event()))
        if INFERENCE["noisy"] not in self.inference_:
            self.inference_.append(INFERENCE["noisy"])
        self._certify()
        heard = mechanism.release(summed, secret())
        # Evidence shrinks towards nothing as noise grows beyond one message.
        return (own + 2.0 * heard / (1.0 + (noise * bound) ** 2)).to(x.dtype)

    def _message_weights(self, edges: Tensor, nodes: int) -> tuple[Tensor, float]:
        """Weights of messages of norm at most 1, and by how much a unit can move their sums."""
        unit = self.plan_.unit
        ones = torch.ones(edges.shape[1], dtype=torch.float64)
        if self.plan_.public_degree is not None:
            # Nobody sends more than the public degree, and no list of another node changes weight.
            check_degrees(edges, nodes, self.plan_.public_degree)
            return ones, math.sqrt(self.plan_.public_degree)
        if unit != "node":
            return ones, 1.0 if unit == "edge-directed" else math.sqrt(2)
        # A node shares one unit of squared weight among all it sends to (soft cap, D = 1).
        lists = torch.bincount(edges[0], minlength=nodes).clamp_min(1)
        return lists.double().rsqrt()[edges[0]], 1.0


@dataclass(kw_only=True)
class SteppedNodeMethod(PrivateNodeMethod):
    """One network, whose private steps are all that is released."""

    @abstractmethod
    def _influence(self, facts: Facts) -> tuple[int, int]:
        """How many loss terms one unit removes, and how many others it alters."""

    @abstractmethod
    def _read_in_training(self, data: Data) -> tuple[Messages, int]:
        """The messages that loss terms read, and how many hops."""

    # --- plan --------------------------------------------------------------------------------

    def plan(self, facts: Facts) -> Plan:
        self._check_settings()
        parameters = sum(p.numel() for p in self._made(facts).parameters())
        delta = self._delta(facts)
        removed, altered = self._influence(facts)
        noise = self._noise_multiplier(facts, delta)
        relation, public_degree = self._relation()
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
                "signal_to_noise": signal_to_noise(
                    self.sample_rate * facts.num_train, noise, parameters
                ),
            },
            inference=(self._visible,),
        )

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

    # --- fit ---------------------------------------------------------------------------------

    def fit(
        self,
        data: Data,
        *,
        directory: str | Path | None = None,
        progress: Progress | None = None,
        rng: SecretStream | None = None,
    ) -> Self:
        facts = Facts.of(data)
        self._started(self.plan(facts))
        rng = secret() if rng is None else rng
        network = self._made(facts)
        noise, influence = self.plan_.details["noise_multiplier"], self._influence(facts)
        step = self._make_step(network, self._terms(data), noise, influence, rng, self._losses)
        spent = self._trained(
            network, step, target=self._target, directory=directory, progress=progress
        )
        self._fitted(network, [Charge(paid_for="training of the weights", event=spent)], rng)
        return self

    def _terms(self, data: Data) -> Any:
        """The loss terms to draw from."""
        messages, hops = self._read_in_training(data)
        roots = data.train_mask.nonzero().flatten()
        return RootedTerms(self._prepared(data.x), data.y, messages, roots, hops)

    @property
    def _losses(self) -> Losses:
        """How losses come from the network and a batch of terms."""
        return rooted_losses

    @property
    def _target(self) -> float:
        """The epsilon that binds a run also when it is resumed under other settings."""
        return self.epsilon


def steps_begun(directory: str | Path) -> bool:
    """Whether steps were taken there; those without a checkpoint were begun all the same."""
    return any((Path(directory) / name).exists() for name in ("checkpoint.pt", "steps"))


def step_noise(
    strength: float, sample_rate: float, steps: int, influence: tuple[int, int]
) -> float:
    """The noise with which sampled steps are about as strong as one Gaussian of mu^2 = strength.

    By the central limit (Bu et al. 2020): good for splitting a budget, not for stating a price.
    """
    removed, altered = influence
    each = math.log1p(strength / (sample_rate**2 * steps))
    return min((removed + 2 * altered) / math.sqrt(each), LOUDEST) if each else LOUDEST


def check_degrees(edges: Tensor, num_nodes: int, public_degree: int) -> None:
    """Refuse a graph that breaks the promise a guarantee rests on; for the data's owner to read."""
    found = max(int(torch.bincount(end, minlength=num_nodes).max()) for end in edges)
    if found > public_degree:
        raise InvalidInputError(
            "The 'public_degree' parameter must be a rule that the data obeys: no node lists more "
            f"others, nor is in more lists. Got {public_degree} for a graph with {found} instead; "
            "state the rule as it is, or use relation 'withhold', which needs none."
        )


def alone(num_nodes: int) -> Messages:
    """A graph without messages: every node by itself."""
    return normalised(torch.empty(2, 0, dtype=torch.long), num_nodes)
