"""Parts of a plan on their worst pairs, released by the code that a run uses.

:func:`make_trial` knows noisy sums, counts and predictions (Gaussian and Laplace noise), private
rows, names by Gumbel noise, and sampled steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import dp_accounting as dpa
import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor, nn

from graphveil import _observing
from graphveil._progress import Progress
from graphveil.audit.bounds import dkw_band
from graphveil.audit.laws import (
    CHECKS,
    FALSE_ALARM,
    Array,
    Count,
    Law,
    compare,
    compare_rate,
    fixed,
    laws_of_step,
)
from graphveil.audit.results import Violation
from graphveil.grads.clipped import ClippedSum
from graphveil.grads.clipping import Flat, make_clipping
from graphveil.grads.step import PrivateStep
from graphveil.graph.private_rows import PrivateRows
from graphveil.mechanisms import Gaussian, GumbelTopK, Laplace
from graphveil.methods.parts import Part, Release, Steps
from graphveil.privacy.event_tree import parts as parts_of
from graphveil.privacy.event_tree import releases_raw
from graphveil.privacy.events import GumbelTopKDpEvent
from graphveil.rng import SecretStream

CALLS = 1000  # releases of either world that are made by calls of their own
NUMBERS = 2e7  # random numbers that one world may take
WORLDS = (True, False)  # the unit is present, or withheld
_VALUES = 5000  # that are released by calls of their own
_COINS = 20_000, 50  # examples, and pairs of batches, that show how batches are drawn


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One release on its worst pair: its event, its laws and two ways to draw it.

    ``draw(present, count, rng)`` gives numbers of the laws, each of which takes ``cost`` random
    ones; ``call`` the same by one call of the mechanism each. ``check`` looks at what is not in
    that number. ``rescale`` gives the event of the whole part with so many times the noise, where
    the pair is as bad as the event says.
    """

    event: dpa.DpEvent
    laws: tuple[Law, Law]
    draw: Callable[[bool, int, SecretStream], Array]
    call: Callable[[bool, int, SecretStream], Array]
    cost: int
    check: Callable[[SecretStream], Iterable[Violation]] = lambda rng: ()
    rescale: Callable[[float], dpa.DpEvent] | None = None


def _try_additive(part: Release, mechanism: Gaussian | Laplace) -> Trial:
    """0, and a vector of the sensitivity's length: along the diagonal (l2), or one entry (l1)."""
    event: Any = mechanism.event()
    noise, laplace = event.noise_multiplier, isinstance(mechanism, Laplace)
    direction = np.array([1.0]) if laplace else np.full(4, 0.5)

    def release(present: bool, rows: int, rng: SecretStream) -> Array:
        value = np.zeros((rows, len(direction))) + present * mechanism.sensitivity * direction
        return np.asarray(mechanism.release(value, rng))

    def draw(present: bool, count: int, rng: SecretStream) -> Array:
        return release(present, count, rng) @ direction / mechanism.sensitivity

    def call(present: bool, count: int, rng: SecretStream) -> Array:
        return np.concatenate([draw(present, 1, rng) for _ in range(count)])

    def check(rng: SecretStream) -> Iterator[Violation]:
        coordinates = release(False, 10 * CALLS, rng).ravel() / mechanism.sensitivity
        law = fixed(0.0, noise, laplace=laplace)
        yield from compare("noise of single coordinates", coordinates, law)

    return Trial(
        event=event,
        laws=(fixed(1.0, noise, laplace=laplace), fixed(0.0, noise, laplace=laplace)),
        draw=draw,
        call=call,
        cost=len(direction),
        check=check,
        rescale=lambda factor: replace(part, mechanism=_louder(mechanism, factor)).event,
    )


def _louder(mechanism: Any, factor: float) -> Any:
    return replace(mechanism, noise_multiplier=mechanism.noise_multiplier * factor)


