"""Noise out in the tails: every cell of the grid is there, as likely as it should be.

Ordinary draws never come there, so these tests choose the bits: the leading ones, to sample from a
tail as if it were likely, or all of them, to reach one cell. Exact probabilities are mpmath's.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from decimal import Decimal, localcontext
from typing import Any

import mpmath
import numpy as np
import pytest
from scipy import stats

from graphveil import rng
from graphveil.mechanisms import Gaussian, GumbelTopK, Laplace
from graphveil.rng import secret

STEPS = 2.0**36  # of noise_multiplier * sensitivity = 1
STRETCH = 2**15  # cells of that
# How likely a number of that size or a larger one is, on its side: 2 to the minus this.
LEADING_ZEROS = {"6 sigma": 30, "7 sigma": 40, "8 sigma": 51, "9 sigma": 63, "12 sigma": 109}


@pytest.fixture(autouse=True)
def digits() -> Iterator[None]:
    with mpmath.workdps(100):
        yield


def beyond(law: str, size: Any) -> Any:
    """The probability that one side exceeds ``size`` scales."""
    size = mpmath.mpf(size)
    return mpmath.erfc(size / mpmath.sqrt(2)) / 2 if law == "normal" else mpmath.exp(-size) / 2


def bits_of(probability: Any) -> int:
    """The first 256 bits of a uniform number."""
    return int(mpmath.floor(probability * mpmath.mpf(2) ** 256))


def ask(monkeypatch: pytest.MonkeyPatch, *answers: bytes) -> list[int]:
    """The operating system gives these answers in turn, each to a question for as many bytes.

    To other questions it gives zeros. Returned: what it was asked for.
    """
    left, asked = list(answers), list[int]()

    def urandom(count: int) -> bytes:
        asked.append(count)
        return left.pop(0) if left and len(left[0]) == count else bytes(count)

    monkeypatch.setattr(os, "urandom", urandom)
    return asked


def first_word(bits: int, *, positive: bool) -> bytes:
    word = bits >> 192  # 63 bits below the binary point's first, which is 0
    return ((word << 1) | (not positive)).to_bytes(8, "little")


def further(bits: int) -> bytes:
    return (bits % 2**192).to_bytes(24, "little")


def place_word(cell: int) -> tuple[bytes, bytes]:
    """Both halves of the word behind the middle of a cell within its stretch."""
    word = (2 * (cell % STRETCH) + 1) * (2**64 // STRETCH // 2)
    return (word >> 32).to_bytes(4, "little"), (word % 2**32).to_bytes(4, "little")


# ---------------------------------------------------------------------- every cell can be reached


def released(
    monkeypatch: pytest.MonkeyPatch, mechanism: Any, value: float, bits: int, cell: int
) -> float:
    ask(monkeypatch, first_word(bits, positive=cell >= 0), further(bits), *place_word(cell))
    return float(mechanism.release(np.array([value]), secret())[0])


@pytest.mark.parametrize("sigmas", [0.001, 1, 6, 6.5, 7, 8, 9, 12])
@pytest.mark.parametrize("cls, law", [(Gaussian, "normal"), (Laplace, "laplace")])
def test_every_output_is_reached_from_every_value(
    cls: Any, law: str, sigmas: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One output and two values: with whole words of 64 bits one of them could mostly not be it.
    mechanism = cls(noise_multiplier=1.0, sensitivity=1.0)
    scale = STEPS + 1  # one coordinate: rounding adds one step to the sensitivity
    sizes = sigmas if law == "normal" else sigmas**2 / 2 + math.log(sigmas + 1)  # as likely
    for output in round(sizes * scale) + np.random.default_rng(0).integers(0, 10**6, 20):
        for steps in (0, 1, 70_001):  # by which the value is larger
            cell = int(output) - steps
            bits = bits_of(beyond(law, mpmath.mpf(2 * cell + 1) / 2 / scale))
            noisy = released(monkeypatch, mechanism, steps / STEPS, bits, cell)
            assert noisy == output / STEPS


@pytest.mark.parametrize("sigmas", [6.5, 7, 8, 9])
@pytest.mark.parametrize("cls, law", [(Gaussian, "normal"), (Laplace, "laplace")])
def test_neighbouring_words_leave_no_step_out(
    cls: Any, law: str, sigmas: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The first word is one of 16 neighbours, all else is random. Then outputs lie close together,
    # and different ones must come nearly as often as if any step between them was as likely.
    count, generator = 2**16, np.random.default_rng(0)
    sizes = sigmas if law == "normal" else sigmas**2 / 2 + math.log(sigmas + 1)
    word = int(2.0**64 * float(beyond(law, sizes)))
    words = np.array([word], "<u8") + generator.integers(0, 16, count).astype("<u8")
    words <<= np.uint64(1)
    ask(monkeypatch, words.tobytes(), generator.bytes(24 * count), generator.bytes(4 * count))
    monkeypatch.setattr(rng, "_BLOCK", count)
    noisy = cls(noise_multiplier=1.0, sensitivity=1.0).release(np.zeros(count), secret())
    steps = np.rint(noisy * STEPS)
    between = np.ptp(steps) + 1
    assert between > 10
    assert np.unique(steps).size > 0.5 * between * -math.expm1(-count / between)


@pytest.mark.parametrize("zeros", LEADING_ZEROS.values(), ids=LEADING_ZEROS.keys())
@pytest.mark.parametrize("cls, law", [(Gaussian, "normal"), (Laplace, "laplace")])
def test_tails_follow_their_law(
    cls: Any, law: str, zeros: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Importance sampling: all bits are random, but the leading ones of the uniform number are 0.
    count, generator = 2**13, np.random.default_rng(zeros)
    words = np.frombuffer(generator.bytes(8 * count), "<u8").copy()
    lead = min(zeros, 64) - 1  # the first bit of a number below 1/2 is 0, and not in the word
    keep = np.uint64(2 ** (64 - lead) - 1)  # the sign among them, at the end
    words &= keep
    rest = np.frombuffer(generator.bytes(24 * count), np.uint8).reshape(count, 24).copy()
    for bit in range(zeros - 64):
        rest[:, 23 - bit // 8] &= 255 ^ (128 >> bit % 8)
    ask(monkeypatch, words.tobytes(), rest.tobytes(), generator.bytes(4 * count))
    noise = cls(noise_multiplier=1.0, sensitivity=1.0).release(np.zeros(count), secret())
    cells = np.abs(np.rint(noise * STEPS) + 0.5)
    # Twice the same output is unlikely: there are many, and each is as likely as its neighbours.
    assert np.unique(np.rint(noise * STEPS)).size >= count - 1
    for modulus in (2, 256, 1000):
        assert stats.chisquare(np.bincount((cells - 0.5).astype(np.int64) % modulus)).pvalue > 1e-4
    scale = STEPS + (math.sqrt(count) if cls is Gaussian else count)
    shares = {"normal": stats.norm, "laplace": stats.laplace}[law].sf(cells / scale)
    assert stats.kstest(shares * 2.0**zeros, "uniform").pvalue > 1e-4
    assert abs(np.mean(noise > 0) - 0.5) < 5 * 0.5 / math.sqrt(count)


def test_gumbel_numbers_reach_both_tails(monkeypatch: pytest.MonkeyPatch) -> None:
    for size in (-4.4, -3.7, -1.0, 1e-3, 1.0, 14.0, 30.0, 44.0, 60.0, 85.0):
        below = mpmath.exp(-mpmath.exp(-mpmath.mpf(size)))
        upper = below > 0.5  # numbers above the median come from 1 - below
        bits = bits_of(-mpmath.expm1(-mpmath.exp(-mpmath.mpf(size))) if upper else below)
        ask(monkeypatch, first_word(bits, positive=upper), further(bits))
        assert abs(float(secret().gumbel(1)[0]) - size) < 2.0**-44


def test_an_unlikely_choice_can_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    # The first score is 60 scales behind; e^-60 is less than what words of 64 bits could hit.
    bits = bits_of(mpmath.exp(-63))
    half = first_word((1 << 255) - 1, positive=True)
    ask(monkeypatch, first_word(bits, positive=True) + half, further(bits) + bytes(24))
    mechanism = GumbelTopK(noise_multiplier=1 / 60, bound=1.0, k=1)
    assert mechanism.release(np.array([0.0, 1.0]), secret()).tolist() == [0]


# ---------------------------------------------------------------------------- the bound, in parts


@pytest.mark.parametrize("law", ["normal", "laplace"])
def test_stretches_end_exactly_where_they_should(law: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The last uniform number of a stretch and the first one of the next, 2^-240 apart.
    steps = 1.37 * STEPS
    for end in (1, 2, 1234, 10**6, 10**7, 3 * 10**7):
        edge = bits_of(beyond(law, mpmath.mpf(end) * STRETCH / mpmath.mpf(steps)))
        for bits, stretch in ((edge - 2**16, end), (edge + 2**16, end - 1)):
            # The same bits for a number with a reserve and for one that asks for more.
            ask(monkeypatch, first_word(bits, positive=True), further(bits), further(bits))
            cell = int(getattr(secret(), law)(1, steps=steps)[0])
            assert cell // STRETCH == stretch


@pytest.mark.parametrize("name", ["normal", "laplace"])
def test_floats_err_by_far_less_than_what_is_decided_exactly(name: str) -> None:
    law = getattr(rng, f"_{name.upper()}")
    # The largest stretch number at which this matters is 13 (88) times 2^22.
    generator = np.random.default_rng(0)
    exponents = np.concatenate([np.full(200, 1.0), generator.uniform(1, 127, 400)])
    halves = generator.uniform(0.5, 1, 600) * 2.0**-exponents
    slope = 2.0**22  # stretches to the scale
    for half, size in zip(halves.tolist(), law.size(halves).tolist(), strict=True):
        with localcontext(rng._DIGITS):
            missed = law.beyond(Decimal(size)) - Decimal(half)
            density = mpmath.exp(-mpmath.mpf(size)) / 2
            if law is rng._NORMAL:
                density = mpmath.npdf(size)
        error = abs(mpmath.mpf(str(missed))) / density
        assert slope * error < rng._UNSURE / 8


def test_exact_probabilities_are_exact() -> None:
    for size in ("0", "1e-9", "0.3", "1", "2.5", "6", "9", "13"):
        with localcontext(rng._DIGITS):
            exact = str(rng._normal_beyond(Decimal(size)))
            laplace = str(rng._LAPLACE.beyond(Decimal(size)))
        assert abs(mpmath.mpf(exact) - beyond("normal", size)) < mpmath.mpf(10) ** -79
        assert abs(mpmath.mpf(laplace) - beyond("laplace", size)) < mpmath.mpf(10) ** -79


@pytest.mark.parametrize("name", ["normal", "laplace"])
@pytest.mark.parametrize("scales", [0, 1, 3, 6, 9, 13])
def test_cells_have_their_probability_within_a_stretch(name: str, scales: int) -> None:
    law = getattr(rng, f"_{name.upper()}")
    # Of all 2^64 words, how many lead to a cell, against the exact share of the cell.
    bits, steps = 16, 2.0**37 * (1 + 2.0**-10)
    width = 2.0**bits / steps
    stretch = np.floor(np.array([scales / width]))
    a, c = law.fall(stretch, width)
    chosen = np.unique(
        np.concatenate([[0, 1, 2**16 - 1], np.random.default_rng(0).integers(0, 2**16, 40)])
    )

    def words_below(place: int) -> int:
        """How many words lead to smaller places (they come in order)."""
        low, high = 0, 2**64
        while low < high:
            middle = (low + high) // 2
            moved = rng._tilt(np.array([middle], np.uint64), a, c)[0]
            low, high = (low, middle) if int(moved) >> (64 - bits) >= place else (middle + 1, high)
        return low

    start = mpmath.mpf(float(stretch[0])) * 2**bits / mpmath.mpf(steps)

    def share(low: int, high: int) -> Any:
        ends = (
            beyond(name, start + mpmath.mpf(place) / mpmath.mpf(steps)) for place in (low, high)
        )
        return next(ends) - next(ends)

    whole = share(0, 2**bits)
    for place in chosen.tolist():
        words = words_below(place + 1) - words_below(place)
        ratio = mpmath.mpf(words) / mpmath.mpf(2) ** 64 / (share(place, place + 1) / whole)
        assert abs(ratio - 1) < 2.0 ** (bits - 62)


def test_few_bits_decide_as_many_do(monkeypatch: pytest.MonkeyPatch) -> None:
    # Words whose first half leaves it open to which cell they lead, and words on both sides.
    a, c = rng._NORMAL.fall(np.full(4096, 13 * 2.0**21), 2.0**-21)
    edges = np.arange(1, 4097, dtype=np.uint64) << np.uint64(48)
    distance = np.random.default_rng(0).integers(-(2**36), 2**36, 4096).astype(np.uint64)
    words = edges + distance + (edges - rng._tilt(edges, a, c))
    high = (words >> np.uint64(32)).astype("<u4")
    answers = [high.tobytes()]
    asked: list[int] = []

    def source(count: int) -> bytes:
        asked.append(count)
        if answers:
            return answers.pop()
        low = rng._tilt(high.astype(np.uint64) << np.uint64(32), a, c)
        open_ = (low ^ (low + np.uint64(2**33))) >> np.uint64(48) != 0
        return (words[open_] % np.uint64(2**32)).astype("<u4").tobytes()

    places = rng._places(a, c, 16, 4096, source)
    assert np.array_equal(places, (rng._tilt(words, a, c) >> np.uint64(48)).astype(np.int64))
    assert asked[0] == 4 * 4096
    assert 0 < asked[1] < 4 * 4096


# --------------------------------------------------------------- the tails take no longer to draw


@pytest.mark.parametrize("name", ["normal", "laplace", "gumbel"])
def test_tails_ask_for_as_many_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked_for = []
    for word in (2**63 + 12345, 2**40 + 12345, 12345):
        asked = ask(monkeypatch, (word << 1 & 2**64 - 1).to_bytes(8, "little") * 5)
        getattr(secret(), name)(5)
        asked_for.append(list(asked))
    assert asked_for[0] == asked_for[1] == asked_for[2]
