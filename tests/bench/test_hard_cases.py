"""Hard cases: counted by hand, counted the slow way, and refused where they make no sense."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphveil._errors import InvalidInputError
from graphveil.bench import HardCases, hard_cases


def mask(text):
    """A run in one word: x is wrong."""
    return torch.tensor([letter == "x" for letter in text], dtype=torch.bool)


def four(found):
    return found.both, found.only_private, found.only_open, found.neither


def test_one_run_each_by_hand():
    found = hard_cases([mask("xxx.....")], [mask("xx.xx...")])
    assert four(found) == (2, 1, 2, 3)
    assert found.nodes == 8
    assert found.stay_hard == 2 / 4
    assert found.hard_in_the_open == 2 / 3
    assert found.jaccard == 2 / 5
    assert found.expected_both == 3 * 4 / 8
    assert found.over_expected == pytest.approx(2 / 1.5)
    assert (found.private_runs, found.open_runs, found.by_class) == (1, 1, {})


def test_independent_errors_meet_as_often_as_expected():
    found = hard_cases([mask("xx..")], [mask("x.x.")])
    assert (found.both, found.expected_both, found.over_expected) == (1, 1.0, 1.0)


@pytest.mark.parametrize(
    ("often", "hard"),
    [(0.2, "xxxx."), (0.34, "xxx.."), (0.5, "xxx.."), (0.67, "xx..."), (1.0, "xx...")],
)
def test_hard_is_at_least_that_share_of_the_runs(often, hard):
    # Wrong in 3, 3, 2, 1 and 0 of three runs.
    runs = [mask("xxxx."), mask("xxx.."), mask("xx...")]
    found = hard_cases(runs, [mask("xxxxx")], often=often)
    assert found.both == hard.count("x")
    assert (found.often, found.private_runs, found.open_runs) == (often, 3, 1)


def test_half_of_two_runs_is_one_and_the_share_itself_is_enough():
    runs = [mask("x..."), mask("xx..")]
    assert hard_cases(runs, runs).both == 2
    assert hard_cases(runs, runs, often=0.51).both == 1
    seven_of_ten = [mask("x")] * 7 + [mask(".")] * 3
    assert hard_cases(seven_of_ten, seven_of_ten, often=0.7).both == 1
    assert hard_cases(seven_of_ten, seven_of_ten, often=0.71).both == 0
    seven_of_100 = [mask("x")] * 7 + [mask(".")] * 93
    assert hard_cases(seven_of_100, seven_of_100, often=0.07).both == 1


def test_a_share_of_nothing_is_none():
    right, wrong = mask("..."), mask("xxx")
    none = hard_cases([right], [right])
    assert (none.stay_hard, none.hard_in_the_open, none.jaccard) == (None, None, None)
    assert (none.expected_both, none.over_expected) == (0.0, None)
    private = hard_cases([wrong], [right])
    assert (private.stay_hard, private.hard_in_the_open, private.jaccard) == (None, 0.0, 0.0)
    in_the_open = hard_cases([right], [wrong])
    assert (in_the_open.stay_hard, in_the_open.hard_in_the_open) == (0.0, None)
    empty = HardCases(both=0, only_private=0, only_open=0, neither=0)
    assert (empty.expected_both, empty.over_expected) == (None, None)


def test_classes_are_counted_one_by_one():
    classes = torch.tensor([4, 0, 4, 0, 4, 0])
    found = hard_cases([mask("xx...x")], [mask("x.x..x")], classes=classes)
    assert list(found.by_class) == [0, 4]
    assert four(found.by_class[0]) == (1, 1, 0, 1)
    assert four(found.by_class[4]) == (1, 0, 1, 1)
    assert found.by_class[4].stay_hard == 0.5
    assert four(found) == (2, 1, 1, 2)


sizes = st.integers(1, 12)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), nodes=sizes, private=st.integers(1, 5), in_the_open=st.integers(1, 5))
def test_counts_agree_with_the_slow_way(data, nodes, private, in_the_open):
    rows = st.lists(st.booleans(), min_size=nodes, max_size=nodes)
    sides = [data.draw(st.lists(rows, min_size=n, max_size=n)) for n in (private, in_the_open)]
    labels = data.draw(st.lists(st.integers(0, 3), min_size=nodes, max_size=nodes))
    tenths = data.draw(st.integers(1, 10))
    found = hard_cases(
        *([torch.tensor(row) for row in side] for side in sides),
        often=tenths / 10,
        classes=torch.tensor(labels),
    )
    hard = [
        {
            node
            for node in range(nodes)
            if Fraction(sum(row[node] for row in side), len(side)) >= Fraction(tenths, 10)
        }
        for side in sides
    ]

    def slow(members):
        p, o = hard[0] & members, hard[1] & members
        return len(p & o), len(p - o), len(o - p), len(members - p - o)

    assert four(found) == slow(set(range(nodes)))
    for number in set(labels):
        members = {node for node in range(nodes) if labels[node] == number}
        assert four(found.by_class[number]) == slow(members)
    assert set(found.by_class) == set(labels)
    if hard[0] | hard[1]:
        assert found.jaccard == pytest.approx(len(hard[0] & hard[1]) / len(hard[0] | hard[1]))
    assert found.expected_both == pytest.approx(len(hard[0]) * len(hard[1]) / nodes)


def test_the_sides_can_be_turned_round():
    generator = torch.Generator().manual_seed(0)
    one, other = (list(torch.rand(3, 50, generator=generator) < 0.4) for _ in range(2))
    found, turned = hard_cases(one, other), hard_cases(other, one)
    assert (found.only_private, found.only_open) == (turned.only_open, turned.only_private)
    assert found.only_private != found.only_open
    assert (found.both, found.jaccard) == (turned.both, turned.jaccard)
    assert found.stay_hard == turned.hard_in_the_open


BOTH = mask("x.")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (([], [BOTH]), ["'wrong_private'", "a run or more"]),
        (([BOTH], []), ["'wrong_open'", "a run or more"]),
        ((None, [BOTH]), ["'wrong_private'", "NoneType"]),
        (([BOTH], [[True, False]]), ["'wrong_open'", "list"]),
        ((BOTH, [BOTH]), ["'wrong_private'", "one for each run", "shape ()"]),
        (([BOTH.long()], [BOTH]), ["'wrong_private'", "torch.int64"]),
        (([BOTH], [BOTH.view(1, 2)]), ["'wrong_open'", "(1, 2)"]),
        (([mask("")], [mask("")]), ["'wrong_private'", "a test node or more"]),
        (([BOTH, mask("x..")], [BOTH]), ["'wrong_private'", "same 2", "3"]),
        (([BOTH], [mask("x..")]), ["'wrong_open'", "same 2", "3"]),
    ],
)
def test_bad_masks_are_one_sentence(arguments, words):
    with pytest.raises(InvalidInputError) as caught:
        hard_cases(*arguments)
    assert str(caught.value).startswith("The '")
    assert str(caught.value).endswith(" instead.")
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"often": 0}, ["'often'", "(0, 1]", "0"]),
        ({"often": 1.01}, ["'often'", "1.01"]),
        ({"often": float("nan")}, ["'often'", "nan"]),
        ({"classes": [0, 1]}, ["'classes'", "list"]),
        ({"classes": torch.tensor([0.0, 1.0])}, ["'classes'", "torch.float32"]),
        ({"classes": torch.tensor([0])}, ["'classes'", "(2,)", "(1,)"]),
        ({"classes": torch.tensor([0, -1])}, ["'classes'", "-1"]),
    ],
)
def test_bad_shares_and_classes_are_one_sentence(more, words):
    with pytest.raises(InvalidInputError) as caught:
        hard_cases([BOTH], [BOTH], **more)
    assert all(word in str(caught.value) for word in words), caught.value
