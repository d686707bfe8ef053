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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import safetensors.torch
import torch
from scipy import sparse
from torch import Tensor
from torch_geometric.data import Data

from graphveil._errors import InvalidInputError, UnprovenError
from graphveil.grads.linear import SparseExamples
from graphveil.graph.caps import cap_senders
from graphveil.graph.messages import Messages, normalised
from graphveil.graph.neighbourhoods import RootedTerms
from graphveil.graph.pagerank import pagerank
from graphveil.graph.private_rows import PrivateRows, kept_columns
from graphveil.graph.propagation import smoothed
from graphveil.methods.base import Facts, Progress
from graphveil.methods.dpar_plan import CHOICE, STEPS, PlannedDPAR
from graphveil.methods.node import alone, rooted_losses
from graphveil.methods.private import steps_begun
from graphveil.methods.student import taught
from graphveil.privacy.guarantee import Charge
from graphveil.rng import SecretStream, secret, seeded

_NO_LABEL = -100  # of loss terms that are zero
_CHOSEN = "rows.safetensors"


@dataclass(kw_only=True)
class DPAR(PlannedDPAR):
    """Private PageRank rows, private steps on them, power iteration in prediction.

    ``variant``: ``gm``, ``em0`` and ``em1`` choose ``neighbours`` nodes (K) for each of ``rows``
    training nodes (M) through noise, see :mod:`graphveil.graph.private_rows`; ``features`` chooses
    none. None takes ``features``, unless the budget makes a right choice likely; in paper mode
    ``gm``.
    ``structure_share`` is the share of the budget that the choice gets, ``row_bound`` its clipping
    bound (C1 of ``gm``, C2 of the others). No node is read by more than ``column_cap`` rows beside
    its own; a row's own node has the constant weight ``own_weight``.

    ``graph_rate`` below 1 trains on a secret random part of the nodes, which amplifies the whole.
    ``paper=True`` takes the noise for which Zhang et al. claim ``epsilon``, and their sampling rate
    of 0.09 and 70 rows unless told otherwise; network and steps are as the settings say.

    The network is linear (``num_layers``), reads every column, and takes ``steps`` steps on all
    rows at once: with thousands of columns a random projection costs more than the noise it saves.
    With ``learning_rate=None`` the size of a step follows from rows, classes and noise.

    Prediction smooths log-probabilities over the graph, ``smoothing_steps`` times. On a graph that
    was not trained on (``disjoint``) a ``student`` then learns them from that graph's own rows.

    *Guarantee*: the weights are (epsilon, delta)-private for one node, withheld or removed with all
    its edges. Public: :class:`Facts`.
    """

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
        self._started(plan, data)
        rng = secret() if rng is None else rng
        drawn = self._drawn(data, self._rows(facts, variant), rng)
        messages, charges = alone(len(data.x)), []
        if variant != "features":
            details = plan.details
            chooser = self._chooser(
                facts, variant, details["structure_noise"], details.get("value_noise")
            )
            messages = self._chosen(data, drawn, chooser, place, rng)
            charges.append(Charge(paid_for=CHOICE, event=chooser.event()))
        x = torch.where(drawn.sample.unsqueeze(1), self._prepared(data.x), 0.0)
        y = torch.where(drawn.sample, data.y, _NO_LABEL)
        terms = self._terms(x, y, messages, drawn.rows)
        network, noise = self._made(facts), plan.details["noise_multiplier"]
        influence = self._influence(facts, variant)
        step = self._make_step(network, terms, noise, influence, rng, rooted_losses)
        # Rows that were chosen bind a run to its settings; a paper's epsilon binds nothing.
        bound = self.epsilon if variant == "features" and not self.paper else math.inf
        spent = self._trained(network, step, target=bound, directory=directory, progress=progress)
        charges.append(Charge(paid_for=STEPS, event=spent))
        self._fitted(network, list(self._sampled(charges)), rng)
        return self

    def _check_begun(self, directory: Path, variant: str) -> None:
        """Refuse to go on with a run whose charge would be lost."""
        steps, chosen = steps_begun(directory), (directory / _CHOSEN).exists()
        if steps and self._graph_rate < 1:
            raise UnprovenError(
                "A run on a secret sample of the nodes must be taken in one piece: the sample is "
                f"not kept. Got a 'graph_rate' of {self._graph_rate:g} and a run that was begun in "
                f"{directory} instead; start anew (--force), and count what that run spent."
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
            return SparseExamples(sparse.csr_array(messages.weighted(x)[rows].numpy()), y[rows])
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
        if file is not None and self._graph_rate == 1:
            self._release_once(
                file,
                lambda: self._released(data, drawn, chooser, rng) | {"made_by": self._made_by(rng)},
            )
        if file is None or not file.exists():
            released = self._released(data, drawn, chooser, rng)
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

    def _said_of(self, mode: str) -> str:
        said = super()._said_of(mode)
        if mode == "disjoint" and self.student:
            said += "; a student reads every row of that graph"
        return said

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


@dataclass(frozen=True, eq=False)
class _Drawn:
    """Which nodes take part, and whose rows are trained on."""

    sample: Tensor
    rows: Tensor
