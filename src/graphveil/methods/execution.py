"""Runs the parts of a plan: holds the checkpoint, the secret stream and the progress.

    execution = Execution(plan, checkpoint=Checkpoint(directory))
    execution.train(plan.part("weights"), network, terms, losses)
    sums = execution.release(plan.part("hop1"), lambda mechanism, rng: {"sums": ...})
    execution.charges

Nothing is released but by a part, and only by the two calls above; each notes what it spent.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import dp_accounting as dpa
import safetensors.torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_swa_avg_fn

from graphveil import _observing, devices, processes
from graphveil._errors import InvalidInputError, UnprovenError
from graphveil._files import write_file
from graphveil._progress import Progress
from graphveil.grads.clipped import ClippedSum, Losses
from graphveil.grads.clipping import make_clipping
from graphveil.grads.examples import Examples, TensorExamples, influence_of
from graphveil.grads.own_rows import RowExamples, RowSum
from graphveil.grads.pair_sums import PairSum
from graphveil.grads.settings import Target
from graphveil.grads.step import PrivateStep
from graphveil.graph.link_terms import LinkTerms
from graphveil.graph.neighbourhoods import RootedTerms
from graphveil.methods.checkpoint import Checkpoint
from graphveil.methods.hop_rules import PAID_FOR
from graphveil.methods.open_training import make_optimizer
from graphveil.methods.parts import Earlier, Open, Part, Release, Steps, Unclipped
from graphveil.methods.plan import Plan
from graphveil.privacy.events import composed
from graphveil.privacy.guarantee import Charge
from graphveil.rng import SecretStream, secret

_SAVED_EVERY = 10  # steps
_FINISHED = "finished.safetensors"  # the weights of a part that took all its steps


class Execution:
    """One run of the parts of ``plan``.

    ``on_loss`` is told the training loss of every step, in the open: private, and outside every
    certificate. ``on_step`` is told the network before the first step and after every one, with how
    many were taken. ``target`` is the epsilon that binds steps also where an earlier attempt took
    some under other settings. ``class_weights`` multiply the losses of classes.

    Of several processes (:mod:`graphveil.processes`) all run the plan together: each computes its
    share of every step, and rank 0 makes the other releases, keeps the checkpoint and tells.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        checkpoint: Checkpoint | None = None,
        rng: SecretStream | None = None,
        progress: Progress | None = None,
        on_loss: Callable[[float], None] | None = None,
        on_step: Callable[[nn.Module, int], None] | None = None,
        target: float = math.inf,
    ) -> None:
        self.ranks = processes.current()
        check_shared(plan, self.ranks)
        self.ranks.agree("device", devices.kind().encode())
        if not self.ranks.first:
            checkpoint = progress = on_loss = on_step = None
        self.plan, self.checkpoint, self.target = plan, checkpoint, target
        self.rng = secret() if rng is None else rng
        self.progress, self.on_loss, self.on_step = progress, on_loss, on_step
        self.class_weights: Tensor | None = None
        self.class_counts: Tensor | None = None  # through noise, where they were released
        self.spent: dict[str, dpa.DpEvent] = {}
        self.ran: set[str] = set()  # the parts that began, by name
        if checkpoint is not None:
            checkpoint.open()
            self._check_begun(checkpoint)

    def _check_begun(self, checkpoint: Checkpoint) -> None:
        """Refuse to go on where a release would be lost, or made again."""
        releases = checkpoint.releases
        if releases and self.plan.sampled_at < 1:
            raise UnprovenError(
                "A run on a secret sample of the nodes must be taken in one piece: the sample is "
                f"not kept. Got a rate of {self.plan.sampled_at:g} and a run that was begun in "
                f"{checkpoint.directory} instead; start anew (--force), and count what that run "
                "spent."
            )
        planned = {part.name for part in self.plan.parts}
        if unpaid := sorted(releases.keys() - planned):
            raise UnprovenError(
                f"The run that was begun in {checkpoint.directory} released {unpaid[0]!r}, which "
                "this plan does not pay for; resume with the same settings, or start in another "
                "directory."
            )
        for before, part in zip(self.plan.parts, self.plan.parts[1:], strict=False):
            if part.name in releases and before.name not in releases:
                raise UnprovenError(
                    f"The run that was begun in {checkpoint.directory} released {part.name!r} "
                    f"without {before.name!r}, which comes before it in this plan; resume with the "
                    "same settings, or start in another directory."
                )

    def _start(self, part: Part) -> None:
        """Refuse what the plan does not pay for: a part of another, or one of its own twice."""
        if part not in self.plan.parts or part.name in self.ran:
            raise UnprovenError(
                f"A part that runs must be one of its plan's, and runs once. Got {part.name!r} "
                "instead, which nothing would pay for; add it to the plan."
            )
        self.ran.add(part.name)
        if (observer := _observing.current()) is not None:
            observer.begin(part)

    @property
    def charges(self) -> list[Charge]:
        """What was spent so far, an earlier attempt's releases included."""
        return list(self.plan.charges_for(self.spent))

    # --- one value -------------------------------------------------------------------------------

    def release(
        self,
        part: Release,
        draw: Callable[[Any, SecretStream], Mapping[str, Tensor]],
        *,
        together: bool = False,
    ) -> dict[str, Tensor]:
        """What ``draw`` makes with the part's mechanism and the secret stream, once and for all.

        Rank 0 draws alone, or ``together`` with the others, whose answers are of no use.
        """
        self._start(part)
        self.spent[part.name] = part.event

        begun = False

        def draw_here() -> Mapping[str, Tensor]:
            nonlocal begun
            begun = True
            if together:  # now that it is noted
                self.ranks.tell(lambda: True)
            return draw(part.mechanism, self.rng)

        def make() -> Mapping[str, Tensor]:
            released = self._release(part, draw_here)
            if together and not begun:  # it was made before a crash
                self.ranks.tell(lambda: False)
            return released

        if together and not self.ranks.first and self.ranks.tell(lambda: None):
            draw(part.mechanism, self.rng)
        return self.ranks.once_named(make)

    def _release(
        self, part: Release, draw_here: Callable[[], Mapping[str, Tensor]]
    ) -> dict[str, Tensor]:
        if self.checkpoint is None:
            return dict(draw_here())
        if self.plan.sampled_at < 1:
            # That it was made is noted, and nothing else: who is in a secret sample must not stand
            # on disk.
            self.checkpoint.begin(part)
            return dict(draw_here())
        return self.checkpoint.once(part, draw_here, self._made_by())

    def _made_by(self) -> str:
        """Settings, facts, noise and its source: under what a release may be used again."""
        plan = self.plan
        settings = sorted((name, repr(value)) for name, value in plan.settings.items())
        return f"{plan.method} {settings}; {plan.facts}; {plan.parts}; {self.rng.void_reason}"

    # --- steps -----------------------------------------------------------------------------------

    def train(
        self,
        part: Steps,
        network: nn.Module,
        terms: Any,
        losses: Losses,
        max_grad_norm: Any = None,
        *,
        shortened: float = 1.0,
    ) -> None:
        """Take all steps of a part with ``network``; those of an earlier attempt count.

        ``max_grad_norm`` are thresholds that were read off the data, for a part without a bound.
        ``shortened`` is a public share of the learning rate.
        """
        self._start(part)
        with devices.placed(network):
            step = self._make_step(part, network, terms, losses, max_grad_norm)
            self._train(part, network, step, shortened)

    def _train(self, part: Steps, network: nn.Module, step: PrivateStep, shortened: float) -> None:
        place = None if self.checkpoint is None else self._begin(self.checkpoint, part, step)
        step.align()
        # Fewer than planned where an earlier attempt, under other settings, spent some already.
        steps = part.count if step.max_steps is None else step.max_steps
        # The plain mean of the last weights: what was released is averaged, so it costs nothing.
        average = AveragedModel(network, avg_fn=get_swa_avg_fn())
        averaged = max(1, round(part.averaged * steps))
        left = range(step.taken, steps)
        if len(left):
            _forget_finished(place)
        if self.on_step is not None:
            self.on_step(network, step.taken)
        for taken in left if self.progress is None else self.progress(left):
            for group in step.optimizer.param_groups:
                group["lr"] = part.learning_rate * shortened * part.decay ** (taken / steps)
            step()
            if steps - taken <= averaged:
                average.update_parameters(network)
            if place is not None and ((taken + 1) % _SAVED_EVERY == 0 or taken + 1 == steps):
                step.save(place)
            if self.on_step is not None:
                self.on_step(network, taken + 1)
        self.ranks.agree("weights after its steps", _digest(network, self.ranks))
        if average.n_averaged:
            network.load_state_dict(average.module.state_dict())
        network.eval()
        if place is not None:
            _finish(network, place, rewrite=bool(len(left)))
        # Rank 0 may have read back what was averaged before a crash.
        network.load_state_dict(self.ranks.once_named(network.state_dict))
        self.spent[part.name] = step.event

    def _begin(self, checkpoint: Checkpoint, part: Steps, step: PrivateStep) -> Path:
        """Where the steps of a part are noted: those that were begun, or none yet."""
        place = checkpoint.directory / part.name
        if part.name in checkpoint.releases:
            checkpoint.begin(part, alike=len(self.plan.parts) > 1)
            step.resume(place)
        else:  # first where steps are noted, then that they begin: who dies between lost none
            checkpoint.clear(part)
            step.save(place)
            checkpoint.begin(part)
        return place

    def _make_step(
        self, part: Steps, network: nn.Module, terms: Any, losses: Losses, max_grad_norm: Any
    ) -> PrivateStep:
        if isinstance(terms, RootedTerms):
            terms.touched = (part.removed, part.altered)
        examples = terms if isinstance(terms, Examples) else TensorExamples(*terms)
        influence_of(examples, part.removed, part.altered)  # refuses less than terms state
        bound = part.max_grad_norm if max_grad_norm is None else max_grad_norm
        clipping, plan = make_clipping(part.clipping, bound), self.plan
        clipped: Any = _sum_for(examples, network)(network, losses, clipping)
        if (observer := _observing.current()) is not None:
            clipped, examples = observer.equip(part, clipped, examples)
        target = None
        if math.isfinite(self.target):
            others = composed(*self.spent.values())
            target = Target(epsilon=self.target, delta=plan.delta, others=others)
        degree = f"degree {plan.public_degree}"
        return PrivateStep(
            clipped,
            make_optimizer(
                part.optimizer, network.parameters(), part.learning_rate, momentum=part.momentum
            ),
            examples,
            sampling=part.sampling,
            max_steps=part.count,
            target=target,
            rng=self.rng,
            promise="; ".join([plan.unit, plan.relation, degree, *plan.void_because]),
            witness=None if self.checkpoint is None else self.checkpoint.witness,
            on_loss=self.on_loss,
        )

    # --- in the open -----------------------------------------------------------------------------

    def share_weights(self, network: nn.Module) -> None:
        """Have all processes hold what rank 0 trained in the open, where each trained alike."""
        if self.ranks.world > 1:
            network.load_state_dict(self.ranks.once_named(network.state_dict))

    def train_openly(self, part: Open | Unclipped, train: Callable[[], Any]) -> Any:
        """Train without privacy, and say so."""
        self._start(part)
        self.spent[part.name] = part.event
        return train()


