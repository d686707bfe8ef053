"""What a tuning run costs: an independent sum, the target, and refusals."""

import json
import math

import dp_accounting as dpa
import numpy as np
import pytest
from dp_accounting import dp_event

from graphveil._errors import BudgetError, InvalidInputError, RefusedError, UnprovenError
from graphveil.methods import Facts, Plan
from graphveil.privacy import accounting
from graphveil.privacy.events import OneOfDpEvent, SampledGaussianDpEvent, composed
from graphveil.tuning import Between, Listed, plan, values_of
from graphveil.tuning.counting import gamma


def papernot_steinke(curve, mean, law, delta):
    """Theorem 2 and the conversion to epsilon, for a Renyi curve; all on a grid of its own."""
    orders = 1 + np.geomspace(0.02, 2000, 4000)
    rdp = curve(orders)
    shape, parameter = {"logarithmic": 0, "geometric": 1}[law], gamma(law, mean)
    hats = (1 - 1 / orders) * rdp + math.log(1 / parameter) / orders
    total = rdp + (1 + shape) * hats.min() + math.log(mean) / (orders - 1)
    converted = total + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)
    return converted.min()


@pytest.mark.parametrize("law", ["logarithmic", "geometric"])
@pytest.mark.parametrize("trials, epsilon", [(1.5, 1.0), (4, 1.0), (10, 4.0), (200, 8.0)])
def test_the_price_is_papernot_and_steinkes(tuning, facts, law, trials, epsilon):
    """Full batches are Gaussians, so that a trial has a Renyi curve in one line."""
    planned = tuning(trials=trials, epsilon=epsilon, law=law).plan(facts)
    whole = planned.charges[0].event
    assert isinstance(whole, dp_event.RepeatAndSelectDpEvent)
    steps, score = whole.event.events
    rho = steps.count / (2 * steps.event.noise_multiplier**2) + 1 / (2 * score.noise_multiplier**2)
    expected = papernot_steinke(lambda orders: rho * orders, trials, law, planned.plan.delta)
    found = planned.plan.certificate().guarantee.epsilon
    assert found == pytest.approx(expected, rel=1e-3)
    assert (1 - 2e-3) * epsilon <= found <= epsilon


@pytest.mark.parametrize("method, changed", [
    ("dp-gnn", {"vary": {"sender_cap": "1,3"}}),
    ("gap", {}),
    ("dpar", {}),
    ("late-graph", {}),
    ("graph-split", {"settings": {"unit": "edge"}}),
    ("dp-mlp", {"fixed": True}),
    ("dp-mlp", {"scores": "public-validation"}),
    ("dp-mlp", {"vary": {"optimizer": "adam,sgd", "learning_rate": "0.1,0.2"}}),
])  # fmt: skip
def test_the_whole_budget_is_spent_and_no_more(tuning, facts, method, changed):
    for epsilon in (0.5, 3.0):
        planned = tuning(method, epsilon=epsilon, **changed).plan(facts)
        event = composed(*(charge.event for charge in planned.charges))
        found = accounting.price(event, planned.plan.delta).epsilon
        assert (1 - 2e-3) * epsilon <= found <= epsilon
        assert found == planned.plan.certificate().guarantee.epsilon
        assert 0 < planned.trial_epsilon < epsilon


def test_candidates_of_several_prices_cost_what_the_dearest_does(tuning):
    facts = Facts(num_nodes=20_000, num_features=5, num_classes=3, num_train=15_000)
    vary = {"sample_rate": "0.5,1.0", "learning_rate": "0.01..0.1"}
    settings = {"hidden_channels": 4, "steps": 20}
    made = plan.Tuning(
        method="dp-mlp", trials=5, epsilon=2.0, settings=settings,
        vary={key: values_of(key, values) for key, values in vary.items()},
    )  # fmt: skip
    planned = made.plan(facts)
    inside = planned.charges[0].event.event
    assert isinstance(inside, OneOfDpEvent)
    assert set(map(repr, inside.events)) == set(map(repr, planned.events))
    assert len(planned.events) == 2
    for rate in (0.5, 1.0):
        candidate = {"sample_rate": rate, "learning_rate": 0.05}
        method = made.make(candidate, planned.trial_epsilon)
        scorer = planned.scorer(method, facts)
        assert planned.trial_event(method.plan(facts).charges, scorer) in planned.events
    # One alone would cost less than all of them do, and none may cost more.
    delta = planned.plan.delta
    alone = [
        accounting.epsilon_of(dp_event.RepeatAndSelectDpEvent(event, 5.0, 0.0), delta)
        for event in planned.events
    ]
    assert max(alone) <= planned.plan.certificate().guarantee.epsilon <= 2.0


