"""Pairs of data sets on which published recipes reveal more than their papers claim.

A trial is a method in paper mode, two neighbouring data sets and a test that is fixed before
anything is drawn. Every run is a whole training with noise of its own; the test sees the released
weights and what is public. From how often it says "present" in the two worlds follows a lower bound
on epsilon, whatever the method is.
"""

import copy
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch_geometric.data import Data

from graphveil._observing import Observer, observe
from graphveil.audit.bounds import epsilon_from_rates
from graphveil.audit.neighbours import leave, withhold
from graphveil.audit.recording import WithoutTerms
from graphveil.graph.caps import priorities, priority_keys
from graphveil.graph.collate import collate
from graphveil.methods import METHODS, Facts, Method
from graphveil.methods.execution import Execution
from graphveil.methods.plan import Plan
from graphveil.methods.settings import setting_fields
from graphveil.rng import secret

CLAIMED = 1.0  # the epsilon that the paper is asked to claim

# One step length and no memory, so that released weights are sums of what was released.
PLAIN = {"optimizer": "sgd", "averaged": 0.0}


@dataclass(frozen=True)
class Trial:
    """The test says "present" where the ``score`` of a run is above the ``threshold``.

    The score is of the network before training and after it.
    """

    method: Method
    plan: Plan
    present: Data
    absent: Data
    score: Callable[[Any, Any], float]
    threshold: float
    gone: int | None = None  # the loss term that is not there without the unit

    @property
    def claimed(self) -> float:
        assert self.plan.claim is not None
        return self.plan.claim.epsilon


@dataclass(frozen=True)
class Outcome:
    """The scores of both worlds, and the lower bound that the test proves."""

    claimed: float
    bound: float
    present: Any
    absent: Any
    said: tuple[int, int]  # "present", of runs with the unit and of runs without


def try_claim(trial: Trial, runs: int, seed: int = 1) -> Outcome:
    """``runs`` trainings in each world, and a lower bound on epsilon at the claim's delta, 95 %.

    Secret streams are fixed, so that a test ends alike every time. Data and thresholds were chosen
    without a look at those of ``seed`` 1.
    """
    absent, present = (
        np.array([_score(trial, world, [seed, world, number]) for number in range(runs)])
        for world in (0, 1)
    )
    said = int((present > trial.threshold).sum()), int((absent > trial.threshold).sum())
    bound = epsilon_from_rates(said[1], runs, runs - said[0], runs, delta=trial.plan.delta)
    return Outcome(trial.claimed, bound, present, absent, said)


def _score(trial: Trial, world: int, entropy: list[int]) -> float:
    fixed = int(np.random.SeedSequence(entropy).generate_state(1, np.uint32)[0])
    method = copy.copy(trial.method)
    before = method.build(trial.plan.facts)
    execution = Execution(trial.plan, rng=secret(fixed_seed=fixed))
    with observe(_Absent(None if world else trial.gone)):
        trained = method._train(execution, trial.present if world else trial.absent)
    with torch.no_grad():
        return float(trial.score(before, trained))


class _Absent(Observer):
    """Leaves one loss term out."""

    def __init__(self, gone: int | None) -> None:
        self.gone = gone

    def equip(self, part: Any, clipped: Any, examples: Any) -> tuple[Any, Any]:
        if self.gone is None:
            return clipped, examples
        return clipped, WithoutTerms(examples, torch.tensor([self.gone]))


def _apart(before: Any, after: Any, column: int = 0) -> float:
    """How far training moved the two classes' weights of one column apart."""
    (was,), (now,) = ([p for p in net.parameters() if p.ndim == 2] for net in (before, after))
    moved = (now - was)[:, column]
    return float(moved[0] - moved[1]) / 2**0.5


def _least_likely(method: Method, plan: Plan, column: int = 0) -> int:
    """The class that the first weights, which are public, deny to who has this column alone."""
    (weight,) = (p for p in method.build(plan.facts).parameters() if p.ndim == 2)
    return int(weight[:, column].argmin())


def _make(name: str, data: Data, **settings: Any) -> tuple[Method, Plan]:
    method = METHODS[name](**({"epsilon": CLAIMED, "paper": True} | PLAIN | settings))
    return method, method.plan(Facts.of(data)).on(data)


def _nodes(x: Any, y: Any, pairs: Any, train: Any = None) -> Data:
    """A graph whose edges go both ways."""
    edges = torch.as_tensor(pairs, dtype=torch.long).reshape(-1, 2).t()
    data = Data(
        x=torch.as_tensor(x, dtype=torch.float32),
        y=torch.as_tensor(y, dtype=torch.long),
        edge_index=torch.cat([edges, edges.flip(0)], 1),
    )
    nobody = torch.zeros(len(data.x), dtype=torch.bool)
    data.train_mask = ~nobody if train is None else train
    data.val_mask, data.test_mask, data.directed = nobody, nobody.clone(), False
    return data


