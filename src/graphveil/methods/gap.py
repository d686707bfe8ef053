r"""Aggregation perturbation: neighbours are read once, as noisy sums, and never again.

Sajadmanesh et al.'s GAP and Shpilevskiy et al.'s weighted messages, and what measures better::

    encode    each node by itself
    send      a row along every message; sum; noise on every row; keep it (the cache)
    classify  each node from its own row and its cached ones

What is computed from the cache costs nothing more, predictions included. Under the edge units
features and labels are public: only the sums are charged. Under the unit ``node`` the encoder and
the classifier are trained by private steps, and a node's own prediction is shown to itself only.
Proofs: docs/guarantees/gap.md.
"""

from __future__ import annotations

import functools
import hashlib
import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.data import Data

from graphveil._errors import InvalidInputError, UnprovenError
from graphveil.graph.aggregation import (
    Sent,
    bounded_rows,
    evidence,
    incoming,
    pairwise,
    similarity,
    unit_rows,
)
from graphveil.graph.caps import cap_receivers
from graphveil.graph.messages import Messages
from graphveil.graph.neighbourhoods import RootedTerms
from graphveil.mechanisms import Gaussian
from graphveil.methods.base import Facts, Progress
from graphveil.methods.gap_plan import PAID_FOR, PlannedGAP
from graphveil.methods.node import rooted_losses
from graphveil.methods.training import fit_open, seeded_weights
from graphveil.nn.gap import (
    AttentionTerms,
    GAPNetwork,
    SumHead,
)
from graphveil.privacy.events import composed
from graphveil.privacy.guarantee import Charge, check_delta
from graphveil.rng import SecretStream, secret, seeded

_BATCH, _HEAD_STEPS = 1024, 200  # training in the open
_CLEARLY = 0.03  # by how much the loss of a less simple head must be smaller
_PAIRS_AT_ONCE = 1 << 16  # pairs that attention weighs together
_READ_AT_ONCE = 50  # messages that a loss term of the attention reads; free


