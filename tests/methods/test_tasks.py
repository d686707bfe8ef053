"""Every task with every method: losses, answers, figures beside the best guess, class weights."""

import numpy as np
import pytest
import torch
from methods_cases import OF_LABELS, changed, data_for, made
from sklearn.metrics import average_precision_score, balanced_accuracy_score, f1_score, r2_score
from torch.nn import functional as F

from graphveil._errors import InvalidInputError, UnprovenError
from graphveil.graph.targets import TASKS, is_labelled
from graphveil.methods import METHODS, Facts
from graphveil.methods.measures import METRICS, measure_labels
from graphveil.methods.task import (
    Binary,
    Classification,
    Labels,
    Ordinal,
    Regression,
    make_task,
)

LOW, HIGH = -10.0, 30.0


def with_task(data, task):
    """The same data about another target, a function of the class."""
    y = data.y
    if task == "binary":
        return changed(data, y=(y == 1).long(), num_classes=2, task=task)
    if task == "multilabel":
        labels = torch.stack([y == 0, y == 1, y > 0, y < 5], 1).long()
        labels[::3, 1] = -1  # not known of some
        return changed(data, y=labels, num_classes=4, task=task)
    if task == "regression":
        values = 10.0 * y.float() + torch.arange(len(y)) % 7
        return changed(data, y=values, num_classes=None, task=task, value_range=(LOW, HIGH))
    return changed(data, task=task)


def facts_of(task, **more):
    number = {"binary": 2, "regression": 1}.get(task, 3)
    ends = {"value_range": (LOW, HIGH)} if task == "regression" else {}
    known = {"num_nodes": 100, "num_features": 4, "num_train": 50, "num_classes": number}
    return Facts(**known, task=task, **ends, **more)


# --- every method ---------------------------------------------------------------------------------


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("name", OF_LABELS)
def test_every_method_learns_every_task(name, task):
    data = with_task(data_for(name), task)
    method = made(name).fit(data, progress=False)
    facts = method.plan_.facts
    assert facts.task == task
    answers = method.predict_proba(data)
    columns = {"binary": 2, "multilabel": 4, "regression": 1}.get(task, 3)
    assert answers.shape == (len(data.y), columns)
    assert method.predict(data).shape == data.y.shape
    if task == "regression":
        assert LOW <= float(answers.min()) <= float(answers.max()) <= HIGH
    elif task == "multilabel":
        assert 0 <= float(answers.min()) <= float(answers.max()) <= 1
    else:
        assert torch.allclose(answers.sum(1), torch.ones(len(answers)), atol=1e-5)
    measured = method.task(facts).measure_test(answers, data, method.record)
    assert measured["task"] == task
    assert measured[f"test_{measured['metric']}"] is not None
    assert measured["baseline"][measured["metric"]] is not None
    # Whoever says the same of everybody has all of one and nothing of the other.
    assert not {"sensitivity", "specificity"} & measured["baseline"].keys()
    assert np.isfinite(method.score(data))
    words = " ".join(method.certificate_.public)
    assert f"the task: {task}" in words
    assert (task == "regression") == ("from -10 to 30" in words)


def test_values_outside_the_range_count_as_its_ends():
    made_task = make_task(facts_of("regression"))
    y = torch.tensor([-1e6, -10.0, 10.0, 30.0, 1e6, float("nan")])
    assert made_task.targets(y).tolist() == [0.0, 0.0, 0.5, 1.0, 1.0, -1.0]


# --- losses ---------------------------------------------------------------------------------------


def test_an_order_asks_whether_a_class_is_above_each_other_one():
    outputs, y = torch.randn(7, 4, dtype=torch.float64), torch.tensor([0, 1, 2, 3, 0, 3, 1])
    chances = outputs.softmax(1)
    expected = torch.zeros(7, dtype=torch.float64)
    for k in range(3):
        above = chances[:, k + 1 :].sum(1)
        expected -= torch.where(y > k, above, 1 - above).log() / 3
    assert torch.allclose(Ordinal(num_classes=4).losses(outputs, y), expected)


