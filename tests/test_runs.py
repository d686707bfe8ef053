"""Run directories: read back what was written, go on after a crash, refuse what is not a run."""

import copy
import hashlib
import json
import os
import shutil

import pytest
import torch

from graphveil import _files, runs
from graphveil._errors import InvalidInputError
from graphveil.data.synthetic import social_network
from graphveil.methods import DPMLP, LateGraph, MLPBaseline

SOURCE = runs.Source(data="memory", split="transductive")


@pytest.fixture(scope="module")
def arranged():
    return SOURCE.arrange(social_network(num_nodes=60, num_classes=3, num_features=5, seed=1))


@pytest.fixture(scope="module")
def finished(arranged, tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs") / "run"
    method = LateGraph(epsilon=8.0, steps=3, sample_rate=1.0)
    runs.train(method, arranged, directory, SOURCE)
    return method, directory


@pytest.fixture
def copied(finished, tmp_path):
    return shutil.copytree(finished[1], tmp_path / "run")


class Crash(BaseException):
    """Not an Exception: what a kill looks like from inside."""


def crash(*_, **__):
    raise Crash


def test_a_run_reads_back_as_it_was(finished, arranged):
    method, directory = finished
    again = runs.read(directory)
    assert repr(again) == repr(method)
    assert again.certificate_ == method.certificate_
    assert again.charges_ == method.charges_
    data = arranged.testing
    assert torch.equal(again.predict_proba(data), method.predict_proba(data))


def test_a_method_fitted_elsewhere_is_written_as_a_run(arranged, tmp_path):
    method = MLPBaseline(steps=3).fit(arranged.training)
    metrics = runs.write(tmp_path / "run", method, arranged, SOURCE)
    assert runs.state(tmp_path / "run") == "finished"
    assert runs.read(tmp_path / "run").score(arranged.testing) == pytest.approx(
        metrics["test_accuracy"]
    )
    with pytest.raises(InvalidInputError, match="finished"):
        runs.write(tmp_path / "run", method, arranged, SOURCE)


@pytest.mark.parametrize("content", [None, b"", b"{", b"[1]", b"{}", b"\xff\x00", b"null"])
@pytest.mark.parametrize(
    "name", ["settings.json", "events.json", "model.safetensors", "certificate.json"]
)
def test_a_damaged_file_is_one_clear_line(copied, name, content):
    if content is None:
        (copied / name).unlink()
    else:
        (copied / name).write_bytes(content)
    with pytest.raises(InvalidInputError) as caught:
        runs.read(copied)
    assert str(copied) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["settings.json", "events.json", "certificate.json"])
@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_a_truncated_file_is_refused(copied, name, share):
    whole = (copied / name).read_bytes()
    (copied / name).write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(InvalidInputError, match=name):
        runs.read(copied)


def test_files_of_another_run_are_refused(copied, arranged, tmp_path):
    other = tmp_path / "other"
    runs.train(DPMLP(epsilon=2.0, steps=4, sample_rate=1.0), arranged, other, SOURCE)
    for name in ("model.safetensors", "certificate.json", "events.json"):
        mixed = shutil.copytree(copied, tmp_path / f"mixed-{name}")
        shutil.copy(other / name, mixed / name)
        with pytest.raises(InvalidInputError, match="cannot be read"):
            runs.read(mixed)


def test_another_format_or_method_is_refused(copied):
    path = copied / "settings.json"
    saved = json.loads(path.read_text())
    for change in ({"format": 99}, {"method": "nobody"}, {"settings": {"speed": 1}}, {"facts": {}}):
        path.write_text(json.dumps({**saved, **change}))
        with pytest.raises(InvalidInputError, match=r"settings\.json"):
            runs.read(copied)


@pytest.mark.parametrize("number", range(1, 11))
def test_a_crash_at_any_write_loses_nothing(arranged, tmp_path, monkeypatch, number):
    """Ten files are written: key, fingerprint, settings, then seven at the end."""
    directory, real, count = tmp_path / "run", runs.files.write_file, iter(range(1, 100))

    def write_or_crash(path, content, **how):
        if next(count) == number:
            path.with_name(_files.partial_name(path.name)).write_bytes(content[:3])
            raise Crash
        real(path, content, **how)

    with monkeypatch.context() as patched:
        patched.setattr("graphveil.runs.directory.write_file", write_or_crash)
        patched.setattr("graphveil.runs.training.write_file", write_or_crash)
        patched.setattr("graphveil.runs.files.write_file", write_or_crash)
        with pytest.raises(Crash):
            runs.train(DPMLP(epsilon=8.0, steps=3, sample_rate=1.0), arranged, directory, SOURCE)
    assert runs.state(directory) in ("new", "unfinished")

    trained = (directory / "events.json").exists()
    model = (directory / "model.safetensors").read_bytes() if trained else None
    method = DPMLP(epsilon=8.0, steps=3, sample_rate=1.0)
    runs.train(method, arranged, directory, SOURCE, resume=True)
    assert runs.read(directory).charges_[0].event.count == 3
    assert method.certificate_.guarantee.epsilon <= 8.0
    if trained:
        assert (directory / "model.safetensors").read_bytes() == model


