"""Hard cases from the command line: counts that agree with the runs, and runs that do not match."""

import json
import sys

import numpy as np
import pytest

from graphveil import runs
from graphveil.methods import Method
from graphveil.methods.task import OUTSIDE

# Whole batches: their noise is found ten times faster than that of sampled ones.
PRIVATE = "dp-mlp --epsilon 8 --set steps=3 --set sample_rate=1"
OPEN = "mlp --set steps=20"


@pytest.fixture
def train(answer, graph, tmp_path):
    """Train into a directory of that name, on the small graph unless told."""

    def call(name, what, more="", data=graph):
        answer(f"train {what} {more} --data {data} --out {tmp_path / name}")
        return tmp_path / name

    return call


@pytest.fixture
def pair(train):
    return train("private", PRIVATE), train("open", OPEN)


def wrong(run):
    """The wrong test nodes of a run, told by itself."""
    arranged = runs.Run(run).arrange()
    found = runs.Run(run).read().predict(arranged.testing, mode=arranged.mode)
    return (found != arranged.testing.y)[arranged.testing.test_mask]


def test_counts_are_those_of_the_runs(answer, pair, arrays):
    private, in_the_open = pair
    result = answer(f"hard-cases {private} --against {in_the_open}")
    nodes = int(arrays["test_mask"].sum())
    one, other = wrong(private), wrong(in_the_open)
    assert result["nodes"] == len(one) == nodes
    assert result["both"] == int((one & other).sum())
    assert result["only_private"] == int((one & ~other).sum())
    assert result["only_open"] == int((other & ~one).sum())
    for run, only in ((private, "only_private"), (in_the_open, "only_open")):
        accuracy = json.loads((run / "metrics.json").read_text())["test_accuracy"]
        assert result["both"] + result[only] == round((1 - accuracy) * nodes)
    for key in ("both", "only_private", "only_open", "neither", "nodes"):
        assert sum(each[key] for each in result["by_class"]) == result[key]
    y = arrays["y"][arrays["test_mask"]]
    counts = {each["class"]: each["nodes"] for each in result["by_class"]}
    assert counts == {int(c): int((y == c).sum()) for c in np.unique(y)}
    assert [each["private"] for each in result["runs"]] == [True, False]
    assert result["runs"][0]["epsilon"] <= 8
    assert result["runs"][1]["epsilon"] == "inf"
    assert result["out"] is None
    assert result["note"] == OUTSIDE


@pytest.fixture
def mistakes(monkeypatch):
    """Make runs wrong about such test nodes, by method and seed, and note how they are asked."""
    asked = []

    def call(told):
        def predict(method, data, *, mode=None, epsilon=None):
            asked.append(mode)
            found = data.y.clone()
            ids = data.test_mask.nonzero().flatten()[told[method.name, method.seed]]
            found[ids] = (found[ids] + 1) % 3
            return found

        monkeypatch.setattr(Method, "predict", predict)
        return asked

    return call


def test_several_seeds_of_given_masks_are_counted_together(answer, train, mistakes):
    private = " ".join(str(train(f"p{seed}", PRIVATE, f"--seed {seed}")) for seed in range(3))
    in_the_open = [train(f"o{seed}", OPEN, f"--seed {seed}") for seed in range(2)]
    mistakes(
        {
            ("dp-mlp", 0): [0, 1, 2, 3],
            ("dp-mlp", 1): [0, 1, 2],
            ("dp-mlp", 2): [0, 4],
            ("mlp", 0): [0, 5],
            ("mlp", 1): [0, 1, 6],
        }
    )
    line = f"hard-cases {private} " + " ".join(f"--against {run}" for run in in_the_open)
    # Of nine: hard in private 0, 1, 2; in the open 0, 1, 5, 6. Always wrong: 0 and 0.
    for often, counts in ((0.5, [2, 1, 2, 4]), (1.0, [1, 0, 0, 8]), (0.3, [2, 3, 2, 2])):
        result = answer(f"{line} --often {often}")
        found = [result[key] for key in ("both", "only_private", "only_open", "neither")]
        assert (result["often"], found) == (often, counts)
    assert result["stay_hard"] == 2 / 4
    assert result["hard_in_the_open"] == 2 / 5
    assert result["jaccard"] == pytest.approx(2 / 7)
    assert result["expected_both"] == pytest.approx(5 * 4 / 9)
    assert result["over_expected"] == pytest.approx(18 / 20)


def test_runs_are_asked_as_they_were_measured(answer, train, mistakes):
    pairs = {
        how: (train(f"p{how}", PRIVATE, f"--split {how}"), train(f"o{how}", OPEN, f"--split {how}"))
        for how in ("given", "inductive")
    }
    asked = mistakes({("dp-mlp", 0): [1, 2], ("mlp", 0): [2]})
    for private, in_the_open in pairs.values():
        result = answer(f"hard-cases {private} --against {in_the_open}")
        assert (result["both"], result["only_private"], result["only_open"]) == (1, 1, 0)
    assert asked == [None, None, "disjoint", "disjoint"]


def test_a_person_sees_table_shares_and_note(run, pair):
    code, out, err = run(f"hard-cases {pair[0]} --against {pair[1]}")
    assert (code, err) == (0, "")
    text = " ".join(out.split())
    for words in ("only private", "class 2", "dp-mlp at epsilon 8, 1 run", "Open: mlp, 1 run"):
        assert words in text
    assert "outside the certificate" in text
    assert "Written to" not in text


