r"""Loss terms of made-up people, each with a gradient in a direction of its own.

A canary takes part in the steps of a run as a person does: its terms are drawn by the run's coins,
clipped by the run's clipping, summed, and get the run's noise. A coin of its own, thrown before the
run, says whether it is in. There are two kinds, with g of norm 1 in units of the noise:

=========  ==================================  =================================================
removed    in: +g in each of its own terms     out: nothing
altered    the same, and +g in its receivers'  out: nothing in its own, -g in its receivers'
=========  ==================================  =================================================

It has as many own terms as a unit may remove, and as many receivers as it may alter: the worst pair
of docs/guarantees/step.md. What a delivery below 1 does not deliver is nothing, in or out.

**Directions** are distinct coordinates of the trained parameters, chosen at random, with a random
sign: noise is alike and independent on all of them. Where every layer is clipped by itself, a
direction has one coordinate in each layer. So two canaries share no coordinate, and what one adds
does not show in another's.

**Scores.** Whoever tests a guarantee may know everybody else's data and coins: the proof gives them
away. So what all real terms add is taken off what was released, and a canary's score is made of
what is left on its own coordinates: noise, and its own terms. No private row enters it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from graphveil._errors import InvalidInputError
from graphveil._observing import Observer
from graphveil.grads.clipping import Clipping, Off, PerLayer
from graphveil.grads.examples import Influential, Stepped, TensorExamples
from graphveil.grads.modules import trained_parameters
from graphveil.grads.own_rows import RowSum
from graphveil.grads.settings import Sampling
from graphveil.privacy._mixture import BinomialGaussian
from graphveil.rng import seeded

Array = NDArray[np.float64]
Coins = NDArray[np.bool_]
KINDS = ("removed", "altered")

_LONG = 2.0**20  # raw gradients, in bounds: always clipped
_MOST_TERMS = 2_000_000  # of all canaries of a part
_POINTS = 8193  # of the table of log-likelihood ratios
_REACH = 10.0  # standard deviations


@dataclass(frozen=True, kw_only=True)
class Law:
    """What a canary's coordinate shows in one step, in units of its gradient.

    In: Bin(own, rate) + Bin(receivers, receiver_rate) + noise N(0, 1). Out: -Bin(receivers,
    receiver_rate) + noise N(0, 1).
    """

    own: int
    receivers: int
    rate: float
    receiver_rate: float
    noise: float

    @cached_property
    def _table(self) -> tuple[Array, Array]:
        reach = _REACH * self.noise
        x = np.linspace(-self.receivers - reach, self.own + self.receivers + reach, _POINTS)
        others = self.receivers, self.receiver_rate
        present = BinomialGaussian(self.own, self.rate, self.noise, others)
        withheld = BinomialGaussian(self.receivers, self.receiver_rate, self.noise)
        return x, present.log_tilt(x)[0] - withheld.log_tilt(-x[::-1])[0][::-1]

    def log_ratio(self, x: Array) -> Array:
        """The logarithm of how much likelier ``x`` is in than out; ascends."""
        return np.interp(x, *self._table)

    def separation(self, steps: int) -> float:
        """Between the sums of ratios in and out: means, in units of their standard deviation."""
        x, ratios = self._table
        others = self.receivers, self.receiver_rate
        present = BinomialGaussian(self.own, self.rate, self.noise, others)
        withheld = BinomialGaussian(self.receivers, self.receiver_rate, self.noise)
        weights = present.masses(x), withheld.masses(-x[::-1])[::-1]
        middles = (ratios[1:] + ratios[:-1]) / 2
        means = [float(weight @ middles) for weight in weights]
        squares = [float(weight @ middles**2) for weight in weights]
        variance = sum(squares) / 2 - sum(mean**2 for mean in means) / 2
        return float((means[0] - means[1]) * np.sqrt(steps / variance))

    @property
    def means(self) -> tuple[float, float]:
        """Of one step, in and out."""
        received = self.receivers * self.receiver_rate
        return self.own * self.rate + received, -received

    @property
    def variances(self) -> tuple[float, float]:
        """Of one step, in and out."""
        received = self.receivers * self.receiver_rate * (1 - self.receiver_rate)
        own = self.own * self.rate * (1 - self.rate)
        return own + received + self.noise**2, received + self.noise**2


@dataclass(eq=False)
class Group:
    """Canaries of one kind, which of them are ``inside``, and what was seen of them so far.

    ``likelihoods`` are sums over steps of log-likelihood ratios, ``sums`` of what was seen itself.
    """

    kind: str
    inside: Coins
    own: int
    receivers: int
    likelihoods: Array = field(init=False)
    sums: Array = field(init=False)

    def __post_init__(self) -> None:
        self.likelihoods, self.sums = np.zeros(len(self)), np.zeros(len(self))

    def __len__(self) -> int:
        return len(self.inside)

    @property
    def terms(self) -> int:
        """Of one canary."""
        return self.own + self.receivers

    def signs(self, delivered: Coins) -> Array:
        """What each term of each canary is of its direction; ``delivered`` by canary, receiver."""
        signs = np.empty((len(self), self.terms))
        signs[:, : self.own] = self.inside[:, None]
        signs[:, self.own :] = np.where(self.inside[:, None], 1.0, -1.0) * delivered
        return signs


@dataclass(frozen=True, eq=False)
class CanaryBatch:
    """The canaries' terms that were drawn, by their places behind the last real term."""

    drawn: Tensor


