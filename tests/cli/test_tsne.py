"""Pictures of what trained models see."""

import pytest
import torch

from graphveil.cli.tsne import _join_classes

pytest.importorskip("matplotlib")


@pytest.fixture
def runs(answer, graph, tmp_path):
    """A run with a hidden layer, and one without, on two graphs."""
    answer(f"train mlp --data {graph} --set steps=2 --out {tmp_path / 'mlp'}")
    options = "--epsilon 20 --delta 1e-3 --set steps=2 --split inductive"
    answer(f"train dpar --data {graph} {options} --out {tmp_path / 'dpar'}")
    return f"{tmp_path / 'mlp'} {tmp_path / 'dpar'}"


def test_hidden_states_are_shown_where_there_are_some(answer, run, runs, tmp_path):
    for nodes in ("test", "train", "all"):
        out = tmp_path / f"{nodes}.svg"
        result = answer(f"tsne {runs} --nodes {nodes} --most 40 --out {out}")
        assert [shown["of"] for shown in result["runs"]] == ["hidden", "output"]
        assert "class 1" in out.read_text()
        assert ("weights alone" in result["note"]) == (nodes != "test")
    first = runs.split()[0]
    for of in ("hidden", "output"):
        result = answer(f"tsne {first} --of {of} --out {tmp_path / of}.svg")
        assert result["runs"][0]["of"] == of
    code, _, err = run(f"tsne {runs} --of hidden --out {tmp_path / 'none.svg'}")
    assert code == 2
    assert "hidden layer" in err
    assert not (tmp_path / "none.svg").exists()


def test_runs_with_other_classes_share_one_legend():
    panels = [("few", None, torch.tensor([0, 1])), ("all", None, torch.tensor([0, 1, 2]))]
    joined, names = _join_classes(panels, [["b", "c"], ["a", "b", "c"]])
    assert names == ["a", "b", "c"]
    assert [y.tolist() for *_, y in joined] == [[1, 2], [0, 1, 2]]


def test_names_that_do_not_fit_every_run_are_left_out():
    panels = [("few", None, torch.tensor([0, 1])), ("all", None, torch.tensor([0, 1, 2]))]
    assert _join_classes(panels, [["b", "c"], None])[1] is None
    assert _join_classes(panels, [None, ["a", "b", "c"]])[1] == ["a", "b", "c"]
