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

import copy
import inspect
import io
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import dp_accounting as dpa
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from graphveil import _validate
from graphveil._errors import BudgetError, InvalidInputError, RefusedError, UnprovenError
from graphveil._files import private_directory, write_file
from graphveil.grads.clipped import ClippedSum, Losses
from graphveil.grads.clipping import Automatic, Clipping, Flat, Off, PerLayer, Quantile
from graphveil.grads.coins import devices_of, tossing
from graphveil.grads.examples import (
    Examples,
    Influential,
    Stepped,
    TensorExamples,
    check_influence,
    count_units,
    influence_of,
)
from graphveil.grads.journal import Journal, Witness
from graphveil.grads.linear import LinearSum, SparseExamples
from graphveil.mechanisms import Gaussian
from graphveil.privacy.accounting import calibrate, epsilon
from graphveil.privacy.events import (
    RevealedCountGaussianDpEvent,
    SampledGaussianDpEvent,
    composed,
    from_json,
    repeated,
    to_json,
)
from graphveil.privacy.guarantee import Certificate, Charge, certify, check_delta
from graphveil.rng import SecretStream, secret


def cross_entropy(module: nn.Module, batch: Sequence[Tensor]) -> Tensor:
    """The usual losses of a classifier: all tensors but the last go in, the last holds labels."""
    *inputs, labels = batch
    return F.cross_entropy(module(*inputs), labels, reduction="none")


