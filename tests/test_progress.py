"""Progress: a bar where somebody looks, and never in the way."""

import sys
from types import SimpleNamespace

import pytest

from graphveil._progress import choose_progress


class ZMQInteractiveShell:
    """What IPython calls the shell of a notebook."""


@pytest.fixture
def notebook(monkeypatch):
    shell = SimpleNamespace(get_ipython=lambda: ZMQInteractiveShell())
    monkeypatch.setitem(sys.modules, "IPython", shell)


def test_a_notebook_has_a_bar_unless_it_is_told_not_to(notebook, capsys):
    bar = choose_progress(None, "training dp-gnn")
    assert list(bar(range(3))) == [0, 1, 2]
    assert choose_progress(False, "training dp-gnn") is None


def test_elsewhere_there_is_one_for_the_asking():
    assert choose_progress(None, "training") is None
    assert list(choose_progress(True, "training")(range(2))) == [0, 1]
    assert choose_progress(sorted, "training") is sorted
