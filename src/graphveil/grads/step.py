r"""One private training step, and a loop's worth of them charged exactly.

    step = make_private(module, optimizer, (features, labels), sample_rate=0.1, max_grad_norm=1.0,
                        target_epsilon=8.0, target_delta=1e-5, steps=200)
    for _ in range(200):
        step()
    print(step.certificate(unit="node", delta=1e-5))

Each call draws every example by a coin of its own, sums the clipped gradients of those drawn, adds
noise once on every coordinate, divides by the *expected* batch size and lets the optimiser step. An
empty batch releases noise like any other. Nothing else about the batch is kept: not its size, not
its loss, not a norm. What modules draw on the way, such as dropout masks, comes from the secret
stream as well (:mod:`graphveil.grads.coins`).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import dp_accounting as dpa
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from graphveil import _observing, _validate, devices, processes
from graphveil._errors import BudgetError, InvalidInputError, RefusedError, UnprovenError
from graphveil.grads.checkpoint import StepCheckpoint
from graphveil.grads.clipped import ClippedSum, Losses
from graphveil.grads.clipping import Adaptive, Clipping, Off, make_clipping
from graphveil.grads.coins import devices_of, secret_coins
from graphveil.grads.examples import (
    Examples,
    Influential,
    Stepped,
    TensorExamples,
    check_delivery,
    check_influence,
    count_units,
    influence_of,
)
from graphveil.grads.journal import Witness
from graphveil.grads.modules import trained_parameters
from graphveil.grads.own_rows import MOST_DRAWN, RowExamples, RowSum
from graphveil.grads.settings import CLIPPINGS, Sampling, Target
from graphveil.graph.contents import compare_tensors
from graphveil.mechanisms import Gaussian
from graphveil.privacy.accounting import calibrate, epsilon_of
from graphveil.privacy.events import composed, repeated
from graphveil.privacy.guarantee import Certificate, Charge, certify, check_delta
from graphveil.rng import SecretStream, secret


def cross_entropy(module: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    """The usual losses of a classifier: all tensors but the last go in, the last holds labels."""
    *inputs, labels = batch
    return F.cross_entropy(module(*inputs), labels, reduction="none")


class PrivateStep:
    """A training step that knows what it has cost; made by :func:`make_private`.

    ``max_steps`` is how many are allowed, which a ``target`` lowers after a resume with other
    settings. ``promise`` says what the steps are charged for, where the event does not: a
    checkpoint of another promise is refused. A ``witness`` remembers the steps apart from the
    files. ``on_loss`` is told the mean loss of every batch, which has no noise and stands in no
    event: it is private.

    *Guarantee.* ``event`` is what all steps taken so far have released, lost ones included, for a
    unit that removes at most ``removed`` of the examples and alters at most ``altered`` others.
    Public: the number of examples, the rate, the bounds, the number of steps.
    """

    def __init__(
        self,
        clipped: ClippedSum | RowSum,
        optimizer: torch.optim.Optimizer,
        examples: Examples,
        *,
        sampling: Sampling,
        max_steps: int | None = None,
        target: Target | None = None,
        rng: SecretStream | None = None,
        promise: str = "",
        witness: Witness | None = None,
        on_loss: Callable[[float], None] | None = None,
    ) -> None:
        self.clipped, self.module = clipped, clipped.module
        self.optimizer, self.examples = optimizer, examples
        self.rng = secret() if rng is None else rng
        if not isinstance(self.rng, SecretStream):
            raise RefusedError(
                "Noise and batches must come from the secret stream. Got "
                f"{type(self.rng).__name__} instead; pass graphveil.secret(), or nothing."
            )
        self._sampling, self.max_steps, self.target = sampling, max_steps, target
        self.promise, self.witness, self.on_loss = promise, witness, on_loss
        self.one_step: dpa.DpEvent = (
            sampling.event(len(examples))
            if sampling.noise_multiplier > 0 and not isinstance(clipped.clipping, Off)
            else dpa.NonPrivateDpEvent()
        )
        self.taken, self._move = 0, devices.Mover(devices.CPU)
        self._homes: set[str] = set()  # kinds of devices that steps were taken on
        self._seen, self._loss = 0, 0.0  # of all processes, in the last step; both private
        self._aligned: processes.Ranks | None = None  # those that begin with the same weights
        self.earlier: dpa.DpEvent = dpa.NoOpDpEvent()  # charged before, for other steps than these
        self._checkpoint = StepCheckpoint(self)
        check_delivery(examples, sampling.delivery)
        most = getattr(examples, "most_drawn", MOST_DRAWN)
        if isinstance(clipped, RowSum) and sampling.sample_rate * len(examples) > most:
            raise UnprovenError(
                f"A step on rows must draw at most {most:,.0f} of them on average, for which "
                f"rounding is paid. Got {sampling.sample_rate * len(examples):,.0f} instead; take "
                "a smaller 'sample_rate'."
            )
        self._check_optimizer()

    @property
    def sample_rate(self) -> float:
        """The probability with which each example is drawn. What is charged follows from it."""
        return self._sampling.sample_rate

    @property
    def noise_multiplier(self) -> float:
        """The noise, in units of the bound. What is charged follows from it."""
        return self._sampling.noise_multiplier

    @property
    def expected_batch(self) -> float:
        """The public number that sums are divided by: how many terms a step draws on average.

        Examples whose number is private have a public ``divisor`` in its place.
        """
        return self.sample_rate * float(getattr(self.examples, "divisor", len(self.examples)))

    def _check_optimizer(self) -> None:
        """Refuse an optimizer of other parameters, and one that wants another kind of gradient."""
        held = {id(p) for group in self.optimizer.param_groups for p in group["params"]}
        every = {id(p) for p in self.module.parameters()}
        trained = trained_parameters(self.module).items()
        missing = [name for name, parameter in trained if id(parameter) not in held]
        if missing or held - every:
            raise InvalidInputError(
                "The optimizer must hold the module's trained parameters and no others. Missing: "
                f"{', '.join(missing) or 'none'}; not the module's: {len(held - every)}."
            )
        closure = inspect.signature(self.optimizer.step).parameters.get("closure")
        again = closure is not None and closure.default is inspect.Parameter.empty
        if again or isinstance(self.optimizer, torch.optim.SparseAdam):
            raise InvalidInputError(
                "The optimizer must step on one dense gradient. Got "
                f"{type(self.optimizer).__name__} instead; use SGD, Adam or another."
            )

    @property
    def event(self) -> dpa.DpEvent:
        """What has been spent so far."""
        return composed(self.earlier, repeated(self.one_step, self.taken))

    def certificate(self, *, unit: str, delta: float, **settings: Any) -> Certificate:
        """The certificate of the weights as they are now; see :func:`certify` for settings.

        What graphveil cannot see in a module, a loss and examples of one's own, it says there.
        """
        check_delta(delta, count_units(self.examples, unit))
        relation = {k: settings[k] for k in ("relation", "public_degree") if k in settings}
        charged = self._sampling.removed, self._sampling.altered
        check_influence(self.examples, charged, unit=unit, **relation)
        return certify(
            [Charge(paid_for="training of the weights", event=self.event)],
            unit=unit,
            delta=delta,
            released=settings.pop("released", "model weights"),
            void_because=[self.rng.void_reason],
            vouched=[*self._list_vouched(unit), *settings.pop("vouched", ())],
            public=[*settings.pop("public", ()), *self._list_devices()],
            **settings,
        )

    def _list_devices(self) -> list[str]:
        """What is assumed of the devices that steps were taken on."""
        return [line for home in sorted(self._homes) for line in devices.public(home)]

    def _list_vouched(self, unit: str) -> list[str]:
        """What the charges rest on and only whoever wrote module, loss and examples can know."""
        removed, altered = self._sampling.removed, self._sampling.altered
        lines = [
            "the loss of an example is a function of that example's data, of the weights and of "
            "random numbers alone: graphveil compared losses in other company and looked for what "
            "is remembered, on batches of the run, and a test is not a proof",
            "no loss turns on its last bits, which may depend on who else is in a batch where "
            "operations other than linear layers round: no gradient jumps (as those of absolute "
            "errors, of hinge losses and of plain relu do), and no numbers are so large that "
            "rounding decides",
        ]
        # Whatever else states an influence, its author's word is all there is for it.
        ours = type(self.examples).__module__.startswith("graphveil.")
        stated = ours and isinstance(self.examples, Influential)
        if not stated and type(self.examples) is not TensorExamples:
            lines.append("every example drawn is in one batch, with at most one loss")
        if not stated or getattr(self.examples, "vouched", False):
            lines.append(
                f"taking one {unit} away removes at most {removed} and alters at most {altered} of "
                f"the {len(self.examples)} loss terms"
            )
        return lines

    def __call__(self) -> None:
        """Take one step."""
        if self.max_steps is not None and self.taken >= self.max_steps:
            raise BudgetError(
                f"The budget covers {self.max_steps} steps, and all of them have been taken. Plan "
                "for more steps, or stop here."
            )
        self._check_optimizer()
        self.align()
        self._checkpoint.note_step()
        self.taken += 1  # from here on something may have been released
        if isinstance(self.examples, Stepped):
            self.examples.begin(self.taken - 1)
        ranks = processes.current()
        drawn = ranks.once(self._draw)
        home = devices.home_of(self.module).type
        self._homes.add(home)
        with devices.exact(home):
            noisy = self._release(drawn)
        if ranks.first and self._seen > len(drawn):
            raise UnprovenError(
                "The batches had more losses than there were examples drawn, so that one example "
                "counts more than once. Yield every drawn example once, with one loss."
            )
        if ranks.first and isinstance(self.examples, TensorExamples) and self._seen < len(drawn):
            raise UnprovenError(
                "There were fewer losses than examples drawn: a loss that several examples share "
                "is altered, not removed, by one of them. Give every example a loss of its own."
            )
        expected = self.expected_batch
        for name, parameter in self.module.named_parameters():
            # Whatever stood here before, in frozen parameters too, has no noise.
            grad = noisy[name] / expected if name in noisy else None
            parameter.grad = None if grad is None else grad.to(parameter.dtype)
        self.optimizer.step()
        for parameter in self.module.parameters():
            parameter.grad = None
        if self.on_loss is not None and ranks.first:
            self.on_loss(self._loss / self._seen if self._seen else math.nan)

    def _draw(self) -> Tensor:
        """Every example by a coin of its own, or a uniform choice of a fixed number of them."""
        count, size = len(self.examples), self._sampling.fixed_batch
        if size is None:
            return torch.from_numpy(self.rng.bernoulli(self.sample_rate, count)).nonzero().flatten()
        keys = torch.from_numpy(self.rng.gumbel(count))  # those with the largest of equal laws
        return keys.topk(size, sorted=False).indices

    def _batches(self, drawn: Tensor) -> Iterable[Any]:
        """Made as they are asked for, so that what making them draws is drawn by secret coins."""
        if not len(drawn):
            return
        batches, home = self.examples.batches(drawn), devices.home_of(self.module)
        if home.type == devices.CPU:
            yield from batches
            return
        if not type(self.examples).__module__.startswith("graphveil."):
            # What others make may change in place where nobody sees it.
            yield from (devices.move(batch, home) for batch in batches)
            return
        if self._move.to != home:
            self._move = devices.Mover(home)
        yield from map(self._move, batches)

    def sum_terms(self, drawn: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """The clipped sum of these terms, by parameter and as one vector in units of the noise.

        A clipping that learns has a last coordinate of its own. All of it is private.
        """
        clipping = self.clipped.clipping
        adaptive = clipping if isinstance(clipping, Adaptive) else None
        if adaptive is not None:
            adaptive.start()
        total = self.clipped(self._batches(drawn))
        scales = self.clipped.scales
        parts = [value.flatten().double() / scales[name] for name, value in total.items()]
        if adaptive is not None:
            counted = torch.tensor([adaptive.count()], dtype=torch.float64)
            parts.append(counted.to(devices.home_of(self.module)))
        return total, torch.cat(parts)

    def _release(self, drawn: Tensor) -> dict[str, Tensor]:
        """The clipped sum with noise on every coordinate: one vector, one release.

        Of several processes each sums its share; rank 0 adds the noise, once.
        """
        clipping, observer = self.clipped.clipping, _observing.current()
        ranks = processes.current()
        with secret_coins(self.rng, devices_of(self.module)):
            total, vector = self.sum_terms(ranks.share(drawn))
            if observer is not None:
                observer.step(self, drawn, vector)
        private = self.noise_multiplier > 0 and not isinstance(clipping, Off)
        scales = self.clipped.scales if private else dict.fromkeys(total, 1.0)
        if not private:
            vector = torch.cat([value.flatten().double() for value in total.values()])
        vector = self._gather(vector, ranks)
        vector = ranks.once(lambda: self._noise.release(vector, self.rng) if private else vector)
        if private and isinstance(clipping, Adaptive):
            clipping.learn(float(vector[-1]), self.expected_batch)
            vector = vector[:-1]
        pieces = vector.split([value.numel() for value in total.values()])
        return {
            name: (piece * scales[name]).view_as(value).to(value)
            for (name, value), piece in zip(total.items(), pieces, strict=True)
        }

    def _gather(self, vector: Tensor, ranks: processes.Ranks) -> Tensor:
        """All processes' vectors added up, and what they counted: on the processor of rank 0."""
        counted = torch.tensor([self.clipped.seen, self.clipped.loss], dtype=torch.float64)
        whole = ranks.add(torch.cat([vector, counted.to(vector.device)])).cpu()
        vector, counted = whole.split([len(vector), 2])
        self._seen, self._loss = int(counted[0]), float(counted[1])
        return vector

    @property
    def _noise(self) -> Gaussian:
        """In units of the bound of one term."""
        return Gaussian(noise_multiplier=self.noise_multiplier, sensitivity=1.0)

    # --- surviving a crash ----------------------------------------------------------------------

    def save(self, directory: str | Path) -> None:
        """Write a checkpoint, whole or not at all, and note every later step in ``directory``.

        Steps taken between two checkpoints are lost in a crash, but they were released and stay
        charged: one byte goes to disk before each of them.
        """
        if processes.current().first:
            self._checkpoint.save(directory)

    def resume(self, directory: str | Path) -> None:
        """Go on from the checkpoint in ``directory``; every step it ever noted is charged.

        Noise and batches are fresh: the secret stream has no state to go back to. A fixed stream
        would repeat itself and is refused. With a witness, so is a checkpoint of other steps.
        Of several processes rank 0 reads the files, and the others go on as it does.
        """
        if processes.current().first:
            self._checkpoint.resume(directory)
        self._aligned = None
        self.align()

    def align(self) -> None:
        """Have all processes begin with rank 0's weights and steps, and refuse unlike ones."""
        ranks = processes.current()
        if self._aligned is ranks:
            return
        self._aligned = ranks
        if ranks.world > 1:
            if _observing.current() is not None:
                raise InvalidInputError(
                    f"An audit looks at one process. Got {ranks.world} instead; run it without "
                    "torchrun."
                )
            ranks.agree("settings, examples and module", self._describe().encode())
            if isinstance(self.examples, TensorExamples):
                compare_tensors("examples", self.examples.tensors)
            self._checkpoint.share(ranks)

    def _describe(self) -> str:
        """What must be the same wherever a share of a step is computed."""
        clipping = self.clipped.clipping
        kind = type(clipping).__name__ if isinstance(clipping, Adaptive) else repr(clipping)
        shapes = {name: tuple(p.shape) for name, p in self.module.named_parameters()}
        fixed = self.rng.void_reason
        facts = (len(self.examples), self._sampling, self.promise, fixed, kind, shapes)
        return f"{facts} {type(self.optimizer).__name__}"

    def stay_within_target(self) -> None:
        """Lower ``max_steps`` to what the target leaves after what came before."""
        target = self.target
        if target is None or self.max_steps is None:
            return

        def fits(steps: int) -> bool:
            whole = composed(target.others, self.earlier, repeated(self.one_step, steps))
            return epsilon_of(whole, target.delta) <= target.epsilon

        if fits(self.max_steps):
            return
        low, high = -1, self.max_steps  # low fits (or nothing does), high does not
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        self.max_steps = max(low, 0)


