"""What a module and a loss hold, and whether a batch changes it.

Whatever code keeps of the examples it sees (in buffers, in parameters that are not trained, in
attributes, in a closure, in a generator of its own) reaches later losses, or whoever reads the
weights, without noise. A :class:`Watch` looks before and after, and refuses what differs.

It looks at tensors by identity and version, which costs next to nothing, and at plain values. At
the engine's tests it looks at the contents of tensors and large arrays as well. It does not look
into objects more than a few levels deep, nor into the entries of a container after its first ones.
"""

from __future__ import annotations

import array
import functools
import hashlib
import io
import random
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from graphveil._errors import UnprovenError

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_BYTES = (bytearray, memoryview, array.array)
_HELD_IN_PLACE = (Tensor, np.ndarray, *_BYTES, list, dict, set, deque)
_DEPTH = 4  # of objects in objects
_ENTRIES = 64  # of one container, into which one looks
_MORE_ENTRIES = 4096  # which are compared as they are
_MOST = 1 << 15  # values in all, beside parameters and buffers
_ARRAY_BYTES = 1 << 15  # of an array that is compared byte by byte at every batch
_OWN = ("graphveil.", "logging")  # of the engine itself, whose counts are its own, and of logs
_LIBRARIES = ("torch.", "torch_geometric.", "builtins")
_HOOKS = (
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks",
    "_state_dict_hooks", "_state_dict_pre_hooks",
)  # fmt: skip
_WEIGHTS_OF_RNNS = ("_flat_weights", "_flat_weight_refs")  # parameters, which are named elsewhere
_HOOKS_OF_TENSORS = ("_backward_hooks", "_post_accumulate_grad_hooks")
_OF_EVERY_MODULE = frozenset(vars(nn.Module())) - {"training"}


class _Entries(tuple[Any, ...]):
    """Entries of a container that are compared as they are: the same objects, or equal values."""


@dataclass
class _Look:
    """What one look has met already; ``whole`` if it is at all that arrays hold."""

    whole: bool
    met: dict[int, Any] = field(default_factory=dict)  # kept, so that no id is given twice

    def first(self, value: Any) -> bool:
        """Whether this is the first time that it is met."""
        new = id(value) not in self.met
        self.met[id(value)] = value
        return new


class Watch:
    """What ``module`` and ``losses`` hold now.

    ``values=True`` also compares the contents of tensors, for what is written past their versions,
    and of arrays however large.
    """

    def __init__(
        self, module: nn.Module, losses: Callable[..., Any], *, values: bool = False
    ) -> None:
        self.module, self.losses, self.values = module, losses, values
        self.before = self._held()

    def check(self) -> None:
        """Refuse if a batch that was seen in between has changed anything."""
        after = self._held()
        for name in self.before | after:
            stayed = name in after and name in self.before
            if not stayed or not _same(self.before[name], after[name]):
                raise _remembers(name)

    def _held(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        look, others = _Look(self.values), 0
        for name, value in chain(_of_module(self.module, look), _of_loss(self.losses, look)):
            others += not name.startswith(("parameter", "buffer"))
            if others > _MOST:
                raise UnprovenError(
                    f"The module and the loss hold more than {_MOST} values beside parameters and "
                    "buffers, and no more are watched for what they keep of a batch. Hold tables "
                    "as tensors or arrays, and leave out what forward does not need."
                )
            while name in out:  # two keys that look alike
                name += " "
            out[name] = (value, value._version) if isinstance(value, Tensor) else value
            if self.values and isinstance(value, Tensor):
                out[f"{name} contents"] = _contents(value)
        return out


def _remembers(name: str) -> UnprovenError:
    return UnprovenError(
        f"The {name.removesuffix(' contents').strip()} changes when a batch is seen: it keeps a "
        "memory of the examples, without noise. Leave it as it is in forward: make it in __init__ "
        "or by a run on public values, or use a local variable."
    )


def _contents(tensor: Tensor) -> Tensor | None:
    """A copy, of what may be copied."""
    if is_lazy(tensor) or tensor.layout != torch.strided or tensor.is_meta:
        return None
    try:
        return tensor.detach().clone()
    except RuntimeError:  # kept from inside a vmap, and dead outside: another one than before
        return None


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, tuple) and one and isinstance(one[0], Tensor):
        return isinstance(other, tuple) and one[0] is other[0] and one[1] == other[1]
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and bool(((one == other) | (one != one)).all())
    if type(one) is not type(other):
        return False
    if isinstance(one, _Entries):
        pairs = zip(one, other, strict=False)
        alike = all(a is b or (isinstance(a, _PLAIN) and _same(a, b)) for a, b in pairs)
        return alike and len(one) == len(other)
    return bool(one == other) or (one != one and other != other)


