"""A run that is killed, refused, forced or out of room loses nothing, and tells nothing."""

import contextlib
import copy
import json

import pytest
from runs_cases import SOURCE, Crash, crash, held

from graphveil import _files
from graphveil._errors import InvalidInputError, UnprovenError
from graphveil.grads.journal import Journal
from graphveil.grads.step import PrivateStep
from graphveil.methods import DPMLP, GAP, MLPBaseline
from graphveil.runs import Arranged, Run

# The index, key, fingerprint, plan and settings; journal and checkpoint of the steps, and the index
# with them; their last checkpoint and averaged weights; weights and charges; metrics, versions,
# three certificates.
WRITES = 17
WRITES_OF_PARTS = WRITES + 8  # five for the other steps, two for noisy sums, one for the cache


def quick():
    """Steps are all that it releases."""
    return DPMLP(epsilon=8.0, steps=3, sample_rate=1.0, centred=False)


def train(directory, arranged, method=None, **how):
    method = method or quick()
    Run(directory).train(method, SOURCE, arranged=arranged, **how)
    return method


# --- killed ---------------------------------------------------------------------------------------


def test_no_write_is_left_out_below(arranged, tmp_path, monkeypatch, writing):
    with monkeypatch.context() as patched:
        count = writing(patched, lambda *_: None)
        train(tmp_path / "run", arranged)
    assert count == [WRITES]


@pytest.mark.parametrize(
    ("number", "left"),
    [  # a partial file at every write; nothing at all at every third, elsewhere it is slow
        pytest.param(n, left, marks=[pytest.mark.slow] if left == "nothing" and n % 3 else [])
        for n in range(1, WRITES + 1)
        for left in ("nothing", "a partial file")
    ],
)
def test_a_crash_at_any_write_loses_nothing(arranged, tmp_path, monkeypatch, writing, number, left):
    directory = tmp_path / "run"

    def crash_there(now, path, content):
        if now == number:
            if left == "a partial file":
                path.with_name(_files.partial_name(path.name)).write_bytes(content[:3])
            raise Crash

    with monkeypatch.context() as patched:
        writing(patched, crash_there)
        with pytest.raises(Crash):
            train(directory, arranged)
    assert Run(directory).state == ("unfinished" if number > 5 else "new")

    trained = (directory / "events.json").exists()
    assert trained == (number > 12)
    model = (directory / "model.safetensors").read_bytes() if trained else None
    method = train(directory, arranged, resume=True)
    assert Run(directory).read().charges_[0].event.count == 3
    assert method.certificate_.guarantee.epsilon <= 8.0
    if trained:
        assert (directory / "model.safetensors").read_bytes() == model
    assert not (directory / "checkpoint").exists()
    left = {path.name for path in directory.iterdir() if path.name.startswith(".")}
    assert not left  # each was written over, under its own name


@pytest.mark.parametrize("number", range(1, 6))
def test_what_was_killed_before_its_settings_were_there_may_also_be_anew(
    arranged, tmp_path, monkeypatch, writing, number
):
    """Nothing was released, and nothing says what it was: other settings will do."""

    def crash_there(now, path, content):
        if now == number:
            raise Crash

    with monkeypatch.context() as patched:
        writing(patched, crash_there)
        with pytest.raises(Crash):
            train(tmp_path / "run", arranged)
    method = train(
        tmp_path / "run", arranged, DPMLP(epsilon=2.0, steps=4, sample_rate=1.0, centred=False)
    )
    assert Run(tmp_path / "run").record().plan == method.plan_
    assert method.charges_[0].event.count == 4


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_step_that_was_noted_counts_whether_or_not_it_was_taken(
    arranged, tmp_path, monkeypatch, step, when
):
    real, left, drawn = Journal.note, iter(range(1, 100)), []
    draw = PrivateStep._draw

    def note(self):
        now = next(left)
        if now == step and when == "before":
            raise Crash
        real(self)
        if now == step:
            raise Crash

    def count(self):
        drawn.append(self)
        return draw(self)

    monkeypatch.setattr(PrivateStep, "_draw", count)
    with monkeypatch.context() as patched:
        patched.setattr(Journal, "note", note)
        with pytest.raises(Crash):
            train(tmp_path / "run", arranged)
    assert len(drawn) == step - 1
    assert Run(tmp_path / "run").checkpoint.steps_begun() == step - (when == "before")
    method = train(tmp_path / "run", arranged, resume=True)
    assert method.charges_[0].event.count == 3
    assert len(drawn) == (3 if when == "before" else 2)


