r"""The clipped sum of per-example gradients, without per-example gradients.

*Book-keeping*, for each chunk of examples: one forward pass that records what goes into every
layer; one backward pass, to the layers' outputs only (:mod:`graphveil.grads.recording`); norms
layer by layer (:mod:`graphveil.grads.rules`); then each layer's weighted sum, which is the matrix
product a plain backward pass would have made. There is no second backward pass and no gradient per
example.

*By example*: where a layer has no rule, ``torch.func.vmap`` over a few examples at a time; the same
sums, several times slower.

Both are exact. What cannot be done exactly is refused, by name: layers that mix examples, and
parameters used behind the engine's back (:mod:`graphveil.grads.selftest`).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from graphveil._errors import InvalidInputError, UnprovenError
from graphveil.grads.clipping import Clipping, Off
from graphveil.grads.memory import Watch
from graphveil.grads.modules import empty_sum, noise_units, trained_blocks, training_state
from graphveil.grads.products import SMALL, RowByRow, repeat_first_row
from graphveil.grads.recording import (
    Batch,
    Losses,
    Recorder,
    as_tuple,
    check_losses,
    fill_up,
    rows_of_tensors,
    weighted_sums,
)
from graphveil.grads.rules import (
    PAY_FOR_BLOCKS,
    PAY_FOR_SUMS,
    RULES,
    Call,
    combine,
    enlarge,
    squares,
)
from graphveil.grads.selftest import SelfTest
from graphveil.graph.blocks import MOST_WIDTHS, Numbered

__all__ = ["Batch", "ClippedSum", "Losses"]

_VMAP_ELEMENTS = 1 << 24  # per-example gradients held at once


class _Losses(nn.Module):
    """``losses(module, batch)`` as a module, so that parameters can be swapped while it runs."""

    losses: Losses

    def __init__(self, module: nn.Module, losses: Losses) -> None:
        super().__init__()
        self.module = module
        self.__dict__["losses"] = losses  # also if it is a module: its parameters are not trained

    def forward(self, batch: Batch) -> Tensor:
        return check_losses(self.losses(self.module, batch))


class ClippedSum:
    r"""``\sum_i clip(gradient of loss i)`` for one module and one way to compute its losses.

    ``losses(module, batch)`` gives one loss for each example of a batch, in a vector. Example i's
    loss must depend on example i's data alone; this is tested on the first batch, and again after
    10, 100, ... sums, and when layers are frozen, unfrozen or change between training and
    evaluation. That nothing is remembered of a batch is looked at every time.

    Modules draw from the generators as they are: a :class:`~graphveil.grads.step.PrivateStep` gives
    them a fresh, secret state first.
    """

    def __init__(self, module: nn.Module, losses: Losses, clipping: Clipping) -> None:
        self.module, self.losses, self.clipping = module, losses, clipping
        # Examples in the last sum, and what their losses add up to; both are private.
        self.seen, self.loss = 0, 0.0
        self._sums, self._next_test = 0, 10
        self._read_module()

    def _read_module(self) -> None:
        """Find the layers to train, and refuse what cannot be trained."""
        self.blocks = trained_blocks(self.module, self.clipping)
        self._unruled = _without_rule(self.blocks)
        self.by_example = bool(self._unruled)
        self._state = training_state(self.module)
        self._recorder = Recorder(self.module, self.losses, self.blocks)
        self._selftest = SelfTest(self._recorder)

    @property
    def scales(self) -> dict[str, float]:
        """The noise unit of every parameter (see :mod:`graphveil.grads.clipping`)."""
        return noise_units(self.module, self.clipping, list(self.blocks))

    def zeros(self) -> dict[str, Tensor]:
        """A sum with no terms: what an empty batch gives."""
        return empty_sum(self.module)

    def __call__(self, batches: Iterable[Batch]) -> dict[str, Tensor]:
        """The clipped sum over all examples of all ``batches``, by parameter name."""
        if torch.is_inference_mode_enabled():
            raise InvalidInputError(
                "There are no gradients in inference mode. Leave torch.inference_mode() for a step."
            )
        if self._state != training_state(self.module):
            self._read_module()
        if self._sums == self._next_test:
            self._selftest.forget()
            self._next_test *= 10
        self._sums += 1
        self.seen, self.loss = 0, 0.0
        total = self.zeros()
        for batch in batches:
            if rows_of_tensors(batch) != 0:  # not every layer of torch can see that there are none
                self._add(batch, total)
        return total

    def _add(self, batch: Batch, total: dict[str, Tensor]) -> None:
        """Add the clipped gradients of a batch to ``total``, after a test of the module if due."""
        test, before = self._selftest, self.seen
        # What a batch of one could not tell is asked of the first larger one.
        waiting = test.passed_alone and not test.passed
        if not test.passed and not waiting:
            self._test(batch)
        watch = Watch(self.module, self.losses)
        if self.by_example:
            sums, losses = self._sum_by_example(batch, self.clipping)
        else:
            sums, losses = self._sum_by_book(batch)
        for name, value in sums.items():
            total[name] += value
        for part in losses:
            self.seen += len(part)
            self.loss += float(part.detach().double().sum())
        watch.check()
        if waiting and self.seen - before > 1:
            self._test(batch)

    def _test(self, batch: Batch) -> None:
        # A clipping may count those it sees, and a test is no part of any sum.
        def losses(batch: Batch) -> list[Tensor]:
            return self._sum_by_example(batch, Off())[1]

        self._selftest.run(batch, losses if self.by_example else None)

    # --- book-keeping ---------------------------------------------------------------------------

    def _sum_by_book(self, batch: Batch) -> tuple[dict[str, Tensor], list[Tensor]]:
        losses, calls = self._losses_and_calls(batch)
        numbered = batch if isinstance(batch, Numbered) else None
        with torch.no_grad():
            rules = self._recorder.rules(calls, len(losses))
            if not rules:  # no examples, or losses without a gradient
                return {}, [losses]
            if isinstance(self.clipping, Off):
                factors = dict.fromkeys(rules, next(self.module.parameters()).new_ones(len(losses)))
            else:
                pay = PAY_FOR_SUMS if numbered is None else PAY_FOR_BLOCKS
                pay *= enlarge(len(rules), losses.dtype)  # norms of layers are added up
                norms = {name: rule.squared_norms() * pay for name, rule in rules.items()}
                factors = self.clipping.factors(norms)
            widths = {call.grad.shape[:-1] for uses in calls.values() for call in uses}
            if len(widths) > MOST_WIDTHS:
                numbered = None  # more kinds of blocks than are paid for
            return weighted_sums(rules, factors, numbered), [losses]

    def _losses_and_calls(self, batch: Batch) -> tuple[Tensor, dict[str, list[Call]]]:
        """Of a batch that is filled up while it is computed; what filled it is left out again."""
        recorder = self._recorder
        filled, count = fill_up(batch) if self._selftest.row_by_row else (batch, None)
        losses, uses = recorder.forward(filled)
        if count is not None and (
            len(losses) != len(as_tuple(filled)[0]) or any(use.rows is not None for use in uses)
        ):
            count, (losses, uses) = None, recorder.forward(batch)  # rows are not the examples
        calls = recorder.calls(losses[:count].sum(), uses, len(losses))
        if count is not None:
            calls = {name: [call.first(count) for call in used] for name, used in calls.items()}
        return losses[:count], calls

    # --- by example -----------------------------------------------------------------------------

    def _sum_by_example(
        self, batch: Batch, clipping: Clipping
    ) -> tuple[dict[str, Tensor], list[Tensor]]:
        model = _Losses(self.module, self.losses)
        parameters = {n: p.detach() for n, p in model.named_parameters() if p.requires_grad}
        fixed = {n: p.detach() for n, p in model.named_parameters() if not p.requires_grad}
        buffers = dict(model.named_buffers())

        def loss(values: dict[str, Tensor], example: tuple[Tensor, ...]) -> Tensor:
            one = tuple(x.unsqueeze(0) for x in example)
            inputs = (one if isinstance(batch, (tuple, list)) else one[0],)
            return functional_call(model, (values, fixed, buffers), inputs).squeeze(0)

        examples = self._as_tensors(batch)
        size = sum(value.numel() for value in parameters.values())
        at_once = max(1, min(256, _VMAP_ELEMENTS // size))
        at_once = at_once // SMALL * SMALL or at_once
        total = self.zeros()
        losses_of_parts = []
        for start in range(0, len(examples[0]), at_once):
            part = tuple(x[start : start + at_once] for x in examples)
            count = len(part[0])
            try:
                run = vmap(grad_and_value(loss), in_dims=(None, 0), randomness="different")
                rows = repeat_first_row(part) if at_once > 1 else part
                with RowByRow(inside_vmap=True):
                    gradients, losses = run(parameters, rows)
            except RuntimeError as error:
                raise UnprovenError(
                    f"{self._unruled} has no gradient rule here and cannot be run one example at a "
                    f"time ({str(error).splitlines()[0]}). Build it from nn.Linear and "
                    "graphveil.grads.layers, or freeze its parameters."
                ) from error
            losses_of_parts.append(losses[:count])
            blocks: dict[str, dict[str, Tensor]] = {}
            for name, value in gradients.items():
                own = name.removeprefix("module.")
                blocks.setdefault(own.rpartition(".")[0], {})[own] = value[:count]
            norms = {name: squares(block) * PAY_FOR_SUMS for name, block in blocks.items()}
            factors = clipping.factors(norms)
            for block, values in blocks.items():
                for name, value in values.items():
                    total[name] += combine(value, factors[block])
        return total, losses_of_parts

    def _as_tensors(self, batch: Batch) -> tuple[Tensor, ...]:
        if rows_of_tensors(batch) is None:
            raise UnprovenError(
                f"{self._unruled} has no gradient rule here and is run one example at a time. That "
                "takes batches of tensors with the examples first, all of one length. Got "
                f"{type(batch).__name__} instead. Build it from nn.Linear and "
                "graphveil.grads.layers, or freeze its parameters."
            )
        return as_tuple(batch)


def _without_rule(blocks: dict[str, nn.Module]) -> str:
    """What keeps a module from the book-keeping: layers without a rule, and shared weights."""
    owners: dict[int, list[str]] = {}
    for name, layer in blocks.items():
        for parameter in layer.parameters(recurse=False):
            if parameter.requires_grad:
                owners.setdefault(id(parameter), []).append(name)
    odd = [f"'{n}' ({type(b).__name__})" for n, b in blocks.items() if type(b) not in RULES]
    odd += [f"the weight that {' and '.join(n)} share" for n in owners.values() if len(n) > 1]
    return ", ".join(odd)
