r"""How many trials there are: a secret number, drawn from the law that is charged.

With a mean m and gamma in (0, 1), for k = 1, 2, ... (Papernot and Steinke 2022, Definition 1)

    logarithmic (shape 0)    P(k) = (1 - gamma)^k / (k log(1/gamma)),   m = (1/gamma - 1) / log(1/gamma)
    geometric   (shape 1)    P(k) = gamma (1 - gamma)^(k - 1),          m = 1/gamma

Of equal means the logarithmic law costs less; it is also more often 1.
"""  # noqa: E501

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import count

from scipy import optimize, special

from graphveil import _validate
from graphveil.rng import SecretStream

LAWS = {"logarithmic": 0.0, "geometric": 1.0}  # and their shapes
MEANS = "(1, 10000]"


def gamma(law: str, mean: float) -> float:
    """The parameter of a law with this mean."""
    mean = _validate.number("trials", mean, MEANS)
    if _validate.choice("law", law, tuple(LAWS)) == "geometric":
        return 1 / mean

    def excess(log_inverse: float) -> float:
        return math.expm1(log_inverse) / log_inverse - mean

    return math.exp(-optimize.brentq(excess, 1e-9, 50.0, xtol=1e-14))


def chances(law: str, mean: float) -> Iterator[float]:
    """P(1), P(2), and so on without end."""
    parameter = gamma(law, mean)
    stays = 1 - parameter
    chance = stays / -math.log(parameter) if law == "logarithmic" else parameter
    for k in count(1):
        yield chance
        chance *= stays * (k / (k + 1) if law == "logarithmic" else 1.0)


def draw_count(law: str, mean: float, rng: SecretStream) -> int:
    """A number of trials. It goes to nobody: not to a file, a log, a screen or a progress bar."""
    # Uniform, and finest near 0, where it decides on large numbers: they are what is left over.
    left = float(special.ndtr(rng.normal(1))[0])
    beyond = 1.0
    for k, chance in enumerate(chances(law, mean), 1):
        beyond -= chance
        if beyond <= left or chance < 1e-18:
            return k
    raise AssertionError("a law has no end")
