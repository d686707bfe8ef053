"""The two streams: laws of the secret draws, what the secret stream refuses, what a seed repeats.

Statistical tests run on fixed streams, so that a threshold is passed always or never. Their
thresholds (p > 1e-4, or five standard errors) leave no room for an error of a few per cent in a
scale.
"""

from __future__ import annotations

import copy
import functools
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from graphveil import rng
from graphveil._errors import InvalidInputError, RefusedError
from graphveil.rng import SecretStream, secret, seeded

SEEDS = [0, 1, 2, 3]
LAWS = {
    "normal": stats.norm(),
    "laplace": stats.laplace(),
    "gumbel": stats.gumbel_r(),
}
N = 200_000  # more than three blocks


def run_python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    return done.stdout


# ----------------------------------------------------------------- the laws of the secret draws


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", LAWS)
def test_draws_follow_their_law(name: str, seed: int) -> None:
    draws = getattr(secret(fixed_seed=seed), name)(N)
    law = LAWS[name]
    assert stats.kstest(draws, law.cdf).pvalue > 1e-4
    # The KS test is weak in the tails, which carry the privacy loss: count them.
    for beyond in (law.isf(1e-3), law.isf(1e-4)):
        upper = int((draws > beyond).sum())
        assert stats.binomtest(upper, N, law.sf(beyond)).pvalue > 1e-4
    for below in (law.ppf(1e-3), law.ppf(1e-4)):
        lower = int((draws < below).sum())
        assert stats.binomtest(lower, N, law.cdf(below)).pvalue > 1e-4


