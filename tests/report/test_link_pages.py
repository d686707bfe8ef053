"""Pages about a run that learnt links: its own words, and no figure where none belongs."""

import pytest
from report_html import parse

from graphveil.methods import DPLink
from graphveil.report import evidence
from graphveil.report.officer import render as render_officer
from graphveil.report.owner import Owner
from graphveil.report.page import render
from graphveil.runs import Run, Source

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    directory = tmp_path_factory.mktemp("links") / "run"
    Run(directory).train(DPLink(epsilon=4.0, steps=3), Source(data="shop:1000"))
    return evidence.read(str(directory))


def test_the_analyst_s_page_has_the_figures_of_links(run):
    page = render([run])
    assert "MRR" in page
    assert f"{run.figure:.3f}" in page
    assert "withheld links" in page
    assert "whole list of targets" in page


def test_the_officer_s_page_has_none(run):
    page = render_officer(run, Owner(), day="2026-11-19")
    assert "MRR" not in page
    assert f"{run.figure:.3f}" not in page
    assert "1,000 sources" in page
    assert "one person" in page
    # 'graphveil embed' refuses models of links.
    rows = {row[0] for row in parse(page).one("table", class_="shares").table()}
    assert "predictions" in rows
    assert "embeddings" not in rows
