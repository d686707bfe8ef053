"""What a module and a loss hold, and whether a batch changes it.

Whatever code keeps of the examples it sees (in buffers, in parameters that are not trained, in
attributes, in a closure, in a generator of its own) reaches later losses, or whoever reads the
weights, without noise. A :class:`Watch` looks before and after, and refuses what differs.

It looks at tensors by identity and version, which costs next to nothing, and at plain values. It
does not follow containers beyond their first entries, nor objects more than a few levels deep.
"""

from __future__ import annotations

import functools
import random
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Set
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from graphveil._errors import UnprovenError

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_DEPTH = 4  # of objects in objects
_ENTRIES = 64  # of one container
_MOST = 4096  # values in all
_ARRAY_BYTES = 4096  # of an array that is compared by value
_OWN = ("graphveil.", "logging")  # of the engine itself, whose counts are its own, and of logs
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_OF_EVERY_MODULE = frozenset(vars(nn.Module())) - {"training"}


class Watch:
    """What ``module`` and ``losses`` hold now.

    ``values=True`` also compares tensors' contents, for what is written past their versions.
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
            if name not in after or name not in self.before:
                raise _remembers(name)
            if not _same(self.before[name], after[name]):
                raise _remembers(name)

    def _held(self) -> dict[str, Any]:
        out: dict[str, Any] = {}
        seen: set[int] = set()
        for name, value in (*_of_module(self.module, seen), *_of_loss(self.losses, seen)):
            if len(out) >= _MOST:
                break
            out[name] = (value, value._version) if isinstance(value, Tensor) else value
            if self.values and isinstance(value, Tensor):
                out[f"{name} "] = _contents(value)
        return out


def _remembers(name: str) -> UnprovenError:
    return UnprovenError(
        f"The {name.strip()} changes when a batch is seen: it keeps a memory of the examples, "
        "without noise. Leave it as it is in forward: make it in __init__ or by a run on public "
        "values, or use a local variable."
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
    return bool(one == other) or (one != one and other != other)


def _of_module(module: nn.Module, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Parameters and buffers of every layer, and what else it holds."""
    for path, layer in module.named_modules():
        seen.add(id(layer))
        before = f"{path}." if path else ""
        for name, value in layer._parameters.items():
            if value is not None:
                yield f"parameter '{before}{name}'", value
        for name, value in layer._buffers.items():
            if value is not None:
                yield f"buffer '{before}{name}'", value
        for name, value in _attributes(layer):
            if isinstance(value, _PLAIN):
                yield f"attribute '{before}{name}'", value
                continue
            for inner, found in _inside(value, "", 1, seen):
                if not isinstance(found, nn.Parameter):
                    yield f"attribute '{before}{name}{inner}'", found


def _attributes(layer: nn.Module) -> Iterator[tuple[str, Any]]:
    """What a layer holds beside parameters and buffers. torch's own layers hold settings alone."""
    own = vars(layer)
    for name in _HOOKS:
        if own.get(name):
            yield name, own[name]
    if not type(layer).__module__.startswith("torch.nn."):
        for name, value in own.items():
            if name not in _OF_EVERY_MODULE:
                yield name, value
        yield from _shared(layer)


def _shared(value: Any) -> Iterator[tuple[str, Any]]:
    """Plain values that an object shares with all others of its class."""
    if not type(value).__module__.startswith(("torch.", "builtins")):
        for name, part in list(vars(type(value)).items()):
            if not name.startswith("__") and isinstance(part, (*_PLAIN, Tensor, list, dict, deque)):
                yield f"{type(value).__name__}.{name}", part


def _of_loss(losses: Callable[..., Any], seen: set[int]) -> Iterator[tuple[str, Any]]:
    """What a loss holds: attributes, closures, and plain globals that its code names."""
    for inner, found in _inside(losses, "", 0, seen):
        yield f"loss's '{inner.lstrip('.') or 'value'}'", found
    code = getattr(losses, "__code__", None)
    if code is not None:
        shared = losses.__globals__
        for name in code.co_names:
            if isinstance(value := shared.get(name), (*_PLAIN, Tensor, list, dict, deque)):
                for inner, found in _inside(value, "", 1, seen):
                    yield f"loss's global '{name}{inner}'", found


def _inside(value: Any, path: str, depth: int, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Values that can be compared, with the way to them."""
    if isinstance(value, (Tensor, *_PLAIN)):
        yield path, value
        return
    if depth > _DEPTH or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, np.ndarray):
        yield path, value.tobytes() if value.nbytes <= _ARRAY_BYTES else (id(value), value.shape)
    elif isinstance(value, torch.Generator):
        yield path, bytes(value.get_state().numpy())
    elif isinstance(value, np.random.Generator):
        yield path, repr(value.bit_generator.state)
    elif isinstance(value, np.random.RandomState):
        yield path, repr(value.get_state(legacy=False))
    elif isinstance(value, random.Random):
        yield path, hash(value.getstate())
    elif isinstance(value, nn.Module):
        for name, found in _of_module(value, seen):
            yield f"{path}.{name}", found
    else:
        for name, part in _parts(value):
            yield from _inside(part, f"{path}{name}", depth + 1, seen)
        if isinstance(value, (Mapping, list, Set, deque)):
            yield path, f"{len(value)} entries"


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """What a container, a function or an object holds."""
    if isinstance(value, Mapping):
        for place, (key, part) in enumerate(value.items()):
            if place < _ENTRIES:
                yield f"[{key!r}]", part
    elif isinstance(value, (list, tuple, deque)):
        for place, part in enumerate(value):
            if place < _ENTRIES:
                yield f"[{place}]", part
    elif isinstance(value, types.FunctionType):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            try:
                yield f".{name}", cell.cell_contents
            except ValueError:  # not filled yet
                continue
        yield ".defaults", value.__defaults__
        yield ".named defaults", value.__kwdefaults__
    elif isinstance(value, types.MethodType):
        yield "", value.__self__
        yield "", value.__func__
    elif isinstance(value, functools.partial):
        yield "", value.func
        yield ".arguments", value.args
        yield ".named arguments", value.keywords
    elif hasattr(value, "__dict__") and not isinstance(value, (type, types.ModuleType)):
        if type(value).__module__.startswith(_OWN):
            return
        for name, part in (*list(vars(value).items()), *_shared(value)):
            # Made once, from what the object holds anyway.
            if not isinstance(getattr(type(value), name, None), functools.cached_property):
                yield f".{name}", part
