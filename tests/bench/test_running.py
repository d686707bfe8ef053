"""Runs by several processes, in shards and from files: the same rows whichever way."""

import json
import os
import shutil
from dataclasses import replace
from itertools import pairwise

import pytest

from graphveil._errors import GraphveilError, InvalidInputError, RefusedError
from graphveil.bench import Notes, compare, content_of, results_files, sweep
from graphveil.bench.requests import Request
from graphveil.data import load
from graphveil.methods import METHODS
from graphveil.runs import Source

MLP = ("mlp", {"steps": 2})
GNN = ("gnn", {"steps": 2})
DP = ("dp-mlp", {"steps": 2, "sample_rate": 1.0})


@pytest.fixture
def source(graph):
    return Source(data=str(graph))


def forbid(monkeypatch, *methods):
    for name in methods:
        monkeypatch.setattr(METHODS[name], "fit", lambda *a, **k: pytest.fail("was run again"))


def plain(rows):
    """Rows without what a clock says."""
    return [replace(row, seconds=0.0) for row in rows]


@pytest.mark.slow
def test_two_processes_make_the_rows_of_one_to_the_last_bit(source, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # sums depend on how many there are
    shown = []

    def progress(steps):
        for step in steps:
            yield step
            shown.append(step)

    notes = Notes(tmp_path / "r.jsonl")
    how = {"epsilons": [8.0], "seeds": 2, "memory": notes}
    methods = [MLP, ("dp-gnn", {"sender_cap": None}), GNN]
    shared = compare(None, source, methods, jobs=2, progress=progress, **how)
    assert [row.method for row in shared] == ["dp-gnn", "mlp", "gnn"]
    assert "cap" in shared[0].refused
    assert len(shown) == 6
    forbid(monkeypatch, "mlp", "gnn")
    assert plain(compare(None, source, methods, **how)) == plain(shared)
    monkeypatch.undo()
    del how["memory"]
    assert plain(compare(source.load(), source, methods, **how)) == plain(shared)


@pytest.mark.slow
def test_a_graph_in_memory_goes_to_the_processes_and_their_noise_is_fresh(source):
    where = Source(data="(in memory)", split="given")
    rows = compare(source.load(), where, [DP, MLP], epsilons=[8.0], seeds=2, jobs=2)
    again = compare(source.load(), where, [DP, MLP], epsilons=[8.0], seeds=2)
    assert rows[1].scores == again[1].scores
    assert rows[0].scores["brier"] != again[0].scores["brier"]


def test_shards_together_are_the_whole(source, tmp_path, monkeypatch):
    values = ([4, 8], {"seeds": 2})
    how = (source.load(), source, "mlp", {"steps": 2}, "hidden_channels")
    whole = sweep(*how, values[0], **values[1])
    for number in (1, 2, 3):
        notes = Notes(tmp_path / f"sweep.{number}-of-3.jsonl")
        sweep(*how, values[0], memory=notes, shard=(number, 3), **values[1])
    files = results_files(tmp_path, "sweep", quick=False)
    assert sorted(path.read_text().count("\n") for path in files) == [1, 1, 2]
    forbid(monkeypatch, "mlp")
    notes = Notes(tmp_path / "sweep.jsonl", files)
    assert plain(sweep(*how, values[0], memory=notes, **values[1])) == plain(whole)
    assert not notes.path.exists()  # nothing was left to run


def test_a_run_that_fails_stops_no_other_where_results_are_kept(source, tmp_path, monkeypatch):
    fit, fitted = METHODS["mlp"].fit, []

    def fail(self, data, **more):
        fitted.append(self.seed)
        if self.seed == 0:
            raise ZeroDivisionError("of this seed")
        return fit(self, data, **more)

    monkeypatch.setattr(METHODS["mlp"], "fit", fail)
    graph, how = source.load(), {"epsilons": [], "seeds": 3}
    with pytest.raises(GraphveilError, match=r"^mlp on .*a.npz, seed 0: unexpected ZeroDivision"):
        compare(graph, source, [MLP], **how)
    assert fitted == [0]
    notes = Notes(tmp_path / "r.jsonl")
    with pytest.raises(GraphveilError, match="seed 0: unexpected ZeroDivisionError: of this seed"):
        compare(graph, source, [MLP], memory=notes, **how)
    assert len(notes) == 2


def test_after_a_refusal_no_later_seed_counts(source, monkeypatch):
    """With several processes a later one may have been measured; with one it is not tried."""
    fit, graph, known = METHODS["mlp"].fit, source.load(), {}

    def refuse(self, data, **more):
        if self.seed == 1:
            raise RefusedError("Seed 1 is no good.")
        return fit(self, data, **more)

    (row,) = compare(graph, source, [MLP], epsilons=[], seeds=3, memory=known)
    del known[Request(*MLP[:1], None, None, MLP[1]).key(replace(source, seed=1))]
    monkeypatch.setattr(METHODS["mlp"], "fit", refuse)
    (after,) = compare(graph, source, [MLP], epsilons=[], seeds=3, memory=known)
    assert after.refused == "Seed 1 is no good."
    assert after.accuracies == row.accuracies[:1]


# --- what a run is known by -----------------------------------------------------------------------


def test_data_of_one_s_own_is_known_by_its_content_and_not_its_place(source, tmp_path):
    graph, request = source.load(), Request("mlp", None, None, {})
    word = content_of(graph, tmp_path)
    assert content_of(source.load(), tmp_path) == word
    assert request.key(source, word) == request.key(replace(source, data="/other/a.npz"), word)
    assert request.key(source, word) != request.key(replace(source, data="/other/b.npz"), word)
    assert request.key(source, word) != request.key(source)
    changed = [graph.clone() for _ in range(4)]
    changed[0].x[0, 0] += 1e-6
    changed[1].edge_index = graph.edge_index[:, 1:]
    changed[2].test_mask = graph.train_mask
    changed[3].num_classes = 4
    words = {content_of(one, tmp_path) for one in changed}
    assert len(words | {word}) == 5
    other = tmp_path / "other"
    other.mkdir()
    assert content_of(graph, other) != word  # by a key of its own


def test_a_store_is_known_by_its_content_wherever_it_is(tmp_path):
    pytest.importorskip("pyarrow")
    from graphveil.data.store_building import build_store

    tables = tmp_path / "tables"
    tables.mkdir()
    names = [f"customer-{number:03d}" for number in range(40)]
    rows = [f"{name},{number % 2},{number}.5" for number, name in enumerate(names)]
    (tables / "nodes.csv").write_text("\n".join(["id,label,age", *rows, ""]))
    ends = [f"{one},{other}" for one, other in pairwise(names)]
    (tables / "edges.csv").write_text("\n".join(["source,target", *ends, ""]))
    build_store(tables, tmp_path / "one", classes=["0", "1"])
    shutil.copytree(tmp_path / "one", tmp_path / "elsewhere")
    word = content_of(load(tmp_path / "one"), tmp_path)
    assert content_of(load(tmp_path / "one"), tmp_path) == word
    assert content_of(load(tmp_path / "elsewhere"), tmp_path) == word
    rows[3] = rows[3].replace("customer", "patient")
    (tables / "nodes.csv").write_text("\n".join(["id,label,age", *rows, ""]))
    (tables / "edges.csv").write_text("source,target\n")
    build_store(tables, tmp_path / "other", classes=["0", "1"])
    (tables / "nodes.csv").write_text(
        "\n".join(["id,label,age", *[row.replace("patient", "customer") for row in rows], ""])
    )
    build_store(tables, tmp_path / "third", classes=["0", "1"])
    assert content_of(load(tmp_path / "other"), tmp_path) != content_of(
        load(tmp_path / "third"), tmp_path
    )


def test_data_that_changes_while_it_is_measured_is_refused(source, tmp_path, monkeypatch):
    forbid(monkeypatch, "mlp")
    for content, message in (("another", "must stay what it is"), (None, "was run again")):
        notes = Notes(tmp_path / "r.jsonl", content=content)
        with pytest.raises((InvalidInputError, pytest.fail.Exception), match=message):
            compare(None, source, [MLP], epsilons=[], seeds=1, memory=notes)


def test_the_key_of_a_folder_is_its_owner_s_and_stays(source, tmp_path):
    graph = source.load()
    word = content_of(graph, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".key"]
    if os.name == "posix":
        assert (tmp_path / ".key").stat().st_mode & 0o077 == 0
    (tmp_path / ".key").write_text("what")
    with pytest.raises(InvalidInputError, match="name another folder"):
        content_of(graph, tmp_path)
    assert word


# --- who writes -----------------------------------------------------------------------------------


def test_two_who_write_the_same_file_are_not_let_measure_twice(source, tmp_path, monkeypatch):
    first, path = Notes(tmp_path / "r.jsonl"), tmp_path / "r.jsonl"
    first["{}"] = {"refused": "no"}
    second = Notes(path)
    forbid(monkeypatch, "mlp")
    with pytest.raises(InvalidInputError, match="by --shard I/N"):
        compare(source.load(), source, [MLP], epsilons=[], memory=second)
    first['{"a": 1}'] = {"refused": "later"}
    first.close()
    second.hold()
    assert second['{"a": 1}'] == {"refused": "later"}  # what was written before it was held
    with pytest.raises(InvalidInputError, match="to be read only"):
        Notes(path, keep=True)["{}"] = {}


def test_private_results_are_their_owner_s_alone(tmp_path):
    for private in (True, False):
        path = tmp_path / f"{private}.jsonl"
        Notes(path, private=private)["{}"] = {"refused": "no"}
        if os.name == "posix":
            assert (path.stat().st_mode & 0o077 == 0) is private
        assert json.loads(path.read_text())["outcome"] == {"refused": "no"}