class CanaryExamples:
    """The loss terms of ``inner``, and behind them those of all canaries, group by group."""

    def __init__(self, inner: Any, groups: list[Group], delivery: float, rng: Any) -> None:
        self.inner, self.groups, self._delivery, self._rng = inner, groups, delivery, rng
        if isinstance(inner, Influential):
            self.influence = inner.influence
        self.owners = np.concatenate(
            [
                start + np.repeat(np.arange(len(group)), group.terms)
                for group, start in zip(groups, _starts(map(len, groups)), strict=True)
            ]
        )
        self._deliver()

    def __getattr__(self, name: str) -> Any:
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __len__(self) -> int:
        return len(self.inner) + len(self.owners)

    def begin(self, step: int) -> None:
        """Begin a step of the real terms, and throw the canaries' coins for deliveries."""
        if isinstance(self.inner, Stepped):
            self.inner.begin(step)
        if self._delivery < 1:
            self._deliver()

    def _deliver(self) -> None:
        signs = []
        for group in self.groups:
            coins = self._rng.random((len(group), group.receivers)) < self._delivery
            signs.append(group.signs(coins).ravel())
        self.signs = np.concatenate(signs)

    def batches(self, drawn: Tensor) -> Iterator[Any]:
        """The batches of the real terms, and one of the canaries."""
        real = drawn < len(self.inner)
        if bool(real.any()):
            yield from self.inner.batches(drawn[real])
        if not bool(real.all()):
            yield CanaryBatch(drawn[~real] - len(self.inner))


class _CanaryTensors(CanaryExamples, TensorExamples):
    """Beside rows of tensors, of which every one that is drawn must have a loss."""


@dataclass(frozen=True, eq=False)
class Directions:
    """Orthonormal vectors: row i is ``values[i]`` at ``places[i]``, which no other row has."""

    places: NDArray[np.int64]
    values: Array

    def project(self, vector: Array) -> Array:
        """The coordinate of ``vector`` in every direction."""
        result: Array = (vector[self.places] * self.values).sum(1)
        return result

    def first(self, count: int) -> Directions:
        """The first of them."""
        return Directions(self.places[:count], self.values[:count])


def draw_directions(blocks: Mapping[str, int], *, apart: bool, rng: Any) -> Directions:
    """As many as there are, in a vector that is made of ``blocks``, by their sizes.

    Blocks that are clipped ``apart`` have one coordinate each of every direction.
    """
    sizes = list(blocks.values())
    starts = _starts(sizes)
    if apart:
        count = min(sizes)
        chosen = [s + rng.permutation(n)[:count] for s, n in zip(starts, sizes, strict=True)]
        places = np.stack(chosen, 1)
    else:
        places = rng.permutation(sum(sizes))[:, None]
    signs = np.where(rng.random(places.shape) < 0.5, 1.0, -1.0)
    return Directions(places, signs / np.sqrt(places.shape[1]))


