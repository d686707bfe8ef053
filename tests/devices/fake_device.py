"""An accelerator that is not there: tensors that say they are on ``cuda:0``, and compute here.

A tensor is away if its storage is marked. Under :func:`away` every operation looks at its tensors:
what mixes marked ones with others is refused, as torch refuses it, but for numbers (no dimensions)
of the processor. What an operation makes of marked tensors is marked. So whatever runs here moved
all that it had to move; its numbers are those of the processor, to the last bit.
"""

import contextlib
from collections import Counter

import torch
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

AWAY, HERE = torch.device("cuda", 0), torch.device("cpu")
_ACROSS = ("aten::copy_", "aten::_copy_from")  # what torch lets cross
_DEVICE = torch.Tensor.device.__get__


def _storages(tensor):
    while is_functorch_wrapped_tensor(tensor):
        tensor = get_unwrapped(tensor)
    if tensor.layout in (torch.sparse_csr, torch.sparse_csc):
        return [tensor.values().untyped_storage()]
    if tensor.layout != torch.strided:
        return []
    return [tensor.untyped_storage()]


def is_away(tensor):
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        return any(getattr(storage, "away", False) for storage in _storages(tensor))


def mark(tensor):
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        for storage in _storages(tensor):
            storage.away = True
    return tensor


class _Looking(TorchDispatchMode):
    """Sees every operation, backward passes included."""

    def __init__(self):
        super().__init__()
        self.counted = Counter()  # of operations on tensors that are away, by their names

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        tensors = [t for t in tree_flatten((args, kwargs or {}))[0] if isinstance(t, torch.Tensor)]
        places = {is_away(t) for t in tensors if t.dim() or is_away(t)}
        name = func._schema.name
        if len(places) > 1 and name not in _ACROSS:
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but got cuda:0 and cpu ({name})"
            )
        made = func(*args, **(kwargs or {}))
        if True in places and name not in _ACROSS:
            self.counted[name] += 1
            views = {id(t) for t in tensors}
            tree_map(lambda t: _mark_made(t, views), made)
        return made


def _mark_made(value, given):
    if isinstance(value, torch.Tensor) and id(value) not in given:
        mark(value)
    return value


class _Saying(TorchFunctionMode):
    """Answers what is asked of a device, and moves what is to be moved."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if func is _DEVICE or (
            name == "__get__" and getattr(func, "__self__", None) is torch.Tensor.device
        ):
            return AWAY if is_away(args[0]) else HERE
        if name == "numpy" or name == "__array__":
            if is_away(args[0]):
                raise TypeError("can't convert cuda:0 device type tensor to numpy")
            return func(*args, **kwargs)
        if name in ("cpu", "cuda"):
            return _put(args[0], HERE if name == "cpu" else AWAY)
        if name == "to":
            return _to(func, *args, **kwargs)
        if name in ("tensor", "as_tensor") and isinstance(args[0], torch.Tensor):
            raise AssertionError("a tensor of a tensor")
        wanted = kwargs.get("device")
        if wanted is None:
            return func(*args, **kwargs)
        kwargs["device"] = HERE
        made = func(*args, **kwargs)
        return mark(made) if torch.device(wanted).type == "cuda" else made


def _to(func, tensor, *args, **kwargs):
    where, kind = kwargs.get("device"), kwargs.get("dtype")
    for value in args:
        if isinstance(value, (str, torch.device)):
            where = value
        elif isinstance(value, torch.dtype):
            kind = value
        elif isinstance(value, torch.Tensor):
            where, kind = (AWAY if is_away(value) else HERE), value.dtype
    if kind is not None or kwargs.get("copy"):
        tensor = func(
            tensor, tensor.dtype if kind is None else kind, copy=kwargs.get("copy", False)
        )
    return tensor if where is None else _put(tensor, torch.device(where))


def _put(tensor, where):
    if is_away(tensor) == (where.type == "cuda"):
        return tensor
    return _Move.apply(tensor) if tensor.is_floating_point() else _other(tensor)


def _other(tensor):
    """A copy on the other side."""
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        if tensor.layout == torch.sparse_csr:
            parts = [part.clone() for part in (tensor.crow_indices(), tensor.col_indices())]
            values = tensor.values().clone()
            copy = torch.sparse_csr_tensor(*parts, values, tensor.shape, check_invariants=False)
        else:
            copy = tensor.detach().clone()
    return copy if is_away(tensor) else mark(copy)


class _Move(torch.autograd.Function):
    @staticmethod
    def forward(tensor):
        return _other(tensor)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        return _other(grad)


class _Generators:
    """The module of a device whose generator has a key and a place."""

    def __init__(self):
        self.state = torch.zeros(16, dtype=torch.uint8)

    def get_rng_state(self, device):
        return self.state

    def set_rng_state(self, state, device):
        self.state = state


@contextlib.contextmanager
def away(monkeypatch, count=1):
    """As on a machine with so many accelerators, of which the first computes."""
    from graphveil.grads import coins

    generators = _Generators()
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "device_count", lambda: count)
        patch.setattr(torch.cuda, "get_device_name", lambda device: "a device that is not there")
        patch.setattr(coins, "_of", lambda device: generators)
        patch.setattr(coins, "_seeded_state", lambda device, seed: generators.state)
        with _Saying(), _Looking() as looking:
            yield looking
