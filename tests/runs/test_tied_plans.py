"""A plan belongs to its settings, its data and its run: no other one is run, or paid by."""

import json
import shutil
from dataclasses import replace

import pytest
from runs_cases import Crash, crash, method, people

from graphveil._errors import InvalidInputError, NotFittedError, UnprovenError
from graphveil.mechanisms import Gaussian
from graphveil.methods import DPGNN, DPMLP, GAP, Facts
from graphveil.methods.execution import Execution
from graphveil.methods.parts import Release
from graphveil.runs import Run


@pytest.fixture
def planned(arranged):
    """A method with its plan for the data at hand."""

    def call(made):
        data = arranged.training
        return made, made.plan(Facts.of(data)).on(data), data

    return call


def killed_before_the_first_release(directory, made, source, monkeypatch, **where):
    with monkeypatch.context() as patch:
        patch.setattr(Gaussian, "release", crash)
        with pytest.raises(Crash):
            Run(directory).train(made, source, **where)


@pytest.mark.parametrize("charged", [True, False])
def test_another_runs_plan_is_not_gone_on_with(charged, source, ledger, tmp_path, monkeypatch):
    """The noise of one message is not that of 64, and no event tells them apart."""
    where = {"ledger": ledger.path} if charged else {}
    few = method(2.0, GAP, sender_cap=1, capping="hard")
    many = method(2.0, GAP, sender_cap=64, capping="hard")
    Run(tmp_path / "few").train(few, source)
    killed_before_the_first_release(tmp_path / "many", many, source, monkeypatch, **where)
    shutil.copy(tmp_path / "few" / "plan.json", tmp_path / "many" / "plan.json")
    seen = []
    monkeypatch.setattr(Gaussian, "release", lambda *_, **__: seen.append(1))
    with pytest.raises(InvalidInputError, match=r"another plan than the one that settings\.json"):
        Run(tmp_path / "many").train(many, source, resume=True)
    assert not seen


def first_release(plan):
    return next(part for part in plan["parts"] if part["kind"] == "release")


@pytest.mark.parametrize(
    "edit",
    [
        lambda plan: first_release(plan)["mechanism"].update(sensitivity=0.1),
        lambda plan: plan.update(unit="edge-undirected"),
        lambda plan: plan.update(delta=0.1),
        lambda plan: plan.update(sampled_at=0.1),
        lambda plan: plan.update(released_to="anybody"),
        lambda plan: plan.update(inference=[]),
        lambda plan: plan["parts"][-1].update(max_grad_norm=1e30),
    ],
)
def test_an_edited_plan_is_refused_by_whoever_reads_it(edit, source, tmp_path, monkeypatch):
    made, directory = method(2.0, GAP), tmp_path / "run"
    killed_before_the_first_release(directory, made, source, monkeypatch)
    content = json.loads((directory / "plan.json").read_text())
    edit(content["plan"])
    (directory / "plan.json").write_text(json.dumps(content))
    with pytest.raises(InvalidInputError, match=r"plan\.json"):
        Run(directory).train(made, source, resume=True)


def test_a_charged_run_without_its_settings_runs_nothing_else(
    source, ledger, tmp_path, monkeypatch
):
    directory, where = tmp_path / "run", {"ledger": ledger.path}
    killed_before_the_first_release(directory, method(1.0), source, monkeypatch, **where)
    (directory / "settings.json").unlink()
    with pytest.raises(InvalidInputError, match=r"its settings\.json is gone"):
        Run(directory).train(method(8.0), source, resume=True)
    assert not (directory / "model.safetensors").exists()
    assert people(ledger).spent() == pytest.approx(1.0, rel=1e-2)


def test_events_that_lost_a_release_are_refused(source, tmp_path, monkeypatch):
    directory, made = tmp_path / "run", method(2.0, GAP)
    with monkeypatch.context() as patch:
        patch.setattr("graphveil.runs.training.measure", crash)
        with pytest.raises(Crash):
            Run(directory).train(made, source)
    with monkeypatch.context() as patch:
        patch.setattr("graphveil.runs.record.write_certificate", crash)
        with pytest.raises(Crash):
            Run(directory).train(made, source, resume=True)
    content = json.loads((directory / "events.json").read_text())
    lost = [charge for charge in content["charges"] if "noisy sums" not in charge["paid_for"]]
    assert len(lost) == len(content["charges"]) - 1
    (directory / "events.json").write_text(json.dumps({**content, "charges": lost}))
    with pytest.raises(InvalidInputError, match=r"released 'hop1'.*does not charge for it"):
        Run(directory).train(made, source, resume=True)