def _of_module(module: nn.Module, look: _Look) -> Iterator[tuple[str, Any]]:
    """Parameters and buffers of every layer, and what else it holds."""
    for path, layer in module.named_modules():
        look.first(layer)
        before = f"{path}." if path else ""
        for name, value in _tensors(layer._parameters, look):
            yield f"parameter '{before}{name}'", value
        for name, value in _tensors(layer._buffers, look):
            yield f"buffer '{before}{name}'", value
        for name, value in _attributes(layer):
            if isinstance(value, _PLAIN):
                yield f"attribute '{before}{name}'", value
                continue
            for inner, part in _inside(value, "", 1, look):
                if not isinstance(part, nn.Parameter):
                    yield f"attribute '{before}{name}{inner}'", part
        for inner, part in _extra_state(layer, look):
            yield f"extra state '{before}get_extra_state(){inner}'", part


def _tensors(tensors: dict[str, Any], look: _Look) -> Iterator[tuple[str, Any]]:
    """Each tensor by its name, and what hangs on it."""
    for name, tensor in tensors.items():
        if tensor is not None:
            yield name, tensor
            for inner, part in _at_tensor(tensor, look):
                yield f"{name}{inner}", part


def _at_tensor(tensor: Tensor, look: _Look) -> Iterator[tuple[str, Any]]:
    """What hangs on a tensor: its gradient, attributes, and what its hooks hold."""
    if tensor.is_leaf and tensor.grad is not None:
        yield ".grad", tensor.grad
    parts = list(vars(tensor).items())
    parts += [(name, getattr(tensor, name, None)) for name in _HOOKS_OF_TENSORS]
    for name, part in parts:
        if part is not None:
            yield from _inside(part, f".{name}", 1, look)


def _attributes(layer: nn.Module) -> Iterator[tuple[str, Any]]:
    """What a layer holds beside parameters and buffers, and what its code names."""
    own = vars(layer)
    for name in _HOOKS:
        if own.get(name):
            yield name, own[name]
    known = _WEIGHTS_OF_RNNS if isinstance(layer, nn.RNNBase) else ()
    for name, value in own.items():
        if name not in _OF_EVERY_MODULE and name not in known:
            yield name, value
    yield from _shared(layer)
    for name, value in _globals_of_class(type(layer)):
        yield name.lstrip("."), value


def _extra_state(layer: nn.Module, look: _Look) -> Iterator[tuple[str, Any]]:
    """What state_dict asks a layer for. It is made anew, so tensors are compared by contents."""
    if type(layer).get_extra_state is not nn.Module.get_extra_state:
        for inner, part in _inside(layer.get_extra_state(), "", 1, look):
            yield inner, _bytes_of_tensor(part, look) if isinstance(part, Tensor) else part


def _shared(value: Any) -> Iterator[tuple[str, Any]]:
    """Values that an object shares with all others of its class."""
    for kind in type(value).__mro__:
        if not kind.__module__.startswith(_LIBRARIES):
            for name, part in list(vars(kind).items()):
                if not name.startswith("__") and isinstance(part, (*_PLAIN, *_HELD_IN_PLACE)):
                    yield f"{kind.__name__}.{name}", part


def _of_loss(losses: Callable[..., Any], look: _Look) -> Iterator[tuple[str, Any]]:
    """What a loss holds: attributes, closures, and globals that its code names."""
    for inner, part in _inside(losses, "", 0, look):
        yield f"loss's '{inner.lstrip('.') or 'value'}'", part


def _globals_of_class(kind: type) -> Iterator[tuple[str, Any]]:
    for shared, names in _names_in_class(kind):
        yield from _globals(shared, names)


@functools.lru_cache(maxsize=1024)
def _names_in_class(kind: type) -> list[tuple[dict[str, Any], tuple[str, ...]]]:
    """The names in the code of a class and of its parents, of those that are one's own."""
    return [
        (code.__globals__, _names_in(code.__code__))
        for parent in kind.__mro__
        if not parent.__module__.startswith((*_LIBRARIES, *_OWN))
        for part in vars(parent).values()
        for code in (part, getattr(part, "__func__", None), getattr(part, "fget", None))
        if isinstance(code, types.FunctionType)
    ]


@functools.lru_cache(maxsize=1024)
def _names_in(code: types.CodeType) -> tuple[str, ...]:
    inner = (part for part in code.co_consts if isinstance(part, types.CodeType))
    return tuple(dict.fromkeys(chain(code.co_names, *(_names_in(part) for part in inner))))