# --- Zhang et al. ---------------------------------------------------------------------------------


def dpar(nodes: int = 300) -> Trial:
    """A ring in which one node has a column of its own; q' = .09 as published.

    Theorem 2 spends epsilon / q' inside the sample. Whoever sees the weights sees the node whenever
    it takes part, with probability q', and hardly ever else.
    """
    x = torch.zeros(nodes, 2)
    x[1:, 0] = x[0, 1] = 10.0
    data = _nodes(x, torch.arange(nodes) % 2, [(i, (i + 1) % nodes) for i in range(nodes)])
    method, plan = _make(
        "dpar", data, variant="em0", structure_share=0.1, graph_rate=0.09, rows=25, neighbours=2,
        row_bound=0.001, train_on="nodes", features="raw", steps=1, sample_rate=1.0,
        momentum=0.0, learning_rate=0.01, delta=0.003,
    )  # fmt: skip
    steps = plan.part("weights")
    length = steps.learning_rate * steps.max_grad_norm / (steps.rate * nodes)
    noise = length * steps.noise_multiplier

    def score(before: Any, after: Any) -> float:
        moved = after.convs[0].lin.weight[:, 1]  # from zero
        return float(moved[0] - moved[1]) / 2**0.5 / noise

    return Trial(method, plan, data, withhold(data, 0), score, 2.75)


# --- Daigavane et al. -----------------------------------------------------------------------------