def _sum_for(examples: Examples, network: nn.Module) -> Any:
    """The clipped sum that is fastest for such examples and such a network."""
    if isinstance(examples, RowExamples):
        return RowSum
    closed = isinstance(examples, LinkTerms) and getattr(network, "is_linear", False)
    return PairSum if closed else ClippedSum


def _forget_finished(place: Path | None) -> None:
    """Remove the weights after fewer steps than will be taken."""
    if place is not None:
        (place / _FINISHED).unlink(missing_ok=True)


def check_shared(plan: Plan, ranks: processes.Ranks) -> None:
    """Refuse several processes where they have nothing to share, or would train apart."""
    if ranks.world == 1:
        return
    alone = [part.name for part in plan.parts if not isinstance(part, (Steps, Release, Earlier))]
    if alone or not any(isinstance(part, Steps) or _is_summed(part) for part in plan.parts):
        why = f"trains its part {alone[0]!r} in the open" if alone else "has neither"
        raise InvalidInputError(
            "Several processes share private steps and noisy sums over neighbours. Got "
            f"{ranks.world} of them for a plan of '{plan.method}' that {why} instead; run it "
            "without torchrun."
        )


def _is_summed(part: Part) -> bool:
    """Whether a part releases sums over neighbours, whose rows are shared."""
    return isinstance(part, Release) and part.paid_for == PAID_FOR["aggregation"]


def _digest(network: nn.Module, ranks: processes.Ranks) -> bytes:
    """Of the weights, where there is anybody to compare them with."""
    if ranks.world == 1:
        return b""
    state = {name: value.cpu().contiguous() for name, value in network.state_dict().items()}
    return hashlib.sha256(safetensors.torch.save(state)).digest()


def _finish(network: nn.Module, place: Path, *, rewrite: bool) -> None:
    """Keep the averaged weights, or read them back.

    The checkpoint has the last weights, not their average: a part that was finished before a crash
    is what later parts were made from.
    """
    file = place / _FINISHED
    if rewrite or not file.exists():
        write_file(file, safetensors.torch.save(network.state_dict()), private=True)
    network.load_state_dict(safetensors.torch.load(file.read_bytes()))