def of_several_parts():
    """Steps of an encoder, noisy sums, steps of a classifier: five releases."""
    return GAP(epsilon=8.0, steps=2, hops=1, messages="encoding")


@pytest.mark.parametrize("number", range(1, WRITES_OF_PARTS + 2))
def test_a_crash_at_any_write_of_several_parts_draws_nothing_twice(
    arranged, tmp_path, monkeypatch, writing, released, number
):
    """What was on disk before the crash is what is used after it."""

    def crash_there(now, path, content):
        if now == number:
            path.with_name(_files.partial_name(path.name)).write_bytes(content[:3])
            raise Crash

    with monkeypatch.context() as patched:
        writing(patched, crash_there)
        with pytest.raises(Crash) if number <= WRITES_OF_PARTS else contextlib.nullcontext():
            train(tmp_path / "run", arranged, of_several_parts())
    if number > WRITES_OF_PARTS:
        assert len(released) == 5
        return  # there is no further write
    run, before = Run(tmp_path / "run"), len(released)
    files = {path: path.read_bytes() for path in run.directory.rglob("*.safetensors")}
    begun = run.checkpoint.steps_begun()
    drawn = (run.directory / "checkpoint" / "hop1.safetensors").exists()
    trained = run.has("events.json")
    with monkeypatch.context() as patched:
        patched.setattr("graphveil.runs.training.measure", crash)
        with pytest.raises(Crash):
            train(run.directory, arranged, of_several_parts(), resume=True)
    assert len(released) - before == (0 if trained else 5 - begun - drawn)
    assert {path: path.read_bytes() for path in files} == files
    method = train(run.directory, arranged, of_several_parts(), resume=True)
    assert method.charges_ == list(method.plan_.charges)
    assert run.read().cache_.equal(method.cache_)
    assert run.state == "finished"


def test_a_checkpoint_whose_index_is_gone_does_not_go_on(arranged, tmp_path, monkeypatch):
    """Nobody knows what was released; a new index would say that nothing was."""
    with monkeypatch.context() as patched:
        patched.setattr("graphveil.runs.training.measure", crash)
        with pytest.raises(Crash):
            train(tmp_path / "run", arranged)
    run = Run(tmp_path / "run")
    assert run.begun
    assert not run.lost
    for name in ("releases.json", "data.sha256"):
        path = run.directory / "checkpoint" / name
        kept = path.read_bytes()
        path.unlink()
        assert run.lost
        assert run.begun
        before = held(run.directory)
        with pytest.raises(InvalidInputError, match=r"its checkpoint is gone.*--force") as said:
            train(run.directory, arranged, resume=True)
        assert "\n" not in str(said.value)
        assert held(run.directory) == before
        path.write_bytes(kept)
    for content in (b"", b"{", b"[]", b"{}", b'{"format": 7, "releases": {}}', b"\xff"):
        path = run.directory / "checkpoint" / "releases.json"
        kept = path.read_bytes()
        path.write_bytes(content)
        assert run.begun
        with pytest.raises(InvalidInputError, match=r"checkpoint .*cannot be read") as said:
            train(run.directory, arranged, resume=True)
        assert "\n" not in str(said.value)
        path.write_bytes(kept)
    train(run.directory, arranged, resume=True)
    assert run.state == "finished"


def test_a_run_goes_on_with_the_plan_it_has_and_no_other(arranged, tmp_path, monkeypatch):
    """Another version may find another noise: what was begun is what goes on."""
    with monkeypatch.context() as patched:
        patched.setattr(PrivateStep, "_draw", crash)
        with pytest.raises(Crash):
            train(tmp_path / "run", arranged)
    written = json.loads((tmp_path / "run" / "plan.json").read_text())["plan"]["parts"][0]
    with monkeypatch.context() as patched:
        plan = DPMLP.plan
        patched.setattr(
            DPMLP,
            "plan",
            lambda self, facts: plan(DPMLP(epsilon=1.0, steps=3, centred=False), facts),
        )
        method = train(tmp_path / "run", arranged, resume=True)
    assert method.charges_[0].event.event.noise_multiplier == written["noise_multiplier"]
    (tmp_path / "gone").mkdir()
    with monkeypatch.context() as patched:
        patched.setattr(PrivateStep, "_draw", crash)
        with pytest.raises(Crash):
            train(tmp_path / "gone", arranged)
    (tmp_path / "gone" / "plan.json").unlink()
    with pytest.raises(InvalidInputError, match=r"plan\.json is missing"):
        train(tmp_path / "gone", arranged, resume=True)