def test_a_far_class_costs_more_than_the_next_one():
    surely_first = torch.tensor([[9.0, 0.0, 0.0]])
    task = Ordinal(num_classes=3)
    near, far = (float(task.losses(surely_first, torch.tensor([y]))) for y in (1, 2))
    assert far > 1.5 * near


def test_a_label_that_is_not_known_has_no_loss_and_no_gradient():
    outputs = torch.randn(3, 4, requires_grad=True)
    y = torch.tensor([[1, -1, 0, 1], [-1, -1, -1, -1], [0, 0, 1, 1]])
    losses = Labels(num_classes=4).losses(outputs, y)
    losses.sum().backward()
    assert losses[1].item() == 0.0
    assert bool((outputs.grad[y < 0] == 0).all())
    expected = F.binary_cross_entropy_with_logits(outputs[2], y[2].float(), reduction="sum") / 2
    assert torch.allclose(losses[2], expected)


def test_errors_beyond_the_bend_count_by_their_size():
    square = Regression(low=0.0, high=1.0)
    bent = Regression(low=0.0, high=1.0, huber=0.1)  # 0.2 in half ranges
    outputs = torch.tensor([[0.1], [0.15], [0.9]])
    targets = torch.full((3,), 0.5)
    assert torch.allclose(square.losses(outputs, targets), outputs.squeeze(1) ** 2 / 2)
    assert torch.allclose(bent.losses(outputs, targets)[:2], outputs[:2, 0] ** 2 / 2)
    assert float(bent.losses(outputs, targets)[2]) == pytest.approx(0.2 * (0.9 - 0.1))


# --- figures --------------------------------------------------------------------------------------