@dataclass(kw_only=True)
class GAP(PlannedGAP):
    """Noisy sums of neighbours' rows, cached; then everything else is free.

    ``unit`` is ``node``, or ``edge``: directed or not, as is stated of the graph, unless
    ``edge-directed`` or ``edge-undirected`` says so (an edge without its reverse is covered by
    both).

    ``messages``: what nodes send; ``encoding`` as published, ``label`` the labels of training
    nodes, ``evidence`` labels and predictions as they bear on what the receiver hesitates between.
    By default labels under the unit ``node``, evidence under the edge units. ``weighting``:
    ``similarity`` weighs a message by a map of the cosine of its ends (``similarity``: sigmoid,
    half, positive), ``attention`` by a network trained with part of the budget.

    A node sends at most ``sender_cap`` messages (``cap="hard"``), or all of them with the weight
    of so many (``cap="soft"``); unit ``node`` only. The budget is split by ``encoder_share``,
    ``attention_share`` and ``aggregation_share``; the classifier has the rest. ``public_edges`` is
    a public bound on the number of edges, from which the default ``delta`` of the edge units comes.

    Under ``edge`` the encoder is trained in the open: ``folds`` networks, each without one part of
    the training nodes, so that what is believed of a training node was not learned from it.

    ``paper=True`` runs the published method with the noise for which it claims ``epsilon``, and
    shows what can be proven beside it.

    *Guarantee*: under the edge units the weights, the noisy sums and predictions made from noisy
    sums; under ``node`` the weights and such predictions, all but the node's own. Public:
    :class:`Facts`.
    """

    name: ClassVar[str] = "gap"
    modes: ClassVar[tuple[str, ...]] = ("cached", "noisy", "visible", "disjoint")

    cache_: Tensor = field(init=False, repr=False, compare=False)

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
        self._check_edges(data.edge_index, plan.unit)
        self._started(plan, data)
        rng = secret() if rng is None else rng
        network, x = self._made(facts), self._prepared(data.x)
        spent: dict[str, list[Any]] = {}
        run = _Parts(self, rng, None if directory is None else Path(directory), progress, spent)
        beliefs = self._encoded(network, x, data, run)
        with torch.no_grad():
            sends = self._sends(network, x, data, beliefs)
        cache = []
        for hop in range(self._hops):
            if self.weighting == "attention":
                self._attended(network, hop, sends, data, run)
            with torch.no_grad():
                noisy = run.summed(hop, self._sent(network, hop, sends))
                cache.append(noisy)
                sends = replace(sends, rows=unit_rows(noisy))
        # From here on nobody reads an edge.
        self.cache_ = torch.stack(cache, 1)
        with torch.no_grad():
            inputs = self._inputs(network, x, self.cache_, beliefs)
        self._classified(network, inputs, data, run)
        charges = [
            Charge(paid_for=PAID_FOR[part], event=composed(*spent[part]))
            for part in PAID_FOR
            if part in spent
        ]
        self._fitted(network, charges, rng)
        return self

    def _check_edges(self, edge_index: Tensor, unit: str) -> None:
        """Refuse a graph that breaks the promise delta rests on; for the data's owner to read."""
        if self.unit == "node" or self.public_edges is None:
            return
        ends = edge_index[:, edge_index[0] != edge_index[1]]
        if unit == "edge-undirected":
            ends = ends.sort(dim=0).values
        found = ends.unique(dim=1).shape[1]
        if found > self.public_edges:
            raise InvalidInputError(
                "The 'public_edges' parameter must be a bound that the data is known to obey. Got "
                f"{self.public_edges} for a graph with more edges instead; state one that holds, "
                "or leave it out: all pairs of nodes are counted then."
            )

    def _encoded(self, network: GAPNetwork, x: Any, data: Data, run: _Parts) -> Tensor | None:
        """Train the encoders; log-probabilities of every node, None if there are no encoders."""
        if not self._encodes:
            return None
        train = data.train_mask
        if self.unit == "node":
            run.trained("encoder", network.encoders[0], (x[train], data.y[train]))
            with torch.no_grad():
                return network.log_probabilities(x)
        folds = len(network.encoders)
        fold = torch.randint(
            folds, (len(train),), generator=seeded(self.seed, "folds").torch_generator()
        )
        for number, encoder in enumerate(network.encoders):
            seen = train & (fold != number) if folds > 1 else train
            first = encoder.body.linears[0].weight
            rest = [each for each in encoder.parameters() if each is not first]
            groups: list[dict[str, Any]] = [
                {"params": [first], "weight_decay": self.weight_decay},
                {"params": rest},
            ]
            optimizer = torch.optim.Adam(groups, lr=self.open_learning_rate)
            self._fit_open(
                encoder, optimizer, x, data, seen if seen.any() else train,
                steps=self.open_steps, batch_size=_BATCH, rate=lambda done: 1 - done, every=20,
                progress=run.progress,
            )  # fmt: skip
        with torch.no_grad():
            unseen = torch.where(train, fold, -1) if folds > 1 else None
            return network.log_probabilities(x, unseen)

    def _fit_open(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        inputs: Any,
        data: Data,
        seen: Tensor,
        **how: Any,
    ) -> float:
        with seeded_weights(self.seed):  # dropout, too: no noise here is secret
            return fit_open(
                module,
                optimizer,
                lambda ids: module(inputs[ids]),
                data.y,
                seen.nonzero().flatten(),
                (data.val_mask & (data.y >= 0)).nonzero().flatten(),
                by_loss=True,
                on_loss=self.on_loss,
                **how,
            )

    # --- what is sent ----------------------------------------------------------------------------

    def _sends(self, network: GAPNetwork, x: Any, data: Data, beliefs: Tensor | None) -> _Sends:
        """What every node sends first, along which messages."""
        messages = incoming(
            data.edge_index,
            len(x),
            seed=self.seed,
            sender_cap=self._sender_cap if self.unit == "node" else None,
            cap=self._cap,
        )
        ends = None
        if self._messages == "encoding" or self.weighting == "similarity":
            ends = unit_rows(network.encoders[0].encode(x) if self._encodes else x)
        if self._messages == "encoding":
            return _Sends(messages, ends, ends)
        told = self._told(network, x, data, beliefs)
        if self._messages == "evidence":
            assert beliefs is not None
            return _Sends(messages, bounded_rows(told), ends, beliefs.exp())
        classes = told.shape[1]
        centred = (told - told.sum(1, keepdim=True) / classes) / math.sqrt(1 - 1 / classes)
        return _Sends(messages, bounded_rows(centred), ends)

    def _told(self, network: GAPNetwork, x: Any, data: Data, beliefs: Tensor | None) -> Tensor:
        """The label of a training node, what is believed of any other; (nodes, classes).

        Where there is no encoder others say nothing, unless nobody has a label: on a new graph
        each sends what the classifier makes of it alone.
        """
        classes = self.plan_.facts.num_classes
        labelled = "y" in data and "train_mask" in data and bool(data.train_mask.any())
        if beliefs is not None:
            told = beliefs.exp()
        elif labelled:
            told = torch.zeros(len(x), classes)
        else:
            alone = torch.zeros(len(x), self._hops, classes)
            told = network.head(self._inputs(network, x, alone, None)).softmax(1)
        if not labelled:
            return told
        if int(data.y.max()) >= classes:
            raise InvalidInputError(
                f"The labels must be of the {classes} classes that were trained on. Got "
                f"{int(data.y.max())} instead; leave 'y' out to predict without labels."
            )
        labels = F.one_hot(data.y.clamp_min(0), classes).to(told)
        return torch.where(data.train_mask.unsqueeze(1), labels, told)

    def _sent(self, network: GAPNetwork, hop: int, sends: _Sends) -> Sent:
        """The messages of one hop with their weights."""
        messages, rows = sends.messages, sends.rows
        soft = self.unit == "node" and self._cap == "soft"
        weights: list[Tensor] = [messages.weights] if soft else []
        if self.weighting == "similarity":
            weights.append(similarity(messages, sends.ends, self.similarity))
        elif self.weighting == "attention":
            weigh = network.attention[hop].between(rows)
            found = pairwise(messages, weigh, _PAIRS_AT_ONCE)
            weights.append(found.nan_to_num(0.0).clamp(0.0, 1.0))
        if sends.beliefs is not None:
            share = None
            if self._unit(self.plan_.facts) == "edge-undirected":
                share = -(sends.beliefs * sends.beliefs.clamp_min(1e-30).log()).sum(1) + 1e-3
            weights.append(evidence(messages, rows, sends.beliefs, share))
        weight = functools.reduce(torch.mul, weights) if weights else None
        return Sent(messages, rows, weight, sends.beliefs)

    def _attended(
        self, network: GAPNetwork, hop: int, sends: _Sends, data: Data, run: _Parts
    ) -> None:
        """Train one hop's attention on loss terms that read the messages of their own node."""
        messages, rows = sends.messages, sends.rows
        read = cap_receivers(messages.edge_index, len(rows), _READ_AT_ONCE, seed=self.seed)
        ones = torch.ones(read.shape[1])
        heard = Messages(read, ones, torch.zeros(len(rows)))
        roots = data.train_mask.nonzero().flatten()
        terms = RootedTerms(rows, data.y, heard, roots, 1)
        attention = network.attention[hop]
        with seeded_weights(self.seed + 1 + hop):
            trained = AttentionTerms(attention, rows.shape[1], self.plan_.facts.num_classes)
        run.trained("attention", trained, terms, place=f"attention{hop + 1}")

    # --- what is made of it ----------------------------------------------------------------------

    def _inputs(self, network: GAPNetwork, x: Any, cache: Tensor, beliefs: Tensor | None) -> Tensor:
        """What the head reads of each node: its own row, then its cached ones."""
        if self._messages == "encoding":
            own = unit_rows(network.encoders[0].encode(x))
            return torch.cat([own, F.normalize(cache.float(), dim=2).flatten(1)], 1)
        details = self.plan_.details
        noise = details["noise_multiplier"] * details["sensitivity"]
        # Trained with noise of its own, a classifier is slow to ignore a column of mere noise.
        unit = 2 * noise * max(1.0, noise) if self.unit == "node" else noise
        scaled = (cache / unit).flatten(1).float()
        if not self._encodes:
            return torch.cat([x, scaled], 1)
        own = network.log_probabilities(x) if beliefs is None else beliefs
        return torch.cat([own, scaled], 1)

    def _classified(self, network: GAPNetwork, inputs: Tensor, data: Data, run: _Parts) -> None:
        train = data.train_mask
        if self.unit == "node":
            run.trained("classifier", network.heads[0], (inputs[train], data.y[train]))
            return
        scores = []
        for head in network.heads:
            plain = isinstance(head, SumHead)
            optimizer = torch.optim.Adam(
                head.parameters(),
                lr=self.open_learning_rate * (2 if plain else 1),
                weight_decay=0.0 if plain else 0.2 * self.weight_decay,
            )
            scores.append(self._fit_open(head, optimizer, inputs, data, train, steps=_HEAD_STEPS))
        # A sum, unless the network is clearly better: it has little to over-fit with.
        simplest = len(scores) - 1
        better = scores[0] > (1 - _CLEARLY) * scores[simplest]
        network.chosen.fill_(0 if better else simplest)

    # --- prediction ------------------------------------------------------------------------------

    def _readable(self, data: Data) -> Any:
        x = super()._readable(data)
        if (now := self.get_params(deep=False)) != self.plan_.settings:
            changed = sorted(key for key in now if now[key] != self.plan_.settings[key])
            raise InvalidInputError(
                f"The settings must be those of the fit. Got another {', '.join(changed)} instead; "
                "set it back, or fit again."
            )
        return x

    def predict_proba(
        self, data: Data, *, mode: str | None = None, epsilon: float | None = None
    ) -> Tensor:
        if mode not in (None, "cached"):
            return super().predict_proba(data, mode=mode, epsilon=epsilon)
        x = self._readable(data)
        if epsilon is not None:
            raise InvalidInputError(
                f"The mode 'cached' costs nothing and takes no 'epsilon'. Got {epsilon!r} instead."
            )
        if len(x) != len(self.cache_):
            raise InvalidInputError(
                "The mode 'cached' must be given the graph that was trained on, with "
                f"{len(self.cache_)} nodes in the same order. Got {len(x)} nodes instead; other "
                "graphs need the mode 'noisy', 'visible' or 'disjoint'."
            )
        with torch.no_grad():
            return self._from(x, self.cache_)

    def _from(self, x: Any, cache: Tensor) -> Tensor:
        network = self.network_.eval()
        return network.head(self._inputs(network, x, cache, None)).softmax(1)

    def _logits(self, x: Tensor, data: Data) -> Tensor:
        return self._from(x, self._summed_anew(x, data, lambda sent: sent.sums())).log()

    @property
    def _noisy_sums(self) -> int:
        return self._hops

    def _noisy(self, x: Tensor, data: Data, epsilon: float) -> Tensor:
        facts = replace(self.plan_.facts, num_nodes=max(len(x), self.plan_.facts.num_train))
        check_delta(self.plan_.delta, self._units(facts))
        self._check_edges(data.edge_index, self.plan_.unit)
        bound = self._bound(self.plan_.unit)
        noise = self._noise_of_prediction(epsilon)
        mechanism, rng = Gaussian(noise_multiplier=noise, sensitivity=bound), secret()
        self._charge_prediction(mechanism)
        cache = self._summed_anew(x, data, lambda sent: sent.noisy_sums(mechanism, rng))
        # The classifier knows sums of the noise it was trained with; louder ones say less.
        louder = max(1.0, noise / self.plan_.details["noise_multiplier"])
        return self._from(x, cache / louder**2).log()

    def _summed_anew(self, x: Any, data: Data, summed: Any) -> Tensor:
        network = self.network_.eval()
        beliefs = network.log_probabilities(x) if self._encodes else None
        sends = self._sends(network, x, data, beliefs)
        cache = []
        for hop in range(self._hops):
            cache.append(summed(self._sent(network, hop, sends)))
            sends = replace(sends, rows=unit_rows(cache[-1]))
        return torch.stack(cache, 1)


