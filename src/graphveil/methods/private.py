"""Training by sampled, clipped, noisy steps: what all private methods share.

A subclass says which network it trains, what its loss terms are, and how many of them one unit
removes and alters. The rest, from the noise that fits a budget to the certificate, is here.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import dp_accounting as dpa
import safetensors.torch
import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from graphveil import _validate
from graphveil._errors import InvalidInputError
from graphveil._files import private_directory, write_file
from graphveil.grads import make_private
from graphveil.grads.clipped import Losses
from graphveil.grads.settings import Target
from graphveil.grads.step import PrivateStep
from graphveil.graph.neighbourhoods import RootedTerms
from graphveil.methods.base import Facts, Method, Plan, Progress, signal_to_noise
from graphveil.methods.training import CLIPPINGS, OPTIMIZERS, Average, make_optimizer
from graphveil.privacy.accounting import calibrate
from graphveil.privacy.events import SampledGaussianDpEvent, composed, repeated
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


@dataclass(kw_only=True)
class PrivateMethod(Method):
    """A method with a budget.

    ``epsilon`` and ``delta`` are all one must choose; ``delta`` is by default the largest power of
    ten below 1/units. ``averaged`` is the share of the last steps whose weights are averaged (what
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
        """What is protected."""
        return "node"

    def _relation(self) -> tuple[str, int | None]:
        return "withhold", None

    def _units(self, facts: Facts) -> int:
        """The public number of units; delta stays below one in so many."""
        return facts.num_nodes

    def _delta(self, facts: Facts) -> float:
        units = self._units(facts)
        return default_delta(units) if self.delta is None else check_delta(self.delta, units)

    # --- the loop --------------------------------------------------------------------------------

    def _trained(
        self,
        network: nn.Module,
        step: PrivateStep,
        *,
        target: float = math.inf,
        others: dpa.DpEvent | None = None,
        directory: str | Path | None = None,
        progress: Progress | None = None,
    ) -> dpa.DpEvent:
        """Take all steps with ``network``; what they cost, an earlier attempt's included."""
        if math.isfinite(target):
            step.target = Target(
                epsilon=target, delta=self.plan_.delta, others=others or dpa.NoOpDpEvent()
            )
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
                write_file(finished, safetensors.torch.save(network.state_dict()), private=True)
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
        if isinstance(terms, RootedTerms):
            terms.touched = influence
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
        step.on_loss, step.witness = self.on_loss, self.witness
        return step

    def _release_once(self, file: Path, draw: Callable[[], dict[str, Tensor]]) -> None:
        """Have a release on disk before anybody reads it, and never draw it again.

        The witness hears of it before there is a file that somebody could take away. Should the
        process die before, nobody has seen it, and it is drawn again at no cost; should it die in
        between, what was paid for is lost, and the run does not go on.
        """
        known = 0 if self.witness is None else self.witness.known(file)
        if known and not file.exists():
            raise InvalidInputError(
                f"What was released to {file} was paid for once, and is gone; put the file back, "
                "or start anew with --force."
            )
        drawn = None if file.exists() else safetensors.torch.save(draw())
        if self.witness is not None and not known:
            self.witness.note(file, 1)
        if drawn is not None:
            private_directory(file.parent)
            write_file(file, drawn, private=True)

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


@dataclass(kw_only=True)
class SteppedMethod(PrivateMethod):
    """One network, whose private steps are all that is released."""

    @abstractmethod
    def _influence(self, facts: Facts) -> tuple[int, int]:
        """How many loss terms one unit removes, and how many others it alters."""

    @abstractmethod
    def _terms(self, data: Data) -> Any:
        """The loss terms to draw from."""

    @property
    @abstractmethod
    def _losses(self) -> Losses:
        """How losses come from the network and a batch of terms."""

    @property
    def _target(self) -> float:
        """The epsilon that binds a run also when it is resumed under other settings."""
        return self.epsilon

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
        self._started(self.plan(facts), data)
        rng = secret() if rng is None else rng
        network = self._made(facts)
        charges = self._release_first(data, directory, rng)
        noise, influence = self.plan_.details["noise_multiplier"], self._influence(facts)
        step = self._make_step(network, self._terms(data), noise, influence, rng, self._losses)
        others = composed(*(charge.event for charge in charges))
        spent = self._trained(
            network, step, target=self._target, others=others, directory=directory,
            progress=progress,
        )  # fmt: skip
        charges.append(Charge(paid_for="training of the weights", event=spent))
        self._fitted(network, charges, rng)
        return self

    def _release_first(
        self, data: Data, directory: str | Path | None, rng: SecretStream
    ) -> list[Charge]:
        """Release what the steps need, if they need anything; what that was charged."""
        return []


def steps_begun(directory: str | Path) -> bool:
    """Whether steps were taken there; those without a checkpoint were begun all the same."""
    journal = Path(directory) / "steps"
    return (Path(directory) / "checkpoint.pt").exists() or (
        journal.exists() and journal.stat().st_size > 0
    )


def step_noise(
    strength: float, sample_rate: float, steps: int, influence: tuple[int, int]
) -> float:
    """The noise with which sampled steps are about as strong as one Gaussian of mu^2 = strength.

    By the central limit (Bu et al. 2020): good for splitting a budget, not for stating a price.
    """
    removed, altered = influence
    each = math.log1p(strength / (sample_rate**2 * steps))
    return min((removed + 2 * altered) / math.sqrt(each), LOUDEST) if each else LOUDEST