def test_figures_of_rare_positives_are_those_of_sklearn():
    rng = np.random.default_rng(0)
    y = (rng.random(400) < 0.05).astype(int)
    chance = np.clip(0.2 * y + 0.6 * rng.random(400), 0, 1)
    chances = torch.from_numpy(np.stack([1 - chance, chance], 1))
    figures = Binary(num_classes=2).measure(chances, torch.from_numpy(y))
    decided = chance > 0.5
    assert figures["average_precision"] == pytest.approx(average_precision_score(y, chance))
    assert figures["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(y, decided))
    assert figures["brier"] == pytest.approx(np.mean(2 * (chance - y) ** 2))
    assert set(figures) == set(METRICS)


def test_the_calibration_error_is_the_gap_of_confidence_and_accuracy():
    chances = torch.tensor([[0.1, 0.9]] * 10)
    y = torch.tensor([1] * 6 + [0] * 4)
    figures = Classification(num_classes=2).measure(chances, y)
    assert figures["calibration_error"] == pytest.approx(0.3)


def test_figures_of_labels_are_means_over_the_labels():
    rng = np.random.default_rng(1)
    y = (rng.random((200, 3)) < [0.5, 0.1, 0.3]).astype(int)
    chances = np.clip(0.4 * y + 0.5 * rng.random((200, 3)), 0, 1)
    decided = (chances > 0.5).astype(int)
    figures = measure_labels(chances, y, decided)
    assert figures["macro_f1"] == pytest.approx(f1_score(y, decided, average="macro"))
    assert figures["micro_f1"] == pytest.approx(f1_score(y, decided, average="micro"))
    expected = average_precision_score(y, chances, average="macro")
    assert figures["average_precision"] == pytest.approx(expected)
    y[:, 1] = np.where(rng.random(200) < 0.5, -1, y[:, 1])
    some = measure_labels(chances, y, decided)
    assert some["macro_f1"] != figures["macro_f1"]


def test_figures_of_values_are_those_of_sklearn():
    rng = np.random.default_rng(2)
    y, values = rng.normal(size=50), rng.normal(size=50)
    task = Regression(low=-5.0, high=5.0)
    figures = task.measure(torch.from_numpy(values).unsqueeze(1), torch.from_numpy(y))
    assert figures["r2"] == pytest.approx(r2_score(y, values))
    assert figures["mae"] == pytest.approx(np.abs(y - values).mean())
    assert figures["accuracy"] is None


@pytest.mark.parametrize("task", TASKS)
def test_always_the_same_answer_is_nothing_learnt(task):
    data = with_task(data_for("dp-mlp"), task)
    made_task = make_task(Facts.of(data))
    guess = made_task.guess(data.y[data.train_mask])
    answers = guess.float().expand(len(data.y), -1)
    measured = made_task.measure_test(answers, data, "node")
    assert measured["constant"]
    assert measured["learnt"] is False


@pytest.mark.parametrize("task", TASKS)
def test_what_knows_nobody_has_not_learnt(task):
    """Answers that are dealt out at random are credited as rarely as chance in a hundred times."""
    data = with_task(data_for("dp-mlp", records=1000), task)
    made_task = make_task(Facts.of(data))
    deal = torch.Generator().manual_seed(0)
    like = torch.rand(len(data.y), max(1, made_task.num_classes), generator=deal)
    if task == "regression":  # close to the mean, on which such answers vary least
        like = data.y.mean() + like - 0.5
    credited = []
    for _ in range(15):
        answers = like[torch.randperm(len(like), generator=deal)]
        credited.append(made_task.measure_test(answers, data, "node")["learnt"])
    assert sum(map(bool, credited)) <= 2  # of a law with mean .15: above in 4 of 10,000 seeds


@pytest.mark.parametrize("task", TASKS)
def test_the_truth_is_learnt_and_has_full_credit(task):
    data = with_task(data_for("dp-mlp", records=400), task)
    made_task = make_task(Facts.of(data))
    if task == "regression":
        answers = data.y.unsqueeze(1)
    elif task == "multilabel":
        answers = data.y.clamp_min(0).float()
    else:
        answers = F.one_hot(data.y, made_task.num_classes).float()
    measured = made_task.measure_test(answers, data, "node")
    assert measured["learnt"] is True
    assert not measured["constant"]
    assert made_task.credit(answers, data.y)[is_labelled(data.y)].min() == 1.0
    worst = made_task.credit(1 - answers, data.y) if task == "multilabel" else None
    assert worst is None or float(worst.max()) == 0.0


# --- class weights --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["dp-mlp", "late-graph", "gap", "dpar", "dp-gnn", "graph-split"])
def test_noisy_class_weights_are_a_part_of_the_plan(name):
    data = with_task(data_for(name), "binary")
    method = made(name, class_weights="noisy").fit(data, progress=False)
    paid = [charge.paid_for for charge in method.charges_]
    assert any("in each class" in what for what in paid)
    assert method.certificate_.guarantee.epsilon <= 8.0 * (1 + 1e-6)


@pytest.mark.parametrize("name", ["open-gap", "mlp"])
def test_open_methods_count_exactly(name):
    data = with_task(data_for(name), "binary")
    data.y[data.train_mask] = (torch.arange(int(data.train_mask.sum())) % 10 == 0).long()
    counted = made(name, class_weights="noisy").fit(data, progress=False)
    share = float(data.y[data.train_mask].double().mean())
    stated = made(name, class_weights=[share / (1 - share), 1.0]).fit(data, progress=False)
    assert torch.allclose(counted.predict_proba(data), stated.predict_proba(data), atol=1e-5)
    plain = made(name).fit(data, progress=False)
    assert not torch.allclose(counted.predict_proba(data), plain.predict_proba(data), atol=1e-5)
    assert not any("noisy numbers" in charge.paid_for for charge in counted.charges_)


def test_a_private_method_of_a_paper_counts_no_classes():
    with pytest.raises(InvalidInputError, match="No paper counts classes"):
        made("gap", paper=True, class_weights="noisy").plan(
            Facts.of(with_task(data_for("gap"), "binary"))
        )


def test_labels_are_public_under_edge_units_and_counted_for_nothing():
    data = with_task(data_for("gap"), "binary")
    plan = made("gap", unit="edge", class_weights="noisy").plan(Facts.of(data))
    assert [part.name for part in plan.parts] == ["hop1"]


def test_weights_multiply_losses_and_the_largest_is_one():
    from graphveil.methods.class_weights import weights_from

    assert weights_from(torch.tensor([900.0, 300.0, 30.0])).tolist() == pytest.approx([0.1, 0.3, 1])
    outputs, y = torch.randn(4, 2), torch.tensor([0, 1, 1, 0])
    plain = Binary(num_classes=2).losses(outputs, y)
    weighed = Binary(num_classes=2).losses(outputs, y, torch.tensor([0.25, 1.0]))
    assert torch.allclose(weighed, plain * torch.tensor([0.25, 1.0, 1.0, 0.25]))


@pytest.mark.parametrize(
    ("task", "given", "error", "words"),
    [
        ("multiclass", "balanced", UnprovenError, "'noisy'"),
        ("multiclass", [1, 2], InvalidInputError, "3 numbers"),
        ("multiclass", [1, 2, 0], InvalidInputError, "class_weights"),
        ("multilabel", "noisy", InvalidInputError, "public numbers"),
        ("regression", [1], InvalidInputError, "regression"),
    ],
)
def test_other_class_weights_are_refused(task, given, error, words):
    with pytest.raises(error, match=words):
        made("dp-mlp", class_weights=given).plan(facts_of(task))


def test_rare_classes_are_met_more_often_when_they_weigh_more():
    torch.manual_seed(0)
    data = data_for("dp-mlp", records=1200)
    rare = (torch.arange(1200) % 20 == 0).long()
    x = torch.randn(1200, 5) + 1.2 * rare.unsqueeze(1)
    data = changed(data, x=x, y=rare, num_classes=2, task="binary")
    shares = []
    for weights in (None, [0.1, 1.0]):
        method = METHODS["dp-mlp"](epsilon=8.0, class_weights=weights).fit(data, progress=False)
        shares.append(float(method.predict(data).float().mean()))
    assert shares[1] > shares[0] + 0.05


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "values", "words"),
    [
        ("regression", {"value_range": None}, "public range"),
        ("regression", {"value_range": (3.0, 3.0)}, "lower end"),
        ("regression", {"y": torch.arange(60)}, "float"),
        ("multilabel", {"y": torch.zeros(60, 4, dtype=torch.long)}, "nothing to tell apart"),
        ("multilabel", {"y": torch.full((60, 4), 2)}, "0 or 1"),
        ("multilabel", {"y": torch.zeros(60, 3, dtype=torch.long)}, "shape"),
        ("binary", {"num_classes": 3}, "2 for the task"),
        ("ordinal", {"task": "ranking"}, "task"),
    ],
)
def test_targets_that_do_not_fit_their_task_are_refused(task, values, words):
    data = changed(with_task(data_for("dp-mlp"), task), **values)
    with pytest.raises(InvalidInputError, match=words) as error:
        made("dp-mlp").fit(data, progress=False)
    assert "\n" not in str(error.value)


def test_a_training_value_that_is_missing_is_refused():
    data = with_task(data_for("dp-mlp"), "regression")
    data.y[data.train_mask.nonzero()[0]] = float("nan")
    with pytest.raises(InvalidInputError, match="NaN means unlabelled"):
        made("dp-mlp").fit(data, progress=False)


def test_papers_code_has_classes_only():
    with pytest.raises(InvalidInputError, match="released code"):
        made("graph-split", paper=True).plan(facts_of("regression"))
    with pytest.raises(InvalidInputError, match="leave 'messages' out"):
        made("gap", messages="label").plan(facts_of("multilabel"))