def make_private(  # noqa: PLR0913
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    examples: Examples | Sequence[Tensor],
    *,
    sample_rate: float | None = None,
    batch_size: int | None = None,
    fixed_size: bool = False,
    noise_multiplier: float | None = None,
    target_epsilon: float | None = None,
    target_delta: float | None = None,
    steps: int | None = None,
    epochs: float | None = None,
    max_grad_norm: Any = 1.0,
    clipping: str | Clipping = "flat",
    removed: int | None = None,
    altered: int | None = None,
    losses: Losses = cross_entropy,
    directory: str | Path | None = None,
    rng: SecretStream | None = None,
) -> PrivateStep:
    """A private training step for a module, a loss and an optimiser of your own.

    Names follow Opacus. ``examples`` is a tuple of tensors (inputs and labels), or any object with
    a length and a ``batches`` method. ``losses(module, batch)`` gives one loss for each example
    (for :class:`~graphveil.grads.own_rows.RowExamples` from outputs and labels alone).
    Give ``sample_rate``, or ``batch_size`` for the expected batch (with ``fixed_size``, for every
    batch: a uniform choice without replacement, which costs more than Poisson batches do);
    ``noise_multiplier``, or
    ``target_epsilon`` with ``target_delta`` and ``steps`` (or ``epochs``), which also stops the run
    when the budget is spent. ``removed`` and ``altered`` say how many loss terms one unit touches:
    (1, 0) where each example is one unit's own, which is the default. Examples that overlap state
    a bound of their own, which is the default then, and less is refused: neighbourhoods over
    capped messages (:meth:`~graphveil.graph.neighbourhoods.RootedTerms.capped`) do. With a
    ``directory`` every step is noted on disk from the first one on, and :meth:`PrivateStep.save`
    writes checkpoints there.

    *Guarantee.* See :class:`PrivateStep`. A loss of one example that depends on another example's
    data is outside it, unless ``altered`` says so; the certificate names what is vouched for.
    """
    terms = _as_examples(examples)
    rate = _sample_rate(sample_rate, batch_size, fixed_size=fixed_size, count=len(terms))
    planned = _planned_steps(steps, epochs, rate)
    removed, altered = influence_of(terms, removed, altered)
    if removed == 0 and altered == 0:
        raise InvalidInputError(
            "The 'removed' and 'altered' parameters must not both be 0: a unit that touches no "
            "loss term is not in the data."
        )
    if (noise_multiplier is None) == (target_epsilon is None):
        raise InvalidInputError("Give either 'noise_multiplier' or 'target_epsilon'.")
    sampling = Sampling(
        sample_rate=rate,
        noise_multiplier=0.0 if noise_multiplier is None else noise_multiplier,
        removed=removed,
        altered=altered,
        fixed_batch=batch_size if fixed_size else None,
    )
    target = None
    if target_epsilon is not None:
        if target_delta is None or planned is None:
            raise InvalidInputError(
                "A 'target_epsilon' needs a 'target_delta' and the number of 'steps' (or 'epochs')."
            )
        check_delta(target_delta, count_units(terms))
        target = Target(epsilon=target_epsilon, delta=target_delta)
        sampling = _calibrate(sampling, target, len(terms), planned)
    bounds = _as_clipping(clipping, max_grad_norm)
    summed = RowSum if isinstance(terms, RowExamples) else ClippedSum
    clipped = summed(module, losses, bounds)
    step = PrivateStep(
        clipped, optimizer, terms, sampling=sampling, max_steps=planned, target=target, rng=rng
    )
    if directory is not None:
        step.save(directory)
    return step