class _Keep(_observing.Observer):
    """Keeps what inner mechanisms of one kind were given and what they released."""

    def __init__(self, kind: type) -> None:
        self.kind = kind
        self.pairs: list[tuple[Array, Array]] = []

    def release(self, mechanism: Any, value: Any, result: Any) -> Any:
        """Nothing is changed."""
        if isinstance(mechanism, self.kind):
            self.pairs.append((np.atleast_2d(value), np.atleast_2d(result)))
        return result

    @property
    def results(self) -> Array:
        return np.concatenate([result for _, result in self.pairs])


def _multiply(mechanism: Any, groups: int) -> Any:
    """As many releases in one: more rows, and every row with the noise it had."""
    if isinstance(mechanism, PrivateRows):
        noise = mechanism.noise_multiplier / math.sqrt(groups)
        return replace(mechanism, rows=mechanism.rows * groups, noise_multiplier=noise)
    return replace(mechanism, rows=mechanism.rows * groups)


def _release_rows(mechanism: Any, row: Array, rng: SecretStream, kind: type) -> _Keep:
    """The mechanism on scores that are the same in every row."""
    scores = np.tile(row, (mechanism.rows, 1))
    keep = _Keep(kind)
    with _observing.observe(keep):
        mechanism.release(
            sparse.csr_array(scores) if isinstance(mechanism, PrivateRows) else scores, rng
        )
    return keep


def _by_groups(cost: int, release: Callable[[bool, int, SecretStream], Array]) -> Any:
    """``draw``, ``call`` and ``cost`` of a mechanism that makes many releases at a time."""

    def call(present: bool, count: int, rng: SecretStream) -> Array:
        count = min(count, max(1, int(NUMBERS / 10 / cost)))
        return np.concatenate([release(present, 1, rng) for _ in range(count)])

    return {"draw": release, "call": call, "cost": cost}


def _try_values(part: Release, mechanism: PrivateRows) -> Trial:
    """Rows with all their weight on one node, and rows with all of it on another."""
    event: Any = mechanism.event()
    rows, nodes = mechanism.rows, max(mechanism.k, 2)
    apart = np.zeros(nodes)
    apart[:2] = mechanism.bound, -mechanism.bound

    def release(present: bool, groups: int, rng: SecretStream) -> Array:
        row = np.maximum(apart if present else -apart, 0.0)
        noisy = _release_rows(_multiply(mechanism, groups), row, rng, Gaussian).results
        along = (noisy @ apart).reshape(groups, rows).sum(1)
        return along / (2 * rows * mechanism.bound**2) + 0.5

    return Trial(
        event=event,
        laws=(fixed(1.0, event.noise_multiplier), fixed(0.0, event.noise_multiplier)),
        rescale=lambda factor: replace(part, mechanism=_louder(mechanism, factor)).event,
        **_by_groups(rows * nodes, release),
    )


