"""The test of a module before its sums are trusted, on batches of the run itself.

Refused are losses that read other examples, losses that remember what they saw, and parameters that
are used behind the engine's back. A test is not a proof: the certificate says what is vouched for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import torch
from torch import Tensor, nn

from graphveil._errors import UnprovenError
from graphveil.grads.coins import GeneratorStates, devices_of, generator_states, set_generators
from graphveil.grads.company import (
    check_others,
    check_parts,
    check_same,
    evaluation_mode,
    shorten,
)
from graphveil.grads.memory import Watch
from graphveil.grads.modules import trained_parameters
from graphveil.grads.products import RowByRow
from graphveil.grads.recording import Batch, LayerUse, Recorder, rows_of_tensors, weighted_sums
from graphveil.grads.rules import Call


class SelfTest:
    """Tests the module of a recorder, and remembers what it has told.

    ``passed`` on several examples, ``passed_alone`` on a batch of one, which cannot tell whether
    examples mix. ``row_by_row`` says whether batches are tensors with a row, and a loss, an
    example.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.row_by_row = False
        self.forget()

    def forget(self) -> None:
        """Ask the next batch again."""
        self.passed = self.passed_alone = False

    def run(self, batch: Batch, by_example: Callable[[Batch], list[Tensor]] | None) -> None:
        """Refuse a module whose losses mix examples or whose gradients escape the book-keeping.

        ``by_example`` gives losses one example at a time, where layers have no rule: there nothing
        mixes but by a memory.
        """
        module, batch = self.recorder.module, shorten(batch)
        states = generator_states(devices_of(module))
        try:
            if by_example is not None:
                self._test_repetition(batch, by_example, states)
                self.passed = True
                return
            conclusive, count = self._test_gradients(batch, states)
            # A weight that starts at zero hides what is behind it. Not every module can run there.
            with suppress(RuntimeError), perturbed_weights(module):
                self._test_gradients(batch, states)
        finally:
            set_generators(states)
        self.passed, self.passed_alone = conclusive and count > 1, conclusive

    def _test_repetition(
        self, batch: Batch, by_example: Callable[[Batch], list[Tensor]], states: GeneratorStates
    ) -> None:
        """The losses of a batch must be the same when it is seen again."""
        module = self.recorder.module
        watch, totals = Watch(module, self.recorder.losses, values=True), []
        for _ in range(2):
            set_generators(states)
            losses = by_example(batch)
            watch.check()
            totals.append(torch.tensor([sum(float(part.double().sum()) for part in losses)]))
        check_same(totals[1], totals[0], type(module).__name__)

    def _test_gradients(self, batch: Batch, states: GeneratorStates) -> tuple[bool, int]:
        """Refuse by the gradients of one batch. Says whether they told anything, and how many."""
        recorder = self.recorder
        set_generators(states)
        watch = Watch(recorder.module, recorder.losses, values=True)
        losses, uses = recorder.forward(batch)
        watch.check()
        count = len(losses)
        self.row_by_row = bool(count) and rows_of_tensors(batch) == count
        calls = recorder.calls(losses.sum(), uses, count, keep_graph=True)
        if not count or not losses.requires_grad:
            return False, count
        self._test_others_rows(losses, uses)
        conclusive = self._test_total(losses, calls)
        self._test_other_batches(batch, losses.detach(), states)
        watch.check()  # also of what backward passes leave behind
        return conclusive, count

    @torch.no_grad()
    def _test_other_batches(self, batch: Batch, losses: Tensor, states: GeneratorStates) -> None:
        """An example's loss must be the same beside other examples, and when it is seen again."""
        module = self.recorder.module
        who = type(module).__name__

        def go_on(batch: Batch) -> Tensor:
            with RowByRow():
                return self.recorder.losses(module, batch)

        def run(batch: Batch) -> Tensor:
            set_generators(states)
            return go_on(batch)

        check_same(run(batch), losses, who)
        check_others(run, batch, losses, who)
        if torch.equal(go_on(batch), losses):
            check_parts(run, batch, losses, who)
            return
        with evaluation_mode(module):  # random, as with dropout: compare without it
            losses = run(batch)
            if torch.equal(go_on(batch), losses):
                check_parts(run, batch, losses, who)

    def _test_others_rows(self, losses: Tensor, uses: list[LayerUse]) -> None:
        """One example's loss must have no gradient at the rows of another."""
        count = len(losses)
        for pick in sorted({round(i * (count - 1) / 7) for i in range(8)}):
            calls = self.recorder.calls(losses[pick], uses, count, keep_graph=True)
            for name, call in ((block, call) for block in calls for call in calls[block]):
                owner = torch.arange(count) if call.rows is None else call.rows.owner
                others = call.grad[owner.to(call.grad.device) != pick]
                if others.numel() and float(others.abs().max()) > 0:
                    kind = type(self.recorder.blocks[name]).__name__
                    raise UnprovenError(
                        f"The loss of one example depends on the rows of another at layer "
                        f"'{name}' ({kind}): something after it mixes examples. Remove it, or "
                        "normalise each example by itself."
                    )

    def _test_total(self, losses: Tensor, calls: dict[str, list[Call]]) -> bool:
        """A weighted sum by the book must be autograd's. Says nothing if it is not finite."""
        count, rules = len(losses), self.recorder.rules
        weights = 1 + 0.5 * torch.arange(count, device=losses.device).double().sin()
        trained = trained_parameters(self.recorder.module)
        target, values = (weights.to(losses.dtype) * losses).sum(), list(trained.values())
        plain = torch.autograd.grad(target, values, allow_unused=True, retain_graph=True)
        weights = weights.to(values[0].dtype)
        # Of absolute values: what the terms of a sum add up to, where they cancel.
        sizes = {name: [call.absolute() for call in uses] for name, uses in calls.items()}
        with torch.no_grad():
            booked, size = (
                weighted_sums(made, dict.fromkeys(made, weights))
                for made in (rules(calls, count), rules(sizes, count))
            )
        largest = max((float(value.max()) for value in size.values()), default=0.0)
        conclusive = True
        for (name, value), gradient in zip(trained.items(), plain, strict=True):
            zero = torch.zeros_like(value)
            wanted = zero if gradient is None else gradient.to_dense()
            difference = (booked.get(name, zero) - wanted).abs().max()
            if difference > 1e-3 * wanted.abs().max() + 1e-5 * largest:
                raise UnprovenError(
                    f"The parameter '{name}' is used in a way the engine does not see (outside its "
                    "layer's forward, or by another layer). Call the layer itself."
                )
            conclusive = conclusive and bool(difference.isfinite())
        return conclusive


@contextmanager
def perturbed_weights(module: nn.Module) -> Iterator[None]:
    """The module with every trained weight moved a little, for as long as this lasts."""
    trained = [p for p in module.parameters() if p.requires_grad]
    saved = [p.detach().clone() for p in trained]
    with torch.no_grad():
        for parameter in trained:
            size = 0.01 + 0.1 * parameter.square().mean().sqrt()
            parameter.add_(torch.randn_like(parameter) * size)
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, old in zip(trained, saved, strict=True):
                parameter.copy_(old)
