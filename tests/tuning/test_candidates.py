"""Lists and ranges: what is read, what is drawn, what is refused in one line."""

import numpy as np
import pytest
from scipy import stats

from graphveil._errors import InvalidInputError
from graphveil.rng import secret
from graphveil.tuning.candidates import Between, Listed, drawn, values_of


@pytest.mark.parametrize(
    "given, expected",
    [
        ("50,100,150", Listed((50, 100, 150))),
        ([50, 100, 150], Listed((50, 100, 150))),
        ("adam, sgd", Listed(("adam", "sgd"))),
        ("1,none", Listed((1, "none"))),
        ("0.5,0.5,1", Listed((0.5, 1))),
        ("0.001..0.1", Between(0.001, 0.1)),
        ("1e-3..0.1", Between(0.001, 0.1)),
        ("16..128", Between(16, 128)),
        ("0..0.9:even", Between(0, 0.9, even=True)),
        ("-1..1:even", Between(-1, 1, even=True)),
    ],
)
def test_what_may_be_written(given, expected):
    found = values_of("key", given)
    assert found == expected
    assert values_of("key", found.plain()) == found  # as settings.json has it


@pytest.mark.parametrize(
    "given, why",
    [
        ("0.1", "two values"),
        ("0.1,0.1", "two values"),
        ([], "two values"),
        ("1,,2", "must be a list"),
        (3, "must be a list"),
        ("0.1..0.01", "must go up"),
        ("1..1", "must go up"),
        ("0..1", "start above 0"),
        ("-1..1", "start above 0"),
        ("a..b", "range of numbers"),
        ("..", "range of numbers"),
        ("1..nan", "range of numbers"),
        ("1..inf", "range of numbers"),
        ("true..2", "range of numbers"),
        ("1..2..3", "range of numbers"),
        ("1..2:log", "range of numbers"),
    ],
)
def test_what_may_not_be_written_is_refused_in_one_line(given, why):
    with pytest.raises(InvalidInputError, match=why) as refusal:
        values_of("key", given)
    assert "\n" not in str(refusal.value)
    assert "'key'" in str(refusal.value)


def test_draws_follow_the_law_that_was_written():
    rng = secret(fixed_seed=3)
    vary = {
        "log": Between(0.01, 1.0),
        "even": Between(-1, 3.0, even=True),
        "whole": Between(1, 4, even=True),
        "listed": Listed(("a", "b", "c")),
    }
    found = [drawn(vary, rng) for _ in range(4000)]
    logs = np.log10([each["log"] for each in found])
    assert stats.kstest(logs, stats.uniform(-2, 2).cdf).pvalue > 1e-3
    even = [each["even"] for each in found]
    assert stats.kstest(even, stats.uniform(-1, 4).cdf).pvalue > 1e-3
    for key, values in (("whole", [1, 2, 3, 4]), ("listed", ["a", "b", "c"])):
        counts = [sum(each[key] == value for each in found) for value in values]
        assert sum(counts) == len(found)
        assert stats.chisquare(counts).pvalue > 1e-3
    # Each setting by itself.
    assert abs(np.corrcoef(logs, even)[0, 1]) < 0.08


def test_ends_are_kept_to():
    for values in (Between(0.1, 0.3), Between(3, 7), Between(3, 7, even=True), Listed((1, 2))):
        for share in (0.0, 1e-300, 0.5, 1 - 2**-53, 1.0):
            assert values.looked_at[0] <= values.at(share) <= values.looked_at[-1]
    assert isinstance(Between(16, 128).at(0.3), int)
