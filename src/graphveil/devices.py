"""Where modules compute: the processor, or an accelerator that they are lent to.

    with devices.use("cuda"):
        method.fit(data)        # and predict, embed, Run(...).train(...)

A module is moved to the device for its steps and for its predictions, and back (:func:`placed`). A
step's batch is moved to where its module is (:func:`move`); elsewhere a network moves what it is
given, and what it answers returns (:func:`at_home`). All else stays on the processor: draws of the
secret stream, noise, caps, sums over neighbours, whatever is written or sent. See docs/devices.md.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from graphveil._errors import InvalidInputError

if TYPE_CHECKING:
    from torch import device, nn

CPU = "cpu"
_NAMES = re.compile(r"cpu|cuda(:\d{1,4})?")
_current: ContextVar[str] = ContextVar("device", default=CPU)

Call = TypeVar("Call", bound=Callable[..., Any])


def current() -> str:
    """The device in use: ``cpu``, unless somebody asked for another."""
    return _current.get()


@contextlib.contextmanager
def use(name: str | None) -> Iterator[str]:
    """Compute on ``cpu``, ``cuda`` or ``cuda:N`` for as long as this lasts; on None as before.

    One of several processes that says ``cuda`` takes the one of its place on its machine
    (``LOCAL_RANK``). Products of float32 are products of float32: TF32 and sums in half precision
    are off meanwhile.

    *Guarantee conditions*: what is drawn, and what noise is added to, is on the processor.
    """
    if name is None:
        yield current()
        return
    chosen = _choose(name)
    token = _current.set(chosen)
    try:
        with exact(chosen):
            yield chosen
    finally:
        _current.reset(token)


def _choose(name: str) -> str:
    """The device of that name, if it is there."""
    if not (isinstance(name, str) and _NAMES.fullmatch(name)):
        raise InvalidInputError(
            f"The device must be cpu, cuda or cuda:N. Got {name!r} instead; use --device cpu."
        )
    if name == CPU:
        return name
    import torch

    if not torch.cuda.is_available():
        raise InvalidInputError(
            f"The device must be there. Got {name!r}, and cuda is not available here (torch "
            f"{torch.__version__}); use --device cpu."
        )
    chosen = f"cuda:{_local_rank()}" if name == "cuda" else name
    count = torch.cuda.device_count()
    if int(chosen.partition(":")[2]) >= count:
        raise InvalidInputError(
            f"The device must be there. Got {chosen!r}, and this machine has {count}; start fewer "
            "processes on it, or use --device cpu."
        )
    return chosen


def _local_rank() -> int:
    """This process's place on its machine, as a launcher says; 0 where there is none."""
    text = os.environ.get("LOCAL_RANK") or "0"
    if not re.fullmatch(r"\d{1,4}", text):
        raise InvalidInputError(
            f"LOCAL_RANK must be as a launcher sets it. Got {text!r} instead; start with torchrun, "
            "or leave it out."
        )
    return int(text)


@contextlib.contextmanager
def exact(name: str) -> Iterator[None]:
    """Products as exact as their numbers are, on a device; what was set before is set again.

    Several threads may ask at once: it lasts until the last of them is done.
    """
    if name == CPU:
        yield
        return
    with _asking:
        if _asked["by"] == 0:
            _asked["before"] = [(where, what, getattr(where, what)) for where, what, _ in _flags()]
            for where, what, value in _flags():
                setattr(where, what, value)
        _asked["by"] += 1
    try:
        yield
    finally:
        with _asking:
            _asked["by"] -= 1
            if _asked["by"] == 0:
                for where, what, value in _asked["before"]:
                    setattr(where, what, value)


_asking = threading.Lock()
_asked: dict[str, Any] = {"by": 0, "before": []}


def _flags() -> list[tuple[Any, str, Any]]:
    """What torch rounds products by, and what it must be; newer versions have other names."""
    import torch

    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    sums = ("allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction")
    flags: list[tuple[Any, str, Any]] = [(products, what, False) for what in sums]
    if not hasattr(products, "fp32_precision"):
        return [*flags, (products, "allow_tf32", False), (convolutions, "allow_tf32", False)]
    named = (products, getattr(convolutions, "conv", None), getattr(convolutions, "rnn", None))
    return [*flags, *((where, "fp32_precision", "ieee") for where in named if where is not None)]


