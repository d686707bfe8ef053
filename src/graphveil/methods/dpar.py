r"""Decoupled training on private PageRank rows (Zhang et al.'s DPAR), and the honest best of it.

Structure and features are paid for separately::

    choose   for each of M rows the K nodes that matter most to it, through noise (DP-APPR)
    train    private steps on loss terms that read a row's own node and those chosen for it
    predict  power iteration over the log-probabilities of a graph in the open

A node may change every row in any way, so the choice needs noise for all rows together: at no
sensible epsilon does it find a neighbour. By default, therefore, the structure gets no budget and
is used in prediction alone (the variant ``features``); the plan says how likely a right choice
would be. Proofs: docs/guarantees/dpar.md.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import dp_accounting as dpa
import numpy as np
import safetensors.torch
import torch
from scipy import optimize, sparse, special
from torch import Tensor
from torch_geometric.data import Data

from graphveil import _validate
from graphveil._errors import InvalidInputError, UnprovenError
from graphveil._files import write_file
from graphveil.grads.linear import SparseExamples
from graphveil.graph.caps import cap_senders
from graphveil.graph.messages import Messages, normalised
from graphveil.graph.pagerank import WAYS, pagerank
from graphveil.graph.private_rows import CHOICES, PrivateRows, kept_columns
from graphveil.graph.propagation import smoothed
from graphveil.graph.rooted import RootedTerms
from graphveil.methods.base import Facts, Plan, Progress, signal_to_noise
from graphveil.methods.node import (
    LOUDEST,
    PrivateNodeMethod,
    alone,
    rooted_losses,
    step_noise,
    steps_begun,
)
from graphveil.methods.student import taught
from graphveil.nn import RootedGNN
from graphveil.privacy.accounting import calibrate
from graphveil.privacy.claims import CLAIMS
from graphveil.privacy.events import SampledGaussianDpEvent, composed, repeated
from graphveil.privacy.guarantee import Charge, Claimed
from graphveil.rng import SecretStream, secret, seeded

VARIANTS = ("features", *CHOICES)
_LIKELY = 0.5  # how likely a right choice must be for the structure to be given a budget
_SPARSE = 0.2  # share of entries that are not 0, below which sparse products pay
_STEP = 0.0075  # of a learning rate that was not given
_NO_LABEL = -100  # of loss terms that are zero
_CHOSEN = "rows.safetensors"
_CHOICE, _STEPS = "the choice of who is read (DP-APPR)", "training of the weights"


@dataclass(kw_only=True)
class DPAR(PrivateNodeMethod):
    """Private PageRank rows, private steps on them, power iteration in prediction.

    ``variant``: ``gm``, ``em0`` and ``em1`` choose ``neighbours`` nodes (K) for each of ``rows``
    training nodes (M) through noise, see :mod:`graphveil.graph.private_rows`; ``features`` chooses
    none. None takes ``features``, unless the budget makes a right choice likely.
    ``structure_share`` is the share of the budget that the choice gets, ``row_bound`` its clipping
    bound (C1 of ``gm``, C2 of the others). No node is read by more than ``column_cap`` rows beside
    its own; a row's own node has the constant weight ``own_weight``.

    ``graph_rate`` below 1 trains on a secret random part of the nodes, which amplifies the whole.
    ``paper=True`` takes the noise for which Zhang et al. claim ``epsilon``, and their sampling rate
    of 0.09 and 70 rows unless told otherwise.

    The network is linear (``num_layers``), reads every column, and takes ``steps`` steps on all
    rows at once: with thousands of columns a random projection costs more than the noise it saves.
    With ``learning_rate=None`` the size of a step follows from rows, classes and noise.

    Prediction smooths log-probabilities over the graph, ``smoothing_steps`` times. On a graph that
    was not trained on (``disjoint``) a ``student`` then learns them from that graph's own rows.

    *Guarantee*: the weights are (epsilon, delta)-private for one node, withheld or removed with all
    its edges. Public: :class:`Facts`.
    """

    name: ClassVar[str] = "dpar"
    _sizes_its_steps: ClassVar[bool] = True

    project_above: int = 1_000_000
    num_layers: int = 1
    steps: int = 40
    sample_rate: float = 1.0
    max_grad_norm: Any = 1.0
    optimizer: str = "sgd"
    learning_rate: float | None = None  # type: ignore[assignment]
    averaged: float = 0.5
    variant: str | None = None
    structure_share: float | None = None
    rows: int | None = None
    neighbours: int = 2
    row_bound: float | None = None
    own_weight: float = 0.5
    column_cap: int = 1
    ranking: str = "ista"
    alpha: float = 0.25
    rho: float = 1e-4
    graph_rate: float | None = None
    smoothing_steps: int = 2
    teleport: float = 0.25
    student: bool = True
    paper: bool = False

    # --- what the settings come to ---------------------------------------------------------------

    @property
    def _graph_rate(self) -> float:
        return (0.09 if self.paper else 1.0) if self.graph_rate is None else self.graph_rate

    @property
    def _row_bound(self) -> float:
        return 0.1 if self.row_bound is None else self.row_bound

    @property
    def _share(self) -> float:
        """What the choice gets of the budget, if there is a choice."""
        return 0.5 if self.structure_share is None else self.structure_share

    def _rows(self, facts: Facts, variant: str) -> int:
        """M; every training node, where rows cost nothing."""
        if self.rows is not None:
            return _validate.integer("rows", self.rows, f"[1, {facts.num_train}]")
        return facts.num_train if variant == "features" else min(70, facts.num_train)

    def _variant(self, facts: Facts, delta: float) -> str:
        """The variant that runs: ``features``, unless a right choice is likely."""
        if self.variant is not None:
            return self.variant
        best, chance = self._best_choice(facts, delta)
        return best if chance >= _LIKELY and self.structure_share != 0 else "features"

    def _best_choice(self, facts: Facts, delta: float) -> tuple[str, float]:
        """How to choose with the whole budget, and at most how often the first choice is right."""
        least = _least_noise(self.epsilon, delta)
        likely = {how: self._chooser(facts, how, least).chance(facts.num_nodes) for how in CHOICES}
        best = max(CHOICES, key=lambda how: likely[how])
        return best, likely[best]

    def _check_settings(self) -> None:
        super()._check_settings()
        _validate.number("epsilon", self.epsilon, "(0, inf)")
        _validate.number("sample_rate", self.sample_rate, "(0, 1]")
        _validate.integer("steps", self.steps, "[1, 1e9]")
        if self.variant is not None:
            _validate.choice("variant", self.variant, VARIANTS)
        elif self.paper:
            raise InvalidInputError(
                "With paper=True the 'variant' must be one of "
                f"{', '.join(VARIANTS)}. Got None instead; name one."
            )
        _validate.number("structure_share", self._share, "[0, 1)")
        both = self.structure_share is not None and self.variant is not None
        if both and (self.structure_share == 0) != (self.variant == "features"):
            raise InvalidInputError(
                "The 'structure_share' must be 0 for the variant 'features' and above it for the "
                f"others. Got {self.structure_share!r} with variant={self.variant!r} instead; "
                "leave one of the two out."
            )
        _validate.choice("ranking", self.ranking, WAYS)
        _validate.integer("neighbours", self.neighbours, "[1, 1e9]")
        _validate.integer("column_cap", self.column_cap, "[1, 1e9]")
        _validate.integer("smoothing_steps", self.smoothing_steps, "[0, 1000]")
        _validate.number("row_bound", self._row_bound, "(0, 1]")
        _validate.number("own_weight", self.own_weight, "(0, 1)")
        _validate.number("alpha", self.alpha, "(0, 1)")
        _validate.number("rho", self.rho, "(0, 1)")
        _validate.number("graph_rate", self._graph_rate, "(0, 1]")
        _validate.number("teleport", self.teleport, "[0, 1]")

    def _network(self, facts: Facts) -> RootedGNN:
        """Hidden layers of each node, their weighted sum, logits: the same as summing logits."""
        network = RootedGNN(
            self._columns(facts),
            self.hidden_channels,
            facts.num_classes,
            num_layers=1,
            encoder_layers=_validate.integer("num_layers", self.num_layers, "[1, 10]") - 1,
            decoder_layers=0,
            activation=self.activation,
        )
        if self.num_layers == 1:
            for parameter in network.parameters():
                torch.nn.init.zeros_(parameter)
        return network

    # --- plan ------------------------------------------------------------------------------------

    def _influence(self, facts: Facts, variant: str) -> tuple[int, int]:
        """The loss terms that one node removes, and how many others it alters.

        Its own, and those of the rows that chose it. Where some rows are drawn from a secret sample
        of the nodes, who joins the sample may take another's place: that alters a term.
        """
        others = 0 if variant == "features" else self.column_cap
        fixed = self._graph_rate == 1 or self._rows(facts, variant) == facts.num_train
        return (1, others) if fixed else (0, others + 1)

    def _live(self, facts: Facts, rows: int) -> float:
        """About how many rows have a loss term."""
        return min(float(rows), self._graph_rate * facts.num_train)

    def _step_size(self, facts: Facts, rows: int, noise: float) -> float:
        """Longer steps for more rows and less noise; Adam has a size of its own."""
        if self.learning_rate is not None:
            return self.learning_rate
        if self.optimizer == "adam":
            return 0.02
        noise_of_all = noise / (self.sample_rate * math.sqrt(self.steps))  # steps as one release
        return _STEP * facts.num_classes * math.sqrt(self._live(facts, rows) / noise_of_all)

    @property
    def _learning_rate(self) -> float:
        return float(self.plan_.details["learning_rate"])

    def _chooser(self, facts: Facts, variant: str, noise: float) -> PrivateRows:
        return PrivateRows(
            how=variant,
            rows=self._rows(facts, variant),
            k=_validate.integer("neighbours", self.neighbours, f"[1, {facts.num_nodes}]"),
            bound=self._row_bound,
            noise_multiplier=noise,
        )

    def _step(self, facts: Facts, variant: str, noise: float) -> SampledGaussianDpEvent:
        removed, altered = self._influence(facts, variant)
        return SampledGaussianDpEvent(
            rate=self.sample_rate, noise_multiplier=noise, removed=removed, altered=altered
        )

    def _charges(self, facts: Facts, variant: str, noises: _Noises) -> tuple[Charge, ...]:
        steps = repeated(self._step(facts, variant, noises.steps), self.steps)
        parts = [Charge(paid_for=_STEPS, event=steps)]
        if noises.choice is not None:
            event = self._chooser(facts, variant, noises.choice).event()
            parts.insert(0, Charge(paid_for=_CHOICE, event=event))
        return self._sampled(parts)

    def _sampled(self, parts: list[Charge]) -> tuple[Charge, ...]:
        """With a secret sample of the nodes it is the whole that is amplified, not its parts."""
        if self._graph_rate == 1:
            return tuple(parts)
        whole = dpa.PoissonSampledDpEvent(
            self._graph_rate, composed(*(part.event for part in parts))
        )
        said = " and ".join(part.paid_for for part in parts)
        return (Charge(paid_for=f"{said}, on a secret sample of the nodes", event=whole),)

    def plan(self, facts: Facts) -> Plan:
        self._check_settings()
        parameters = sum(p.numel() for p in self._made(facts).parameters())
        delta = self._delta(facts)
        variant = self._variant(facts, delta)
        rows = self._rows(facts, variant)
        noises = (self._paper_noises if self.paper else self._noises)(facts, delta, variant)
        removed, altered = self._influence(facts, variant)
        details: dict[str, float] = {
            "noise_multiplier": noises.steps,
            "sample_rate": self.sample_rate,
            "steps": self.steps,
            "rows": rows,
            "removed": removed,
            "altered": altered,
            "graph_rate": self._graph_rate,
            "learning_rate": self._step_size(facts, rows, noises.steps),
            "parameters": parameters,
            "signal_to_noise": signal_to_noise(
                self.sample_rate * self._live(facts, rows), noises.steps, parameters
            ),
        }
        if noises.choice is None:
            details |= {"structure_share": 0.0, "right_choice": self._best_choice(facts, delta)[1]}
        else:
            chooser = self._chooser(facts, variant, noises.choice)
            details |= {
                "structure_share": self._share,
                "right_choice": chooser.chance(facts.num_nodes),
                "structure_noise": noises.choice,
            }
        claim = None
        if self.paper:
            found = CLAIMS["dpar"](epsilon=self.epsilon, graph_rate=self._graph_rate, delta=delta)
            claim = Claimed(
                epsilon=found.claimed_epsilon, source=found.paper, why_it_differs=found.flaw
            )
        return Plan(
            method=self.name,
            facts=facts,
            unit="node",
            delta=delta,
            charges=self._charges(facts, variant, noises),
            details=details,
            inference=(self._visible,),
            claim=claim,
            settings={"variant": variant},
        )

    def _noises(self, facts: Facts, delta: float, variant: str) -> _Noises:
        """The least noise with which everything fits the budget, split by the share."""

        def noises(scale: float) -> _Noises:
            if variant == "features":
                return _Noises(None, scale)
            left = 1 - self._share
            steps = step_noise(
                left / scale**2, self.sample_rate, self.steps, self._influence(facts, variant)
            )
            return _Noises(min(scale / math.sqrt(self._share), LOUDEST), steps)

        def whole(scale: float) -> dpa.DpEvent:
            parts = self._charges(facts, variant, noises(scale))
            return composed(*(part.event for part in parts))

        return noises(calibrate(whole, epsilon=self.epsilon, delta=delta, safe=1e6, risky=1e-2))

    def _paper_noises(self, facts: Facts, delta: float, variant: str) -> _Noises:
        """The noise for which Theorems 1 to 3 claim ``epsilon``, as we read them.

        Inside the sample there is epsilon / graph_rate to spend. Rows are charged as C1 apart, a
        selection at scale C2 / e as e-bounded; steps as if rows were drawn at the rate of the batch
        in the sampled graph, and a node had one loss term.
        """
        inside, share = self.epsilon / self._graph_rate, self._share
        rows = self._rows(facts, variant)

        def least(event: Callable[[float], dpa.DpEvent], part: float) -> float:
            return calibrate(event, epsilon=part * inside, delta=delta / 2, safe=1e7, risky=1e-3)

        rate = self.sample_rate * self._live(facts, rows) / (self._graph_rate * facts.num_train)
        steps = least(
            lambda noise: repeated(
                SampledGaussianDpEvent(rate=rate, noise_multiplier=noise, removed=1, altered=0),
                self.steps,
            ),
            1.0 if variant == "features" else 1 - share,
        )
        if variant == "features":
            return _Noises(None, steps)
        # What is charged for noise z is the paper's for less: rows sqrt(2) further apart, and twice
        # the range for a selection (em1 has half of its budget in values, whose charge agrees).
        understated = {
            "gm": lambda z: dpa.GaussianDpEvent(math.sqrt(2) * z),
            "em0": lambda z: dpa.ZCDpEvent(1 / (8 * z**2)),
            "em1": lambda z: dpa.ZCDpEvent(1 / (16 * z**2) + 1 / (4 * z**2)),
        }
        return _Noises(least(understated[variant], share), steps)

    # --- fit -------------------------------------------------------------------------------------

    def fit(
        self,
        data: Data,
        *,
        directory: str | Path | None = None,
        progress: Progress | None = None,
        rng: SecretStream | None = None,
    ) -> Self:
        facts = Facts.of(data)
        plan = self.plan(facts)
        place = None if directory is None else Path(directory)
        variant = str(plan.settings["variant"])
        if place is not None:
            self._check_begun(place, variant)
        self._started(plan)
        rng = secret() if rng is None else rng
        drawn = self._drawn(data, self._rows(facts, variant), rng)
        messages, charges = alone(len(data.x)), []
        if variant != "features":
            chooser = self._chooser(facts, variant, plan.details["structure_noise"])
            messages = self._chosen(data, drawn, chooser, place, rng)
            charges.append(Charge(paid_for=_CHOICE, event=chooser.event()))
        x = torch.where(drawn.sample.unsqueeze(1), self._prepared(data.x), 0.0)
        y = torch.where(drawn.sample, data.y, _NO_LABEL)
        terms = self._terms(x, y, messages, drawn.rows)
        network, noise = self._made(facts), plan.details["noise_multiplier"]
        influence = self._influence(facts, variant)
        step = self._make_step(network, terms, noise, influence, rng, rooted_losses)
        # Rows that were chosen bind a run to its settings; a paper's epsilon binds nothing.
        bound = self.epsilon if variant == "features" and not self.paper else math.inf
        spent = self._trained(network, step, target=bound, directory=directory, progress=progress)
        charges.append(Charge(paid_for=_STEPS, event=spent))
        self._fitted(network, list(self._sampled(charges)), rng)
        return self

    def _check_begun(self, directory: Path, variant: str) -> None:
        """Refuse to go on with a run whose charge would be lost."""
        steps, chosen = steps_begun(directory), (directory / _CHOSEN).exists()
        if steps and self._graph_rate < 1:
            raise UnprovenError(
                "A run on a secret sample of the nodes must be taken in one piece: the sample is "
                f"not kept. Got a 'graph_rate' of {self._graph_rate:g} and a run that was begun in "
                f"{directory} instead; start anew, and count what that run spent."
            )
        if (chosen and variant == "features") or (steps and not chosen and variant != "features"):
            raise UnprovenError(
                f"The run that was begun in {directory} must have its private rows, if and only if "
                f"it chose some. Got the variant {variant!r} and "
                f"{'a' if chosen else 'no'} file {_CHOSEN} instead; resume with the same variant "
                "and the file in its place, or start in another directory."
            )

    def _promised(self) -> list[str]:
        # What was chosen is charged beside the steps.
        return [*super()._promised(), str(self.plan_.settings["variant"])]

    def _terms(self, x: Tensor, y: Tensor, messages: Messages, rows: Tensor) -> Any:
        """The loss terms of the rows. A linear network may sum features first."""
        if self.num_layers == 1:
            summed = messages.weighted(x)[rows]
            if (summed != 0).float().mean() < _SPARSE:
                return SparseExamples(sparse.csr_array(summed.numpy()), y[rows])
        return RootedTerms(x, y, messages, rows, 1)

    def _drawn(self, data: Data, rows: int, rng: SecretStream) -> _Drawn:
        """Who takes part, and whose rows are trained on; from public ids and secret coins.

        Without sampling the rows are public, and so they are if every training node has one. Else
        they are drawn from the sample, in secret; should it be too small, others make up the
        number, whose terms are zero. Which row stands in which place is secret, too: a node that
        joins the sample must not push others from their places.
        """
        train = data.train_mask.nonzero().flatten()
        sample = torch.ones(len(data.x), dtype=torch.bool)
        order = seeded(self.seed, "rows").generator().permutation(len(train))
        if self._graph_rate < 1:
            sample = torch.from_numpy(rng.bernoulli(self._graph_rate, len(data.x)))
            if rows < len(train):
                live_first = np.lexsort((rng.normal(len(train)), ~sample[train].numpy()))[:rows]
                order = live_first[np.argsort(rng.normal(rows))]
        return _Drawn(sample, train[torch.from_numpy(order[:rows].copy())])

    def _chosen(
        self,
        data: Data,
        drawn: _Drawn,
        chooser: PrivateRows,
        directory: Path | None,
        rng: SecretStream,
    ) -> Messages:
        """What each row reads: its own node, and those chosen for it; on disk before anybody does.

        Should the process die before, nobody has seen them, and they are drawn again at no cost.
        """
        file = None if directory is None else directory / _CHOSEN
        if file is None or not file.exists():
            released = self._released(data, drawn, chooser, rng)
            if file is not None and self._graph_rate == 1:
                file.parent.mkdir(parents=True, exist_ok=True)
                write_file(file, safetensors.torch.save(released | {"made_by": self._made_by(rng)}))
        else:
            released = self._read_back(file, rng)
        chosen, weight = released["chosen"], released["weight"]
        kept = torch.from_numpy(kept_columns(chosen.numpy(), self.column_cap, seed=self.seed))
        kept &= chosen != drawn.rows.unsqueeze(1)  # its own node is read anyway
        read = torch.where(kept, (1 - self.own_weight) * weight, 0.0)
        total = self.own_weight + read.sum(1)
        own = torch.ones(len(data.x))
        own[drawn.rows] = self.own_weight / total
        receivers = drawn.rows.unsqueeze(1).expand_as(chosen)
        edges = torch.stack([chosen[kept], receivers[kept]])
        return Messages(edges, (read / total.unsqueeze(1))[kept], own)

    def _released(
        self, data: Data, drawn: _Drawn, chooser: PrivateRows, rng: SecretStream
    ) -> dict[str, Tensor]:
        inside = drawn.sample[data.edge_index].all(0)
        scores = pagerank(
            data.edge_index[:, inside],
            len(data.x),
            drawn.rows,
            how=self.ranking,
            alpha=self.alpha,
            rho=self.rho,
        )
        # A row's own node is kept for nothing, so it need not be chosen; a row outside the sample
        # has no scores at all.
        own = np.repeat(drawn.rows.numpy(), np.diff(scores.indptr))
        scores.data[scores.indices == own] = 0.0
        chosen, weight = chooser.release(scores, rng)
        return {"chosen": torch.from_numpy(chosen), "weight": torch.from_numpy(weight).float()}

    def _read_back(self, file: Path, rng: SecretStream) -> dict[str, Tensor]:
        try:
            found = safetensors.torch.load(file.read_bytes())
            made_by = found["made_by"]
        except (safetensors.SafetensorError, KeyError) as error:
            raise InvalidInputError(
                f"The private rows in {file} cannot be read: {error}; they were paid for, so put "
                "the file back, or start in another directory."
            ) from error
        if not torch.equal(made_by, self._made_by(rng)):
            raise UnprovenError(
                f"The private rows in {file} were made under other settings or with other noise "
                "than here; resume with the same, or start in another directory."
            )
        return found

    def _made_by(self, rng: SecretStream) -> Tensor:
        """Settings, noise and its source, as bytes: of what rows must be made to be used."""
        said = f"{self!r}; {self.plan_.facts}; {dict(self.plan_.details)}; {rng.void_reason}"
        return torch.tensor(list(hashlib.sha256(said.encode()).digest()), dtype=torch.uint8)

    # --- prediction ------------------------------------------------------------------------------

    def _logits(self, x: Tensor, data: Data) -> Tensor:
        self._check_settings()  # prediction has settings of its own, which may have been changed
        return self._smoothed(self._alone(x), self._around(data))

    def _logits_apart(self, x: Tensor, data: Data) -> Tensor:
        """A student follows what nodes have in common; the less noise, the less it is needed."""
        self._check_settings()
        own, messages = self._alone(x), self._around(data)
        found = self._smoothed(own, messages)
        if not self.student:
            return found
        details = self.plan_.details
        noise = details["noise_multiplier"] / (details["sample_rate"] * math.sqrt(details["steps"]))
        learned = taught(found.softmax(1), x, messages, 0.5 * math.sqrt(noise) / len(x))
        kept = 0.5 / (1 + 2 * noise)
        return kept * own + (1 - kept) * learned

    def _alone(self, x: Tensor) -> Tensor:
        """What is believed of every node by itself."""
        return self.network_.on_graph(x, alone(len(x))).log_softmax(1)

    def _around(self, data: Data) -> Messages:
        edges = cap_senders(data.edge_index, len(data.x), None, seed=self.seed)
        return normalised(edges, len(data.x))

    def _smoothed(self, own: Tensor, messages: Messages) -> Tensor:
        return smoothed(own, messages, self.smoothing_steps, self.teleport)

    def _noisy(self, x: Tensor, data: Data, epsilon: float) -> Tensor:
        rate = self.plan_.details["graph_rate"]
        if rate < 1:
            raise UnprovenError(
                "A noisy prediction must come after training on all nodes: what a secret sample "
                "amplifies is not composed with more. Got a 'graph_rate' of "
                f"{rate:g} instead; use the mode 'visible' or 'disjoint'."
            )
        return super()._noisy(x, data, epsilon)


@dataclass(frozen=True)
class _Noises:
    """Of the choice, as one Gaussian; and of the steps."""

    choice: float | None
    steps: float


@dataclass(frozen=True, eq=False)
class _Drawn:
    """Which nodes take part, and whose rows are trained on."""

    sample: Tensor
    rows: Tensor


def _least_noise(epsilon: float, delta: float) -> float:
    """The noise multiplier of a Gaussian that spends all of (epsilon, delta)."""

    def excess(log_mu: float) -> float:
        mu = math.exp(log_mu)
        far, near = (special.log_ndtr(sign * mu / 2 - epsilon / mu) for sign in (-1, 1))
        return math.exp(near) - math.exp(epsilon + far) - delta

    return math.exp(-optimize.brentq(excess, math.log(1e-9), math.log(1e6)))
