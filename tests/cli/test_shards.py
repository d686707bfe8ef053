"""Folders of results: shards, what is not run again, and what is never mixed."""

import json
import os

import pytest

from graphveil.methods import METHODS

QUICK = "--set steps=2 --set sample_rate=1 --seeds 2"
COMPARE = f"compare --data GRAPH --epsilon 8 --methods dp-mlp,mlp {QUICK}"
OPEN = "compare --data GRAPH --epsilon 8 --methods mlp --set steps=2 --seeds 2"
SWEEP = "sweep mlp --data GRAPH --vary hidden_channels=4,8 --set steps=2 --seeds 2"


@pytest.fixture
def forbid(monkeypatch):
    def call(*names):
        for name in names or METHODS:
            monkeypatch.setattr(METHODS[name], "fit", lambda *a, **k: pytest.fail("was run again"))

    return call


@pytest.mark.parametrize("command", [COMPARE, SWEEP])
def test_shards_make_one_table_and_nothing_is_run_again(
    command, answer, run, graph, tmp_path, forbid
):
    folder, name = tmp_path / "grid", command.split()[0]
    line = f"{command.replace('GRAPH', str(graph))} --results {folder}"
    first = answer(f"{line} --shard 1/2")
    assert (first["shard"], first["runs"], first["left"]) == ([1, 2], 4, 2)
    code, out, _ = run(f"{line} --shard 2/2")
    assert code == 0
    assert "4 of 4 are done" in " ".join(out.split())
    assert {path.name for path in folder.glob("*.jsonl")} == {
        f"{name}.1-of-2.jsonl", f"{name}.2-of-2.jsonl",
    }  # fmt: skip
    if os.name == "posix":  # a graph of one's own
        assert all(path.stat().st_mode & 0o077 == 0 for path in folder.iterdir())
    forbid()
    result = answer(f"{line} --out {tmp_path / 'table.json'}")
    assert [len(row["accuracies"]) for row in result["rows"]] == [2, 2]
    assert json.loads((tmp_path / "table.json").read_text()) == result
    assert answer(f"{line} --shard 1/3")["left"] == 0  # other shards, the same runs


def test_a_comparison_goes_on_and_others_share_its_folder(answer, run, graph, tmp_path, forbid):
    line = f"{COMPARE.replace('GRAPH', str(graph))} --results {tmp_path / 'grid'}"
    answer(f"{line} --seeds 1")
    before = answer(line)
    notes = tmp_path / "grid" / "compare.jsonl"
    assert notes.read_text().count("\n") == 4
    answer(f"{line} --epsilon 2")
    assert notes.read_text().count("\n") == 6
    answer(line.replace("steps=2", "steps=3"))
    assert notes.read_text().count("\n") == 10
    forbid()
    assert answer(line)["rows"] == before["rows"]


def test_a_file_that_changed_is_measured_anew_and_says_so(run, save, tmp_path, arrays, forbid):
    line = f"{OPEN} --results {tmp_path / 'grid'}"
    assert run(line.replace("GRAPH", str(save())))[0] == 0
    changed = save(x=arrays["x"] + 1)
    code, _, err = run(line.replace("GRAPH", str(changed)))
    assert code == 0
    assert "2 runs in" in err
    assert "of other content" in err
    forbid()
    assert run(line.replace("GRAPH", str(save())))[0] == 0  # as it was
    other = tmp_path / "elsewhere"
    other.mkdir()
    save().rename(other / "graph.npz")
    assert run(line.replace("GRAPH", str(other / "graph.npz")))[0] == 0


def test_who_interrupts_is_told_that_it_goes_on(run, graph, tmp_path, monkeypatch):
    fit = METHODS["mlp"].fit

    def interrupt(self, data, **more):
        if self.seed == 1:
            raise KeyboardInterrupt
        return fit(self, data, **more)

    monkeypatch.setattr(METHODS["mlp"], "fit", interrupt)
    line = f"{OPEN} --results {tmp_path / 'grid'}"
    code, out, err = run(line.replace("GRAPH", str(graph)))
    assert (code, out) == (130, "")
    assert "What was measured is written down; the same command goes on" in err
    assert (tmp_path / "grid" / "compare.jsonl").read_text().count("\n") == 1


@pytest.mark.parametrize("line", [OPEN, SWEEP])
def test_a_run_that_fails_is_one_line_and_others_are_kept(
    line, refused, graph, tmp_path, monkeypatch
):
    from graphveil import InvalidInputError

    fit = METHODS["mlp"].fit

    def fail(self, data, **more):
        if self.seed == 0:
            raise InvalidInputError("This seed is no good.")
        return fit(self, data, **more)

    monkeypatch.setattr(METHODS["mlp"], "fit", fail)
    err = refused(f"{line.replace('GRAPH', str(graph))} --results {tmp_path / 'grid'}")
    assert "seed 0: This seed is no good" in err
    (notes,) = (tmp_path / "grid").glob("*.jsonl")
    assert notes.read_text().count("\n") == (1 if "compare" in line else 2)


@pytest.mark.parametrize(
    ("line", "words", "code"),
    [
        (f"{COMPARE} --shard 1/2", ["'--shard' needs '--results'"], 2),
        (f"{COMPARE} --shard 3/2 --results R", ["I/N", "'3/2'"], 2),
        (f"{COMPARE} --shard 1/2 --results R --out t.json", ["no table", "t.json"], 2),
        (f"{COMPARE} --shard 1/2 --results R --plots p", ["no table"], 2),
        (f"{COMPARE} --jobs 0", ["'jobs'", "0"], 2),
        (f"{COMPARE} --results GRAPH", ["cannot be a folder"], 2),
        (f"{SWEEP} --shard 1/2 --results R --plot p.png", ["no table", "p.png"], 2),
        (f"{SWEEP} --jobs -1", ["'jobs'", "-1"], 2),
        ("bench run daigavane-table1 --quick --jobs 0", ["'jobs'"], 2),
        ("audit mechanism dp-mlp --data social --jobs 0", ["'jobs'"], 2),
    ],
)
def test_what_makes_no_sense_is_one_line(refused, graph, tmp_path, monkeypatch, line, words, code):
    monkeypatch.chdir(tmp_path)
    err = refused(line.replace("GRAPH", str(graph)), code)
    assert all(word in err for word in words), err


# --- tuning ---------------------------------------------------------------------------------------

TUNE = "tune dp-mlp --data GRAPH --epsilon 6 --trials 3 --vary max_grad_norm=0.1,1.0 --out tuned"


@pytest.mark.parametrize(
    ("more", "words", "code"),
    [
        ("--jobs 2", ["number of trials is secret", "--jobs 2", "--public-data"], 3),
        ("--jobs 2 --public-validation", ["number of trials is secret"], 3),
        ("--jobs 2 --fixed", ["charged as one run"], 2),
        ("--jobs 0", ["'jobs'"], 2),
        ("--shard 1/2", ["nobody sees", "sweep --shard", "public data"], 3),
        ("--shard 1/2 --public-data social", ["sweep --shard"], 3),
    ],
)
def test_jobs_that_would_tell_how_many_trials_there_are_are_refused(
    refused, graph, tmp_path, monkeypatch, more, words, code
):
    monkeypatch.chdir(tmp_path)
    err = refused(f"{TUNE.replace('GRAPH', str(graph))} {more}", code)
    assert all(word in err for word in words), err
    assert list(tmp_path.glob("tuned")) == []