class CanarySum:
    """The clipped sum of ``inner``, and the clipped gradients of the canaries that were drawn.

    ``others`` is what the real terms of the last sum add up to, in units of the noise.
    """

    def __init__(self, inner: Any, examples: CanaryExamples, directions: Directions) -> None:
        self.inner, self.examples, self.directions = inner, examples, directions
        self.seen, self.loss = 0, 0.0
        self.others: Array = np.zeros(0)
        blocks = block_sizes(inner.module)
        self._names = list(blocks)
        self._block = np.repeat(np.arange(len(blocks)), list(blocks.values()))[directions.places]
        # How much of a direction is in each block: squares, by canary.
        self._shares = [
            (directions.values**2 * (self._block == number)).sum(1) for number in range(len(blocks))
        ]

    def __getattr__(self, name: str) -> Any:
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)

    @property
    def scales(self) -> dict[str, float]:
        """The noise unit of every parameter."""
        scales: dict[str, float] = self.inner.scales
        return scales

    def __call__(self, batches: Iterable[Any]) -> dict[str, Tensor]:
        """The clipped sum of the real terms and of the canaries, by parameter name."""
        drawn: list[Tensor] = []
        total: dict[str, Tensor] = self.inner(_set_aside(batches, drawn))
        self.seen, self.loss = self.inner.seen, self.inner.loss
        scales = self.inner.scales
        real = [value.detach().flatten().double().cpu() / scales[k] for k, value in total.items()]
        self.others = torch.cat(real).numpy()
        if drawn:
            terms = torch.cat(drawn).numpy()
            self.seen += len(terms)
            added = torch.from_numpy(self.clip(terms, self.inner.clipping))
            pieces = added.split([value.numel() for value in total.values()])
            for (name, value), piece in zip(total.items(), pieces, strict=True):
                value += (piece * scales[name]).view_as(value).to(value)
        return total

    def clip(self, terms: NDArray[np.int64], clipping: Clipping) -> Array:
        """The clipped gradients of these terms, added up, in units of the noise."""
        owners, signs = self.examples.owners[terms], self.examples.signs[terms]
        factors = self._factors(owners, np.abs(signs), clipping)
        count = len(self.directions.places)
        result = np.zeros(len(self.others))
        for number, factor in enumerate(factors):
            weights = np.bincount(owners, signs * factor, minlength=count)
            within = self._block == number
            values = self.directions.values * weights[:, None]
            result[self.directions.places[within]] = values[within]
        return result

    def _factors(
        self, owners: NDArray[np.int64], lengths: Array, clipping: Clipping
    ) -> list[Array]:
        """What clipping leaves of raw gradients, which are far beyond every bound."""
        scales = clipping.scales(self._names)
        norms = {
            name: torch.from_numpy((_LONG * scales[name] * lengths) ** 2 * share[owners])
            for name, share in zip(self._names, self._shares, strict=True)
        }
        factors = clipping.factors(norms)
        return [_LONG * factors[name].numpy() for name in self._names]

    def amplitudes(self) -> Array:
        """The length of a clipped gradient of every canary, in units of the noise."""
        owners = np.arange(len(self.directions.places))
        clipping = copy.deepcopy(self.inner.clipping)  # one that counts shall not count this
        factors = self._factors(owners, np.ones(len(owners)), clipping)
        squares = [f**2 * share for f, share in zip(factors, self._shares, strict=True)]
        lengths: Array = np.sqrt(np.sum(squares, axis=0))
        return lengths


class _CanaryRowSum(CanarySum, RowSum):
    """Beside rows, of which no more may be drawn than rounding is paid for."""


