r"""The clipped sum of per-example gradients, without per-example gradients.

*Book-keeping*, for each chunk of examples: one forward pass that records what goes into every
layer; one backward pass, to the layers' outputs only; norms layer by layer
(:mod:`graphveil.grads.rules`); then each layer's weighted sum, which is the matrix product a plain
backward pass would have made. There is no second backward pass and no gradient per example.

*By example*: where a layer has no rule, ``torch.func.vmap`` over a few examples at a time; the same
sums, several times slower.

Both are exact. What cannot be done exactly is refused, by name: layers that mix examples, and
parameters used behind the engine's back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from graphveil._errors import InvalidInputError, UnprovenError
from graphveil.grads.clipping import Clipping, Off
from graphveil.grads.coins import devices_of, generator_states, set_generators
from graphveil.grads.company import check_others, check_parts, check_same, evaluating
from graphveil.grads.memory import Watch
from graphveil.grads.products import SMALL, RowByRow, filled_up
from graphveil.grads.rows import Rows, current_rows
from graphveil.grads.rules import (
    MOST_WIDTHS,
    PAY_FOR_BLOCKS,
    PAY_FOR_SUMS,
    RULES,
    Call,
    Rule,
    combined,
    enlarge,
    squares,
)
from graphveil.graph.blocks import Numbered

Batch = Any
Losses = Callable[[nn.Module, Batch], Tensor]

_MIXING = (
    "BatchNorm", "SyncBatchNorm", "GraphNorm", "PairNorm", "DiffGroupNorm", "GraphSizeNorm",
    "MeanSubtractionNorm", "HeteroBatchNorm",
)  # fmt: skip
_VMAP_ELEMENTS = 1 << 24  # per-example gradients held at once


@dataclass
class _Use:
    """One call of a layer in a forward pass."""

    name: str
    inputs: tuple[Tensor, ...]
    output: Tensor
    rows: Rows | None

    def __post_init__(self) -> None:
        self.versions = self._versions()

    def _versions(self) -> list[int]:
        return [tensor._version for tensor in (*self.inputs, self.output)]

    @property
    def changed(self) -> bool:
        """Whether an in-place operation has changed what went in or came out."""
        return self.versions != self._versions()


class _Losses(nn.Module):
    """``losses(module, batch)`` as a module, so that parameters can be swapped while it runs."""

    losses: Losses

    def __init__(self, module: nn.Module, losses: Losses) -> None:
        super().__init__()
        self.module = module
        self.__dict__["losses"] = losses  # also if it is a module: its parameters are not trained

    def forward(self, batch: Batch) -> Tensor:
        return _checked(self.losses(self.module, batch))


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
        self._made, self._next_test = 0, 10
        self._read_module()

    def _read_module(self) -> None:
        """Find the layers to train, and refuse what cannot be trained."""
        refuse_mixing(self.module)
        _check_dtypes(self.module)
        self.blocks = layers_with_parameters(self.module)
        if not self.blocks:
            raise InvalidInputError("The module must have a parameter that requires a gradient.")
        self.clipping.scales(list(self.blocks))  # a threshold that is missing is missed here
        self._unruled = _unruled(self.blocks)
        self.by_example = bool(self._unruled)
        self._state = _state_of(self.module)
        self._tested = self._tested_alone = False
        self._row_by_row = False  # whether batches are tensors with a row, and a loss, an example

    @property
    def scales(self) -> dict[str, float]:
        """The noise unit of every parameter (see :mod:`graphveil.grads.clipping`)."""
        of_block = self.clipping.scales(list(self.blocks))
        return {name: of_block[name.rpartition(".")[0]] for name in self.zeros()}

    def zeros(self) -> dict[str, Tensor]:
        """A sum with no terms: what an empty batch gives."""
        return {
            name: torch.zeros_like(value)
            for name, value in self.module.named_parameters()
            if value.requires_grad
        }

    def __call__(self, batches: Iterable[Batch]) -> dict[str, Tensor]:
        """The clipped sum over all examples of all ``batches``, by parameter name."""
        if torch.is_inference_mode_enabled():
            raise InvalidInputError(
                "There are no gradients in inference mode. Leave torch.inference_mode() for a step."
            )
        if self._state != _state_of(self.module):
            self._read_module()
        if self._made == self._next_test:
            self._tested = self._tested_alone = False
            self._next_test *= 10
        self._made += 1
        self.seen, self.loss = 0, 0.0
        # In float64: leaving one term out must not shift the rounding of very many others.
        total = {name: zeros.double() for name, zeros in self.zeros().items()}
        for batch in batches:
            if _empty(batch):
                continue
            noted = self.seen, self.loss
            # What a batch of one could not tell is asked of the first larger one.
            waiting = self._tested_alone and not self._tested
            if not self._tested and not waiting:
                self._test(batch)
                self.seen, self.loss = noted
            watch = Watch(self.module, self.losses)
            add = self._sum_by_example if self.by_example else self._sum_by_book
            for name, value in add(batch).items():
                total[name] += value
            watch.check()
            if waiting and self.seen - noted[0] > 1:
                noted = self.seen, self.loss
                self._test(batch)
                self.seen, self.loss = noted
        return total

    def _note(self, losses: Tensor) -> None:
        self.seen += len(losses)
        self.loss += float(losses.detach().double().sum())

    # --- book-keeping ---------------------------------------------------------------------------

    def _sum_by_book(self, batch: Batch) -> dict[str, Tensor]:
        losses, calls = self._losses_and_calls(batch)
        numbered = batch if isinstance(batch, Numbered) else None
        self._note(losses)
        with torch.no_grad():
            rules = self._rules(calls, len(losses))
            if not rules:  # no examples, or losses without a gradient
                return {}
            if isinstance(self.clipping, Off):
                ones = next(self.module.parameters()).new_ones(len(losses))
                factors = dict.fromkeys(rules, ones)
            else:
                pay = PAY_FOR_SUMS if numbered is None else PAY_FOR_BLOCKS
                pay *= enlarge(len(rules), losses.dtype)  # norms of layers are added up
                factors = self.clipping.factors(
                    {name: rule.squared_norms() * pay for name, rule in rules.items()}
                )
            widths = {call.grad.shape[:-1] for each in calls.values() for call in each}
            if len(widths) > MOST_WIDTHS:
                numbered = None  # more kinds of blocks than are paid for
            return _weighted_sums(rules, factors, numbered)

    def _losses_and_calls(self, batch: Batch) -> tuple[Tensor, dict[str, list[Call]]]:
        """Of a batch that is filled up while it is computed; what filled it is left out again."""
        filled, count = _fill_up(batch) if self._row_by_row else (batch, None)
        losses, uses = self._forward(filled)
        if count is not None and (
            len(losses) != len(_tensors(filled)[0]) or any(use.rows is not None for use in uses)
        ):
            count, (losses, uses) = None, self._forward(batch)  # rows are not the examples
        calls = self._calls(losses[:count].sum(), uses, len(losses))
        if count is not None:
            calls = {name: [call.first(count) for call in each] for name, each in calls.items()}
        return losses[:count], calls

    def _rules(self, calls: dict[str, list[Call]], count: int) -> dict[str, Rule]:
        return {
            name: RULES[type(layer)](layer, calls[name], count)
            for name, layer in self.blocks.items()
            if calls[name]
        }

    def _forward(self, batch: Batch) -> tuple[Tensor, list[_Use]]:
        """The losses, and every use of a layer on the way to them."""
        uses: list[_Use] = []

        def hook(name: str) -> Callable[..., None]:
            def record(
                _: nn.Module, inputs: tuple[Tensor, ...], named: dict[str, Any], output: Tensor
            ) -> None:
                if named:
                    raise UnprovenError(
                        f"The layer '{name}' was called with {', '.join(named)} by name, which the "
                        "engine does not read. Call it with positions only."
                    )
                if output.requires_grad:
                    inputs = tuple(x.detach() for x in inputs)
                    uses.append(_Use(name, inputs, output, current_rows()))

            return record

        handles = [
            layer.register_forward_hook(hook(name), with_kwargs=True)
            for name, layer in self.blocks.items()
        ]
        try:
            with torch.enable_grad(), RowByRow():
                losses = _checked(self.losses(self.module, batch))
        finally:
            for handle in handles:
                handle.remove()
        for use in uses:
            if use.changed:
                raise UnprovenError(
                    f"What went into the layer '{use.name}' or came out of it was changed in place "
                    "afterwards, so its gradient cannot be read. Use the ordinary operation "
                    "(nn.ReLU() for nn.ReLU(inplace=True))."
                )
        return losses, uses

    def _calls(
        self, target: Tensor, uses: list[_Use], count: int, *, keep_graph: bool = False
    ) -> dict[str, list[Call]]:
        """Every layer's calls with the gradient of ``target`` at what came out of them."""
        calls: dict[str, list[Call]] = {name: [] for name in self.blocks}
        if not uses or not count or not target.requires_grad:
            return calls
        outputs = [use.output for use in uses]
        grads = torch.autograd.grad(target, outputs, allow_unused=True, retain_graph=keep_graph)
        for use, value in zip(uses, grads, strict=True):
            if value is not None:
                _check_rows(use, count)
                calls[use.name].append(Call(use.inputs, value, use.rows))
        return calls

    # --- by example -----------------------------------------------------------------------------

    def _sum_by_example(self, batch: Batch) -> dict[str, Tensor]:
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
        total = {name: zeros.double() for name, zeros in self.zeros().items()}
        for start in range(0, len(examples[0]), at_once):
            part = tuple(x[start : start + at_once] for x in examples)
            try:
                each = vmap(grad_and_value(loss), in_dims=(None, 0), randomness="different")
                with RowByRow(alone=True):
                    found, losses = each(parameters, filled_up(part) if at_once > 1 else part)
                found = {name: value[: len(part[0])] for name, value in found.items()}
                losses = losses[: len(part[0])]
            except RuntimeError as error:
                raise UnprovenError(
                    f"{self._unruled} has no gradient rule here and cannot be run one example at a "
                    f"time ({str(error).splitlines()[0]}). Build it from nn.Linear and "
                    "graphveil.grads.layers, or freeze its parameters."
                ) from error
            self._note(losses)
            gradients = {name.removeprefix("module."): value for name, value in found.items()}
            blocks: dict[str, dict[str, Tensor]] = {}
            for name, value in gradients.items():
                blocks.setdefault(name.rpartition(".")[0], {})[name] = value
            factors = self.clipping.factors(
                {name: squares(block) * PAY_FOR_SUMS for name, block in blocks.items()}
            )
            for block, values in blocks.items():
                for name, value in values.items():
                    total[name] += combined(value, factors[block])
        return total

    def _as_tensors(self, batch: Batch) -> tuple[Tensor, ...]:
        tensors = batch if isinstance(batch, (tuple, list)) else (batch,)
        if not all(
            isinstance(x, Tensor) and x.dim() and len(x) == len(tensors[0]) for x in tensors
        ):
            raise UnprovenError(
                f"{self._unruled} has no gradient rule here and is run one example at a time. That "
                "takes batches of tensors with the examples first, all of one length. Got "
                f"{type(batch).__name__} instead. Build it from nn.Linear and "
                "graphveil.grads.layers, or freeze its parameters."
            )
        return tuple(tensors)

    # --- the test on the first batch --------------------------------------------------------------

    def _test(self, batch: Batch) -> None:
        """Refuse a module whose losses mix examples or whose gradients escape the book-keeping."""
        devices = devices_of(self.module)
        self._states = generator_states(devices)
        clipping = self.clipping
        try:
            if self.by_example:  # vmap shows each example alone: nothing mixes but by a memory
                self.clipping = Off()  # others count, and a test is no part of any sum
                self._test_by_example(batch)
                self._tested = True
                return
            conclusive, count = self._test_gradients(batch)
            # A weight that starts at zero hides what is behind it. Not every module can run there.
            with suppress(RuntimeError), _elsewhere(self.module):
                self._test_gradients(batch)
        finally:
            self.clipping, self.seen, self.loss = clipping, 0, 0.0
            set_generators(self._states)
        self._tested, self._tested_alone = conclusive and count > 1, conclusive

    def _test_by_example(self, batch: Batch) -> None:
        watch, found = Watch(self.module, self.losses, values=True), []
        for _ in range(2):
            set_generators(self._states)
            self._sum_by_example(batch)
            watch.check()
            found.append(torch.tensor([self.loss]))
            self.seen, self.loss = 0, 0.0
        check_same(found[1], found[0], type(self.module).__name__)

    def _test_gradients(self, batch: Batch) -> tuple[bool, int]:
        """Refuse by the gradients of one batch. Says whether they told anything, and how many."""
        set_generators(self._states)
        watch = Watch(self.module, self.losses, values=True)
        losses, uses = self._forward(batch)
        watch.check()
        count = len(losses)
        self._row_by_row = _fill_up(batch)[1] == count
        calls = self._calls(losses.sum(), uses, count, keep_graph=True)
        if not count or not losses.requires_grad:
            return False, count
        self._test_alone(losses, uses)
        conclusive = self._test_total(losses, calls)
        self._test_company(batch, losses.detach())
        watch.check()  # also of what backward passes leave behind
        return conclusive, count

    @torch.no_grad()
    def _test_company(self, batch: Batch, losses: Tensor) -> None:
        """An example's loss must be the same in other company, and when it is seen again."""
        who = type(self.module).__name__

        def go_on(batch: Batch) -> Tensor:
            with RowByRow():
                return self.losses(self.module, batch)

        def run(batch: Batch) -> Tensor:
            set_generators(self._states)
            return go_on(batch)

        check_same(run(batch), losses, who)
        check_others(run, batch, losses, who)
        if torch.equal(go_on(batch), losses):
            check_parts(run, batch, losses, who)
            return
        with evaluating(self.module):  # random, as with dropout: compare without it
            losses = run(batch)
            if torch.equal(go_on(batch), losses):
                check_parts(run, batch, losses, who)

    def _test_alone(self, losses: Tensor, uses: list[_Use]) -> None:
        """One example's loss must have no gradient at the rows of another."""
        count = len(losses)
        for pick in sorted({round(i * (count - 1) / 7) for i in range(8)}):
            calls = self._calls(losses[pick], uses, count, keep_graph=True)
            for name, call in ((block, call) for block in calls for call in calls[block]):
                owner = torch.arange(count) if call.rows is None else call.rows.owner
                others = call.grad[owner.to(call.grad.device) != pick]
                if others.numel() and float(others.abs().max()) > 0:
                    raise UnprovenError(
                        f"The loss of one example depends on the rows of another at layer "
                        f"'{name}' ({type(self.blocks[name]).__name__}): something after it mixes "
                        "examples. Remove it, or normalise each example by itself."
                    )

    def _test_total(self, losses: Tensor, calls: dict[str, list[Call]]) -> bool:
        """A weighted sum by the book must be autograd's. Says nothing if it is not finite."""
        weights = 1 + 0.5 * torch.arange(len(losses), device=losses.device).double().sin()
        trained = {n: p for n, p in self.module.named_parameters() if p.requires_grad}
        plain = torch.autograd.grad(
            (weights.to(losses.dtype) * losses).sum(),
            list(trained.values()),
            allow_unused=True,
            retain_graph=True,
        )
        weights = weights.to(next(iter(trained.values())).dtype)
        # Of absolute values: what the terms of a sum add up to, where they cancel.
        sizes = {name: [call.absolute() for call in uses] for name, uses in calls.items()}
        with torch.no_grad():
            booked, size = (
                _weighted_sums(rules, dict.fromkeys(rules, weights))
                for rules in (self._rules(calls, len(losses)), self._rules(sizes, len(losses)))
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
def _elsewhere(module: nn.Module) -> Iterator[None]:
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


def _state_of(module: nn.Module) -> tuple[Any, ...]:
    """What decides which gradients there are: layers, modes, and what is frozen."""
    return (
        [(id(layer), layer.training) for layer in module.modules()],
        [(id(parameter), parameter.requires_grad) for parameter in module.parameters()],
    )


def _check_dtypes(module: nn.Module) -> None:
    """Norms are good to the last digit that counts in float32 and float64 alone."""
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    for name, parameter in trained.items():
        if is_lazy(parameter):
            raise InvalidInputError(
                f"The parameter '{name}' has no size yet. Run the module once on made-up data of "
                "the right shape first, and give its parameters to the optimizer after that."
            )
    found = sorted({str(parameter.dtype) for parameter in trained.values()})
    if len(found) > 1 or not set(found) <= {"torch.float32", "torch.float64"}:
        raise UnprovenError(
            "The trained parameters must all be float32, or all float64. Got "
            f"{', '.join(found)} instead; convert the module with module.float()."
        )


def _tensors(batch: Batch) -> tuple[Any, ...]:
    return tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)


