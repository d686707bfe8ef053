"""Records everything a run draws and releases, and answers a second run with the first's releases.

World A is run and recorded. World B, a neighbour, is run with the same secret stream, and every
release is answered with what A released: whatever follows a release must then be the same in both,
to the last bit. So at each step both worlds have the same weights, and the terms of both can be
computed side by side, with the same coins.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from graphveil._observing import Observer, observe
from graphveil.audit.optimising import Optimising
from graphveil.audit.results import Violation
from graphveil.grads.clipping import Adaptive
from graphveil.grads.coins import generator_states, same_coins, set_generators
from graphveil.grads.modules import trained_parameters

AT_ONCE = 1024  # terms that are computed together; where they differ, halves of them are
ALONE = 48  # terms of a step that are computed one by one for their norms
_ROUNDING = 2.0**-8  # of a norm; sums in float32 are clipped a little lower, and pay for so much
_STRICT = 1e-9  # of other sums


@dataclass
class Step:
    """One step of world A: what it drew and summed. All of it is private."""

    part: str
    number: int
    drawn: Tensor
    vector: Tensor
    draws: bool  # from generators that all code shares


@dataclass
class Released:
    """One release of world A."""

    part: str
    mechanism: Any
    value: np.ndarray
    result: np.ndarray


@dataclass
class Recording:
    """A run of world A."""

    parts: list[Any] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    released: list[Released] = field(default_factory=list)
    draws: list[int] = field(default_factory=list)
    live: dict[str, Any] = field(default_factory=dict)  # the step object of each part
    violations: list[Violation] = field(default_factory=list)
    weights: dict[str, Tensor] = field(default_factory=dict)


class Recorder(Observer):
    """Records world A, and looks at each step's terms by themselves."""

    def __init__(self) -> None:
        self.recording = Recording()
        self.part: Any = None
        self._scales: dict[str, float] = {}  # of the step that runs: a clipping may learn in it

    @property
    def name(self) -> str:
        """The part that runs now."""
        return "" if self.part is None else str(self.part.name)

    def begin(self, part: Any) -> None:
        """Note that a part begins."""
        self.part = part
        self.recording.parts.append(part)

    def draw(self, count: int) -> None:
        """Note how much is read from the stream."""
        self.recording.draws.append(count)

    def step(self, step: Any, drawn: Tensor, vector: Tensor) -> None:
        """Note the sum, and compare it with the sum of its terms alone."""
        number, vector = step.taken - 1, _gradient(step, vector)
        self._scales = dict(step.clipped.scales)
        if self.recording.live.get(self.name) is not step:
            self.watch(step)
        draws = _sum_of(step, drawn[:1])[1]
        self.recording.steps.append(Step(self.name, number, drawn.clone(), vector.clone(), draws))
        if len(drawn.unique()) < len(drawn):
            self.recording.violations.append(
                Violation(
                    rule="a term is drawn twice in a step",
                    part=self.name,
                    step=number,
                    value=_ids(drawn),
                )
            )
        if not looked_at(number):
            return
        alone = [_sum_of(step, term.reshape(1))[0] for term in drawn[:ALONE]]
        for term, value in zip(drawn[:ALONE].tolist(), alone, strict=True):
            self._check_norm(number, term, float(value.norm()))
        if not draws:
            rest = [_sum_of(step, drawn[ALONE:])[0]] if len(drawn) > ALONE else []
            together = sum([*alone, *rest], torch.zeros_like(vector))
            self._check_company(step, number, len(drawn), float((together - vector).norm()))

    def watch(self, step: Any) -> None:
        """Look at what the optimiser of these steps gets, from now on."""
        self.recording.live[self.name] = step
        Optimising(self.part, step, self.recording.violations).watch()
        step.optimizer.register_step_pre_hook(lambda *_: self._check_divisor(step))

    def _check_divisor(self, step: Any) -> None:
        """What the optimiser gets must be the released vector over the expected, public, size."""
        parameters = trained_parameters(step.module)
        gradients = [p.grad for p in parameters.values() if p.grad is not None]
        if not gradients or not self.recording.released:
            return
        units = [
            torch.full((p.numel(),), self._scales[n], dtype=torch.float64)
            for n, p in parameters.items()
        ]
        units = [u for u, p in zip(units, parameters.values(), strict=True) if p.grad is not None]
        released = torch.as_tensor(self.recording.released[-1].result).flatten()
        vector = _gradient(step, released) * torch.cat(units)
        given = torch.cat([gradient.flatten().double() for gradient in gradients])
        expected = step.expected_batch
        # A sum in the digits of the weights is rounded, and divided, and rounded again.
        digits = max(torch.finfo(gradient.dtype).eps for gradient in gradients)
        if not torch.allclose(given * expected, vector, rtol=4 * digits, atol=0):
            size = float((vector @ vector) / (given @ vector))
            self.recording.violations.append(
                Violation(
                    rule="the optimiser gets something else than the released sum over the "
                    "expected batch size",
                    part=self.name,
                    step=step.taken - 1,
                    value=f"divided by about {size:.5g}",
                    allowed=f"{expected:.5g}",
                )
            )

    def _check_norm(self, number: int, term: int, norm: float) -> None:
        # Written so that a norm that is no number fails.
        if not norm <= 1 + _STRICT:
            self.recording.violations.append(
                Violation(
                    rule="a term is longer than its bound, in units of the noise",
                    part=self.name,
                    step=number,
                    term=term,
                    value=f"{norm:.6g}",
                    allowed="1",
                )
            )

    def _check_company(self, step: Any, number: int, count: int, apart: float) -> None:
        """A batch's terms alone must add up to the whole."""
        # Terms that are summed in float32 blocks pay for 2^-8 of a bound each; others for 1e-9.
        blocks = getattr(step.examples, "ids", None) is not None
        allowed = (_ROUNDING if blocks else _STRICT) * max(1, count)
        if not apart <= allowed:
            self.recording.violations.append(
                Violation(
                    rule="terms alone do not add up to the terms together: one knows its company",
                    part=self.name,
                    step=number,
                    value=f"{apart:.3g} apart",
                    allowed=f"{allowed:.3g}",
                )
            )

    def release(self, mechanism: Any, value: Any, result: Any) -> Any:
        """Note what leaves."""
        self.recording.released.append(
            Released(self.name, mechanism, np.array(value), np.array(result))
        )
        return result


