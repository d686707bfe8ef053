"""Features as networks read them: every row by itself, or through a public random matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Features:
    """What is done to features; see :class:`~graphveil.methods.settings.FeatureSettings`.

    *Guarantee*: row by row, so that it costs nothing. Public: all fields, and the number of
    columns.
    """

    how: str
    scale: float
    projection: int
    project_above: int
    seed: int

    @classmethod
    def of(cls, method: Any) -> Features:
        """Those that the settings of a method say."""
        return cls(
            how=method.features,
            scale=method.feature_scale,
            projection=method.projection,
            project_above=method.project_above,
            seed=method.seed,
        )

    def columns(self, num_features: int) -> int:
        """How many columns a network reads."""
        return self.projection if num_features > self.project_above else num_features

    def prepare(self, x: Tensor) -> Tensor:
        """The rows that a network reads."""
        import torch
        from torch.nn import functional as F

        from graphveil.rng import seeded

        x = x.float()
        if self.how == "power":
            x = x.sign() * x.abs().sqrt()
        if x.shape[1] > self.project_above:
            generator = seeded(self.seed, "projection").torch_generator()
            x = F.normalize(x, dim=1) if self.how != "raw" else x
            drawn = torch.randn(x.shape[1], self.projection, generator=generator)
            x = x @ (drawn / self.projection**0.5)
        return x if self.how == "raw" else self.scale * F.normalize(x, dim=1)