def test_scores_get_about_their_share(tuning, facts):
    """Of the sum of squared inverse multipliers, as all parts are Gaussians here."""
    for share in (0.02, 0.1, 0.5):
        planned = tuning(score_share=share).plan(facts)
        steps, score = planned.charges[0].event.event.events
        training = steps.count / steps.event.noise_multiplier**2
        found = score.noise_multiplier**-2 / (training + score.noise_multiplier**-2)
        assert found == pytest.approx(share, rel=0.05)


def test_a_fixed_number_is_a_composition_and_may_be_dearer_or_cheaper(tuning, facts):
    secret, fixed = (tuning(trials=10, fixed=fixed).plan(facts) for fixed in (False, True))
    assert isinstance(fixed.charges[0].event, dpa.SelfComposedDpEvent)
    assert fixed.charges[0].event.count == 10
    assert fixed.trial_epsilon < secret.trial_epsilon
    assert fixed.plan.certificate().pld is not None


def test_public_scores_cost_nothing_but_trainings_do(tuning, facts):
    private = tuning().plan(facts)
    public = tuning(scores="public-validation").plan(facts)
    assert public.score_noise is None
    assert isinstance(public.charges[0].event.event.event, SampledGaussianDpEvent)
    assert private.trial_epsilon < public.trial_epsilon < public.tuning.epsilon


def test_no_data_is_needed_and_the_certificate_says_which_way(tuning, facts):
    said = {
        "private": "secret number of trials, 4 on average (logarithmic law)",
        "public-validation": "DECLARED PUBLIC",
    }
    for scores, words in said.items():
        text = str(tuning(scores=scores).plan(facts).plan.certificate())
        assert "TUNED" in text
        assert words in text
        assert "the time the trials took" in text
        assert "repeat-and-select" in text
    text = str(tuning(fixed=True).plan(facts).plan.certificate())
    assert "4 trainings" in text
    assert "the time the trials took" not in text


@pytest.mark.parametrize("scores", ["private", "public-validation", "public-data"])
def test_what_a_choice_rests_on_is_said_in_fields(tuning, facts, scores):
    """settings.json has them, and every plan of the run."""
    named = {"public_data": "elsewhere"} if scores == "public-data" else {}
    made = tuning(scores=scores, **named)
    rests = json.loads(json.dumps(made.describe()))["rests_on"]
    assert set(rests) == {"tuned", "public", "unprotected", "also_released", "voided_by"}
    assert rests["tuned"] is True
    assert rests["public"][0].startswith("TUNED")
    assert bool(rests["unprotected"]) == (scores == "public-validation")
    assert bool(rests["also_released"]) == (scores != "public-data")
    assert rests["voided_by"]
    base = made.make(made.first).plan(facts)
    plan = made.apply_to(base)
    assert plan == base.resting_on(**rests)
    assert plan.tuned
    assert not base.tuned
    certificate = plan.certificate()
    assert {*rests["public"], *rests["unprotected"]} <= {*certificate.public}
    assert certificate.unprotected == tuple(rests["unprotected"])
    assert {*rests["voided_by"]} <= {*certificate.voided_by}
    assert certificate.released == ", ".join([base.released, *rests["also_released"]])


def test_a_search_is_one_part_of_a_plan_and_is_read_back(tuning, facts):
    planned = tuning().plan(facts)
    (part,) = planned.plan.parts
    assert part.kind == "search"
    assert [part.event] == [charge.event for charge in planned.charges]
    again = Plan.from_json(json.loads(json.dumps(planned.plan.to_json())))
    assert again == planned.plan
    assert again.charges == planned.charges
    assert tuning().priced().num_units(facts) == facts.num_nodes