@dataclass(frozen=True, eq=False)
class _Sends:
    """What every node sends in a hop, and what weights are made of."""

    messages: Messages
    rows: Any
    ends: Any
    beliefs: Tensor | None = None


@dataclass(frozen=True, eq=False)
class _Parts:
    """Runs the parts of a fit that cost something, notes what they cost, survives a crash."""

    method: GAP
    rng: SecretStream
    directory: Path | None
    progress: Progress | None
    spent: dict[str, list[Any]]

    def trained(self, part: str, network: nn.Module, terms: Any, place: str = "") -> None:
        """Private steps; see PrivateNodeMethod."""
        method, plan = self.method, self.method.plan_
        noise, influence = plan.details[f"{part}_noise"], method._step_influence(part, plan.facts)
        event = method._trained(
            network,
            method._make_step(network, terms, noise, influence, self.rng, rooted_losses),
            directory=None if self.directory is None else self.directory / (place or part),
            progress=self.progress,
        )
        self.spent.setdefault(part, []).append(event)

    def summed(self, hop: int, sent: Sent) -> Tensor:
        """Noisy sums of one hop, on disk before anybody reads them.

        Should the process die before they are on disk, nobody has seen them, and they are drawn
        again at no cost; afterwards they are read back, and never drawn again.
        """
        details = self.method.plan_.details
        mechanism = Gaussian(
            noise_multiplier=details["noise_multiplier"], sensitivity=details["sensitivity"]
        )
        self.spent.setdefault("aggregation", []).append(mechanism.event())
        if self.directory is None:
            return sent.noisy_sums(mechanism, self.rng)
        file = self.directory / f"hop{hop + 1}.safetensors"
        self.method._release_once(
            file,
            lambda: {"sums": sent.noisy_sums(mechanism, self.rng), "made_by": self._made_by()},
        )
        try:
            found = safetensors.torch.load(file.read_bytes())
            sums, made_by = found["sums"], found["made_by"]
        except (safetensors.SafetensorError, KeyError) as error:
            raise InvalidInputError(
                f"The noisy sums in {file} cannot be read: {error}; they were paid for, so put the "
                "file back, or start in another directory."
            ) from error
        if sums.shape != sent.rows.shape or not torch.equal(made_by, self._made_by()):
            raise UnprovenError(
                f"The noisy sums in {file} were made for another number of nodes, under other "
                "settings or with other noise than here; resume with the same, or start in another "
                "directory."
            )
        return sums

    def _made_by(self) -> Tensor:
        """Settings, unit, noise and its source, as bytes: of what sums must be made to be used."""
        method, plan = self.method, self.method.plan_
        said = f"{method!r}; {plan.unit}; {dict(plan.details)}; {self.rng.void_reason}"
        return torch.tensor(list(hashlib.sha256(said.encode()).digest()), dtype=torch.uint8)