class Follower(Recorder):
    """World B: answers every release with world A's, and compares what was to be released.

    ``own`` says which terms of a part's examples are the withheld unit's: they are left out.
    """

    def __init__(self, first: Recording, own: Callable[[Any], Tensor] | None) -> None:
        super().__init__()
        self.first, self.own = first, own
        self.changed: dict[tuple[str, int], tuple[int, int]] = {}  # terms removed and altered

    def equip(self, part: Any, clipped: Any, examples: Any) -> tuple[Any, Any]:
        """Leave the unit's own terms out."""
        gone = torch.empty(0).long() if self.own is None else self.own(examples)
        return clipped, WithoutTerms(examples, gone)

    def step(self, step: Any, drawn: Tensor, vector: Tensor) -> None:
        """Compare batch and terms with those of world A."""
        here, vector = step.taken - 1, _gradient(step, vector)
        same = [old for old in self.first.steps if (old.part, old.number) == (self.name, here)]
        self.recording.steps.append(Step(self.name, here, drawn.clone(), vector.clone(), False))
        if not same:
            self._note("a step that the other data set does not take", here)
            return
        first = same[0]
        if not torch.equal(first.drawn, drawn):
            self._note("the batch follows the data", here, _ids(drawn), _ids(first.drawn))
            return
        charged = step._sampling.removed, step._sampling.altered
        if looked_at(here):
            self._check_count(self._compare_terms(step, here), charged, here)
        if vector.shape != first.vector.shape:
            self._note("sums have other shapes", here)
        elif not first.draws:
            moved, most = float((vector - first.vector).norm()), charged[0] + 2 * charged[1]
            if not moved <= most + _ROUNDING * max(1, most):
                self._note("the sum moves further than is charged", here, f"{moved:.6g}", f"{most}")

    def _check_count(self, seen: tuple[int, int], charged: tuple[int, int], number: int) -> None:
        self.changed[self.name, number] = seen
        if not covers(charged, seen):
            self._note(
                "more terms change than are charged",
                number,
                f"{seen[0]} removed, {seen[1]} altered",
                f"{charged[0]} removed, {charged[1]} altered",
            )

    def _compare_terms(self, step: Any, number: int) -> tuple[int, int]:
        """How many terms one unit removes and alters, all terms looked at, drawn or not."""
        other, removed, altered = self.first.live[self.name], 0, 0
        with _same_weights(other, step):
            waiting = list(torch.arange(len(step.examples)).split(AT_ONCE))
            while waiting:
                ids = waiting.pop()
                one, two = _sum_of(other, ids)[0], _sum_of(step, ids)[0]
                if torch.equal(one, two):
                    continue
                if len(ids) > 1:
                    waiting += ids.tensor_split(2)
                    continue
                removed += not two.any()  # a term that vanishes is no more than removed
                altered += bool(two.any())
                for norm in (float(one.norm()), float(two.norm())):
                    self._check_norm(number, int(ids), norm)
        return removed, altered

    def release(self, mechanism: Any, value: Any, result: Any) -> Any:
        """Compare shapes and mechanisms, and answer with world A's release."""
        place = len(self.recording.released)
        super().release(mechanism, value, result)
        if place >= len(self.first.released):
            self._note("a release that the other data set does not make")
            return result
        first = self.first.released[place]
        if (first.part, first.mechanism, first.result.shape) != (
            self.name,
            mechanism,
            np.shape(result),
        ):
            self._note(
                "a release follows the data",
                value=f"{mechanism} of shape {np.shape(result)}",
                allowed=f"{first.mechanism} of shape {first.result.shape}",
            )
            return result
        return first.result.copy()

    def _note(self, rule: str, step: int | None = None, value: str = "", allowed: str = "") -> None:
        self.recording.violations.append(
            Violation(rule=rule, part=self.name, step=step, value=value, allowed=allowed)
        )