def _try_names(mechanism: PrivateRows | GumbelTopK) -> Trial:
    """One node at the bound and all others at 0, and the other way round; how often it is first."""
    event = mechanism.event()
    leaves: list[Any] = [leaf for leaf, _ in parts_of(event)]
    noise = next(leaf.noise_multiplier for leaf in leaves if isinstance(leaf, GumbelTopKDpEvent))
    rows, k = mechanism.rows, mechanism.k
    nodes = max(k + 1, 3)
    values = isinstance(mechanism, PrivateRows) and mechanism.value_noise is not None

    def row(present: bool) -> Array:
        first = np.arange(nodes) == 0
        return mechanism.bound * (first if present else ~first).astype(np.float64)

    def chance(present: bool, places: int) -> float:
        """That the node is among the first ``places``."""
        own, other = (1.0, math.exp(-1 / noise)) if present else (math.exp(-1 / noise), 1.0)
        missed = 1.0
        for place in range(places):
            left = (nodes - 1 - place) * other
            missed *= left / (own + left)
        return 1 - missed

    def release(present: bool, groups: int, rng: SecretStream) -> Array:
        kept = _release_rows(_multiply(mechanism, groups), row(present), rng, GumbelTopK)
        return (kept.results[:, 0] == 0).reshape(groups, rows).sum(1).astype(np.float64)

    def check(rng: SecretStream) -> Iterator[Violation]:
        groups = max(1, (_VALUES if values else 20 * CALLS) // (rows * k))
        many = _multiply(mechanism, groups)
        for present in WORLDS:
            chosen = _release_rows(many, row(present), rng, GumbelTopK).results
            hits = int((chosen == 0).any(1).sum())
            yield from compare_rate(
                f"a node among the first {k}", hits, len(chosen), chance(present, k)
            )
        for kind, leaf in ((Gaussian, dpa.GaussianDpEvent), (Laplace, dpa.LaplaceDpEvent)):
            for paid in (paid for paid in leaves if isinstance(paid, leaf)):
                kept = _release_rows(many, row(True), rng, kind).pairs
                noises = np.concatenate([(result - value).ravel() for value, result in kept])
                unit = mechanism.bound * (math.sqrt(rows * k) if kind is Gaussian else 1.0)
                law = fixed(0.0, paid.noise_multiplier, laplace=kind is Laplace)
                yield from compare("noise of values", noises / unit, law)

    laws = Count(rows, chance(True, 1)), Count(rows, chance(False, 1))
    # Values one by one are slow: so many numbers as if a row of them were long.
    drawing = _by_groups(rows * nodes * (400 * k if values else 1), release)
    return Trial(event=event, laws=laws, check=check, **drawing)


# --- steps ----------------------------------------------------------------------------------------


class _Crafted:
    """Loss terms whose gradients, once clipped, all point one way: those of one unit.

    ``removed`` come first, then ``altered``; all others have no gradient. A message that is not
    delivered leaves an altered term as it is without the unit.
    """

    def __init__(self, part: Steps, present: bool, rng: SecretStream) -> None:
        self.delivery, self.rng, self.present = part.delivery, rng, present
        touched = part.removed + part.altered
        self.signs = torch.zeros(max(touched + 2, part.population if part.batch else 0))
        self.signs[: part.removed] = float(present)
        self.altered = slice(part.removed, touched)
        self.signs[self.altered] = 1.0 if present else -1.0

    def __len__(self) -> int:
        return len(self.signs)

    def begin(self, step: int) -> None:
        """Throw the coins of a step."""
        if self.present and self.delivery < 1:
            coins = self.rng.bernoulli(self.delivery, len(self.signs[self.altered]))
            self.signs[self.altered] = torch.from_numpy(2.0 * coins - 1.0).float()

    def batches(self, drawn: Tensor) -> Iterator[tuple[Tensor]]:
        """One batch; gradients are far beyond every bound."""
        yield (1e6 * self.signs[drawn].double()[:, None] * torch.tensor([0.6, 0.8]).double(),)


class _Blank:
    """Examples that are only drawn."""

    def __init__(self, count: int, delivery: float = 1.0) -> None:
        self.count, self.delivery = count, delivery

    def __len__(self) -> int:
        return self.count

    def batches(self, drawn: Tensor) -> Iterator[Any]:
        yield from ()


def _make_step(part: Steps, examples: Any, rng: SecretStream) -> PrivateStep:
    """A step of a run, on a module whose gradients are its inputs."""
    module = nn.Linear(2, 1, bias=False, dtype=torch.float64)
    plain = part.clipping in ("flat", "automatic") and isinstance(part.max_grad_norm, (int, float))
    clipping = make_clipping(part.clipping, part.max_grad_norm) if plain else Flat(1.0)
    clipped = ClippedSum(module, lambda module, batch: module(*batch).squeeze(-1), clipping)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    return PrivateStep(clipped, optimizer, examples, sampling=part.sampling, rng=rng)


def _try_steps(part: Steps, progress: Progress | None) -> Trial:
    """Terms of the unit that all point one way, and none or the other way without it."""
    event = part.sampling.event(part.population)
    removed, touched = part.removed, part.removed + part.altered
    terms = part.population if part.batch else touched

    def count_drawn(count: int, rng: SecretStream) -> NDArray[np.bool_]:
        if part.batch is None:
            return rng.bernoulli(part.rate, count * touched).reshape(count, touched)
        keys = rng.gumbel((count, terms))
        least = np.partition(keys, terms - part.batch, axis=1)[:, terms - part.batch]
        return keys[:, :touched] >= least[:, None]

    def draw(present: bool, count: int, rng: SecretStream) -> Array:
        noise = _make_step(part, _Blank(terms, part.delivery), rng)._noise
        drawn = count_drawn(count, rng)
        ours = drawn[:, removed:].sum(1, dtype=np.float64)
        if not present:
            return np.asarray(noise.release(-ours, rng))
        if part.delivery < 1:
            coins = rng.bernoulli(part.delivery, drawn[:, removed:].size)
            signs = 2.0 * coins.reshape(len(drawn), -1) - 1.0
            ours = (drawn[:, removed:] * signs).sum(1)
        return np.asarray(noise.release(ours + drawn[:, :removed].sum(1), rng))

    def call(present: bool, count: int, rng: SecretStream) -> Array:
        examples = _Crafted(part, present, rng)
        step = _make_step(part, examples, rng)
        bound = next(iter(step.clipped.scales.values()))
        weight = next(step.module.parameters())
        direction = torch.tensor([0.6, 0.8], dtype=torch.float64)
        sums = np.empty(count)
        for place in range(count) if progress is None else progress(range(count)):
            before = weight.detach().clone()
            step()
            moved = (before - weight.detach()).flatten() @ direction
            sums[place] = float(moved) * part.rate * len(examples) / bound
        return sums

    # A message that may not be delivered is charged by a bound, not by the law of this pair.
    exact = part.delivery == 1 and part.batch is None
    return Trial(
        event=event,
        laws=laws_of_step(event, part.delivery),
        draw=draw,
        call=call,
        cost=terms + 1,
        check=lambda rng: _check_batches(part, event, rng),
        rescale=(lambda factor: _louder(part, factor).event) if exact else None,
    )


def _check_batches(part: Steps, event: Any, rng: SecretStream) -> Iterator[Violation]:
    """Every batch is drawn afresh, at the rate that is charged."""
    size, pairs = part.population if part.batch else _COINS[0], _COINS[1]
    step = _make_step(part, _Blank(size, part.delivery), rng)
    sizes, common = [], 0
    for _ in range(pairs):
        one, other = (set(step._draw().tolist()) for _ in range(2))
        sizes += [len(one), len(other)]
        common += len(one & other)
    if part.batch is None:
        rate = event.rate
        yield from compare_rate("drawn terms", sum(sizes), 2 * pairs * size, rate)
        yield from compare_rate("terms in both of two batches", common, pairs * size, rate**2)
        return
    if set(sizes) != {event.batch}:
        sizes_seen = f"{min(sizes)} to {max(sizes)}"
        yield Violation(rule="batches of another size", value=sizes_seen, allowed=str(event.batch))
    # Hoeffding's inequality, which holds for draws without replacement too.
    share = common / (pairs * event.batch)
    band = dkw_band(pairs * event.batch, FALSE_ALARM / 2 / CHECKS)
    if abs(share - event.batch / size) > band:
        allowed = f"{event.batch / size:.5g} +- {band:.2g}"
        rule = "the share of a batch that is in another one is not that of fresh batches"
        yield Violation(rule=rule, value=f"{share:.5g}", allowed=allowed)


# --- parts ----------------------------------------------------------------------------------------


def make_trial(part: Part, progress: Progress | None) -> Trial | None:
    """How a part is put on trial; None where it cannot be, or promises nothing."""
    if releases_raw(part.event):
        return None
    if isinstance(part, Steps):
        return _try_steps(part, progress)
    mechanism = part.mechanism if isinstance(part, Release) else None
    if isinstance(part, Release) and isinstance(mechanism, (Gaussian, Laplace)):
        return _try_additive(part, mechanism)
    if isinstance(part, Release) and isinstance(mechanism, PrivateRows) and mechanism.how == "gm":
        return _try_values(part, mechanism)
    if isinstance(mechanism, (PrivateRows, GumbelTopK)):
        return _try_names(mechanism)
    return None


def excuse_for(part: Part) -> str:
    """Why a part is not put on trial."""
    if releases_raw(part.event):
        return "nothing is promised, and nothing was drawn"
    return (
        f"a {part.kind} of this kind has no single release to draw: see the replay and the canaries"
    )