def _fill_up(batch: Batch) -> tuple[Batch, int | None]:
    """A batch of plain tensors with more rows, and how many were its own; others as they are."""
    tensors = _tensors(batch)
    count = len(tensors[0]) if isinstance(tensors[0], Tensor) and tensors[0].dim() else 0
    if not all(isinstance(x, Tensor) and x.dim() and len(x) == count for x in tensors) or not count:
        return batch, None
    filled = filled_up(tensors)
    return (filled if isinstance(batch, (tuple, list)) else filled[0]), count


def _empty(batch: Batch) -> bool:
    """Whether a batch of plain tensors has no rows: not every layer of torch can see that."""
    tensors = batch if isinstance(batch, (tuple, list)) else (batch,)
    return all(isinstance(x, Tensor) and x.dim() and not len(x) for x in tensors)


def _checked(losses: Any) -> Tensor:
    if not isinstance(losses, Tensor):
        raise InvalidInputError(
            "The losses must be a tensor with one entry for each example. Got "
            f"{type(losses).__name__} instead."
        )
    if losses.dim() != 1:
        raise InvalidInputError(
            "The losses must be a vector with one entry for each example (no reduction). Got "
            f"shape {tuple(losses.shape)} instead."
        )
    return losses


def _check_rows(use: _Use, count: int) -> None:
    """Refuse rows that are not the examples', and those with too few digits."""
    if use.output.dtype not in (torch.float32, torch.float64):
        raise UnprovenError(
            f"The layer '{use.name}' ran in {use.output.dtype}, too coarse for a norm that bounds "
            "anything. Leave out autocast, or run the layer in float32."
        )
    found, rows = len(use.output) if use.output.dim() else 0, use.rows
    if rows is None and found != count:
        raise UnprovenError(
            f"The layer '{use.name}' saw {found} rows for {count} examples: put examples first, or "
            "say whose the rows are with graphveil.grads.ragged."
        )
    if rows is not None and (rows.count != count or len(rows.owner) != found or not rows.valid):
        raise UnprovenError(
            f"The layer '{use.name}' saw {found} rows for {count} examples, inside "
            f"graphveil.grads.ragged with {len(rows.owner)} owners among {rows.count} examples. "
            "Name the owner of every row, or call the layer outside."
        )


