"""Tests of data: a cache of their own, no network, and real files where they are at hand."""

import os
from pathlib import Path

import pooch
import pytest

_GIVEN = os.environ.get("GRAPHVEIL_DATA")
REAL = Path(_GIVEN) if _GIVEN else Path(__file__).resolve().parents[2].parent / "shared" / "data"


def no_network(url):
    raise OSError("no network in this test")


@pytest.fixture
def serve(monkeypatch):
    """A function that lets every download give ``content(url)``, and lists what is asked."""

    def start(content):
        asked = []

        def answer(self, url, output_file, pooch, **options):
            asked.append(url)
            Path(output_file).write_bytes(content(url))

        monkeypatch.setattr(pooch.HTTPDownloader, "__call__", answer)
        return asked

    return start


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch, serve):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("GRAPHVEIL_DATA", raising=False)
    serve(no_network)


@pytest.fixture
def root(tmp_path):
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


@pytest.fixture
def real():
    """A function that gives the folder with a data set's real files, or skips the test."""

    def find(folder):
        if not (REAL / folder).is_dir():
            pytest.skip(f"no {REAL / folder}; set GRAPHVEIL_DATA to a folder with the raw files")
        return REAL / folder

    return find
