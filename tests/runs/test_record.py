"""Files of a run that are not what they should be: one line each, and nothing is believed."""

import hashlib
import json
import re
import shutil

import pytest
from runs_cases import DELTA, SOURCE, Crash, crash, held, method, name_plan, people, train

from graphveil._errors import InvalidInputError
from graphveil.methods import DPGNN, DPMLP, GAP, LateGraph
from graphveil.privacy.ledger_state import count_releases
from graphveil.runs import Run, check_charged

JSON = ["settings.json", "plan.json", "events.json", "certificate.json"]


def refused(directory, match):
    """Whoever asks for the run, or for what its files say, is told so in one line."""
    for ask in (Run(directory).read, Run(directory).record):
        with pytest.raises(InvalidInputError, match=match) as caught:
            ask()
        assert str(directory) in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [None, b"", b"{", b"[1]", b"{}", b"\xff\x00", b"null"])
@pytest.mark.parametrize("name", [*JSON, "model.safetensors"])
def test_a_damaged_file_is_one_clear_line(copied, name, content):
    if content is None:
        (copied / name).unlink()
    else:
        (copied / name).write_bytes(content)
    # Without certificate.json it is no finished run.
    gone = content is None and name == "certificate.json"
    refused(copied, "no finished run" if gone else name)


@pytest.mark.parametrize("name", JSON)
@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_a_truncated_file_is_refused(copied, name, share):
    whole = (copied / name).read_bytes()
    (copied / name).write_bytes(whole[: int(share * len(whole))])
    refused(copied, name)


def test_files_of_another_run_are_refused(copied, arranged, tmp_path):
    other = tmp_path / "other"
    Run(other).train(DPMLP(epsilon=2.0, steps=4, sample_rate=1.0), SOURCE, arranged=arranged)
    for name in ("model.safetensors", "certificate.json", "events.json", "plan.json"):
        mixed = shutil.copytree(copied, tmp_path / f"mixed-{name}")
        shutil.copy(other / name, mixed / name)
        refused(mixed, "cannot be read")


def test_a_plan_under_other_settings_is_refused(copied, arranged, tmp_path):
    """Of the same method: a noisy prediction would be charged at another delta."""
    other = tmp_path / "other"
    made = LateGraph(epsilon=8.0, steps=3, sample_rate=1.0, delta=1e-9)
    Run(other).train(made, SOURCE, arranged=arranged)
    shutil.copy(other / "plan.json", copied / "plan.json")
    refused(copied, r"plan\.json: it is another plan")
    name_plan(copied)
    refused(copied, r"plan\.json: it was made with another delta")


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("settings.json", {"format": 99}),
        ("settings.json", {"method": "nobody"}),
        ("settings.json", {"settings": {"speed": 1}}),
        ("settings.json", {"settings": 3}),
        ("settings.json", {"class_names": ["one"]}),
        ("settings.json", {"data": {"data": "x", "seed": -1}}),
        ("plan.json", {"format": 99}),
        ("plan.json", {"plan": None}),
        ("events.json", {"charges": []}),
        ("events.json", {"charges": [{"paid_for": "x", "event": {"type": "Nothing"}}]}),
        ("events.json", {"reservation": 7}),
    ],
    ids=str,
)
def test_what_no_run_says_is_refused(copied, name, change):
    saved = json.loads((copied / name).read_text())
    (copied / name).write_text(json.dumps({**saved, **change}))
    refused(copied, f"cannot be read: {re.escape(name)}")


@pytest.mark.parametrize(
    "change",
    [
        {"facts": {}},
        {"facts": {"num_nodes": 60, "num_features": 5, "num_classes": 1, "num_train": 45}},
        {"parts": [{"kind": "histogram", "name": "weights"}]},
        {"parts": [{"kind": "steps", "name": "weights", "speed": 1}]},
        {"parts": 3},
        {"public": 3},
        {"claim": 3},
        {"speed": 1},
        {"delta": 1e-3},
        {"delta": "small"},
        {"unit": "edge-undirected"},
        {"relation": "remove"},
        {"released": 7},
        {"public": "all"},
        {"voided_by": [7]},
        {"unprotected": [None]},
        {"void_because": ["the noise was fixed"]},
    ],
    ids=str,
)
def test_what_no_plan_says_is_refused(copied, change):
    """Also where settings.json names it."""
    saved = json.loads((copied / "plan.json").read_text())
    (copied / "plan.json").write_text(json.dumps({**saved, "plan": {**saved["plan"], **change}}))
    refused(copied, r"plan\.json")
    name_plan(copied)
    refused(copied, r"cannot be read: plan\.json")


def test_another_plan_is_refused_whatever_it_says(copied):
    """Every word of it: what was public, what was released, to whom."""
    before = json.loads((copied / "plan.json").read_text())
    for change in (
        {"public": ["all"]},
        {"released": "noise"},
        {"released_to": "all"},
        {"details": {}},
    ):
        plan = {**before, "plan": {**before["plan"], **change}}
        assert plan != before
        (copied / "plan.json").write_text(json.dumps(plan, indent=2))
        refused(copied, r"plan\.json: it is another plan than the one that settings\.json names")
    (copied / "plan.json").write_text(json.dumps(before, indent=2) + "\n")
    assert Run(copied).read()


def test_what_voids_a_certificate_is_not_taken_out_of_the_plan(tmp_path, arranged):
    """A noisy prediction would write the certificate anew, without it."""
    made = DPGNN(epsilon=8.0, steps=2, sampler="printed")
    Run(tmp_path / "run").train(made, SOURCE, arranged=arranged)
    (reason,) = made.plan_.void_because
    assert reason in made.certificate_.void_because
    saved = json.loads((tmp_path / "run" / "plan.json").read_text())
    saved["plan"]["void_because"] = []
    (tmp_path / "run" / "plan.json").write_text(json.dumps(saved))
    refused(tmp_path / "run", r"plan\.json: it is another plan")
    name_plan(tmp_path / "run")
    refused(tmp_path / "run", r"plan\.json: it promises something else")