@pytest.mark.parametrize("changed, error, why", [
    ({"vary": {}}, InvalidInputError, "candidates"),
    ({"trials": 1}, InvalidInputError, "trials"),
    ({"trials": 0.5}, InvalidInputError, "trials"),
    ({"trials": 2.5, "fixed": True}, InvalidInputError, "whole number"),
    ({"method": "mlp"}, InvalidInputError, "private method"),
    ({"method": "gnn"}, InvalidInputError, "sweep"),
    ({"sampler": "optuna"}, UnprovenError, "--fixed"),
    ({"sampler": "optuna", "scores": "public-validation"}, UnprovenError, "--fixed"),
    ({"vary": {"epsilon": "1,2"}}, InvalidInputError, "cannot be varied"),
    ({"vary": {"seed": "1,2"}}, InvalidInputError, "cannot be varied"),
    ({"vary": {"steps": "1,2"}}, InvalidInputError, "either set or varied"),
    ({"method": "late-graph", "vary": {"teleport": "0.1,0.3"}}, UnprovenError, "no bound"),
    ({"method": "dpar", "vary": {"student": "true,false"}}, UnprovenError, "no bound"),
    ({"method": "dp-gnn", "settings": {"paper": True}}, UnprovenError, "claim"),
    ({"scores": "public-data"}, InvalidInputError, "its name"),
    ({"public_data": "cora"}, InvalidInputError, "its name"),
    ({"epsilon": -1.0}, InvalidInputError, "epsilon"),
    ({"score_share": 1.0}, InvalidInputError, "score_share"),
])  # fmt: skip
def test_what_makes_no_sense_is_refused_at_once(tuning, changed, error, why):
    with pytest.raises(error, match=why) as refusal:
        tuning(**changed)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("changed, error, why", [
    ({"method": "dp-gnn", "vary": {"sampler": "senders,printed"}}, UnprovenError, "proven epsilon"),
    ({"method": "dp-gnn", "vary": {"sender_cap": "1,none"}}, RefusedError, "Without a cap"),
    ({"method": "dpar", "settings": {"graph_rate": 0.5}}, UnprovenError, "graph_rate"),
    ({"vary": {"averaged": "0.1,3"}}, InvalidInputError, "averaged"),
])  # fmt: skip
def test_what_no_price_covers_is_refused_before_data(tuning, facts, changed, error, why):
    if "sender_cap" in changed.get("vary", {}):
        changed = {**changed, "vary": {"sender_cap": [1, None]}}
    with pytest.raises(error, match=why) as refusal:
        tuning(**changed).plan(facts)
    assert "\n" not in str(refusal.value)


def test_a_range_of_what_changes_the_price_is_refused(facts, monkeypatch):
    made = plan.Tuning(
        method="dp-mlp", trials=3, epsilon=2.0, vary={"steps": Between(2, 8)},
        settings={"sample_rate": 1.0, "hidden_channels": 4},
    )  # fmt: skip
    with pytest.raises(UnprovenError, match=r"steps=2,8"):
        made.plan(facts)
    made = plan.Tuning(
        method="dp-mlp", trials=3, epsilon=2.0, vary={"steps": Listed((1, 2, 3, 4))},
        settings={"sample_rate": 1.0, "hidden_channels": 4},
    )  # fmt: skip
    monkeypatch.setattr(plan, "_MOST_PRICES", 3)
    with pytest.raises(InvalidInputError, match="shorter lists"):
        made.plan(facts)


@pytest.mark.parametrize("total", [
    lambda value: 1.7 * value,
    lambda value: max(value, 3 * value**0.6),
    lambda value: 0.2 + value,
    lambda value: 2 * value if value < 1 else 100 * value,  # a price that jumps
    lambda value: math.expm1(value),
])  # fmt: skip
@pytest.mark.parametrize("budget", [0.3, 2.0, 20.0])
def test_the_search_stays_within_the_budget_and_near_it(total, budget):
    found = plan._largest(total, budget)
    assert total(found) <= budget
    assert total(found) >= (1 - 2e-3) * budget or total(1.00001 * found) > budget


def test_a_budget_that_nothing_fits_is_refused():
    with pytest.raises(BudgetError, match="fewer trials"):
        plan._largest(lambda value: 5 + value, 2.0)
