"""Mechanisms: what is added, to what, what is charged for it, and what is refused.

Statistical tests run on fixed streams, so that a threshold is passed always or never.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import subprocess
import sys
from typing import Any

import dp_accounting as dpa
import numpy as np
import pytest
from scipy import sparse, stats

from graphveil import mechanisms
from graphveil._errors import InvalidInputError, RefusedError
from graphveil.mechanisms import Gaussian, GumbelTopK, Laplace
from graphveil.privacy.events import GumbelTopKDpEvent, from_json, to_json
from graphveil.rng import secret, seeded

SEEDS = [0, 1, 2]
ADDITIVE = {Gaussian: stats.norm(), Laplace: stats.laplace()}
ALL: list[Any] = [
    Gaussian(noise_multiplier=1.0, sensitivity=1.0),
    Laplace(noise_multiplier=1.0, sensitivity=1.0),
    GumbelTopK(noise_multiplier=1.0, bound=1.0, k=1),
]


def by_name(mechanism: object) -> str:
    return type(mechanism).__name__


def grid_step(mechanism: Gaussian | Laplace) -> float:
    scale = mechanism.noise_multiplier * mechanism.sensitivity
    return 2.0 ** (math.floor(math.log2(scale)) - 36)


# ------------------------------------------------------------------------ Gaussian and Laplace


@pytest.mark.parametrize(
    "multiplier, sensitivity, seed",
    [(1.0, 1.0, 0), (1.0, 1.0, 1), (3.7, 1.0, 2), (1.0, 0.02, 3), (0.3, 40.0, 4), (1e4, 1e-9, 5)],
)
@pytest.mark.parametrize("cls", ADDITIVE)
def test_noise_has_the_law_and_the_scale(
    cls: type[Gaussian], multiplier: float, sensitivity: float, seed: int
) -> None:
    # 50 coordinates, 2000 releases; among the coordinates zeros, signs and different sizes.
    scale = multiplier * sensitivity
    value = np.concatenate([np.zeros(20), np.linspace(-5, 5, 30)]) * scale
    mechanism = cls(noise_multiplier=multiplier, sensitivity=sensitivity)
    stream = secret(fixed_seed=seed)
    noise = np.array([mechanism.release(value, stream) - value for _ in range(2000)]) / scale
    law = ADDITIVE[cls]
    assert stats.kstest(noise.ravel(), law.cdf).pvalue > 1e-4
    # Every coordinate by itself, zeros too (50 tests each: 1e-4 is p = 0.005 for all of them).
    assert stats.kstest(noise, law.cdf, axis=0).pvalue.min() > 1e-4
    error = math.sqrt((law.moment(4) - law.var() ** 2) / 2000)
    assert np.abs((noise**2).mean(axis=0) - law.var()).max() < 5 * error
    # Coordinates and calls do not share noise, nor its size.
    for kind in (noise, np.abs(noise)):
        between_coordinates = np.corrcoef(kind.T)[np.triu_indices(50, 1)]
        assert np.abs(between_coordinates).max() < 5.5 / math.sqrt(2000)
        between_calls = np.corrcoef(kind[:-1].ravel(), kind[1:].ravel())[0, 1]
        assert abs(between_calls) < 5 / math.sqrt(noise.size)


@pytest.mark.parametrize("cls", ADDITIVE)
def test_noise_reaches_every_entry_of_a_zero_array(cls: type[Gaussian]) -> None:
    mechanism = cls(noise_multiplier=1.0, sensitivity=1.0)
    noisy = mechanism.release(np.zeros((300, 40)), secret(fixed_seed=0))
    assert noisy.shape == (300, 40)
    assert np.all(noisy != 0)
    assert np.unique(noisy).size == noisy.size


@pytest.mark.parametrize("cls", ADDITIVE)
def test_two_calls_draw_fresh_noise(cls: type[Gaussian]) -> None:
    mechanism, stream = cls(noise_multiplier=1.0, sensitivity=1.0), secret()
    first, second = (mechanism.release(np.zeros(9), stream) for _ in range(2))
    assert not np.isin(first, second).any()


@pytest.mark.parametrize("scale", [1.0, 1.99, 3e-7, 5e8])
@pytest.mark.parametrize("cls", ADDITIVE)
def test_low_order_bits_say_nothing(cls: type[Gaussian], scale: float) -> None:
    # Whatever the value, results lie on one grid that the parameters alone decide ...
    mechanism = cls(noise_multiplier=scale, sensitivity=1.0)
    step = grid_step(mechanism)
    value = scale * np.tile([0.0, 1 / 3, 0.1, -math.pi, 2.0**-60], 400)
    results = mechanism.release(value, secret(fixed_seed=0)) / step
    assert np.array_equal(results, np.rint(results))
    assert 2.0**36 <= mechanism.noise_multiplier / step < 2.0**37
    # ... on which all residues occur, ...
    residues = np.bincount(results.astype(np.int64) % 8, minlength=8)
    assert stats.chisquare(residues).pvalue > 1e-4
    # ... and a value one step further gives the same results one step further, to the last bit.
    moved = mechanism.release(np.rint(value / step) * step + step, secret(fixed_seed=0)) / step
    assert np.array_equal(moved - results, np.ones(value.size))


def test_plain_addition_would_fail_the_grid_test() -> None:
    # The check above can fail: floats added in the plain way are not on the grid.
    step = grid_step(Gaussian(noise_multiplier=1.0, sensitivity=1.0))
    plain = (1 / 3 + secret(fixed_seed=0).normal(100)) / step
    assert np.mean(plain != np.rint(plain)) > 0.9


@pytest.mark.parametrize(
    "mechanism, added",
    [
        # d steps of 2^-36 * scale, in units of the sensitivity: the noise must grow as much.
        (Laplace(noise_multiplier=1024.0, sensitivity=1.0), 1e6 * 2.0**-26),
        (Gaussian(noise_multiplier=2.0**20, sensitivity=2.0**-20), 1e3 * 2.0**-16),
    ],
    ids=by_name,
)
def test_noise_covers_what_rounding_adds_to_the_sensitivity(
    mechanism: Gaussian | Laplace, added: float
) -> None:
    scale = mechanism.noise_multiplier * mechanism.sensitivity
    noise = mechanism.release(np.zeros(1_000_000), secret(fixed_seed=0)) / scale
    law = ADDITIVE[type(mechanism)]
    mean_size = math.sqrt(2 / math.pi) if isinstance(mechanism, Gaussian) else 1.0
    error = math.sqrt(law.var() - mean_size**2) / 1000
    assert added > 0.014  # far outside the error of the measurement
    assert abs(np.abs(noise).mean() - mean_size * (1 + added)) < 4 * error


def test_rounding_that_takes_too_much_noise_is_refused() -> None:
    # A step is 2^-36 of the noise; for a sensitivity 2^-40 of it, rounding decides everything.
    mechanism = Laplace(noise_multiplier=2.0**40, sensitivity=1.0)
    mechanism.release(np.zeros(50), secret())
    with pytest.raises(RefusedError, match=r"rounding of 80 coord.* 1.28e\+03 times .* or release"):
        mechanism.release(np.zeros(80), secret())


@pytest.mark.parametrize("cls", ADDITIVE)
def test_values_far_larger_than_the_noise(cls: type[Gaussian]) -> None:
    noisy = cls(noise_multiplier=1.0, sensitivity=1.0).release(
        np.array([1e12, -1e12, 1e150]), secret()
    )
    assert np.abs(noisy[:2] - [1e12, -1e12]).max() < 50
    assert noisy[2] == 1e150
    tiny = cls(noise_multiplier=1e-100, sensitivity=1.0).release(np.array([1e150]), secret())
    assert tiny[0] == 1e150


# ---------------------------------------------------------------------------------- Gumbel top-k


def peeled_law(scores: np.ndarray, scale: float, k: int) -> dict[tuple[int, ...], float]:
    """The probability of every ordered choice: k exponential mechanisms, one after the other."""
    weights = np.exp(scores / scale)
    law = {}
    for choice in itertools.permutations(range(len(scores)), k):
        chance, left = 1.0, weights.sum()
        for index in choice:
            chance *= weights[index] / left
            left -= weights[index]
        law[choice] = chance
    return law


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("k", [1, 2, 4])
@pytest.mark.parametrize("multiplier, bound", [(0.5, 1.0), (2.0, 1.0), (0.4, 30.0)])
def test_choices_follow_the_peeled_exponential_mechanism(
    multiplier: float, bound: float, k: int, seed: int
) -> None:
    # The last two scores lie outside [0, bound] and count as 0 and bound.
    scores = np.array([0.3, 0.8, -5.0, 1.7]) * bound
    rows = 40_000
    mechanism = GumbelTopK(noise_multiplier=multiplier, bound=bound, k=k, rows=rows)
    chosen = mechanism.release(np.tile(scores, (rows, 1)), secret(fixed_seed=seed))
    assert chosen.shape == (rows, k)
    law = peeled_law(np.clip(scores, 0, bound), multiplier * bound, k)
    seen = dict.fromkeys(law, 0)
    for row in chosen.tolist():
        seen[tuple(row)] += 1
    expected = [chance * rows for chance in law.values()]
    assert min(expected) > 5
    assert stats.chisquare(list(seen.values()), expected).pvalue > 1e-4


def test_single_rows_follow_the_same_law_call_by_call() -> None:
    scores, stream = np.array([0.0, 0.5, 1.0]), secret(fixed_seed=0)
    mechanism = GumbelTopK(noise_multiplier=0.7, bound=1.0, k=1)
    seen = np.bincount([mechanism.release(scores, stream)[0] for _ in range(5000)], minlength=3)
    expected = np.array(list(peeled_law(scores, 0.7, 1).values())) * 5000
    assert stats.chisquare(seen, expected).pvalue > 1e-4


def test_rows_in_separate_blocks_get_separate_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mechanisms, "_ROWS_BLOCK", 40)  # four rows of ten
    rows = 4002
    mechanism = GumbelTopK(noise_multiplier=1.0, bound=1.0, k=3, rows=rows)
    chosen = mechanism.release(np.zeros((rows, 10)), secret(fixed_seed=0))
    assert all(len(set(row)) == 3 for row in chosen.tolist())
    assert stats.chisquare(np.bincount(chosen.ravel(), minlength=10)).pvalue > 1e-4
    # Two rows agree in their ordered triple once in 720 times.
    agreeing = int((chosen[4:] == chosen[:-4]).all(axis=1).sum())
    assert stats.binomtest(agreeing, rows - 4, 1 / 720).pvalue > 1e-4


def test_little_noise_gives_the_true_order_in_any_shape() -> None:
    scores = np.linspace(0, 1, 24).reshape(2, 3, 4)
    mechanism = GumbelTopK(noise_multiplier=1e-6, bound=1.0, k=2, rows=6)
    chosen = mechanism.release(scores, secret())
    assert chosen.shape == (2, 3, 2)
    assert np.issubdtype(chosen.dtype, np.integer)
    assert np.all(chosen == [3, 2])


def test_many_candidates_come_in_order() -> None:
    # Long rows are partitioned, then sorted: both halves of that are needed.
    scores = np.random.default_rng(0).random((2, 5000))
    mechanism = GumbelTopK(noise_multiplier=1e-12, bound=1.0, k=2000, rows=2)
    chosen = mechanism.release(scores, secret(fixed_seed=0))
    assert np.array_equal(chosen, np.argsort(-scores)[:, :2000])


def test_whole_numbers_count_as_scores() -> None:
    mechanism = GumbelTopK(noise_multiplier=1e-6, bound=10.0, k=3)
    assert mechanism.release(np.array([3, 9, 7, 1]), secret()).tolist() == [1, 2, 0]


# ---------------------------------------------------------------------------------------- events


def test_events_name_what_is_released() -> None:
    assert Gaussian(noise_multiplier=2.5, sensitivity=9.0).event() == dpa.GaussianDpEvent(2.5)
    assert Laplace(noise_multiplier=2.5, sensitivity=9.0).event() == dpa.LaplaceDpEvent(2.5)
    one = GumbelTopKDpEvent(noise_multiplier=2.5, k=3)
    assert GumbelTopK(noise_multiplier=2.5, bound=9.0, k=3).event() == one
    many = GumbelTopK(noise_multiplier=2.5, bound=9.0, k=3, rows=70).event()
    assert many == dpa.SelfComposedDpEvent(one, 70)


@pytest.mark.parametrize("mechanism", ALL, ids=by_name)
def test_events_can_be_written_down(mechanism: Any) -> None:
    exact = dataclasses.replace(mechanism, noise_multiplier=np.float32(2))  # numpy's own numbers
    event = exact.event()
    assert type(event.noise_multiplier) is float
    assert from_json(to_json(event)) == event


def test_laplace_event_costs_one_over_the_multiplier() -> None:
    accountant = dpa.pld.PLDAccountant(dpa.NeighboringRelation.REPLACE_SPECIAL)
    accountant.compose(Laplace(noise_multiplier=4.0, sensitivity=3.0).event())
    assert accountant.get_epsilon(1e-12) == pytest.approx(0.25, abs=1e-3)


# -------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("mechanism", ALL, ids=by_name)
@pytest.mark.parametrize("wrong", [seeded(0), np.random.default_rng(0), None])
def test_only_the_secret_stream_may_give_noise(mechanism: Any, wrong: object) -> None:
    rule = rf"noise must come from the secret stream. Got {type(wrong).__name__}.*rng\.secret\(\)"
    with pytest.raises(RefusedError, match=rule):
        mechanism.release(np.ones(3), wrong)


@pytest.mark.parametrize("mechanism", ALL, ids=by_name)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e151])
def test_values_must_be_finite(mechanism: Any, bad: float) -> None:
    with pytest.raises(InvalidInputError, match=r"must be finite .* Got NaN, .* clip") as refusal:
        mechanism.release(np.array([0.123456, bad, 0.0]), secret())
    assert "0.123456" not in str(refusal.value)  # the message is not a release


@pytest.mark.parametrize("mechanism", ALL, ids=by_name)
@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 3)])
def test_empty_values_are_refused(mechanism: Any, shape: tuple[int, ...]) -> None:
    with pytest.raises(
        InvalidInputError, match=r"at least one entry. Got shape .* needs no release"
    ):
        mechanism.release(np.zeros(shape), secret())


@pytest.mark.parametrize("mechanism", ALL, ids=by_name)
@pytest.mark.parametrize(
    "value", [np.array(["a"]), np.array([1j]), np.array([None]), sparse.eye(3), "text"], ids=repr
)
def test_only_dense_real_numbers_are_released(mechanism: Any, value: object) -> None:
    with pytest.raises(InvalidInputError, match=r"dense array of real numbers. Got .* convert it"):
        mechanism.release(value, secret())


@pytest.mark.parametrize("shape", [(3,), (2, 3), (4, 3), (2, 2, 3), ()])
def test_rows_must_be_the_rows_charged(shape: tuple[int, ...]) -> None:
    mechanism = GumbelTopK(noise_multiplier=1.0, bound=1.0, k=1, rows=3)
    with pytest.raises(InvalidInputError, match=r"as are charged, 3. Got \d rows.*set GumbelTopK"):
        mechanism.release(np.zeros(shape), secret())


def test_k_must_not_exceed_the_candidates() -> None:
    with pytest.raises(InvalidInputError, match=r"'k' parameter must be .* 4. Got 5 .* lower k"):
        GumbelTopK(noise_multiplier=1.0, bound=1.0, k=5).release(np.zeros(4), secret())


@pytest.mark.parametrize("bad", [0, -1.0, math.nan, math.inf, True, "1", None])
@pytest.mark.parametrize("mechanism", ALL, ids=by_name)
def test_parameters_must_be_positive_numbers(mechanism: Any, bad: object) -> None:
    bound = "bound" if isinstance(mechanism, GumbelTopK) else "sensitivity"
    for name in ("noise_multiplier", bound):
        with pytest.raises(InvalidInputError, match=rf"'{name}' .* in \(0, inf\). Got {bad!r}"):
            dataclasses.replace(mechanism, **{name: bad})


@pytest.mark.parametrize("bad", [0, -1, 1.5, True, None])
@pytest.mark.parametrize("name", ["k", "rows"])
def test_counts_must_be_whole_and_positive(name: str, bad: Any) -> None:
    with pytest.raises(InvalidInputError, match=f"'{name}' parameter .* Got {bad!r}"):
        dataclasses.replace(ALL[2], **{name: bad})


@pytest.mark.parametrize("cls", [Gaussian, Laplace])
@pytest.mark.parametrize("multiplier, sensitivity", [(1e-60, 1e-60), (1e60, 1e60), (1e300, 1e300)])
def test_scales_out_of_range_are_refused(
    cls: type[Gaussian], multiplier: float, sensitivity: float
) -> None:
    with pytest.raises(InvalidInputError, match=r"noise_multiplier \* sensitivity' .* 1e100\]"):
        cls(noise_multiplier=multiplier, sensitivity=sensitivity)


def test_mechanisms_are_frozen_and_take_keywords() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        ALL[0].noise_multiplier = 0.1
    for cls in (Gaussian, Laplace, GumbelTopK):
        with pytest.raises(TypeError):
            cls(1.0, 1.0)  # type: ignore[call-arg]


# ---------------------------------------------------------------------------- what goes in and out


@pytest.mark.parametrize("mechanism", ALL[:2], ids=by_name)
@pytest.mark.parametrize("dtype", [np.int64, np.int8, np.uint16, np.bool_])
def test_whole_numbers_become_floats(mechanism: Any, dtype: Any) -> None:
    noisy = mechanism.release(np.ones(20, dtype), secret())
    assert noisy.dtype == np.float64
    assert np.all(noisy != np.rint(noisy))


@pytest.mark.parametrize("mechanism", ALL[:2], ids=by_name)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_noise_is_added_in_float64_and_cast_back(mechanism: Any, dtype: Any) -> None:
    value = np.linspace(-3, 3, 12).astype(dtype).reshape(3, 4)
    before = value.copy()
    noisy = mechanism.release(value, secret(fixed_seed=1))
    exact = mechanism.release(value.astype(np.float64), secret(fixed_seed=1))
    assert noisy.dtype == dtype
    assert np.array_equal(noisy, exact.astype(dtype))
    assert np.array_equal(value, before)


@pytest.mark.parametrize("mechanism", ALL[:2], ids=by_name)
def test_numbers_and_lists_are_arrays_too(mechanism: Any) -> None:
    stream = secret()
    assert np.shape(mechanism.release(2.0, stream)) == ()
    assert np.shape(mechanism.release(np.float32(2), stream)) == ()
    assert np.shape(mechanism.release([[1, 2], [3, 4]], stream)) == (2, 2)


@pytest.mark.parametrize("mechanism", ALL[:2], ids=by_name)
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "int64", "bool"])
def test_tensors_come_back_as_tensors(mechanism: Any, dtype: str) -> None:
    torch = pytest.importorskip("torch")
    value = torch.linspace(-3, 3, 12).reshape(3, 4).to(getattr(torch, dtype))
    before = value.clone()
    noisy = mechanism.release(value, secret(fixed_seed=1))
    exact = mechanism.release(value.double().numpy(), secret(fixed_seed=1))
    assert noisy.dtype == (value.dtype if value.is_floating_point() else torch.float64)
    assert noisy.device == value.device
    assert torch.equal(noisy, torch.from_numpy(exact).to(noisy.dtype))
    assert torch.equal(value, before)


def test_tensor_results_carry_no_gradient_and_share_no_memory() -> None:
    torch = pytest.importorskip("torch")
    value = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    noisy = ALL[0].release(value, secret())
    assert not noisy.requires_grad
    noisy.zero_().add_(1)
    assert torch.equal(value.detach(), torch.zeros(3, dtype=torch.float64))
    assert ALL[0].release(torch.tensor(2.0), secret()).shape == ()
    assert ALL[0].release(torch.zeros(4, 3).t(), secret()).shape == (3, 4)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_tensor_scores_give_tensor_indices(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    scores = torch.tensor([[0, 2, 1], [1, 0, 2]], dtype=getattr(torch, dtype))
    before = scores.clone()
    mechanism = GumbelTopK(noise_multiplier=1e-6, bound=2.0, k=2, rows=2)
    chosen = mechanism.release(scores, secret())
    assert chosen.dtype == torch.int64
    assert chosen.tolist() == [[1, 2], [2, 0]]
    assert torch.equal(scores, before)


@pytest.mark.parametrize("mechanism", ALL, ids=by_name)
def test_tensor_refusals(mechanism: Any) -> None:
    torch = pytest.importorskip("torch")
    refusals: list[tuple[object, str]] = [
        (torch.eye(3).to_sparse(), "dense array"),
        (torch.ones(3, dtype=torch.complex64), "dense array"),
        (torch.tensor([1.0, math.nan]), "must be finite"),
        (torch.zeros(0), "at least one entry"),
    ]
    for value, rule in refusals:
        with pytest.raises(InvalidInputError, match=rule):
            mechanism.release(value, secret())


def test_import_and_release_do_not_load_torch() -> None:
    code = (
        "import sys, numpy as np\n"
        "from graphveil.mechanisms import Gaussian, GumbelTopK\n"
        "from graphveil.rng import secret\n"
        "Gaussian(noise_multiplier=1.0, sensitivity=1.0).release(np.zeros(3), secret())\n"
        "GumbelTopK(noise_multiplier=1.0, bound=1.0, k=1).release(np.zeros(3), secret())\n"
        "print('torch' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.strip() == "False"
