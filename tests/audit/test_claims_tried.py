"""Claims of papers, tried: lower bounds on epsilon above what is claimed, on constructed data.

Each bound holds at 95 % for independent runs, by a test whose threshold is fixed before anything is
drawn (tests/audit/claims_cases.py). docs/guarantees/audits.md has the table. Where the flaw is
taken out of a recipe, the same trial proves nothing against it.
"""

import claims_cases as cases
import numpy as np
import pytest
from claims_cases import try_claim

from graphveil.audit.bounds import gdp_from_normal_scores
from graphveil.graph.daigavane import sample_paper

COUNTED = [
    pytest.param(cases.printed_sampler, 60, 2.5, id="printed_sampler"),
    pytest.param(
        cases.read_off_thresholds, 40, 2.0, id="read_off_thresholds", marks=pytest.mark.slow
    ),
    pytest.param(cases.released_splits, 60, 2.5, id="released_splits", marks=pytest.mark.slow),
    pytest.param(cases.bare_noise, 400, 1.1, id="bare_noise", marks=pytest.mark.slow),
]


def report(trial, outcome):
    """A line for whoever asks for it (-s)."""
    print(
        f"\nclaimed {outcome.claimed:.3g}, at least {outcome.bound:.3g} at delta "
        f"{trial.plan.delta:g}; said present {outcome.said} of {len(outcome.present)} runs each"
    )


@pytest.mark.parametrize(("make", "runs", "least"), COUNTED)
def test_more_is_revealed_than_is_claimed(make, runs, least):
    trial = make()
    outcome = try_claim(trial, runs)
    report(trial, outcome)
    assert outcome.claimed <= 1 + 1e-6
    assert outcome.bound > max(outcome.claimed, least)


@pytest.mark.slow
def test_dpar_reveals_more_than_is_claimed():
    trial = cases.dpar()
    outcome = try_claim(trial, 3000)
    report(trial, outcome)
    assert outcome.claimed == pytest.approx(1.0)
    assert outcome.bound > outcome.claimed


@pytest.mark.slow
def test_splits_that_are_repaired_but_for_the_noise_reveal_more_than_is_claimed():
    """One step is one Gaussian, so that scores are normal: a bound for these is sharper."""
    trial = cases.splits_with_claimed_noise()
    outcome = try_claim(trial, 1500)
    bound = gdp_from_normal_scores(outcome.present, outcome.absent, delta=trial.plan.delta)
    print(f"\nclaimed {outcome.claimed:.3g}, at least {bound.epsilon:.3g} by normal scores")
    assert bound.epsilon > outcome.claimed


@pytest.mark.parametrize(
    ("make", "settings", "runs"),
    [
        pytest.param(cases.printed_sampler, {"sampler": "senders"}, 40, marks=pytest.mark.slow),
        pytest.param(cases.bare_noise, {"scaled": True}, 400, marks=pytest.mark.slow),
    ],
    ids=["senders", "scaled noise"],
)
def test_without_the_flaw_the_same_trial_proves_nothing(make, settings, runs):
    trial = make(**settings)
    outcome = try_claim(trial, runs)
    report(trial, outcome)
    assert outcome.bound < outcome.claimed


def test_on_the_path_every_term_changes_under_its_seed_and_few_do_under_others():
    """Theorem 1 counts K + 1 = 2 of 40 terms. Without the seed changes do not travel far here."""
    trial = cases.printed_sampler()
    counts = [changed(trial, seed) for seed in range(200)]
    assert counts[0] == 40
    assert np.mean(counts[1:]) < 4


def changed(trial, seed):
    """How many training nodes read somebody else without the unit."""
    worlds = [
        sample_paper(data.edge_index, len(data.x), 1, seed=seed, train=data.train_mask)
        for data in (trial.present, trial.absent)
    ]
    pairs = [set(map(tuple, kept.t().tolist())) for kept in worlds]
    return len({receiver for _, receiver in pairs[0] ^ pairs[1]})
