"""Descriptions are run: once each, resumed after a crash, in shards, whatever is refused."""

import csv
import json
from dataclasses import replace

import pytest

from graphveil._errors import InvalidInputError
from graphveil.bench import Notes, missed, parse_shard, read, results_files, run, tidy, write_csv
from graphveil.bench.measuring import compare_outcomes, unpack_wrong
from graphveil.bench.page import gather_results
from graphveil.bench.places import Place
from graphveil.bench.table import Measured, make_row
from graphveil.methods import METHODS

OPEN = '[[run]]\nname = "open"\nmethod = "mlp"\nsettings = { steps = 2 }\n'
PRIVATE = (
    '[[run]]\nname = "private"\nmethod = "dp-mlp"\nepsilon = 8\n'
    "settings = { steps = 2, sample_rate = 1.0 }\n"
)


@pytest.fixture
def small(described_as, graph):
    """A description of runs on the small graph."""

    def call(runs=OPEN + PRIVATE, head=""):
        return read(described_as(f'title = "t"\ndata = ["{graph}"]\nseeds = 2\n{head}{runs}'))

    return call


def forbid(monkeypatch, *methods):
    for name in methods:
        monkeypatch.setattr(METHODS[name], "fit", lambda *a, **k: pytest.fail("was run again"))


def test_results_are_noted_and_not_run_again(small, tmp_path, monkeypatch):
    described, path = small(), tmp_path / "r.jsonl"
    notes = Notes(path)
    opened, private = run(described, memory=notes)
    assert len(notes) == 4
    assert opened.row.epsilon == float("inf")
    assert private.row.epsilon <= 8
    for line in path.read_text().splitlines():
        entry = json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
        assert {"machine", "date", "version"} <= set(entry["outcome"])
    forbid(monkeypatch, "mlp", "dp-mlp")
    again = run(described, memory=Notes(path))
    assert [one.row for one in again] == [opened.row, private.row]


def test_a_result_of_other_defaults_is_measured_again(small, tmp_path):
    """The key of a run has the settings that are stated; a default may change between versions."""
    described, path = replace(small(OPEN), seeds=1), tmp_path / "r.jsonl"
    (before,) = run(described, memory=Notes(path))
    made_with = before.outcomes[0][1]["made_with"]
    assert run(described, memory=Notes(path))[0].outcomes == before.outcomes
    assert made_with["dropout"] == "0.5"
    entry = json.loads(path.read_text())
    entry["outcome"]["made_with"]["dropout"] = "0.4"
    path.write_text(json.dumps(entry) + "\n")
    (stale,) = gather_results(described, Notes(path)).measured or (None,)
    assert stale is None
    run(described, memory=Notes(path))
    lines = [json.loads(line)["outcome"]["made_with"] for line in path.read_text().splitlines()]
    assert lines == [{**made_with, "dropout": "0.4"}, made_with]
    older = {name: value for name, value in made_with.items() if name != "dropout"}
    assert described.lines[0].request.made({"made_with": older})  # a setting that is new since
    without = {key: value for key, value in before.outcomes[0][1].items() if key != "made_with"}
    assert described.lines[0].request.made(without)  # older results do not say


def test_a_line_cut_short_is_run_again_and_others_are_kept(small, tmp_path):
    described, path = replace(small(OPEN), seeds=3), tmp_path / "r.jsonl"
    (before,) = run(described, memory=Notes(path))
    path.write_bytes(path.read_bytes()[:-20])
    assert len(Notes(path, keep=True)) == 2
    assert not path.read_bytes().endswith(b"\n")  # left as it is by whoever reads
    notes = Notes(path)
    assert len(notes) == 2
    (after,) = run(described, memory=notes)
    assert after.row.scores == before.row.scores  # in the open everything is seeded
    assert len(Notes(path)) == 3


def test_shards_together_are_the_whole(small, tmp_path, monkeypatch):
    described = small(OPEN + '[[run]]\nmethod = "gnn"\nsettings = { steps = 2 }\n')
    (whole_mlp, whole_gnn) = run(described)
    for number in (1, 2, 3):
        path = tmp_path / f"{described.name}.{number}-of-3.jsonl"
        run(described, shard=(number, 3), memory=Notes(path))
    files = results_files(tmp_path, described.name, quick=False)
    assert sorted(path.read_text().count("\n") for path in files) == [1, 1, 2]
    keys = [json.dumps(json.loads(x)["run"]) for p in files for x in p.read_text().splitlines()]
    assert len(set(keys)) == 4
    forbid(monkeypatch, "mlp", "gnn")
    notes = Notes(tmp_path / f"{described.name}.jsonl", files)
    mlp, gnn = run(described, memory=notes)
    assert mlp.row.accuracies == pytest.approx(whole_mlp.row.accuracies, abs=1e-6)
    assert gnn.row.accuracies == pytest.approx(whole_gnn.row.accuracies, abs=1e-6)


