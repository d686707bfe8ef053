"""Examples in the documentation run as they stand."""

import re
from pathlib import Path

import pytest

import prices

DOCS = Path(__file__).parents[1] / "docs"


def examples(page: str) -> list[str]:
    """The blocks of Python that print something: the whole ones."""
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    return [block for block in blocks if "print(" in block]


@pytest.mark.parametrize("place", range(2))
def test_the_training_step_s_examples_are_complete(place, capsys, monkeypatch):
    monkeypatch.setattr("graphveil.grads.step.calibrate", lambda *_, **__: 20.0)  # is slow
    blocks = examples("training-step.md")
    assert len(blocks) == 3
    exec(compile(blocks[place], "training-step.md", "exec"), {"__name__": "example"})
    said = capsys.readouterr().out
    assert "differential privacy for one node" in said
    assert "The owner vouches that the loss of an example" in said
    if place == 1:
        assert "removed=1, altered=3" in said


def test_the_example_of_a_replay_prints_what_the_page_says(capsys, monkeypatch):
    monkeypatch.setattr("graphveil.grads.step.calibrate", prices.calibrate)  # once, not 8 times
    example = examples("training-step.md")[2]
    exec(compile(example, "training-step.md", "exec"), {"__name__": "example"})
    page = (DOCS / "training-step.md").read_text()
    _, after = page.split("This prints\n\n", 1)
    shown = after.split("\n\n", 1)[0].replace("    ", "")
    assert capsys.readouterr().out.strip() == shown.strip()


@pytest.mark.parametrize("place", range(4))
def test_the_examples_of_relations_are_complete(place, capsys):
    blocks = examples("relations.md")
    assert len(blocks) == 4
    exec(compile(blocks[place], "relations.md", "exec"), {"__name__": "example"})
    shown = capsys.readouterr().out
    if place == 0:
        assert "the types that are people: patient" in shown
        assert "a node is one patient, whose row holds the lists" in shown
    elif place == 1:
        assert "user-buys-item mean x0" in shown
        assert float(shown.split()[-1]) > 0.6
    elif place == 2:
        assert "removed=1, altered=0" in shown
    else:
        assert 2.0 < float(shown) < 2.5


def test_the_example_of_an_embedding_is_complete(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (example,) = examples("export.md")
    exec(compile(example, "export.md", "exec"), {"__name__": "example"})
    said = capsys.readouterr().out
    assert "hidden (" in said
    assert "whoever may see that node's row" in said
    assert (tmp_path / "rows.csv").read_text().startswith("id,e0,e1,")


def test_the_example_of_a_recommendation_is_complete(capsys):
    (example,) = examples("links.md")
    exec(compile(example, "links.md", "exec"), {"__name__": "example"})
    said = capsys.readouterr().out
    assert "differential privacy for one" in said
    assert "each source's list to that source" in said