def kind() -> str:
    """Which kind of device is in use; all ranks of a run have the same."""
    return current().partition(":")[0]


def public(name: str | None = None) -> tuple[str, ...]:
    """What a certificate says of a device that is no processor; it changes no charge.

    By default of the one in use.
    """
    name = kind() if name is None else name
    if name == CPU:
        return ()
    return (
        f"that training computes on {name}, of whose arithmetic it is assumed, and was not "
        "tried, that a loss term rounds alike in any company",
    )


def describe() -> str:
    """The device in use, by its maker's name where it has one."""
    if kind() == CPU:
        return CPU
    import torch

    return f"{current()} ({torch.cuda.get_device_name(current())})"


# --- modules --------------------------------------------------------------------------------------


@contextlib.contextmanager
def placed(module: nn.Module, name: str | None = None) -> Iterator[None]:
    """Have a module on the device in use for as long as this lasts, or on another; then back."""
    name = current() if name is None else name
    if name == CPU or home_of(module).type != CPU:
        yield
        return
    module.to(name)
    try:
        yield
    finally:
        module.to(CPU)


def home_of(module: nn.Module) -> device:
    """Where a module is."""
    import torch

    for tensor in module.parameters():
        return tensor.device
    return next((tensor.device for tensor in module.buffers()), torch.device(CPU))


def at_home(compute: Call) -> Call:
    """A method of a module that computes where the module is, and answers where it was asked."""

    @functools.wraps(compute)
    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        home = home_of(self)
        if home.type == CPU:
            return compute(self, *args, **kwargs)
        asked = next(_places([*args, *kwargs.values()]), None)
        if asked == home:
            return compute(self, *args, **kwargs)
        kwargs = {name: move(value, home) for name, value in kwargs.items()}
        answer = compute(self, *(move(value, home) for value in args), **kwargs)
        return move(answer, CPU if asked is None else asked)

    return call  # type: ignore[return-value]


# --- what they are given --------------------------------------------------------------------------


def move(value: Any, to: str | device) -> Any:
    """The same on a device: tensors, and those in tuples, lists and records of them.

    Anything else that can move itself does so (``to``); the rest stays as it is.
    """
    return _map(value, lambda part: part.to(to))


class Mover:
    """Moves what comes to a device. A tensor that comes again, unchanged, is not moved again."""

    def __init__(self, to: str | device) -> None:
        from torch.utils.weak import WeakIdKeyDictionary

        self.to = to
        self._kept: Any = WeakIdKeyDictionary()  # what is gone here is gone there

    def __call__(self, value: Any) -> Any:
        return _map(value, self._put)

    def _put(self, part: Any) -> Any:
        from torch import Tensor

        if not isinstance(part, Tensor):
            return part.to(self.to)
        version, moved = self._kept.get(part, (None, None))
        if version != part._version:
            moved = part.to(self.to)
            self._kept[part] = part._version, moved
        return moved


def _map(value: Any, put: Callable[[Any], Any]) -> Any:
    """The same with ``put`` applied to all that can be moved in it."""
    if isinstance(value, tuple):
        made: Any = tuple.__new__(type(value), (_map(part, put) for part in value))
        if hasattr(value, "__dict__"):
            vars(made).update(vars(value))
        return made
    if isinstance(value, list):
        return [_map(part, put) for part in value]
    if hasattr(value, "to"):
        return put(value)
    if is_dataclass(value) and not isinstance(value, type):
        made = object.__new__(type(value))
        for field in fields(value):  # and nothing that was made of them
            object.__setattr__(made, field.name, _map(getattr(value, field.name), put))
        return made
    return value


def _places(values: Any) -> Iterator[device]:
    """Where the tensors among some values are."""
    from torch import Tensor

    for value in values:
        if isinstance(value, Tensor):
            yield value.device
        elif isinstance(value, (tuple, list)):
            yield from _places(value)
        elif is_dataclass(value) and not isinstance(value, type):
            yield from _places([getattr(value, field.name) for field in fields(value)])
