r"""Private rows: for each of M seeds the K nodes that matter most to it, chosen through noise.

DP-APPR of Zhang et al. (2024). Withholding one node, or removing it with all its edges, may change
every score of every row in any way, so all M rows are charged together. Noise goes on all scores,
zeros included. What is released of a row:

``gm``   the row, clipped to l2 norm ``bound``, with Gaussian noise on it: its K largest entries
``em0``  names alone: scores clipped to [0, ``bound``], K largest after Gumbel noise
``em1``  the same with half the budget, and noisy values of those K with the other half; or, as
         published, with ``value_noise``: Laplace noise on each value, beside the whole budget

Two non-negative rows of norm at most C are at most sqrt(2) C apart, hence M rows sqrt(2 M) C; the
M K values of ``em1`` lie in [0, C], hence sqrt(M K) C apart, and each by itself at most C.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import dp_accounting as dpa
import numpy as np
from numpy.typing import NDArray
from scipy import integrate, sparse, special, stats

from graphveil import _validate
from graphveil._errors import InvalidInputError
from graphveil.mechanisms import Gaussian, GumbelTopK, Laplace, largest
from graphveil.privacy.events import composed, repeated
from graphveil.rng import SecretStream, seeded

CHOICES = ("gm", "em0", "em1")
Scores = NDArray[np.float64]
Chosen = tuple[NDArray[np.int64], Scores]  # nodes, and what each weighs
_SCORES_AT_ONCE = 2**22  # that are dense in memory


@dataclass(frozen=True, kw_only=True)
class PrivateRows:
    """Chooses ``k`` nodes for each of ``rows`` seeds; see the top of this file.

    ``noise_multiplier`` is that of one Gaussian which costs as much as all rows together (for
    ``em0`` and ``em1`` in zero-concentrated privacy): 1 / noise_multiplier^2 is what is spent. With
    a ``value_noise`` that is for the names of ``em1`` alone, and each of its values costs one
    Laplace mechanism of that multiplier.

    *Guarantee*: one call of ``release`` costs one ``event()``, for one node under either relation,
    in both directions. Public: the number of nodes and all parameters.
    """

    how: str
    rows: int
    k: int
    bound: float
    noise_multiplier: float
    value_noise: float | None = None

    def __post_init__(self) -> None:
        _validate.choice("how", self.how, CHOICES)
        _validate.integer("rows", self.rows, "[1, 1e9]")
        _validate.integer("k", self.k, "[1, 1e9]")
        _validate.number("bound", self.bound, "(0, inf)")
        _validate.number("noise_multiplier", self.noise_multiplier, "(0, inf)")
        if self.value_noise is not None:
            _validate.number("value_noise", self.value_noise, "(0, inf)")
            if self.how != "em1":
                raise InvalidInputError(
                    "The 'value_noise' parameter must be left out where no values are released. "
                    f"Got {self.value_noise!r} with how={self.how!r} instead; use how='em1'."
                )

    def event(self) -> dpa.DpEvent:
        """What one call of :meth:`release` costs."""
        if self.how == "gm":
            return self._gaussian.event()
        names = self._gumbel(self.rows).event()
        if self.how == "em0":
            return names
        if self.value_noise is None:
            return composed(names, self._gaussian.event())
        return composed(names, repeated(self._laplace.event(), self.rows * self.k))

    def release(self, scores: sparse.csr_array, rng: SecretStream) -> Chosen:
        """The nodes chosen and their weights, both (rows, k); weights of a row add up to 1."""
        rows, nodes = scores.shape
        if rows != self.rows:
            raise InvalidInputError(
                f"The scores must have as many rows as are charged, {self.rows}. Got {rows} "
                "instead; charge for those that are released."
            )
        if self.k > nodes:
            raise InvalidInputError(
                f"The 'k' parameter must be at most the number of nodes, {nodes}. Got {self.k} "
                "instead; choose fewer."
            )
        chosen, values = np.empty((rows, self.k), np.int64), np.empty((rows, self.k))
        at_once = max(1, _SCORES_AT_ONCE // nodes)
        choose = self._by_value if self.how == "gm" else self._by_name
        for start in range(0, rows, at_once):
            part = slice(start, min(start + at_once, rows))
            chosen[part], values[part] = choose(scores[part].toarray(), rng)
        if self.how == "em1" and self.value_noise is None:
            values = self._gaussian.release(values, rng)
        elif self.how == "em1":
            values = np.array([[self._laplace.release(one, rng) for one in row] for row in values])
        if self.how == "em0":
            values = np.ones_like(values)
        values = np.maximum(values, 0.0)
        total = values.sum(1, keepdims=True)
        return chosen, np.where(total > 0, values / np.where(total > 0, total, 1.0), 1 / self.k)

    def chance(self, num_nodes: int) -> float:
        """How likely a row's first choice is right, where one node matters and no other does.

        That node has the largest score there can be, all others have none.
        """
        others = num_nodes - 1
        if self.how != "gm":
            return 1.0 / (1.0 + others * math.exp(-1.0 / self._gumbel(1).noise_multiplier))
        lead = self.bound / (self._gaussian.noise_multiplier * self._gaussian.sensitivity)

        def density(z: float) -> float:
            return math.exp(stats.norm.logpdf(z) + others * special.log_ndtr(z + lead))

        return min(1.0, integrate.quad(density, -9, 9, limit=200)[0])

    def inner(self) -> tuple[Gaussian | GumbelTopK | Laplace, ...]:
        """The mechanisms that one release goes through."""
        if self.how == "gm":
            return (self._gaussian,)
        names = self._gumbel(self.rows)
        if self.how == "em0":
            return (names,)
        return names, self._gaussian if self.value_noise is None else self._laplace

    def _gumbel(self, rows: int) -> GumbelTopK:
        share = 0.5 if self.how == "em1" and self.value_noise is None else 1.0
        noise = self.noise_multiplier * math.sqrt(self.rows * self.k / share)
        return GumbelTopK(noise_multiplier=noise, bound=self.bound, k=self.k, rows=rows)

    @property
    def _gaussian(self) -> Gaussian:
        whole = self.how == "gm"
        noise = self.noise_multiplier * (1.0 if whole else math.sqrt(2))
        apart = math.sqrt(2 * self.rows if whole else self.rows * self.k) * self.bound
        return Gaussian(noise_multiplier=noise, sensitivity=apart)

    @property
    def _laplace(self) -> Laplace:
        """For one value."""
        assert self.value_noise is not None
        return Laplace(noise_multiplier=self.value_noise, sensitivity=self.bound)

    def _by_value(self, dense: Scores, rng: SecretStream) -> Chosen:
        clipped = clipped_rows(dense, self.bound)
        noisy = self._gaussian.release(clipped, rng, block_of=self.rows * dense.shape[1])
        chosen = largest(noisy, self.k)
        return chosen, np.take_along_axis(noisy, chosen, 1)

    def _by_name(self, dense: Scores, rng: SecretStream) -> Chosen:
        chosen = self._gumbel(len(dense)).release(dense, rng).astype(np.int64)
        return chosen, np.clip(np.take_along_axis(dense, chosen, 1), 0.0, self.bound)


def clipped_rows(rows: Scores, bound: float) -> Scores:
    """Non-negative rows of l2 norm at most ``bound``."""
    rows = np.maximum(rows, 0.0)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    # A hair below the bound, so that rounding does not leave a row beyond it.
    return rows * np.minimum(1.0, bound * (1 - 1e-12) / np.maximum(norms, 1e-300))


def kept_columns(chosen: NDArray[np.int64], cap: int, *, seed: int) -> NDArray[np.bool_]:
    """Which choices stay, so that no node is chosen by more than ``cap`` rows.

    Who keeps a node that too many rows chose is drawn by ``seed`` and the rows' places alone.

    *Guarantee*: no cost. It reads what was released, and nothing else.
    """
    _validate.integer("cap", cap, "[0, 1e9]")
    rows, k = chosen.shape
    priority = np.repeat(seeded(seed, "columns").generator().permutation(rows), k)
    column = chosen.ravel()
    order = np.lexsort((priority, column))
    first = np.searchsorted(column[order], column[order], side="left")
    kept = np.empty(rows * k, dtype=np.bool_)
    kept[order] = np.arange(rows * k) - first < cap
    return kept.reshape(rows, k)