def _globals(shared: dict[str, Any], names: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """Values of globals, and functions and objects made in the same file."""
    for name in names:
        value = shared.get(name)
        if isinstance(value, types.FunctionType):
            own = value.__globals__ is shared
        else:
            own = value is not None and type(value).__module__ == shared.get("__name__")
        if own or isinstance(value, (*_PLAIN[:-1], *_HELD_IN_PLACE)):
            yield f".global {name}", value


def _inside(value: Any, path: str, depth: int, look: _Look) -> Iterator[tuple[str, Any]]:
    """Values that can be compared, with the way to them."""
    if isinstance(value, (Tensor, *_PLAIN)):
        yield path, value
        return
    if depth > _DEPTH or not look.first(value):
        return
    for kinds, read in _LEAVES:
        if isinstance(value, kinds) and not _holds_objects(value):
            yield path, read(value, look)
            return
    if isinstance(value, nn.Module):
        for name, part in _of_module(value, look):
            yield f"{path}.{name}", part
        return
    for name, part in _parts(value):
        yield from _inside(part, f"{path}{name}", depth + 1, look)
    if isinstance(value, (Mapping, list, Set, deque)):
        yield path, f"{len(value)} entries"
        yield path, _entries(value, look)


def _holds_objects(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.hasobject


def _bytes_of(value: NDArray[Any], look: _Look) -> tuple[Any, ...]:
    """All bytes of an array; of a large one a digest, or some of them between two tests."""
    value = np.asarray(value)
    about = value.shape, str(value.dtype)
    if value.nbytes <= _ARRAY_BYTES:
        return *about, value.tobytes()
    flat = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    if look.whole:
        return *about, hashlib.blake2b(flat.data).digest()
    part = _ARRAY_BYTES // 4
    some = flat[part : -part : -(-len(flat) // part)]
    return *about, flat[:part].tobytes(), flat[-part:].tobytes(), some.tobytes()


def _bytes_of_tensor(tensor: Tensor, look: _Look) -> Any:
    try:
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        return str(tensor.dtype), *tensor.shape, *_bytes_of(flat.view(torch.uint8).numpy(), look)
    except (RuntimeError, TypeError):  # not in memory: another one is another one
        return tensor


def _entries(value: Any, look: _Look) -> Any:
    """What a set holds, and what other containers hold after the entries that are looked into."""
    last = None if look.whole else _MORE_ENTRIES
    if isinstance(value, Set):
        return frozenset(islice(value, last))
    items = chain.from_iterable(value.items()) if isinstance(value, Mapping) else value
    return _Entries(islice(items, _ENTRIES, last))


_LEAVES: tuple[tuple[Any, Callable[[Any, _Look], Any]], ...] = (
    (np.ndarray, _bytes_of),
    (np.generic, lambda value, look: value.tobytes()),
    (_BYTES, lambda value, look: _bytes_of(np.frombuffer(bytes(value), np.uint8), look)),
    ((io.BytesIO, io.StringIO), lambda value, look: None if value.closed else value.getvalue()),
    (torch.Generator, lambda value, look: bytes(value.get_state().numpy())),
    (np.random.Generator, lambda value, look: repr(value.bit_generator.state)),
    (np.random.RandomState, lambda value, look: repr(value.get_state(legacy=False))),
    (random.Random, lambda value, look: hash(value.getstate())),
)


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """What a container, a function or an object holds."""
    if isinstance(value, Mapping):
        for key, part in islice(value.items(), _ENTRIES):
            yield f"[{key!r}]", part
    elif isinstance(value, (list, tuple, deque, Set, np.ndarray)):
        entries = value.flat if isinstance(value, np.ndarray) else value
        for place, part in enumerate(islice(entries, _ENTRIES)):
            if not isinstance(value, Set) or not isinstance(part, _PLAIN):
                yield f"[{place}]", part
    elif isinstance(value, types.FunctionType):
        yield from _parts_of_function(value)
    elif isinstance(value, types.MethodType):
        yield "", value.__self__
        yield "", value.__func__
    elif isinstance(value, functools.partial):
        yield "", value.func
        yield ".arguments", value.args
        yield ".named arguments", value.keywords
    elif hasattr(value, "__dict__") and not isinstance(value, (type, types.ModuleType)):
        yield from _parts_of_object(value)


def _parts_of_function(value: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
        with suppress(ValueError):  # not filled yet
            yield f".{name}", cell.cell_contents
    yield ".defaults", value.__defaults__
    yield ".named defaults", value.__kwdefaults__
    yield from ((f".{name}", part) for name, part in vars(value).items())
    if not (value.__module__ or "").startswith((*_LIBRARIES, *_OWN)):
        yield from _globals(value.__globals__, _names_in(value.__code__))


def _parts_of_object(value: Any) -> Iterator[tuple[str, Any]]:
    if type(value).__module__.startswith(_OWN):
        return
    for name, part in (*list(vars(value).items()), *_shared(value)):
        # Made once, from what the object holds anyway.
        if not isinstance(getattr(type(value), name, None), functools.cached_property):
            yield f".{name}", part
    if callable(value):
        yield from _globals_of_class(type(value))