def _as_examples(examples: Examples | Sequence[Tensor]) -> Examples:
    if not isinstance(examples, (Examples, tuple, list)):
        raise InvalidInputError(
            "The 'examples' parameter must be a tuple of tensors (inputs and labels) or an object "
            f"with a length and a 'batches' method. Got {type(examples).__name__} instead."
        )
    terms = examples if isinstance(examples, Examples) else TensorExamples(*examples)
    _validate.integer("examples", len(terms), "[1, 1e12]")
    return terms


def _sample_rate(
    sample_rate: float | None, batch_size: int | None, *, fixed_size: bool, count: int
) -> float:
    if (sample_rate is None) == (batch_size is None):
        raise InvalidInputError("Give either 'sample_rate' or 'batch_size', to say how to sample.")
    if fixed_size and batch_size is None:
        raise InvalidInputError("Batches of a fixed size need a 'batch_size', not a 'sample_rate'.")
    if batch_size is not None:
        return _validate.integer("batch_size", batch_size, f"[1, {count}]") / count
    return _validate.number("sample_rate", sample_rate, "(0, 1]")


def _planned_steps(steps: int | None, epochs: float | None, sample_rate: float) -> int | None:
    if epochs is not None:
        if steps is not None:
            raise InvalidInputError("Give either 'steps' or 'epochs', not both.")
        steps = math.ceil(_validate.number("epochs", epochs, "(0, inf)") / sample_rate)
    return None if steps is None else _validate.integer("steps", steps, "[1, 1e9]")


def _calibrate(sampling: Sampling, target: Target, count: int, steps: int) -> Sampling:
    """With the least noise that keeps all steps within the target."""

    def event(noise: float) -> dpa.DpEvent:
        return repeated(replace(sampling, noise_multiplier=noise).event(count), steps)

    noise = calibrate(event, epsilon=target.epsilon, delta=target.delta, safe=1e7, risky=1e-2)
    return replace(sampling, noise_multiplier=noise)


def _as_clipping(clipping: str | Clipping, max_grad_norm: Any) -> Clipping:
    if isinstance(clipping, str):
        return make_clipping(clipping, max_grad_norm)
    if isinstance(clipping, type) or not hasattr(clipping, "scales"):
        raise InvalidInputError(
            f"The 'clipping' parameter must be one of {', '.join(map(repr, CLIPPINGS))}, or an "
            f"object such as Flat(1.0). Got {clipping!r} instead."
        )
    return clipping