class PrivateStep:
    """A training step that knows what it has cost; made by :func:`make_private`.

    *Guarantee.* ``event`` is what all steps taken so far have released, lost ones included, for a
    unit that removes at most ``removed`` of the examples and alters at most ``altered`` others.
    Public: the number of examples, the rate, the bounds, the number of steps.
    """

    def __init__(
        self,
        clipped: ClippedSum,
        optimizer: torch.optim.Optimizer,
        examples: Examples,
        *,
        sample_rate: float,
        noise_multiplier: float,
        removed: int = 1,
        altered: int = 0,
        fixed_batch: int | None = None,
        max_steps: int | None = None,
        target: tuple[float, float] | None = None,
        rng: SecretStream | None = None,
    ) -> None:
        self.module, self.optimizer, self.examples = clipped.module, optimizer, examples
        self.clipped = clipped
        self.rng = secret() if rng is None else rng
        if not isinstance(self.rng, SecretStream):
            raise RefusedError(
                "Noise and batches must come from the secret stream. Got "
                f"{type(self.rng).__name__} instead; pass graphveil.secret(), or nothing."
            )
        self._sample_rate, self._noise_multiplier = sample_rate, noise_multiplier
        self._fixed_batch, self._influence = fixed_batch, (removed, altered)
        self.max_steps, self.target = max_steps, target
        self.beside: dpa.DpEvent = dpa.NoOpDpEvent()  # what else the target pays for
        self.one_step: dpa.DpEvent = (
            _event(sample_rate, noise_multiplier, removed, altered, len(examples), fixed_batch)
            if noise_multiplier > 0 and not isinstance(clipped.clipping, Off)
            else dpa.NonPrivateDpEvent()
        )
        self.taken = 0
        # Is told the mean loss of every batch, which has no noise and stands in no event: private.
        self.on_loss: Callable[[float], None] | None = None
        self._earlier: dpa.DpEvent = dpa.NoOpDpEvent()
        self._journal: Journal | None = None
        self.witness: Witness | None = None
        self._place = Path()  # where the journal is, by the name that the witness knows
        self._witnessed = 0  # steps that it knows of
        # What the steps are charged for, if whoever made this has more to say than the event does.
        self.promise = ""
        self._check_optimizer()

    @property
    def sample_rate(self) -> float:
        """The probability with which each example is drawn. What is charged follows from it."""
        return self._sample_rate

    @property
    def noise_multiplier(self) -> float:
        """The noise, in units of the bound. What is charged follows from it."""
        return self._noise_multiplier

    def _check_optimizer(self) -> None:
        """Refuse an optimizer of other parameters, and one that wants another kind of gradient."""
        held = {id(p) for group in self.optimizer.param_groups for p in group["params"]}
        every = {id(p) for p in self.module.parameters()}
        missing = [
            name
            for name, p in self.module.named_parameters()
            if p.requires_grad and id(p) not in held
        ]
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
        return composed(self._earlier, repeated(self.one_step, self.taken))

    def certificate(self, *, unit: str, delta: float, **settings: Any) -> Certificate:
        """The certificate of the weights as they are now; see :func:`certify` for settings.

        What graphveil cannot see in a module, a loss and examples of one's own, it says there.
        """
        check_delta(delta, count_units(self.examples, unit))
        relation = {k: settings[k] for k in ("relation", "public_degree") if k in settings}
        check_influence(self.examples, self._influence, unit=unit, **relation)
        return certify(
            [Charge(paid_for="training of the weights", event=self.event)],
            unit=unit,
            delta=delta,
            released=settings.pop("released", "model weights"),
            void_because=[self.rng.void_reason],
            vouched=[*self._vouched(unit), *settings.pop("vouched", ())],
            **settings,
        )

    def _vouched(self, unit: str) -> list[str]:
        """What the charges rest on and only whoever wrote module, loss and examples can know."""
        removed, altered = self._influence
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
        if self._journal is not None:
            self._note(self._journal)
        self.taken += 1  # from here on something may have been released
        if isinstance(self.examples, Stepped):
            self.examples.begin(self.taken - 1)
        drawn = self._draw()
        noisy = self._release(self._batches(drawn))
        if self.clipped.seen > len(drawn):
            raise UnprovenError(
                "The batches had more losses than there were examples drawn, so that one example "
                "counts more than once. Yield every drawn example once, with one loss."
            )
        if isinstance(self.examples, TensorExamples) and self.clipped.seen < len(drawn):
            raise UnprovenError(
                "There were fewer losses than examples drawn: a loss that several examples share "
                "is altered, not removed, by one of them. Give every example a loss of its own."
            )
        expected = self.sample_rate * len(self.examples)
        for name, parameter in self.module.named_parameters():
            # Whatever stood here before, in frozen parameters too, has no noise.
            grad = noisy[name] / expected if name in noisy else None
            parameter.grad = None if grad is None else grad.to(parameter.dtype)
        self.optimizer.step()
        for parameter in self.module.parameters():
            parameter.grad = None
        if self.on_loss is not None:
            seen = self.clipped.seen
            self.on_loss(self.clipped.loss / seen if seen else math.nan)

    def _draw(self) -> Tensor:
        """Every example by a coin of its own, or a uniform choice of a fixed number of them."""
        count = len(self.examples)
        if self._fixed_batch is None:
            coins = self.rng.bernoulli(self.sample_rate, count)
            return torch.from_numpy(coins).nonzero().flatten()
        keys = torch.from_numpy(self.rng.gumbel(count))  # those with the largest of equal laws
        return keys.topk(self._fixed_batch, sorted=False).indices

    def _batches(self, drawn: Tensor) -> Iterable[Any]:
        """Made as they are asked for, so that what making them draws is drawn by secret coins."""
        if len(drawn):
            yield from self.examples.batches(drawn)

    def _release(self, batches: Iterable[Any]) -> dict[str, Tensor]:
        """The clipped sum with noise on every coordinate: one vector, one release."""
        clipping = self.clipped.clipping
        adaptive = clipping if isinstance(clipping, Quantile) else None
        if adaptive is not None:
            adaptive.start()
        with tossing(self.rng, devices_of(self.module)):
            total = self.clipped(batches)
        if self.noise_multiplier == 0 or isinstance(clipping, Off):
            return total
        scales = self.clipped.scales
        parts = [value.flatten().double() / scales[name] for name, value in total.items()]
        if adaptive is not None:
            parts.append(torch.tensor([adaptive.count()], dtype=torch.float64))
        noise = Gaussian(noise_multiplier=self.noise_multiplier, sensitivity=1.0)
        vector = noise.release(torch.cat([part.cpu() for part in parts]), self.rng)
        if adaptive is not None:
            adaptive.learn(float(vector[-1]), self.sample_rate * len(self.examples))
            vector = vector[:-1]
        pieces = vector.split([value.numel() for value in total.values()])
        return {
            name: (piece * scales[name]).view_as(value).to(value)
            for (name, value), piece in zip(total.items(), pieces, strict=True)
        }

    # --- surviving a crash ----------------------------------------------------------------------

    def save(self, directory: str | Path) -> None:
        """Write a checkpoint, whole or not at all, and note every later step in ``directory``.

        Steps taken between two checkpoints are lost in a crash, but they were released and stay
        charged: one byte goes to disk before each of them.
        """
        place, directory = Path(directory).absolute(), Path(directory).resolve()
        ours = self._journal is not None and self._journal.directory == directory
        if not ours and (directory / "checkpoint.pt").exists():
            raise RefusedError(
                f"{directory} holds the checkpoint of another run, whose steps must stay charged. "
                "Resume it, or save to another directory."
            )
        if directory.exists() and not directory.is_dir():
            raise InvalidInputError(f"The 'directory' must be a directory. {directory} is a file.")
        private_directory(directory)
        if not ours and self.witness is not None and self.witness.known(place):
            raise InvalidInputError(
                f"The steps that were begun in {directory} are known, and their journal is gone. "
                "They stay charged; put it back, or start anew with --force."
            )
        if not ours:  # before the checkpoint: where there is one, a journal is missed
            self._journal, self._place = Journal(directory, self.taken), place
        self._write_checkpoint(directory)

    def _note(self, journal: Journal) -> None:
        """Put the beginning of a step on disk; the witness hears of a hundredth of them at once.

        What it was told of and was not taken before a crash stays charged, and is not taken later.
        """
        if self.witness is not None and self.taken >= self._witnessed:
            planned = self.max_steps or 0
            ahead = self.taken + max(1, planned // 100)
            self._witnessed = max(min(ahead, planned), self.taken + 1)
            self.witness.note(self._place, self._witnessed)
        journal.note()

    def _write_checkpoint(self, directory: Path) -> None:
        clipping = self.clipped.clipping
        state = {
            "module": self.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "torch_rng": torch.get_rng_state(),
            "max_grad_norm": clipping.max_grad_norm if isinstance(clipping, Quantile) else None,
            "earlier": to_json(self._earlier),
            "one_step": to_json(self.one_step),
            "taken": self.taken,
            "promise": self.promise,
            "void_reason": self.rng.void_reason,
        }
        torch.save(state, content := io.BytesIO())
        write_file(directory / "checkpoint.pt", content.getvalue(), private=True)

    def resume(self, directory: str | Path) -> None:
        """Go on from the checkpoint in ``directory``; every step it ever noted is charged.

        Noise and batches are fresh: the secret stream has no state to go back to. A fixed stream
        would repeat itself and is refused. With a witness, so is a checkpoint of other steps.
        """
        place, directory = Path(directory).absolute(), Path(directory).resolve()
        if self.rng.void_reason is not None:
            raise RefusedError(
                "A run with a fixed secret stream cannot be resumed, since its noise would repeat. "
                "Start again, or use graphveil.secret()."
            )
        before = copy.deepcopy((self.module.state_dict(), self.optimizer.state_dict()))
        try:
            state = torch.load(directory / "checkpoint.pt", weights_only=True)
            if (then := state.get("promise", "")) != self.promise:
                raise UnprovenError(
                    f"The steps in {directory} were charged for another promise ({then or 'none'}) "
                    f"than this run makes ({self.promise or 'none'}), and one does not count for "
                    "the other. Resume with the same, or start in another directory."
                )
            if (void := state.get("void_reason")) is not None:
                raise RefusedError(
                    f"The steps in {directory} cannot be gone on with: {void} Start again in "
                    "another directory."
                )
            earlier, crashed = from_json(state["earlier"]), from_json(state["one_step"])
            other = crashed != self.one_step or earlier != dpa.NoOpDpEvent()
            if self.witness is not None and other:  # whose run has the settings it began with
                raise ValueError(
                    "its steps had other noise or batches than this run's; put the right one back, "
                    "or start anew with --force"
                )
            noted = Journal(directory).steps
            spent = _validate.integer("taken", state["taken"], "[0, inf)")
            if noted < spent:
                raise ValueError(f"its journal has {noted} steps, and {spent} were taken")
            self._witnessed = 0 if self.witness is None else self.witness.known(place)
            spent = max(noted, self._witnessed)
            bound = state["max_grad_norm"]
            if bound is not None:
                _validate.number("max_grad_norm", bound, "(0, inf)")
            self._check_options(state["optimizer"])
            self.module.load_state_dict(state["module"])
            self.optimizer.load_state_dict(state["optimizer"])
            torch.set_rng_state(state["torch_rng"])
        except FileNotFoundError as error:
            missing = Path(error.filename).name
            raise InvalidInputError(
                f"There is no checkpoint in {directory}: '{missing}' is missing."
            ) from error
        except (RuntimeError, KeyError, EOFError, ValueError, TypeError, UnpicklingError) as error:
            self.module.load_state_dict(before[0])  # not half of somebody else's weights
            self.optimizer.load_state_dict(before[1])
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise InvalidInputError(
                f"The checkpoint in {directory} cannot be read into this module: {reason}"
            ) from error
        if isinstance(self.clipped.clipping, Quantile) and bound is not None:
            self.clipped.clipping.max_grad_norm = bound
        if crashed == self.one_step:
            self._earlier, self.taken = earlier, spent
        else:
            # Other settings from here on: what came before stays charged as what it was. The
            # checkpoint says so before the journal starts anew, so that no crash loses a step.
            self._earlier, self.taken = composed(earlier, repeated(crashed, spent)), 0
            self._write_checkpoint(directory)
        if self._earlier != dpa.NoOpDpEvent():
            self._stay_within_target()
        # One that is shorter than what is charged would hide the next steps.
        self._journal = Journal(directory, None if noted == self.taken else self.taken)
        self._place = place

    def _check_options(self, saved: dict[str, Any]) -> None:
        """Refuse the state of another kind of optimizer, which could not step."""
        groups = zip(self.optimizer.param_groups, saved["param_groups"], strict=False)
        lost = sorted({name for ours, theirs in groups for name in ours.keys() - theirs.keys()})
        if lost:
            raise InvalidInputError(
                f"it was saved with another kind of optimizer, without {', '.join(lost)}; resume "
                "with the same kind."
            )

    def _stay_within_target(self) -> None:
        """Lower ``max_steps`` to what the target leaves after what came before."""
        if self.target is None or self.max_steps is None:
            return
        target_epsilon, target_delta = self.target

        def fits(steps: int) -> bool:
            whole = composed(self.beside, self._earlier, repeated(self.one_step, steps))
            return epsilon(whole, target_delta) <= target_epsilon

        if fits(self.max_steps):
            return
        low, high = -1, self.max_steps  # low fits (or nothing does), high does not
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        self.max_steps = max(low, 0)


def _event(
    sample_rate: float,
    noise_multiplier: float,
    removed: int,
    altered: int,
    count: int,
    fixed_batch: int | None,
) -> dpa.DpEvent:
    """What one step releases. Batches of a fixed size have a looser law than Poisson ones."""
    if fixed_batch is None:
        return SampledGaussianDpEvent(
            rate=sample_rate, noise_multiplier=noise_multiplier, removed=removed, altered=altered
        )
    return RevealedCountGaussianDpEvent(
        noise_multiplier=noise_multiplier,
        removed=removed,
        altered=altered,
        population=count,
        batch=fixed_batch,
    )


_CLIPPINGS: dict[str, Callable[[Any], Clipping]] = {
    "flat": Flat,
    "per_layer": PerLayer,
    "automatic": Automatic,
    "quantile": Quantile,
}


def make_private(
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
    (:class:`~graphveil.grads.linear.SparseExamples` of one linear layer have cross-entropy).
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
    if not isinstance(examples, (Examples, tuple, list)):
        raise InvalidInputError(
            "The 'examples' parameter must be a tuple of tensors (inputs and labels) or an object "
            f"with a length and a 'batches' method. Got {type(examples).__name__} instead."
        )
    terms = examples if isinstance(examples, Examples) else TensorExamples(*examples)
    count = len(terms)
    _validate.integer("examples", count, "[1, 1e12]")
    if (sample_rate is None) == (batch_size is None):
        raise InvalidInputError("Give either 'sample_rate' or 'batch_size', to say how to sample.")
    if fixed_size and batch_size is None:
        raise InvalidInputError("Batches of a fixed size need a 'batch_size', not a 'sample_rate'.")
    fixed_batch = batch_size if fixed_size else None
    if batch_size is not None:
        sample_rate = _validate.integer("batch_size", batch_size, f"[1, {count}]") / count
    sample_rate = _validate.number("sample_rate", sample_rate, "(0, 1]")
    if epochs is not None:
        if steps is not None:
            raise InvalidInputError("Give either 'steps' or 'epochs', not both.")
        steps = math.ceil(_validate.number("epochs", epochs, "(0, inf)") / sample_rate)
    if steps is not None:
        steps = _validate.integer("steps", steps, "[1, 1e9]")
    removed, altered = influence_of(terms, removed, altered)
    if removed == 0 and altered == 0:
        raise InvalidInputError(
            "The 'removed' and 'altered' parameters must not both be 0: a unit that touches no "
            "loss term is not in the data."
        )
    if (noise_multiplier is None) == (target_epsilon is None):
        raise InvalidInputError("Give either 'noise_multiplier' or 'target_epsilon'.")
    if target_epsilon is not None:
        if target_delta is None or steps is None:
            raise InvalidInputError(
                "A 'target_epsilon' needs a 'target_delta' and the number of 'steps' (or 'epochs')."
            )
        check_delta(target_delta, count_units(terms))
        rate, planned = sample_rate, steps
        noise_multiplier = calibrate(
            lambda noise: repeated(
                _event(rate, noise, removed, altered, count, fixed_batch), planned
            ),
            epsilon=target_epsilon,
            delta=target_delta,
            safe=1e7,
            risky=1e-2,
        )
    if isinstance(clipping, str):
        kind = _validate.choice("clipping", clipping, tuple(_CLIPPINGS))
        clipping = _CLIPPINGS[kind](max_grad_norm)
    elif isinstance(clipping, type) or not hasattr(clipping, "scales"):
        raise InvalidInputError(
            f"The 'clipping' parameter must be one of {', '.join(map(repr, _CLIPPINGS))}, or an "
            f"object such as Flat(1.0). Got {clipping!r} instead."
        )
    sparse = isinstance(terms, SparseExamples)
    step = PrivateStep(
        LinearSum(module, clipping) if sparse else ClippedSum(module, losses, clipping),
        optimizer,
        terms,
        sample_rate=sample_rate,
        noise_multiplier=_validate.number("noise_multiplier", noise_multiplier, "[0, inf)"),
        removed=removed,
        altered=altered,
        fixed_batch=fixed_batch,
        max_steps=steps,
        target=None
        if target_epsilon is None or target_delta is None
        else (target_epsilon, target_delta),
        rng=rng,
    )
    if directory is not None:
        step.save(directory)
    return step