class Trial:
    """The canaries of one part: who they are, where they are, and their scores so far.

    At most ``canaries`` of each of ``kinds``, and no more than there are directions for.
    """

    def __init__(
        self,
        name: str,
        sampling: Sampling,
        *,
        canaries: int,
        kinds: Iterable[str],
        seed: int,
    ) -> None:
        self.name, self.sampling, self.kinds = name, sampling, tuple(kinds)
        self.canaries = canaries
        self.rng = seeded(seed, f"canaries of {name}").generator()
        self.groups: list[Group] = []
        self.laws: list[Law] = []
        self.taken = 0

    def equip(self, clipped: Any, examples: Any) -> tuple[Any, Any]:
        """Place the canaries, and throw the coins that say who is in.

        Where no kind of canaries can be in, all stays as it is.
        """
        self.one_step = self.sampling.event(len(examples))
        kinds = [kind for kind in self.kinds if kind != "altered" or self.sampling.altered]
        if not kinds:
            return clipped, examples
        apart = isinstance(clipped.clipping, PerLayer)
        blocks = block_sizes(clipped.module)
        directions = draw_directions(blocks, apart=apart, rng=self.rng)
        own = max(self.sampling.removed, 1)
        sizes = {"removed": (own, 0), "altered": (self.sampling.removed, self.sampling.altered)}
        for kind in kinds:
            most = _MOST_TERMS // (len(kinds) * sum(sizes[kind]))
            count = min(self.canaries, most, len(directions.places) // len(kinds))
            if count < 1:
                raise InvalidInputError(
                    f"The steps of '{self.name}' must leave room for a canary of every kind. Got "
                    f"{len(directions.places)} directions, and units that touch "
                    f"{sum(sizes[kind])} loss terms, instead; try fewer kinds."
                )
            self.groups.append(Group(kind, self.rng.random(count) < 0.5, *sizes[kind]))
        directions = directions.first(sum(map(len, self.groups)))
        tensors = isinstance(examples, TensorExamples)
        examples = (_CanaryTensors if tensors else CanaryExamples)(
            examples, self.groups, self.sampling.delivery, self.rng
        )
        summed = _CanaryRowSum if isinstance(clipped, RowSum) else CanarySum
        self.sum = summed(clipped, examples, directions)
        self.one_step = self.sampling.event(len(examples))
        self._write_laws(len(examples))
        return self.sum, examples

    def _write_laws(self, terms: int) -> None:
        sampling = self.sampling
        size = sampling.fixed_batch
        rate = sampling.sample_rate if size is None else size / terms
        self.amplitude = float(self.sum.amplitudes().mean())
        self.laws = [
            Law(
                own=group.own,
                receivers=group.receivers,
                rate=rate,
                receiver_rate=rate * sampling.delivery,
                noise=sampling.noise_multiplier / self.amplitude,
            )
            for group in self.groups
        ]

    def score(self, released: Array) -> None:
        """Add what a step has released to the scores of all canaries."""
        self.taken += 1
        left = released[: len(self.sum.others)] - self.sum.others
        places = self.sum.directions.project(left) / self.amplitude
        start = 0
        for group, law in zip(self.groups, self.laws, strict=True):
            here = places[start : start + len(group)]
            group.likelihoods += law.log_ratio(here)
            group.sums += here
            start += len(group)


class Canaries(Observer):
    """Puts canaries into every private part that takes steps, and keeps their scores."""

    def __init__(self, *, canaries: int, kinds: Iterable[str], seed: int) -> None:
        self._how: dict[str, Any] = {"canaries": canaries, "kinds": tuple(kinds), "seed": seed}
        self.trials: list[Trial] = []
        self._awaited: Trial | None = None

    def equip(self, part: Any, clipped: Any, examples: Any) -> tuple[Any, Any]:
        """Add the canaries, where there is noise to hide them."""
        if part.noise_multiplier == 0 or isinstance(clipped.clipping, Off):
            return clipped, examples
        trial = Trial(part.name, part.sampling, **self._how)
        equipped = trial.equip(clipped, examples)
        if trial.groups:
            self.trials.append(trial)
        return equipped

    def step(self, step: Any, drawn: Any, vector: Any) -> None:
        """Note whose sum it is that will be released next."""
        for trial in self.trials:
            if trial.sum is step.clipped:
                self._awaited = trial

    def release(self, mechanism: Any, value: Any, result: Any) -> Any:
        """Score the canaries by what a step releases."""
        if self._awaited is not None:
            self._awaited.score(np.asarray(result))
            self._awaited = None
        return result


def block_sizes(module: Any) -> dict[str, int]:
    """The numbers of trained parameters, by layer, in their order."""
    sizes: dict[str, int] = {}
    for name, value in trained_parameters(module).items():
        block = name.rpartition(".")[0]
        sizes[block] = sizes.get(block, 0) + value.numel()
    return sizes


def _set_aside(batches: Iterable[Any], drawn: list[Tensor]) -> Iterator[Any]:
    """The real batches, as they are asked for; canaries go to ``drawn``."""
    for batch in batches:
        if isinstance(batch, CanaryBatch):
            drawn.append(batch.drawn)
        else:
            yield batch


def _starts(sizes: Iterable[int]) -> list[int]:
    """Where each of these begins, one laid behind the other."""
    starts, start = [], 0
    for size in sizes:
        starts.append(start)
        start += size
    return starts