def test_a_picture_is_drawn_and_kept(run, refused, pair, tmp_path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "hard.svg"
    line = f"hard-cases {pair[0]} --against {pair[1]} --out {picture}"
    code, out, _ = run(line)
    assert code == 0
    assert "Written to" in out
    assert "against mlp" in picture.read_text()
    picture.write_text("mine")
    assert "--force" in refused(line)
    assert picture.read_text() == "mine"
    assert run(f"{line} --force")[0] == 0
    assert "<svg" in picture.read_text()


def test_classes_go_by_their_names(answer, run, train, save):
    named = save("named.npz", class_names=np.array(["red", "green", "blue"]))
    private, in_the_open = train("a", PRIVATE, data=named), train("b", OPEN, data=named)
    line = f"hard-cases {private} --against {in_the_open}"
    assert [each["name"] for each in answer(line)["by_class"]] == ["red", "green", "blue"]
    assert "green" in run(line)[1]


def test_the_embedded_data_under_one_seed(answer, train):
    private, in_the_open = train("p", PRIVATE, data="social"), train("o", OPEN, data="social")
    result = answer(f"hard-cases {private} --against {in_the_open}")
    accuracy = json.loads((in_the_open / "metrics.json").read_text())["test_accuracy"]
    assert result["both"] + result["only_open"] == round((1 - accuracy) * result["nodes"])


def test_other_test_nodes_are_refused(refused, train, save, tmp_path):
    bare = save("bare.npz", train_mask=None, val_mask=None, test_mask=None)
    private = train("p", PRIVATE, "--seed 1", data=bare)
    in_the_open = train("o", OPEN, "--seed 2", data=bare)
    out = tmp_path / "hard.png"
    err = refused(f"hard-cases {private} --against {in_the_open} --out {out}")
    assert "same nodes" in err
    assert "--seed" in err
    assert str(in_the_open) in err
    assert not out.exists()


def test_another_split_or_other_data_is_refused(refused, train, save, arrays):
    private = train("p", PRIVATE)
    inductive = train("i", OPEN, "--split inductive")
    turned = save("turned.npz", x=arrays["x"][:, ::-1].copy())
    labelled = save("labelled.npz", y=(arrays["y"] + 1) % 3)
    sparse = save("sparse.npz", edge_index=arrays["edge_index"][:, :4])
    for run in (inductive, *(train(path.stem, OPEN, data=path) for path in (turned, labelled))):
        assert "same graph" in refused(f"hard-cases {private} --against {run}")
    assert "same graph" in refused(f"hard-cases {private} --against {train('s', OPEN, '', sparse)}")


def test_a_copy_of_the_data_is_the_same_data(answer, train, save):
    private, in_the_open = train("p", PRIVATE), train("o", OPEN, data=save("copy.npz"))
    assert answer(f"hard-cases {private} --against {in_the_open}")["nodes"] > 0


def test_nobody_to_test_on_is_refused(refused, train, save):
    nobody = save("nobody.npz", test_mask=np.zeros(60, bool))
    private, in_the_open = train("p", PRIVATE, data=nobody), train("o", OPEN, data=nobody)
    assert "labelled" in refused(f"hard-cases {private} --against {in_the_open}")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("hard-cases --against OPEN", ["RUNS"]),
        ("hard-cases PRIVATE", ["--against"]),
        ("hard-cases OPEN --against PRIVATE", ["must be open", "dp-mlp"]),
        ("hard-cases PRIVATE --against ABSENT", ["no finished run"]),
        ("hard-cases PRIVATE PRIVATE/../private --against OPEN", ["named once"]),
        ("hard-cases PRIVATE --against OPEN --often 0", ["'often'", "0.0"]),
        ("hard-cases PRIVATE --against OPEN --often 2", ["'often'", "2.0"]),
        ("hard-cases PRIVATE --against OPEN --out hard.doc", [".svg", "hard.doc"]),
    ],
)
def test_what_makes_no_sense_is_one_line(refused, pair, tmp_path, line, words):
    for name, path in (("PRIVATE", pair[0]), ("OPEN", pair[1]), ("ABSENT", tmp_path / "no")):
        line = line.replace(name, str(path))
    err = refused(line)
    assert all(word in err for word in words), err


def test_an_open_side_may_be_set_beside_another(answer, run, pair, train, tmp_path):
    pytest.importorskip("matplotlib")
    first, reference = train("first", f"{OPEN} --set hidden_channels=4"), pair[1]
    line = f"hard-cases {first} --against {reference}"
    result = answer(line)
    one, other = wrong(first), wrong(reference)
    assert result["sides"] == ["first", "reference"]
    assert result["both"] == int((one & other).sum())
    assert [run["private"] for run in result["runs"]] == [False, False]
    code, out, _ = run(f"{line} --out {tmp_path / 'hard.svg'}")
    assert code == 0
    assert "only first" in out
    assert "First: mlp" in " ".join(out.split())
    assert "reference (1 run)" in (tmp_path / "hard.svg").read_text()


def test_two_private_sides_are_refused(refused, pair, train):
    other = train("other", PRIVATE)
    err = refused(f"hard-cases {pair[0]} --against {other}")
    assert "must be open" in err
    assert "dp-mlp" in err


def test_without_matplotlib_counts_are_had_and_pictures_are_refused(
    answer, refused, pair, monkeypatch
):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    line = f"hard-cases {pair[0]} --against {pair[1]}"
    assert answer(line)["nodes"] > 0
    assert "graphveil[report]" in refused(f"{line} --out hard.png")