@pytest.mark.parametrize("text", ["2", "0/3", "4/3", "a/b", "1/", "-1/2"])
def test_a_shard_that_makes_no_sense_is_refused(text):
    with pytest.raises(InvalidInputError, match="I/N"):
        parse_shard(text)
    assert parse_shard("2/4") == (2, 4)


def test_files_of_other_names_are_no_shards(tmp_path):
    for name in ("a", "a.1-of-2", "a.quick", "a.quick.1-of-2", "ab", "a.b", "a.x-of-2"):
        (tmp_path / f"{name}.jsonl").touch()
    assert [p.name for p in results_files(tmp_path, "a", quick=False)] == [
        "a.jsonl", "a.1-of-2.jsonl",
    ]  # fmt: skip
    assert [p.name for p in results_files(tmp_path, "a", quick=True)] == [
        "a.quick.jsonl", "a.quick.1-of-2.jsonl",
    ]  # fmt: skip


def test_what_is_refused_or_fails_does_not_stop_the_others(small, tmp_path, monkeypatch):
    refused = '[[run]]\nmethod = "dp-gnn"\nepsilon = 1\nsettings = { sender_cap = "none" }\n'
    wrong = '[[run]]\nmethod = "graph-gnn"\n'
    described, path = small(refused + wrong + OPEN), tmp_path / "r.jsonl"
    first, second, third = run(described, memory=Notes(path))
    assert "cap" in first.row.refused
    assert "many graphs" in second.row.refused
    assert third.row.mean is not None
    before = path.read_text()
    assert before.count("\n") == 4  # the others' second seeds are not tried
    run(described, memory=Notes(path))
    assert path.read_text() == before


def test_data_that_is_nowhere_has_a_row_that_says_so(described_as, graph):
    described = read(described_as(f'title = "t"\ndata = ["{graph}", "gone.npz"]\n' + OPEN))
    here, gone = run(replace(described, seeds=1))
    assert here.row.mean is not None
    assert gone.row.mean is None
    assert "gone.npz is not on disk" in gone.row.refused


def test_a_stand_in_runs_and_what_was_published_is_of_other_data(described_as, graph, tmp_path):
    text = f'title = "t"\ndata = ["gone.npz"]\nseeds = 1\nstand_in = {{ "gone.npz" = "{graph}" }}\n'
    described = read(described_as(text + OPEN + 'published = { "gone.npz" = 0.9 }\n'
                                  'at_least = { "gone.npz" = 0.99 }\n'))  # fmt: skip
    (one,) = run(described)
    assert one.row.data == str(graph)
    assert missed(described, [one]) == []
    write_csv(tmp_path / "t.csv", tidy([one], described.metrics))
    (record,) = csv.DictReader((tmp_path / "t.csv").read_text().splitlines())
    assert (record["data"], record["stand_in_for"]) == (str(graph), "gone.npz")
    assert (record["run"], record["metric"], record["published"]) == ("open", "accuracy", "0.9")
    assert float(record["value"]) == pytest.approx(one.row.mean, abs=1e-5)


def test_the_tidy_table_has_a_line_for_each_seed_and_metric(small, tmp_path):
    described = small(head='metrics = ["accuracy", "macro_f1"]\n')
    measured = run(described)
    write_csv(tmp_path / "t.csv", tidy(measured, described.metrics))
    records = list(csv.DictReader((tmp_path / "t.csv").read_text().splitlines()))
    assert len(records) == 2 * 2 * 2
    private = [record for record in records if record["run"] == "private"]
    assert {record["epsilon"] for record in private} == {"8"}
    assert all(7 < float(record["proven_epsilon"]) <= 8 for record in private)
    assert {record["void"] for record in private} == {"no"}
    assert {record["claimed_epsilon"] for record in records} == {""}


def test_a_figure_below_what_is_demanded_is_named(small, graph):
    described = small(OPEN + f'at_least = {{ "{graph}" = 0.8 }}\n')
    (line,) = described.lines
    place = Place(data=str(graph), runs_on=str(graph))

    def measured(*accuracies):
        outcomes = [
            {"scores": {"accuracy": value}, "unit": "node", "delta": None, "claimed_epsilon": None,
             "noise_multiplier": None, "epsilon": None, "void_because": [], "class_accuracy": [],
             "class_share": [], "seconds": 1.0}
            for value in accuracies
        ]  # fmt: skip
        return [Measured(line=line, place=place, row=make_row(line.request, "a", outcomes))]

    assert missed(described, measured(0.8, 0.9)) == []
    assert "must reach 80 %. Got 70.0" in missed(described, measured(0.7))[0]
    assert "no figure" in missed(described, measured())[0]
    assert missed(replace(described, quick=True), measured(0.7)) == []
    line = replace(line, request=replace(line.request, epsilon=3.0, varied={"steps": 2}))
    assert "(epsilon=3, steps=2) on " in missed(described, measured(0.7))[0]