class WithoutTerms:
    """Examples of which some, ``gone``, are drawn like all others and add nothing."""

    def __init__(self, examples: Any, gone: Tensor) -> None:
        self.examples, self.gone = examples, gone

    def __len__(self) -> int:
        return len(self.examples)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.examples, name)

    def batches(self, drawn: Tensor) -> Iterable[Any]:
        """Those that are not gone."""
        here = drawn[~torch.isin(drawn, self.gone)]
        if len(here):
            yield from self.examples.batches(here)


def looked_at(number: int) -> bool:
    """Whether a step's terms are looked at one by one: the first three, then 10, 100, ..."""
    return number < 3 or (
        number % 10 == 0 and set(str(number)[1:]) == {"0"} and str(number)[0] == "1"
    )


def covers(charged: tuple[int, int], seen: tuple[int, int]) -> bool:
    """Whether (removed, altered) is dominated by what is charged."""
    return seen[1] <= charged[1] and sum(seen) <= sum(charged)


@contextlib.contextmanager
def record(observer: Observer, seed: int) -> Iterator[None]:
    """Let an observer look on, with generators that all code shares at a public ``seed``.

    Two worlds, and one world twice, get different seeds: what a step uses must not follow them.
    """
    before = generator_states()
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)
    try:
        with observe(observer):
            yield
    finally:
        set_generators(before)


def weights_of(network: nn.Module) -> dict[str, Tensor]:
    """Everything that a network holds."""
    return {name: value.detach().clone() for name, value in network.state_dict().items()}


def tensor_sizes(module: nn.Module) -> list[int]:
    """Of what is trained, in the order in which it is released."""
    return [value.numel() for value in trained_parameters(module).values()]


def _sum_of(step: Any, ids: Tensor) -> tuple[Tensor, bool]:
    """The clipped sum of these terms, with the step's coins; whether shared generators moved."""
    clipped = step.clipped
    seen, loss = clipped.seen, clipped.loss
    with same_coins():
        before = torch.get_rng_state()
        vector = _gradient(step, step.sum_terms(ids)[1])
        draws = not torch.equal(before, torch.get_rng_state())
    clipped.seen, clipped.loss = seen, loss
    return vector, draws


def _gradient(step: Any, vector: Tensor) -> Tensor:
    """Without the coordinate that a clipping learns from, which has a noise of its own."""
    return vector[:-1] if isinstance(step.clipped.clipping, Adaptive) else vector


@contextlib.contextmanager
def _same_weights(first: Any, second: Any) -> Iterator[None]:
    """Have the first world's step compute with the second's weights, bound and step number."""
    kept, clipping = weights_of(first.module), first.clipped.clipping
    training = first.module.training
    first.module.load_state_dict(second.module.state_dict())
    first.module.train(second.module.training)
    first.clipped.clipping = second.clipped.clipping
    if hasattr(first.examples, "deliver"):
        first.examples.deliver(second.examples.coins)
    elif hasattr(first.examples, "begin"):
        first.examples.begin(second.taken - 1)
    try:
        yield
    finally:
        first.module.load_state_dict(kept)
        first.module.train(training)
        first.clipped.clipping = clipping


def _ids(drawn: Tensor) -> str:
    shown = ", ".join(map(str, drawn[:8].tolist()))
    return f"{len(drawn)} terms ({shown}{', ...' if len(drawn) > 8 else ''})"
