r"""Randomness inside loss terms: dropout masks, augmentation, all that a module draws on its way.

The proof of a step (docs/guarantees/step.md) calls what untouched terms add *a common shift*. So
what a term draws may follow neither who else was drawn nor the order of a batch. Two ways do:

*Fresh.* During a step the generators that all code of a process shares (torch's, numpy's and
Python's) hold a state that was drawn from the secret stream: whatever order it is consumed in,
terms draw independently of each other and of the data. Afterwards they go on as if nothing had
happened. This covers every module, and no public seed reaches a mask.

*Keyed.* graphveil's own networks know which public id a row stands for. Their dropout is a function
of the step's key, of the layer and of that id, so that a term has the same mask, bit by bit,
whatever company it is in.

Where several processes share a step, the key is one for all: a mask does not know which of them
computes its term. The fresh states are each process's own, from its operating system.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from graphveil import _validate, processes
from graphveil.rng import SecretStream, secret

_WORDS = 624  # of 32 bits in the state of a Mersenne twister
_KEY = 32  # bytes
_LOW = 0xFFFFFFFF


@dataclass(frozen=True, eq=False)
class _Keys:
    """The keys of one step, one for each layer that asks; layers ask in the network's order."""

    step: bytes
    states: GeneratorStates
    layers: dict[nn.Module, int] = field(default_factory=dict)

    def of(self, layer: nn.Module) -> tuple[int, int]:
        place = self.layers.setdefault(layer, len(self.layers))
        digest = hashlib.blake2b(place.to_bytes(8, "little"), key=self.step, digest_size=8).digest()
        return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")


_current: ContextVar[_Keys | None] = ContextVar("keys", default=None)


@contextmanager
def secret_coins(stream: SecretStream, devices: Iterable[torch.device] = ()) -> Iterator[None]:
    """One step's coins: shared generators in a fresh, secret state, and a key for masks.

    ``devices`` are those whose generators are in use, besides the CPU. They change nothing about
    how much is read from ``stream``. Of several processes rank 0 alone reads it.
    """
    ranks, before = processes.current(), generator_states(devices)
    drawn = ranks.once(lambda: torch.frombuffer(bytearray(stream.bytes(_KEY)), dtype=torch.uint8))
    key = bytes(drawn.tolist())
    # Two ranks in one state would give their terms the same masks.
    fresh = _fresh_states(stream if ranks.first else secret(), before)
    with _hold(_Keys(key, fresh), before):
        yield


@contextmanager
def same_coins() -> Iterator[None]:
    """Inside :func:`secret_coins`: its coins from their beginning, to compute something again."""
    keys = _current.get()
    if keys is None:
        yield
        return
    with _hold(_Keys(keys.step, keys.states), generator_states(keys.states.devices)):
        yield


@contextmanager
def _hold(keys: _Keys, after: GeneratorStates) -> Iterator[None]:
    token = _current.set(keys)
    try:
        set_generators(keys.states)
        yield
    finally:
        _current.reset(token)
        set_generators(after)


class Dropout(nn.Module):
    """``nn.Dropout`` whose masks are keyed inside a private step, for rows with public ids.

    *Guarantee conditions*: inside a step a row's mask is a function of the step's key, of the layer
    and of ``ids``, one public id for each row. Without ids it comes from torch's generator.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = _validate.number("dropout", p, "[0, 1)")

    def forward(self, x: Tensor, ids: Tensor | None = None) -> Tensor:
        """Rows of any arrangement; ``ids`` are arranged as they are, without the channels."""
        if not self.training or not self.p:
            return x
        keys = _current.get()
        if keys is None or ids is None:
            return F.dropout(x, self.p)
        rows, channels = keys.of(self)
        columns = torch.arange(x.shape[-1], device=x.device)
        numbers = _mix(_mix(ids ^ rows).unsqueeze(-1) ^ _mix(columns ^ channels))
        kept = numbers >= round(self.p * 2**32)
        return x * kept / (1.0 - self.p)


def _mix(x: Tensor) -> Tensor:
    """The finaliser of MurmurHash3, which permutes the 32-bit numbers, in 64-bit arithmetic."""
    x = x & _LOW
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & _LOW
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) & _LOW
    return x ^ (x >> 16)


# --- the generators that all code shares ----------------------------------------------------------


@dataclass(frozen=True, eq=False)
class GeneratorStates:
    """Where the shared generators stand: torch's (one for each device), numpy's and Python's."""

    cpu: Tensor
    numpy: Any
    python: Any
    devices: dict[torch.device, Tensor]


def generator_states(devices: Iterable[torch.device] = ()) -> GeneratorStates:
    """Where they stand now."""
    return GeneratorStates(
        torch.get_rng_state(),
        np.random.get_state(legacy=True),
        random.getstate(),
        {device: _of(device).get_rng_state(device) for device in devices},
    )


def set_generators(states: GeneratorStates) -> None:
    """Let them go on from there."""
    torch.set_rng_state(states.cpu)
    np.random.set_state(states.numpy)
    random.setstate(states.python)
    for device, state in states.devices.items():
        _of(device).set_rng_state(state, device)


def _fresh_states(stream: SecretStream, like: GeneratorStates) -> GeneratorStates:
    """States no bit of which anybody knows: all 19,968 of a twister, not a seed of 32 or 64.

    A GPU's generator is counter-based, and its key of 64 bits is all the state it has. It is a
    digest of the twister's state, so that a stream goes on alike wherever modules are.
    """

    def words() -> Any:
        return np.frombuffer(stream.bytes(4 * _WORDS), dtype="<u4")

    first = words()

    def key(device: torch.device) -> Tensor:
        content = first.tobytes() + str(device).encode()
        seed = int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little") >> 1
        return _seeded_state(device, seed)

    return GeneratorStates(
        _twister(first),
        ("MT19937", words().astype(np.uint32), _WORDS, 0, 0.0),
        (3, (*words().tolist(), _WORDS), None),
        {device: key(device) for device in like.devices},
    )


def _twister(words: Any) -> Tensor:
    """The state of torch's CPU generator with these words, all of them still to be used."""
    generator = torch.Generator().manual_seed(0)  # a layout to fill in: nothing half used, no
    state = generator.get_state().numpy().copy()  # normal number kept back
    state[24 : 24 + 8 * _WORDS] = np.frombuffer(words.astype("<u8").tobytes(), np.uint8)
    return torch.from_numpy(state)


def _seeded_state(device: torch.device, seed: int) -> Tensor:
    return torch.Generator(device).manual_seed(seed).get_state()


def _of(device: torch.device) -> Any:
    return torch.get_device_module(device)


def devices_of(module: nn.Module) -> set[torch.device]:
    """Where a module's parameters and buffers are, the CPU aside."""
    tensors = [*module.parameters(), *module.buffers()]
    return {tensor.device for tensor in tensors if tensor.device.type not in ("cpu", "meta")}
