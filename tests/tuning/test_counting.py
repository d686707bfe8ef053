"""The number of trials follows the law that is charged."""

import itertools
import math

import numpy as np
import pytest
from dp_accounting.rdp import rdp_privacy_accountant as reference
from scipy import stats

from graphveil._errors import InvalidInputError
from graphveil.rng import secret
from graphveil.tuning import counting

CASES = list(itertools.product(counting.LAWS, (1.01, 2.0, 4.0, 10.0, 300.0)))


@pytest.mark.parametrize("law, mean", CASES)
def test_chances_are_those_of_the_papers_definition(law, mean):
    """Truncated negative binomial: gammas of dp_accounting, chances of scipy, the mean itself."""
    gamma = counting.gamma(law, mean)
    theirs = reference._gamma_truncated_negative_binomial(counting.LAWS[law], mean)
    assert gamma == pytest.approx(theirs, rel=1e-5)
    chances = np.array(list(itertools.islice(counting.chances(law, mean), 200_000)))
    k = np.arange(1, len(chances) + 1)
    scipys = stats.logser(1 - gamma) if law == "logarithmic" else stats.geom(gamma)
    np.testing.assert_allclose(chances[:500], scipys.pmf(k[:500]), rtol=1e-9, atol=1e-300)
    assert chances.sum() == pytest.approx(1.0, abs=1e-9)
    assert k @ chances == pytest.approx(mean, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("law", counting.LAWS)
@pytest.mark.parametrize("mean", [4.0, 10.0])
def test_draws_follow_it(law, mean):
    rng = secret()
    found = np.array([counting.draw_count(law, mean, rng) for _ in range(40_000)])
    assert found.min() == 1
    chances = np.array(list(itertools.islice(counting.chances(law, mean), 200)))
    beyond = 1 - chances.cumsum()
    last = int(np.argmax(beyond * len(found) < 20))  # the rest counts as one cell
    expected = np.append(chances[: last + 1], beyond[last]) * len(found)
    counted = np.append(
        np.bincount(found, minlength=last + 2)[1 : last + 2], (found > last + 1).sum()
    )
    assert counted.sum() == len(found)
    assert stats.chisquare(counted, expected * len(found) / expected.sum()).pvalue > 1e-4
    error = found.std() / math.sqrt(len(found))
    assert abs(found.mean() - mean) < 5 * error


def test_a_draw_does_not_run_away():
    """The least uniform number that the secret stream can give."""

    class Lowest:
        def normal(self, shape):
            return np.full(shape, -9.2)

    for law, mean in CASES:
        assert counting.draw_count(law, mean, Lowest()) < 300 * mean + 1000


@pytest.mark.parametrize("mean", [1.0, 0.0, -3, math.nan, math.inf, 1e9, "4", True])
def test_means_that_make_no_sense_are_refused(mean):
    with pytest.raises(InvalidInputError, match="trials"):
        counting.gamma("geometric", mean)