def test_a_crash_between_charge_and_certificate_keeps_the_charge(copied, arranged, monkeypatch):
    before = runs.read(copied).certificate_.guarantee.epsilon
    with monkeypatch.context() as patched:
        patched.setattr("graphveil.runs.predicting.write_certificate", crash)
        with pytest.raises(Crash):
            runs.predict(copied, arranged.testing, mode="noisy", epsilon=1.0)
    after = runs.read(copied)
    assert after.certificate_.guarantee.epsilon > before
    assert len(after.charges_) == 2
    assert any(line.startswith("noisy") for line in after.certificate_.inference)
    assert "own node only" in after.certificate_.released_to


def test_a_refusal_before_the_first_step_leaves_an_old_run_as_it_was(copied, arranged):
    before = {path.name: path.read_bytes() for path in copied.iterdir()}
    with pytest.raises(InvalidInputError, match="epsilon"):
        runs.train(
            DPMLP(epsilon=-1.0, steps=3, sample_rate=1.0), arranged, copied, SOURCE, force=True
        )
    assert {path.name: path.read_bytes() for path in copied.iterdir()} == before
    assert [path.name for path in copied.parent.iterdir()] == ["run"]


def test_weights_that_left_the_numbers_are_measured_and_the_run_is_finished(arranged, tmp_path):
    far = {"optimizer": "sgd", "learning_rate": 1e38, "activation": "relu"}
    method = DPMLP(epsilon=8.0, steps=3, sample_rate=1.0, **far)
    metrics = runs.train(method, arranged, tmp_path / "run", SOURCE)
    assert metrics["test_roc_auc"] is None
    assert runs.state(tmp_path / "run") == "finished"


def test_a_forced_run_that_is_killed_keeps_the_old_one_beside(copied, arranged, monkeypatch):
    old = (copied / "certificate.json").read_bytes()
    for _ in range(2):
        with monkeypatch.context() as patched:
            patched.setattr("graphveil.runs.training.measure", crash)
            method = DPMLP(epsilon=2.0, steps=3, sample_rate=1.0)
            with pytest.raises(Crash):
                runs.train(method, arranged, copied, SOURCE, force=True)
        assert (copied.parent / ".run.replaced" / "certificate.json").read_bytes() == old
    runs.train(DPMLP(epsilon=2.0, steps=3, sample_rate=1.0), arranged, copied, SOURCE, resume=True)
    assert not (copied.parent / ".run.replaced").exists()
    assert runs.read(copied).name == "dp-mlp"


@pytest.mark.skipif(os.name != "posix", reason="needs flock")
def test_two_processes_cannot_use_one_run(copied, arranged):
    with (
        runs.files.locked(copied),
        pytest.raises(InvalidInputError, match="in use by another process"),
    ):
        runs.predict(copied, arranged.testing, mode="noisy", epsilon=1.0)


def test_a_full_disk_is_one_line_and_the_run_goes_on(arranged, tmp_path, monkeypatch):
    def full(self):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("graphveil.grads.journal.Journal.note", full)
        with pytest.raises(InvalidInputError, match="No space left"):
            runs.train(
                DPMLP(epsilon=8.0, steps=3, sample_rate=1.0), arranged, tmp_path / "run", SOURCE
            )
    runs.train(
        DPMLP(epsilon=8.0, steps=3, sample_rate=1.0),
        arranged,
        tmp_path / "run",
        SOURCE,
        resume=True,
    )
    assert runs.state(tmp_path / "run") == "finished"


def test_the_fingerprint_of_the_data_does_not_stay_in_a_finished_run(finished, arranged):
    assert not (finished[1] / "checkpoint").exists()
    plain = hashlib.sha256()
    for name in ("x", "edge_index", "y"):
        plain.update(arranged.training[name].numpy().tobytes())
    for path in finished[1].iterdir():
        assert plain.hexdigest().encode() not in path.read_bytes()


def test_a_checkpoint_that_a_crash_left_in_a_finished_run_goes_when_it_is_read(copied):
    (copied / "checkpoint").mkdir()
    (copied / "checkpoint" / "data.sha256").write_text("0")
    runs.read(copied)
    assert not (copied / "checkpoint").exists()


def test_a_finished_run_does_not_tell_whether_all_edges_stand_in_both_rows(arranged, tmp_path):
    """Under the unit node that is private: one row withheld, and they do not."""
    data = arranged.training
    withheld = copy.copy(data)
    withheld.edge_index = data.edge_index[:, data.edge_index[0] != data.edge_index[0, 0]]
    said = []
    for number, graph in enumerate((data, withheld)):
        given = runs.Arranged(training=graph, testing=graph, mode="visible", split="given")
        runs.train(DPMLP(steps=2), given, tmp_path / str(number), SOURCE)
        said.append((tmp_path / str(number) / "settings.json").read_bytes())
    assert said[0] == said[1]


def test_what_the_catalog_expects_is_what_is_loaded():
    from graphveil.methods import Facts

    for split in ("transductive", "inductive"):
        source = runs.Source(data="social", split=split)
        assert source.expected() == Facts.of(source.arrange(source.load()).training)
    assert runs.Source(data="facebook100:A").expected() is None
    assert runs.Source(data="./social").expected() is None
