r"""Gaussians whose centre is a binomial count: the one family the accountant integrates.

With ``n`` terms drawn at rate ``q`` and noise ``sigma`` (all in units of the clipping bound)

    f(x) = \sum_i Bin(i; n, q) N(x; i, sigma^2) = N(x; 0, sigma^2) exp(h(x)),
    h(x) = log \sum_i Bin(i; n, q) exp((i x - i^2 / 2) / sigma^2).

Working with ``h`` instead of ``log f`` takes the large common factor out before anything is
subtracted, so that losses of 1e-8 keep eight digits. For a given ``x`` the exponent is concave in
``i``, hence only a window of counts matters; a window moves to the right as ``x`` does. That is
what makes ``n = 5000`` affordable.

Some terms may be drawn at a rate of their own. The count is then a sum of two binomial ones, whose
law is log-concave as well: everything above and below holds for it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from scipy import special

Array = npt.NDArray[np.float64]

_NEGLIGIBLE = 60.0  # terms exp(-60) below the largest one do not show in double precision
_BLOCK = 16384  # products of points and counts handled at once, so that windows stay narrow


class BinomialGaussian:
    """The law of ``Bin(n, q) + sigma N(0, 1)``, or of two binomial counts: ``others`` (m, p)."""

    def __init__(
        self, terms: int, rate: float, noise: float, others: tuple[int, float] = (0, 0.0)
    ) -> None:
        log_weights = _log_binomial(terms, rate)
        if others[0]:
            log_weights = _log_convolve(log_weights, _log_binomial(*others))
        counts = np.arange(len(log_weights), dtype=np.float64)
        possible = np.isfinite(log_weights)  # rate 0 and rate 1 leave one count
        self.counts: Array = counts[possible]
        # gammaln is good to 1e-16 of its value, which is 40,000 for n = 5000: sum to one again
        weights = np.exp(log_weights[possible])
        self.log_weights: Array = log_weights[possible] - np.log(weights.sum())
        self.weights: Array = weights / weights.sum()
        # Of one term, the likeliest: the mean of a tilted count is at most n times its share.
        self.log_odds = float(special.logit(max(rate, others[1])))
        self.noise = noise

    def log_tilt(self, x: Array) -> tuple[Array, Array]:
        """``h(x)`` and the mean count given ``x`` (which is ``noise^2 h'(x)``); ``x`` ascends."""
        value, mean = np.empty_like(x), np.empty_like(x)
        for part, window in self._blocks(x):
            counts = self.counts[window]
            terms = self._exponents(x[part, None], window)
            top = terms.max(axis=1)
            terms = np.exp(terms - top[:, None])
            total = terms.sum(axis=1)
            value[part] = top + np.log(total)
            mean[part] = (terms @ counts) / total
        return value, mean

    def masses(self, edges: Array) -> Array:
        """The probability of each interval between ascending ``edges``, accurate in the tails."""
        out = np.empty(len(edges) - 1)
        for part, window in self._blocks(edges[:-1]):
            ends = edges[part.start : part.stop + 1]
            counts = self.counts[window.start :]  # an interval may reach past the window
            counts = counts[: max(len(self.counts[window]), self._last(ends[-1]) - window.start)]
            u = (ends[:, None] - counts) / self.noise
            outside = special.ndtr(-np.abs(u))  # mass beyond u, on the side away from the centre
            left, right = u[:-1], u[1:]
            inside = np.where(
                left > 0,
                outside[:-1] - outside[1:],
                np.where(right < 0, outside[1:] - outside[:-1], 1 - outside[:-1] - outside[1:]),
            )
            out[part] = inside @ self.weights[window.start : window.start + len(counts)]
        return np.maximum(out, 0.0)

    def above(self, x: float) -> float:
        """The probability of ``(x, inf)``."""
        return float(special.ndtr((self.counts - x) / self.noise) @ self.weights)

    def below(self, x: float) -> float:
        """The probability of ``(-inf, x)``."""
        return float(special.ndtr((x - self.counts) / self.noise) @ self.weights)

    def upper_quantile(self, tail: float) -> float:
        """Some ``x`` with at most ``tail`` above it: half for the count, half for the noise."""
        beyond = np.cumsum(self.weights[::-1])[::-1]  # P(count >= counts[k])
        likely = np.nonzero(beyond > tail / 2)[0]
        return float(self.counts[likely[-1]] - self.noise * special.ndtri(tail / 2))

    def _exponents(self, x: Array | float, window: slice) -> Array:
        counts = self.counts[window]
        result: Array = self.log_weights[window] + counts * (x - counts / 2) / self.noise**2
        return result

    def _blocks(self, x: Array) -> Iterator[tuple[slice, slice]]:
        block = max(16, _BLOCK // len(self.counts))
        for start in range(0, len(x), block):
            part = slice(start, min(start + block, len(x)))
            yield part, slice(self._first(x[part.start]), self._last(x[part.stop - 1]))

    def _first(self, x: float) -> int:
        exponents = self._exponents(x, slice(None))
        return int(np.argmax(exponents >= exponents.max() - _NEGLIGIBLE))

    def _last(self, x: float) -> int:
        exponents = self._exponents(x, slice(None))[::-1]
        return len(exponents) - int(np.argmax(exponents >= exponents.max() - _NEGLIGIBLE))


def _log_binomial(terms: int, rate: float) -> Array:
    """log Bin(i; terms, rate) for i from 0 to ``terms``, -inf where it is impossible."""
    counts = np.arange(terms + 1, dtype=np.float64)
    result: Array = (
        special.gammaln(terms + 1)
        - special.gammaln(counts + 1)
        - special.gammaln(terms - counts + 1)
        + special.xlogy(counts, rate)
        + special.xlog1py(terms - counts, -rate)
    )
    return result


def _log_convolve(one: Array, other: Array) -> Array:
    """The logarithm of the law of a sum; in logarithms, so that no far tail is lost."""
    few, many = sorted((one, other), key=len)
    result = np.full(len(few) + len(many) - 1, -np.inf)
    for shift, weight in enumerate(few):
        some = slice(shift, shift + len(many))
        result[some] = np.logaddexp(result[some], weight + many)
    return result