def test_settings_say_what_was_asked_and_the_plan_what_is_public(copied):
    """Written once each: what one file says, the other does not."""
    settings = json.loads((copied / "settings.json").read_text())
    plan = json.loads((copied / "plan.json").read_text())
    assert settings["format"] == plan["format"] == 2
    assert not {"facts", "public", "void_because"} & settings.keys()
    assert plan["plan"]["facts"]["num_nodes"] == 60


# --- runs of the first version --------------------------------------------------------------------


def to_first_version(directory):
    """What graphveil 0.1.0 left: no plan, facts among the settings, steps beside the checkpoint."""
    plan = json.loads((directory / "plan.json").read_text())["plan"]
    (directory / "plan.json").unlink()
    saved = json.loads((directory / "settings.json").read_text())
    before = {name: plan[name] for name in ("facts", "public", "void_because")}
    (directory / "settings.json").write_text(json.dumps({**saved, "format": 1, **before}))
    if (directory / "events.json").exists():
        events = json.loads((directory / "events.json").read_text())
        (directory / "events.json").write_text(json.dumps({**events, "format": 1}))
    checkpoint = directory / "checkpoint"
    if checkpoint.exists():
        (checkpoint / "releases.json").unlink()
        for path in (checkpoint / "weights").iterdir():
            path.rename(checkpoint / path.name)
        (checkpoint / "weights").rmdir()


FIRST = r"an earlier version, which kept no plan"


def test_a_finished_run_of_the_first_version_is_refused_by_name(copied, arranged):
    to_first_version(copied)
    before = held(copied)
    refused(copied, FIRST)
    run = Run(copied)
    for mode, epsilon in ((None, None), ("visible", None), ("noisy", 1.0)):
        with pytest.raises(InvalidInputError, match=FIRST):
            run.predict(arranged.testing, mode=mode, epsilon=epsilon)
    with pytest.raises(InvalidInputError, match=FIRST):
        run.load("nodes.csv")
    with pytest.raises(InvalidInputError, match="finished and is not written over"):
        run.check()
    assert held(copied) == before
    made = DPMLP(epsilon=2.0, steps=3, sample_rate=1.0)
    run.train(made, SOURCE, arranged=arranged, force=True)
    assert run.read().name == "dp-mlp"


def test_a_long_path_does_not_hide_that_a_run_is_of_the_first_version(copied, tmp_path):
    deep = tmp_path / ("d" * 150) / ("e" * 150)
    deep.parent.mkdir()
    copied.rename(deep)
    to_first_version(deep)
    refused(deep, FIRST)


@pytest.fixture
def killed_before(tmp_path, source, ledger, monkeypatch):
    """An unfinished run of the first version, which had taken its three steps."""
    with monkeypatch.context() as patched:
        patched.setattr("graphveil.runs.training.measure", crash)
        with pytest.raises(Crash):
            train(tmp_path / "run", source, ledger)
    to_first_version(tmp_path / "run")
    return tmp_path / "run"


def test_an_unfinished_run_of_the_first_version_does_not_go_on(killed_before, source, ledger):
    before = held(killed_before)
    for how in ({}, {"resume": True}):
        with pytest.raises(InvalidInputError, match=FIRST) as said:
            train(killed_before, source, ledger, **how)
        assert "\n" not in str(said.value)
    refused(killed_before, FIRST)
    assert held(killed_before) == before
    assert len(people(ledger).waiting) == 1


def test_an_unfinished_run_of_the_first_version_is_replaced_and_stays_charged(
    killed_before, source, ledger
):
    train(killed_before, source, ledger, force=True)
    assert Run(killed_before).state == "finished"
    assert [count_releases(each.charges) for each in people(ledger).charged] == [3, 3]
    assert not killed_before.with_name(".run.replaced").exists()


def test_runs_of_the_first_version_are_verified(tmp_path, killed_before, source, ledger):
    train(tmp_path / "done", source, ledger, method(2.0, LateGraph))
    to_first_version(tmp_path / "done")
    assert check_charged(ledger.path, [killed_before, tmp_path / "done"]) == 2
    (killed_before / "checkpoint" / "steps").write_bytes(b"." * 9)  # more than it reserved
    with pytest.raises(InvalidInputError, match="began 9 steps that it does not charge"):
        check_charged(ledger.path, [killed_before])


# --- what stays private ---------------------------------------------------------------------------


def test_the_fingerprint_of_the_data_does_not_stay_in_a_finished_run(finished, arranged):
    assert not (finished[1] / "checkpoint").exists()
    plain = hashlib.sha256()
    for name in ("x", "edge_index", "y"):
        plain.update(arranged.training[name].numpy().tobytes())
    for path in finished[1].iterdir():
        assert plain.hexdigest().encode() not in path.read_bytes()


def test_a_cache_and_a_reservation_stand_in_the_record(tmp_path, source, ledger):
    made = train(tmp_path / "run", source, ledger, method(4.0, GAP, steps=2, hops=1))
    run = Run(tmp_path / "run")
    record = run.record()
    assert record.reservation == run.charged_to()["reservation"]
    assert set(record.hashes) == {"model_sha256", "cache_sha256"}
    assert record.plan.delta == DELTA
    assert made.cache_.equal(run.read().cache_)
    (tmp_path / "run" / "cache.safetensors").write_bytes(b"other")
    refused(tmp_path / "run", r"cache\.safetensors: these are not the noisy sums")