def test_the_training_share_is_trained_on(small, monkeypatch):
    seen, fit = [], METHODS["mlp"].fit

    def noted(self, data, **more):
        seen.append(int(data.train_mask.sum()))
        return fit(self, data, **more)

    monkeypatch.setattr(METHODS["mlp"], "fit", noted)
    described = replace(small(OPEN + "vary = { train_share = [0.2, 0.6, 1.0] }\n"), seeds=1)
    first, *_ = run(described)
    assert seen == [9, 27, 45]
    assert first.row.train_share == 0.2


@pytest.mark.parametrize("text", ["what\n", "[]\n", '{"run": {}}\n', '{"outcome": 1}\n'])
def test_a_file_of_something_else_is_left_alone(tmp_path, text):
    path = tmp_path / "r.jsonl"
    path.write_text(text)
    with pytest.raises(InvalidInputError, match="in line 1"):
        Notes(path)
    assert path.read_text() == text


def test_notes_are_never_taken_away(tmp_path):
    notes = Notes(tmp_path / "r.jsonl")
    notes["{}"] = {"refused": "no"}
    with pytest.raises(InvalidInputError, match="never taken away"):
        del notes["{}"]


# --- shapes ---------------------------------------------------------------------------------------


def test_hard_cases_are_the_reference_s_wrong_records_that_stay_wrong(small):
    other = (
        '[[run]]\nname = "other"\nmethod = "mlp"\nsettings = { steps = 9, hidden_channels = 4 }\n'
    )
    described = small(OPEN + other + PRIVATE, 'shape = "hard-cases"\nreference = "open"\n')
    first, second, private = run(described)
    assert first.row.score("stay_hard")[0] is None
    for one in (second, private):
        for (_, mine), (_, theirs) in zip(one.outcomes, first.outcomes, strict=True):
            here, there = unpack_wrong(mine["wrong"]), unpack_wrong(theirs["wrong"])
            accuracy = 1 - sum(here) / len(here)
            assert mine["scores"]["accuracy"] == pytest.approx(accuracy, abs=1e-6)
            stayed = [a for a, b in zip(here, there, strict=True) if b]
            assert mine["scores"]["stay_hard"] == pytest.approx(sum(stayed) / len(stayed))


def test_a_result_without_what_a_shape_wants_is_measured_again(small, tmp_path):
    path = tmp_path / "r.jsonl"
    run(small(OPEN), memory=Notes(path))
    run(small(OPEN, 'shape = "confusion"\n'), memory=Notes(path))
    (one,) = run(small(OPEN, 'shape = "confusion"\n'), memory=Notes(path))
    assert path.read_text().count("\n") == 4
    outcome = one.outcomes[0][1]
    counts = outcome["confusion"]
    right = sum(counts[c][c] for c in range(3)) / sum(map(sum, counts))
    assert right == pytest.approx(outcome["scores"]["accuracy"], abs=1e-6)


def test_curves_end_where_the_model_does(small):
    described = small(OPEN + PRIVATE, 'shape = "curves"\n')
    for one in run(described):
        for _, outcome in one.outcomes:
            assert outcome["curve"]["steps"] == [0, 1, 2]
            assert outcome["scores"]["loss"] == pytest.approx(
                outcome["curve"]["loss"][-1], abs=1e-4
            )


def test_records_stand_in_the_plane_by_their_hidden_states(small):
    (one,) = run(replace(small(OPEN, 'shape = "embedding"\n'), seeds=1))
    places = one.outcomes[0][1]["places"]
    assert places["of"] == "hidden states"
    assert len(places["x"]) == len(places["y"]) == len(places["class"]) == 9


def test_kept_edges_are_compared_graph_by_graph():
    mine = {"graphs": [1, 2], "bits": ["1100", "00"]}
    theirs = {"graphs": [1, 2], "bits": ["0110", "00"]}
    figures = compare_outcomes("explanations", {"kept": mine}, {"kept": theirs})
    assert figures == {"iou_original": 0.25, "iou_reference": pytest.approx((1 / 3 + 1) / 2)}
    with pytest.raises(InvalidInputError, match="same graphs"):
        compare_outcomes("explanations", {"kept": mine}, {"kept": theirs | {"graphs": [1, 3]}})


def test_explanations_of_graphs_are_outcomes(described_as, monkeypatch):
    text = 'title = "t"\ndata = ["synthetic-er:10"]\nseeds = 1\nshape = "explanations"\n'
    runs = '[[run]]\nname = "open"\nmethod = "graph-gnn"\nsettings = { conv = "sum", steps = 2 }\n'
    runs += '[[run]]\nname = "wide"\nmethod = "graph-gnn"\nsettings = { conv = "sum", steps = 3 }\n'
    monkeypatch.setattr("graphveil.bench.measuring.GRAPHS", 2)
    monkeypatch.setitem(__import__("graphveil.explain").explain.ROUNDS, "gnn", 3)
    first, second = run(read(described_as(text + 'reference = "open"\n' + runs)))
    kept = second.outcomes[0][1]["kept"]
    assert len(kept["graphs"]) == len(kept["bits"]) == 2
    assert 0 <= second.row.score("iou_reference")[0] <= 1
    assert first.row.score("iou_reference")[0] is None
    assert first.row.score("iou_original")[0] is not None