@pytest.mark.parametrize("name", LAWS)
def test_operating_system_draws_follow_the_same_law(name: str) -> None:
    # Not repeatable, so the threshold is one in a hundred million.
    assert stats.kstest(getattr(secret(), name)(N), LAWS[name].cdf).pvalue > 1e-8


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", LAWS)
def test_draws_are_independent_of_each_other(name: str, seed: int) -> None:
    stream = secret(fixed_seed=seed)
    draws, later = getattr(stream, name)(N), getattr(stream, name)(N)
    block = rng._BLOCK
    pairs = [
        (draws[:-1], draws[1:]),
        (draws[: block // 2], draws[block // 2 : block]),  # halves of one block
        (draws[:block], draws[block : 2 * block]),
        (draws, later),
    ]
    for left, right in pairs:
        limit = 5 / np.sqrt(left.size)
        assert abs(np.corrcoef(left, right)[0, 1]) < limit
        # Numbers that share a radius or a word are uncorrelated, their sizes are not.
        sizes = np.abs(left - np.median(left)), np.abs(right - np.median(right))
        assert abs(np.corrcoef(*sizes)[0, 1]) < limit


@pytest.mark.parametrize("name", LAWS)
def test_no_number_comes_twice(name: str) -> None:
    stream = secret(fixed_seed=5)
    draws = np.concatenate([getattr(stream, name)(N), getattr(stream, name)((N // 4, 4)).ravel()])
    assert np.unique(draws).size >= draws.size - 1


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("shape", [5, (5,), (), (2, 3), (0,), 0, (2**16 + 3,)])
def test_shapes(name: str, shape: int | tuple[int, ...]) -> None:
    draws = getattr(secret(fixed_seed=0), name)(shape)
    assert isinstance(draws, np.ndarray)
    assert draws.shape == (shape if isinstance(shape, tuple) else (shape,))
    assert draws.dtype == np.float64
    assert np.isfinite(draws).all()


@pytest.mark.parametrize("shape", [-1, (2, -1), 1.5, "3", [2, 3]])
def test_shape_refusals(shape: object) -> None:
    with pytest.raises(InvalidInputError, match="'shape' parameter must be a whole number of 0"):
        secret().normal(shape)  # type: ignore[arg-type]


@pytest.mark.parametrize("word", [0, 1, 2**63, 2**64 - 2, 2**64 - 1])
@pytest.mark.parametrize("law", [rng._normal, rng._laplace, rng._gumbel])
def test_extreme_words_give_finite_numbers(law: rng.Law, word: int) -> None:
    assert np.isfinite(law(np.array([word], np.uint64))).all()


def test_tails_reach_as_far_as_the_docstring_says() -> None:
    least, least_negative = np.array([0], np.uint64), np.array([1], np.uint64)
    assert rng._normal(least)[0] < -9.1
    assert rng._normal(least_negative)[0] > 9.1
    assert rng._laplace(least)[0] < -43
    assert rng._laplace(least_negative)[0] > 43
    assert rng._gumbel(least)[0] > 44


# ------------------------------------------------------------------------------------- the coins


@pytest.mark.parametrize("stream", [secret(), secret(fixed_seed=1)])
def test_coins_are_exact_at_zero_and_one(stream: SecretStream) -> None:
    assert not stream.bernoulli(0.0, N).any()
    assert stream.bernoulli(1.0, N).all()
    assert stream.bernoulli(1, 3).dtype == stream.bernoulli(0, 3).dtype == np.bool_
    assert stream.bernoulli(0.5, 0).shape == stream.bernoulli(1.0, 0).shape == (0,)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("probability", [1e-3, 0.11, 0.5, 0.97])
def test_coins_follow_their_probability_independently(probability: float, seed: int) -> None:
    stream = secret(fixed_seed=seed)
    coins, later = stream.bernoulli(probability, N), stream.bernoulli(probability, N)
    for count, chance in [
        (coins.sum(), probability),
        ((coins[1:] & coins[:-1])[::2].sum() * 2, probability**2),
        ((coins & later).sum(), probability**2),
    ]:
        deviation = np.sqrt(N * chance * (1 - chance)) + 1
        assert abs(count - N * chance) < 7 * deviation
    assert stats.binomtest(int(coins.sum()), N, probability).pvalue > 1e-4


@pytest.mark.parametrize("probability", [2.0**-12 * (1 + 2.0**-52), 0.1, 1 - 2.0**-53, 2.0**-64])
def test_coin_threshold_is_exact(probability: float, monkeypatch: pytest.MonkeyPatch) -> None:
    # The words just below and at probability * 2^64 fall on different sides.
    threshold = int(probability * 2**64)
    assert threshold == probability * 2**64
    words = np.array([threshold - 1, threshold], "<u8")
    monkeypatch.setattr(os, "urandom", lambda count: words.tobytes())
    assert secret().bernoulli(probability, 2).tolist() == [True, False]


def test_a_coin_is_never_likelier_than_charged() -> None:
    assert not secret().bernoulli(2.0**-65, N).any()


@pytest.mark.parametrize("probability", [-0.1, 1.5, float("nan"), True, "0.5"])
def test_probability_refusals(probability: object) -> None:
    with pytest.raises(InvalidInputError, match=r"'probability' parameter must be a number in \["):
        secret().bernoulli(probability, 3)  # type: ignore[arg-type]


def test_negative_number_of_coins_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"'n' parameter .* Got -1"):
        secret().bernoulli(0.5, -1)


# ------------------------------------------------------------------------------------- the bytes


@pytest.mark.parametrize("stream", [secret(), secret(fixed_seed=1)])
def test_bytes_are_random_and_never_the_same_twice(stream: SecretStream) -> None:
    drawn = [stream.bytes(5056) for _ in range(20)]
    assert all(isinstance(one, bytes) and len(one) == 5056 for one in drawn)
    assert len(set(drawn)) == 20
    counts = np.bincount(np.frombuffer(b"".join(drawn), np.uint8), minlength=256)
    assert stats.chisquare(counts).pvalue > 1e-8
    assert stream.bytes(0) == b""


def test_fixed_bytes_repeat_and_move_the_stream_on() -> None:
    one, two, other = (secret(fixed_seed=seed) for seed in (4, 4, 5))
    assert one.bytes(32) == two.bytes(32) != other.bytes(32)
    assert one.normal(3).tolist() == two.normal(3).tolist()
    assert one.bytes(32) == two.bytes(32) != one.bytes(32)


@pytest.mark.parametrize("count", [-1, 1.5, True, 10**10])
def test_count_refusals(count: object) -> None:
    with pytest.raises(InvalidInputError, match="'count' parameter must be a whole number"):
        secret().bytes(count)  # type: ignore[arg-type]


# -------------------------------------------------------------------------- secrecy of the stream


def test_every_bit_comes_from_the_operating_system(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def counted(count: int) -> bytes:
        asked.append(count)
        return bytes(count)

    stream = secret()
    monkeypatch.setattr(os, "urandom", counted)
    # One word for a number or a coin; none kept over.
    draws: list[tuple[Callable[[int], object], int]] = [
        (stream.normal, 8),
        (stream.laplace, 8),
        (stream.gumbel, 8),
        (functools.partial(stream.bernoulli, 0.5), 8),
        (stream.bytes, 1),
    ]
    for draw, size in draws:
        for n in (3, 1):
            asked.clear()
            draw(n)
            assert sum(asked) == n * size


def test_seeds_do_not_reach_the_secret_stream() -> None:
    seen = []
    for _ in range(2):
        random.seed(0)
        np.random.seed(0)
        seeded(0).generator().random()
        seen.append(secret().normal(4))
    assert not np.isin(seen[0], seen[1]).any()


def test_two_streams_and_two_draws_differ() -> None:
    one, two = secret(), secret()
    draws = np.concatenate([one.normal(100), two.normal(100), one.normal(100)])
    assert np.unique(draws).size == 300


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_forked_processes_do_not_repeat_noise() -> None:
    printed = run_python(
        "import os, sys\n"
        "from graphveil.rng import secret\n"
        "stream = secret()\n"
        "stream.normal(10)\n"
        "children = []\n"
        "for _ in range(2):\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        break\n"
        "    children.append(child)\n"
        "draws = [*stream.normal(4), *stream.laplace(4), *stream.gumbel(4)]\n"
        "os.write(1, (' '.join(map(repr, map(float, draws))) + '\\n').encode())\n"
        "if child == 0:\n"
        "    os._exit(0)\n"
        "for child in children:\n"
        "    os.waitpid(child, 0)\n"
    )
    draws = printed.split()
    assert len(draws) == 36
    assert len(set(draws)) == 36


@pytest.mark.parametrize("stream", [secret(), secret(fixed_seed=3)])
@pytest.mark.parametrize(
    "duplicate",
    [pickle.dumps, copy.copy, copy.deepcopy, lambda s: pickle.dumps({"rng": s}, protocol=0)],
)
def test_copies_are_refused(stream: SecretStream, duplicate: object) -> None:
    with pytest.raises(RefusedError, match=r"cannot be pickled or copied.*rng\.secret\(\)"):
        duplicate(stream)  # type: ignore[operator]


def test_nothing_can_be_read_back() -> None:
    stream = secret()
    assert not hasattr(stream, "__dict__")
    assert [name for name in dir(stream) if not name.startswith("_")] == [
        "bernoulli",
        "bytes",
        "gumbel",
        "laplace",
        "normal",
        "void_reason",
    ]
    assert repr(stream) == "secret()"
    assert "12345" not in repr(secret(fixed_seed=12345))


# ------------------------------------------------------------------------------ the fixed stream


def test_operating_system_stream_is_not_void() -> None:
    assert secret().void_reason is None


@pytest.mark.parametrize("fixed_seed", [0, 7, np.int64(7), 10**18])
def test_fixed_stream_is_marked_void(fixed_seed: int) -> None:
    stream = secret(fixed_seed=fixed_seed)
    assert stream.void_reason is not None
    assert f"fixed_seed={int(fixed_seed)}" in stream.void_reason
    assert stream.void_reason.endswith("no privacy guarantee holds.")


def test_the_mark_cannot_be_taken_off() -> None:
    with pytest.raises(AttributeError):
        secret(fixed_seed=0).void_reason = None  # type: ignore[misc]


@pytest.mark.parametrize("name", LAWS)
def test_fixed_stream_repeats(name: str) -> None:
    one, two, other = (secret(fixed_seed=seed) for seed in (4, 4, 5))
    for _ in range(2):  # the second round checks that the stream moves on in the same way
        draws = getattr(one, name)((N // 2, 2))
        assert np.array_equal(draws, getattr(two, name)((N // 2, 2)))
        assert not np.isin(draws, getattr(other, name)(N)).any()


def test_fixing_takes_the_keyword() -> None:
    with pytest.raises(TypeError):
        secret(3)  # type: ignore[call-arg]


@pytest.mark.parametrize("bad", [-1, 1.5, "7", True, 10**19])
def test_seed_refusals(bad: object) -> None:
    with pytest.raises(InvalidInputError, match="'fixed_seed' parameter must be a whole number"):
        secret(fixed_seed=bad)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="'seed' parameter must be a whole number"):
        seeded(bad)  # type: ignore[arg-type]


# ----------------------------------------------------------------------------- the seeded stream


def test_seeded_stream_repeats_and_goes_on() -> None:
    one, two = seeded(7, "splits"), seeded(7, "splits")
    first = one.generator().random(5)
    assert np.array_equal(first, two.generator().random(5))
    assert not np.isin(one.generator().random(5), first).any()


def test_seeded_stream_is_numpys_own() -> None:
    assert np.array_equal(seeded(7).generator().random(5), np.random.default_rng(7).random(5))


def test_seeds_and_purposes_are_independent() -> None:
    streams = [seeded(s, p) for s in (0, 1, 2**32, 2**32 + 1) for p in ("", "a", "b", "ab", "\0")]
    draws = np.array([stream.generator().random(2000) for stream in streams])
    correlations = np.corrcoef(draws)[np.triu_indices(len(streams), 1)]
    assert np.abs(correlations).max() < 5 / np.sqrt(2000)


def test_seeded_stream_offers_no_noise_and_says_why() -> None:
    stream = seeded(0)
    for name in ("normal", "laplace", "gumbel", "bernoulli"):
        assert not hasattr(stream, name)
    assert "anybody can repeat" in stream.void_reason
    assert repr(stream) == "seeded(0)"
    assert repr(seeded(0, "splits")) == "seeded(0, 'splits')"


def test_torch_generator_repeats_and_goes_on() -> None:
    torch = pytest.importorskip("torch")
    one, two, other = seeded(7), seeded(7), seeded(7, "weights")
    first = torch.rand(5, generator=one.torch_generator())
    assert torch.equal(first, torch.rand(5, generator=two.torch_generator()))
    assert not torch.isin(torch.rand(5, generator=one.torch_generator()), first).any()
    assert one.torch_generator(torch.device("cpu")) is one.torch_generator("cpu")
    assert not torch.isin(torch.rand(5, generator=other.torch_generator()), first).any()


def test_import_does_not_load_torch() -> None:
    code = "import sys, graphveil.rng as r; r.secret().normal(3); r.seeded(1).generator(); "
    assert run_python(code + "print('torch' in sys.modules)").strip() == "False"