# --- from Python ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind, setting", [(GAP, {"sender_cap": 50}), (DPGNN, {"sender_cap": 5})])
def test_a_plan_is_run_with_the_settings_it_was_made_for(kind, setting, planned):
    made, plan, data = planned(method(2.0, kind))
    made.set_params(**setting)
    with pytest.raises(InvalidInputError, match="another sender_cap"):
        made.run(plan, data)
    assert not hasattr(made, "certificate_")


def test_a_plan_is_run_by_its_own_method_and_on_its_own_data(planned, arranged):
    made, plan, data = planned(method(2.0))
    with pytest.raises(InvalidInputError, match=r"another.* method"):
        method(2.0, DPGNN).run(plan, data)
    fewer = replace(plan, facts=replace(plan.facts, num_train=plan.facts.num_train - 1))
    with pytest.raises(InvalidInputError, match="data of other sizes"):
        made.run(fewer, data)


def test_settings_that_change_while_a_plan_runs_give_no_certificate(arranged):
    made = method(2.0, GAP)

    def meddle(steps):
        made.set_params(sender_cap=50)
        yield from steps

    with pytest.raises(InvalidInputError, match="another sender_cap"):
        made.fit(arranged.training, progress=meddle)
    assert not hasattr(made, "certificate_")


def test_a_part_runs_once_and_only_if_it_is_planned(planned):
    _, plan, _ = planned(method(2.0, GAP))
    hop, draws = plan.part("hop1"), []
    execution = Execution(plan)

    def draw(mechanism, rng):
        draws.append(mechanism)
        return {}

    execution.release(hop, draw)
    stranger = Release(name="more", paid_for="more", mechanism=hop.mechanism)
    cheaper = replace(hop, name="hop1", times=2)
    for part in (hop, stranger, cheaper):
        with pytest.raises(UnprovenError, match="must be one of its plan's, and runs once"):
            execution.release(part, draw)
    assert len(draws) == 1


def test_no_two_parts_have_one_name(planned):
    _, plan, _ = planned(method(2.0, GAP))
    hop = plan.part("hop1")
    with pytest.raises(InvalidInputError, match="a name of its own"):
        replace(plan, parts=(*plan.parts, hop))


def test_fewer_steps_leave_no_finished_weights_behind(arranged, tmp_path, monkeypatch):
    """Weights of steps that were finished under other settings are not those of more steps."""
    alone = {"steps": 2, "sample_rate": 1.0, "centred": False}  # steps are all that is released
    first = DPMLP(epsilon=8.0, **alone).fit(arranged.training, directory=tmp_path)
    assert (tmp_path / "weights" / "finished.safetensors").exists()
    with monkeypatch.context() as patch:
        patch.setattr("graphveil.methods.execution._finish", crash)
        with pytest.raises(Crash):
            DPMLP(epsilon=20.0, **alone).fit(arranged.training, directory=tmp_path)
    assert not (tmp_path / "weights" / "finished.safetensors").exists()
    assert first.certificate_.guarantee.epsilon <= 8.0


def test_a_plan_for_edges_that_have_a_direction_is_for_no_others(planned):
    made, plan, data = planned(method(2.0))
    other = data.clone()
    other.directed = not plan.facts.directed
    with pytest.raises(InvalidInputError, match="directed otherwise"):
        made.run(plan, other)


def test_a_file_is_no_directory_to_train_in(arranged, tmp_path):
    place = tmp_path / "file"
    place.write_text("precious")
    with pytest.raises(InvalidInputError, match="which is a file"):
        method(2.0).fit(arranged.training, directory=place)
    assert place.read_text() == "precious"


def test_a_method_that_was_not_fitted_plans_no_prediction():
    with pytest.raises(NotFittedError, match="has not been fitted"):
        method(2.0, DPGNN).plan_prediction(1.0)