def printed_sampler(terms: int = 40, seed: int = 0, sampler: str = "printed") -> Trial:
    """A path p0 t1 p1 t2 p2 ...: each t is trained on, K = 1, and all depends on p0.

    The t stand in the order in which Algorithm 2 visits them, and each looks at the p before it
    first. So t_i reads p_(i-1); without p0 it reads p_i. Theorem 1 counts K + 1 changed terms.
    Values of p alternate, and labels with them: every changed gradient turns round. Another
    ``sampler`` is for comparison.
    """
    path = _path_in_order(terms, seed)
    x, y = torch.zeros(4 * terms, 1), torch.zeros(4 * terms, dtype=torch.long)
    for place, node in enumerate(path):
        if place % 2 == 0:
            x[node] = 4.0 * (-1) ** (place // 2)
        else:
            y[node] = place // 2 % 2
    y[terms:] = torch.arange(3 * terms) % 2
    train = torch.arange(4 * terms) < terms
    data = _nodes(x, y, list(itertools.pairwise(path)), train)
    method, plan = _make(
        "dp-gnn", data, sender_cap=1, encoder_layers=0, decoder_layers=0, features="raw", steps=1,
        sample_rate=1.0, momentum=0.0, learning_rate=0.01, max_grad_norm={"convs.0.lin": 0.1},
        seed=seed, sampler=sampler,
    )  # fmt: skip

    return Trial(method, plan, data, withhold(data, path[0]), _apart, 0.0)


def _path_in_order(terms: int, seed: int) -> list[int]:
    """The ids of p0, t1, p1, ...: those of terms are below ``terms``, those of the p are not."""
    ids = np.arange(4 * terms, dtype=np.uint32)
    turn = priorities(ids[:terms], ids[:terms], priority_keys(seed, "paper order"))
    order = np.argsort(turn).tolist()
    senders = np.repeat(ids[terms:], terms)
    receivers = np.tile(ids[:terms], 3 * terms)
    drawn = priorities(senders, receivers, priority_keys(seed, "paper sampler"))
    looked_at = drawn.astype(np.float64).reshape(3 * terms, terms)  # sooner the smaller
    first = int(looked_at[:, order[0]].argmin())
    unused, path = set(range(3 * terms)) - {first}, [terms + first]
    for term, following in zip(order, [*order[1:], order[0]], strict=True):
        late = looked_at[:, term] - looked_at[:, following]
        chosen = max(unused, key=lambda place: late[place])
        unused.remove(chosen)
        path += [term, terms + chosen]
    return path


def read_off_thresholds(nodes: int = 101) -> Trial:
    """A quarter of the training nodes have long gradients, and one more if it reads its neighbour.

    The paper's thresholds are quantiles of gradient norms, read off, and noise is scaled by them:
    whether the neighbour is there decides which of the two lengths the noise has.
    """
    long = nodes // 4
    x = torch.zeros(nodes + 1, 1)
    x[:long] = x[nodes] = 1e4
    train = torch.arange(nodes + 1) < nodes
    data = _nodes(x, torch.arange(nodes + 1) % 2, [(nodes - 1, nodes)], train)
    method, plan = _make(
        "dp-gnn", data, sender_cap=1, encoder_layers=0, decoder_layers=0, features="raw", steps=1,
        sample_rate=1.0, momentum=0.0, learning_rate=1e-6,
    )  # fmt: skip
    wrong = _least_likely(method, plan)
    data.y[:long] = data.y[nodes - 1] = wrong
    steps = plan.part("weights")
    size = steps.learning_rate * steps.noise_multiplier / nodes

    def score(before: Any, after: Any) -> float:
        # In the unit of noise for a threshold of 1.
        return float((after.convs[0].lin.bias - before.convs[0].lin.bias).norm()) / size

    return Trial(method, plan, data, withhold(data, nodes), score, 30.0)


# --- Igamberdiev and Habernal ---------------------------------------------------------------------


def released_splits(times: float = 100.0, words: int = 1433, nodes: int = 20) -> Trial:
    """A document that all cite, with many words of its own, each a hundred times.

    It is not even trained on. The released code clips nothing, and reads it in every group.
    Without it these words' weights move by noise alone: 32 sums over words have a chi-square law,
    which gives the threshold.
    """
    x = torch.zeros(nodes + 1, words + 1)
    x[1:, 0] = 1.0
    x[0, 1:] = times
    train = torch.arange(nodes + 1) > 0
    data = _nodes(x, torch.arange(nodes + 1) % 2, [(0, i) for i in range(1, nodes + 1)], train)
    usual = setting_fields(METHODS["graph-split"])["averaged"].default  # these runs have none
    method, plan = _make(
        "graph-split", data, splits=10, epochs=2, num_layers=2, hidden_channels=32,
        activation="relu", learning_rate=0.01, averaged=usual,
    )  # fmt: skip
    part = plan.part("weights")
    size = part.learning_rate * part.noise * (part.count * words) ** 0.5
    first = _first_weights(method, plan, data)

    def score(before: Any, after: Any) -> float:
        moved = (after.convs[0].lin.weight - first)[:, 1:].sum(1)
        return float((moved / size).square().sum())

    return Trial(method, plan, data, withhold(data, 0), score, float(stats.chi2(32).isf(1e-3)))


def _first_weights(method: Method, plan: Plan, data: Data) -> torch.Tensor:
    """The weights from which the released code starts; the public seed says them."""
    seen = []

    def note(network: Any, taken: int) -> None:
        if not taken:
            seen.append(network.convs[0].lin.weight.detach().clone())

    method._train(Execution(plan, rng=secret(fixed_seed=1), on_step=note), data)
    return seen[0]


def splits_with_claimed_noise() -> Trial:
    """One group that is clipped, and one document that turns its gradient round: 2C, not C.

    The score is normal, since one step is one Gaussian.
    """
    data = _nodes([[9.0], [3.0]], [0, 1], [])
    method, plan = _make(
        "graph-split", data, paper=False, claimed_noise=True, splits=1, num_layers=1, dropout=0.0,
        features="raw", steps=1, sample_rate=1.0, momentum=0.0, learning_rate=1.0,
        max_grad_norm=1e-3, delta=1e-5,
    )  # fmt: skip
    wrong = _least_likely(method, plan)
    data.y[:] = torch.tensor([wrong, 1 - wrong])
    sign = 1 if wrong == 0 else -1
    return Trial(method, plan, data, withhold(data, 0), lambda *nets: sign * _apart(*nets), 0.0)


# --- Mueller et al. -------------------------------------------------------------------------------


def bare_noise(graphs: int = 60, *, scaled: bool = False) -> Trial:
    """One graph with a column of its own, and the bound of the released Fingerprint runs, 3.

    ``scaled`` multiplies the noise by it, as the paper says.
    """
    listed = [
        Data(
            x=torch.tensor([[0.0, 1e3] if number == 0 else [1.0, 0.0]]),
            edge_index=torch.empty(2, 0, dtype=torch.long),
            y=torch.tensor([number % 2]),
        )
        for number in range(graphs)
    ]
    data = collate(listed, num_classes=2)
    nobody = torch.zeros(graphs, dtype=torch.bool)
    data.train_mask, data.val_mask, data.test_mask = ~nobody, nobody, nobody.clone()
    data.directed = False
    method, plan = _make(
        "graph-dpsgd", data, noise_multiplier=3.5, noise_times_bound=scaled, max_grad_norm=3.0,
        batch_size=graphs, momentum=0.0, learning_rate=1e-3, conv="gcn", num_layers=0,
        degree=False, delta=0.01,
    )  # fmt: skip
    data.y[0] = wrong = _least_likely(method, plan, 1)
    sign = 1 if wrong == 0 else -1
    steps = plan.part("weights")
    size = steps.learning_rate * steps.max_grad_norm / graphs
    noise = size * steps.noise_multiplier * steps.count**0.5

    def score(before: Any, after: Any) -> float:
        return sign * _apart(before, after, 1) / noise

    return Trial(method, plan, data, leave(data, 0), score, 2.0, gone=0)