@pytest.mark.parametrize(
    ("method", "name"),
    [
        (DPMLP(epsilon=7.0, steps=3, sample_rate=1.0, centred=False), "epsilon"),
        (DPMLP(epsilon=8.0, steps=4, sample_rate=1.0, centred=False), "steps"),
        (MLPBaseline(steps=3), "activation|delta|method"),
    ],
    ids=str,
)
def test_a_run_does_not_go_on_under_other_settings(arranged, tmp_path, monkeypatch, method, name):
    with monkeypatch.context() as patched:
        patched.setattr(PrivateStep, "_draw", crash)
        with pytest.raises(Crash):
            train(tmp_path / "run", arranged)
    with pytest.raises(InvalidInputError, match=rf"was begun with ({name}) = "):
        train(tmp_path / "run", arranged, method, resume=True)
    train(tmp_path / "run", arranged, resume=True)


def test_a_run_does_not_go_on_with_other_data(arranged, tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(PrivateStep, "_draw", crash)
        with pytest.raises(Crash):
            train(tmp_path / "run", arranged)

    def changed(change):
        data = arranged.training.clone()
        change(data)
        return Arranged(training=data, testing=data, mode=None, split="transductive")

    def another_value(data):
        data.x[0, 0] += 1

    def another_split(data):
        data.train_mask, data.val_mask = data.train_mask.clone(), data.val_mask.clone()
        one, other = int(data.train_mask.nonzero()[0]), int(data.val_mask.nonzero()[0])
        data.train_mask[[one, other]] = data.train_mask[[other, one]]
        data.val_mask[[one, other]] = data.val_mask[[other, one]]

    def fewer_columns(data):
        data.x = data.x[:, 1:]

    for change, why in (
        (another_value, "on other data, on another split"),
        (another_split, "on other data, on another split"),
        (fewer_columns, r"begun with num_features = 5\. Got 4"),
    ):
        with pytest.raises(InvalidInputError, match=why):
            train(tmp_path / "run", changed(change), resume=True)
    train(tmp_path / "run", arranged, resume=True)


# --- refused, forced, out of room -----------------------------------------------------------------


def test_a_refusal_before_the_first_step_leaves_an_old_run_as_it_was(copied, arranged):
    before = held(copied)
    with pytest.raises(UnprovenError, match="delta"):
        train(copied, arranged, DPMLP(epsilon=1.0, delta=0.5, steps=3), force=True)
    method = quick()
    method.epsilon = -1.0
    with pytest.raises(InvalidInputError, match="epsilon"):
        train(copied, arranged, method, force=True)
    assert held(copied) == before
    assert [path.name for path in copied.parent.iterdir()] == ["run"]


def test_what_fails_before_the_first_step_leaves_nothing(copied, arranged, tmp_path, monkeypatch):
    """After it was set aside, and plan and settings were written."""
    before = {name: each[:2] for name, each in held(copied).items()}

    def fail(*_, **__):
        raise ZeroDivisionError

    monkeypatch.setattr("graphveil.methods.execution.Execution.__init__", fail)
    with pytest.raises(ZeroDivisionError) as caught:
        train(copied, arranged, force=True)
    assert caught.value.__notes__ == ["Nothing was released or charged."]
    assert {name: each[:2] for name, each in held(copied).items()} == before
    with pytest.raises(ZeroDivisionError):
        train(tmp_path / "new", arranged)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("damage", [None, "releases.json", "weights/steps"])
@pytest.mark.parametrize("ending", [ZeroDivisionError, KeyboardInterrupt])
def test_what_fails_after_a_step_says_what_stays_and_how_it_goes_on(
    arranged, tmp_path, monkeypatch, ending, damage
):
    """Why it stopped is said, also where somebody took its files away meanwhile."""
    real = PrivateStep.__call__

    def step_and_end(self):
        real(self)
        if damage is not None:
            (tmp_path / "run" / "checkpoint" / damage).unlink()
        raise ending

    monkeypatch.setattr(PrivateStep, "__call__", step_and_end)
    with pytest.raises(ending) as caught:
        train(tmp_path / "run", arranged)
    (note,) = caught.value.__notes__
    said = {
        None: "counts the 1 steps that it began, and goes on with --resume",
        "releases.json": "counts the steps that it began, and cannot go on: its index is gone",
        "weights/steps": "goes on with --resume",  # which refuses it
    }
    assert said[damage] in note
    assert Run(tmp_path / "run").state == "unfinished"
    assert Run(tmp_path / "run").begun


def test_weights_that_left_the_numbers_are_measured_and_the_run_is_finished(arranged, tmp_path):
    far = {"optimizer": "sgd", "learning_rate": 1e38, "activation": "relu", "num_layers": 2}
    method = DPMLP(epsilon=8.0, steps=3, sample_rate=1.0, **far)
    metrics = Run(tmp_path / "run").train(method, SOURCE, arranged=arranged)
    assert metrics["test_roc_auc"] is None
    assert Run(tmp_path / "run").state == "finished"


def test_a_forced_run_that_is_killed_keeps_the_old_one_beside(copied, arranged, monkeypatch):
    old = (copied / "certificate.json").read_bytes()
    for _ in range(2):
        with monkeypatch.context() as patched:
            patched.setattr("graphveil.runs.training.measure", crash)
            with pytest.raises(Crash):
                train(copied, arranged, force=True)
        assert (copied.parent / ".run.replaced" / "certificate.json").read_bytes() == old
    train(copied, arranged, resume=True)
    assert not (copied.parent / ".run.replaced").exists()
    assert Run(copied).read().name == "dp-mlp"


def test_a_run_behind_a_link_is_replaced_and_the_link_stays(copied, arranged):
    link = copied.with_name("link")
    link.symlink_to(copied)
    train(link, arranged, force=True)
    assert link.is_symlink()
    assert Run(copied).read().name == "dp-mlp"
    assert sorted(path.name for path in copied.parent.iterdir()) == ["link", "run"]


def test_a_full_disk_is_one_line_and_the_run_goes_on(arranged, tmp_path, monkeypatch):
    def full(self):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("graphveil.grads.journal.Journal.note", full)
        with pytest.raises(InvalidInputError, match="No space left"):
            train(tmp_path / "run", arranged)
    train(tmp_path / "run", arranged, resume=True)
    assert Run(tmp_path / "run").state == "finished"


@pytest.mark.parametrize("number", range(1, WRITES + 1))
def test_a_disk_that_is_full_at_any_write_loses_nothing(
    arranged, tmp_path, monkeypatch, writing, number
):
    def full(now, path, content):
        if now == number:
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        writing(patched, full)
        with pytest.raises(InvalidInputError, match="No space left") as said:
            train(tmp_path / "run", arranged)
    assert "\n" not in str(said.value)
    if number <= 5 or number > 8:  # in between the first step is made ready
        assert (tmp_path / "run").exists() == (number > 5)
    method = train(tmp_path / "run", arranged, resume=True)
    assert method.charges_[0].event.count == 3


# --- what is told ---------------------------------------------------------------------------------


def test_a_finished_run_does_not_tell_whether_all_edges_stand_in_both_rows(arranged, tmp_path):
    """Under the unit node that is private: one row withheld, and they do not."""
    data = arranged.training
    withheld = copy.copy(data)
    withheld.edge_index = data.edge_index[:, data.edge_index[0] != data.edge_index[0, 0]]
    said = []
    for number, graph in enumerate((data, withheld)):
        given = Arranged(training=graph, testing=graph, mode="visible", split="given")
        train(tmp_path / str(number), given, DPMLP(epsilon=8.0, steps=2))
        said += [
            (tmp_path / str(number) / name).read_bytes() for name in ("settings.json", "plan.json")
        ]
    assert said[:2] == said[2:]


def test_private_losses_are_written_where_they_are_asked_for(arranged, tmp_path, monkeypatch):
    """One for each step that was taken, over a crash, too; and in no other file."""
    train(tmp_path / "without", arranged)
    assert not (tmp_path / "without" / "private-losses.jsonl").exists()
    real, left = PrivateStep.__call__, iter(range(1, 100))

    def step(self):
        real(self)
        if next(left) == 2:
            raise Crash

    with monkeypatch.context() as patched:
        patched.setattr(PrivateStep, "__call__", step)
        with pytest.raises(Crash):
            train(tmp_path / "run", arranged, private_losses=True)
    train(tmp_path / "run", arranged, private_losses=True, resume=True)
    lines = (tmp_path / "run" / "private-losses.jsonl").read_text().splitlines()
    first, *losses = map(json.loads, lines)
    assert "no certificate covers them" in first["private"]
    assert len(losses) == 3
    assert all(loss["loss"] > 0 for loss in losses)
    texts = [
        path.read_bytes() for path in (tmp_path / "run").iterdir() if "losses" not in path.name
    ]
    assert not any(repr(loss["loss"]).encode() in text for loss in losses for text in texts)