def _weighted_sums(
    rules: dict[str, Rule], weights: dict[str, Tensor], numbered: Numbered | None = None
) -> dict[str, Tensor]:
    return {
        f"{block}.{name}" if block else name: value
        for block, rule in rules.items()
        for name, value in rule.weighted_sum(weights[block], numbered).items()
    }


def _unruled(blocks: dict[str, nn.Module]) -> str:
    """What keeps a module from the book-keeping: layers without a rule, and shared weights."""
    owners: dict[int, list[str]] = {}
    for name, layer in blocks.items():
        for parameter in layer.parameters(recurse=False):
            if parameter.requires_grad:
                owners.setdefault(id(parameter), []).append(name)
    odd = [f"'{n}' ({type(b).__name__})" for n, b in blocks.items() if type(b) not in RULES]
    odd += [f"the weight that {' and '.join(n)} share" for n in owners.values() if len(n) > 1]
    return ", ".join(odd)


def layers_with_parameters(module: nn.Module) -> dict[str, nn.Module]:
    """The submodules that own a trained parameter, by name: the blocks of the gradient."""
    return {
        name: layer
        for name, layer in module.named_modules()
        if any(p.requires_grad for p in layer.parameters(recurse=False))
    }


def refuse_mixing(module: nn.Module) -> None:
    """Refuse layers known to mix the examples of a batch, or to remember earlier ones."""
    for name, layer in module.named_modules():
        kind = type(layer).__name__
        remembers = getattr(layer, "track_running_stats", False)
        if kind.startswith(_MIXING) or isinstance(layer, _BatchNorm) or remembers:
            raise UnprovenError(
                f"The module '{name}' ({kind}) mixes the examples of a batch, so one example's "
                "gradient has no bound. Use nn.LayerNorm, or an InstanceNorm of each example "
                "without running statistics."
            )
        if isinstance(layer, (nn.Embedding, nn.EmbeddingBag)) and (
            layer.max_norm is not None or layer.scale_grad_by_freq
        ):
            raise UnprovenError(
                f"The module '{name}' ({kind}) changes its weights, or the gradient, by the ids "
                "that a batch holds. Leave out 'max_norm' and 'scale_grad_by_freq'."
            )
