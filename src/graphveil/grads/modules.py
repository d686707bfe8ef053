"""What of a module is trained, and which modules cannot be: known before any batch is seen."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from graphveil._errors import InvalidInputError, UnprovenError
from graphveil.grads.clipping import Clipping

_MIXING = (
    "BatchNorm", "SyncBatchNorm", "GraphNorm", "PairNorm", "DiffGroupNorm", "GraphSizeNorm",
    "MeanSubtractionNorm", "HeteroBatchNorm",
)  # fmt: skip


def trained_blocks(module: nn.Module, clipping: Clipping) -> dict[str, nn.Module]:
    """The submodules that own a trained parameter, by name: the blocks of the gradient.

    Refuses a module without any, one that mixes examples or has few digits, and a clipping without
    a threshold for every block.
    """
    refuse_mixing(module)
    _check_dtypes(module)
    blocks = {
        name: layer
        for name, layer in module.named_modules()
        if any(p.requires_grad for p in layer.parameters(recurse=False))
    }
    if not blocks:
        raise InvalidInputError("The module must have a parameter that requires a gradient.")
    clipping.scales(list(blocks))  # a threshold that is missing is missed here
    return blocks


def trained_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that require a gradient, by name."""
    return {name: value for name, value in module.named_parameters() if value.requires_grad}


def empty_sum(module: nn.Module) -> dict[str, Tensor]:
    """A sum with no terms, by parameter name: what an empty batch gives.

    In float64: leaving one term out must not shift the rounding of very many others.
    """
    trained = trained_parameters(module).items()
    return {name: torch.zeros_like(value, dtype=torch.float64) for name, value in trained}


def noise_units(module: nn.Module, clipping: Clipping, blocks: list[str]) -> dict[str, float]:
    """The noise unit of every parameter (see :mod:`graphveil.grads.clipping`)."""
    scales = clipping.scales(blocks)
    return {name: scales[name.rpartition(".")[0]] for name in trained_parameters(module)}


def training_state(module: nn.Module) -> tuple[Any, ...]:
    """What decides which gradients there are: layers, modes, and what is frozen."""
    return (
        [(id(layer), layer.training) for layer in module.modules()],
        [(id(parameter), parameter.requires_grad) for parameter in module.parameters()],
    )


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


def _check_dtypes(module: nn.Module) -> None:
    """Norms are good to the last digit that counts in float32 and float64 alone."""
    trained = trained_parameters(module)
    for name, parameter in trained.items():
        if is_lazy(parameter):
            raise InvalidInputError(
                f"The parameter '{name}' has no size yet. Run the module once on made-up data of "
                "the right shape first, and give its parameters to the optimizer after that."
            )
    dtypes = sorted({str(parameter.dtype) for parameter in trained.values()})
    if len(dtypes) > 1 or not set(dtypes) <= {"torch.float32", "torch.float64"}:
        raise UnprovenError(
            "The trained parameters must all be float32, or all float64. Got "
            f"{', '.join(dtypes)} instead; convert the module with module.float()."
        )
