"""What pages say in figures is what result files, and the library, say."""

import json
import re

import pytest

import facts
import pages


@pytest.mark.parametrize("page", sorted(facts.marked()))
def test_tables_are_what_the_files_say(page):
    text = (pages.DOCS / page).read_text()
    assert facts.refresh(text) == text


def test_the_marks_are_where_figures_stand():
    assert set(facts.marked()) >= {
        "which-epsilon.md", "methods/late-graph.md", "methods/gap.md", "methods/dp-gnn.md",
        "methods/dpar.md", "methods/dp-mlp.md", "methods/graph-dpsgd.md",
    }  # fmt: skip


def test_a_figure_that_is_wrong_is_noticed():
    text = (pages.DOCS / "methods/late-graph.md").read_text()
    figure = re.search(r"\*\*(\d\d\.\d)\*\*", text)[1]
    assert facts.refresh(text.replace(figure, "99.9", 1)) == text


@pytest.mark.parametrize(
    "method, verdict",
    [("late-graph", "ahead"), ("dpar", "nowhere"), ("dp-mlp", "nowhere")],
)
def test_who_wins_is_what_pages_say(method, verdict):
    """Bold figures of the accuracy table: late-graph is ahead on most, two others on none."""
    lines = facts.accuracy(method).splitlines()[2:]
    wins = sum("**" in line for line in lines)
    assert wins > len(lines) / 2 if verdict == "ahead" else wins == 0


def test_dpar_takes_least_time():
    took = facts.scores("graphveil-nodes", "seconds")
    private = {name for name, _, epsilon in took if epsilon}
    for data in {data for name, data, _ in took if name == "dpar"}:
        for epsilon in (8.0, 1.0):
            seconds = {name: took.get((name, data, epsilon), [1e9]) for name in private}
            middles = {name: facts.statistics.median(values) for name, values in seconds.items()}
            assert min(middles, key=middles.get) == "dpar", (data, epsilon, middles)


def test_dp_gnn_is_the_best_of_no_other_target():
    assert "**" not in facts.targets("dp-gnn")


def test_audits_are_what_the_file_of_attacks_says():
    """The AUC column of the audit page, by method, data and attack."""
    findings = json.loads((facts.RESULTS / "audit-attacks.json").read_text())
    assert findings
    text = (pages.DOCS / "guarantees" / "audits.md").read_text()
    rows = re.findall(r"^\| `[\w-]+`.*\| (\.\d{3}) \| \.\d{3} \|", text, re.MULTILINE)
    known = {f"{value:.3f}".lstrip("0") for value in _aucs(findings)}
    assert len(rows) >= 18
    assert set(rows) <= known


def _aucs(value):
    if isinstance(value, dict):
        if isinstance(value.get("auc"), float):
            yield value["auc"]
        for inner in value.values():
            yield from _aucs(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _aucs(inner)


def test_floors_of_canaries_are_what_the_file_says():
    text = (pages.DOCS / "guarantees" / "audits.md").read_text()
    table = text.split("| run | canaries |")[1].split("\n\n")[0]
    shown = {float(cell) for cell in re.findall(r"(?<=\| )\d\.\d\d(?= \|)", table)}
    numbers = set()
    for number in re.findall(r"\d+\.\d+", (facts.RESULTS / "audit-runs.json").read_text()):
        numbers |= {round(float(number), 2), int(float(number) * 100) / 100}
    assert len(shown) > 30
    assert shown <= numbers


# --- tables that are typed ------------------------------------------------------------------------

MADE = r"<!-- (?:facts: .*?|tables) -->.*?<!-- end of (?:facts|tables) -->"
COMPARED = {  # whole pages, or tables by their heading; what compares them stands on the page
    "results.md", "choose-a-method.md", "settings.md", "catalog.md", "checked-facts.md",
    "guarantees/claims.md", "guarantees/field.md", "guarantees/audits.md#One run",
    "guarantees/audits.md#Attacks", "guarantees/graph-split.md#Claimed and proven",
    "guarantees/step.md#Reference figures", "which-epsilon.md",
}  # fmt: skip
FIGURE = re.compile(r"[-*]*[\d,]*\.\d[^A-Za-z]*")


def typed_tables(text):
    """The heading above each table with two figures or more that no tool made."""
    heading = ""
    for part in re.split(r"\n\n+", re.sub(MADE, "", text, flags=re.DOTALL)):
        if titles := re.findall(r"^#+ (.+)$", part, re.MULTILINE):
            heading = titles[-1]
        cells = re.split(r"[|\n]", part) if part.lstrip().startswith("|") else []
        if sum(bool(FIGURE.fullmatch(cell.strip())) for cell in cells) > 1:
            yield heading


def test_a_typed_table_is_named_with_how_it_was_made():
    section = (pages.DOCS / "checked-facts.md").read_text().split("## Tables that no test")[1]
    named = {f"{page}#{title}" for title, page in re.findall(r"\[(.+?)\]\((.+?\.md)#", section)}
    typed = {
        f"{name}#{heading}"
        for name in pages.page_names() if name not in COMPARED
        for heading in typed_tables((pages.DOCS / name).read_text())
    } - COMPARED  # fmt: skip
    assert typed == named, "name a typed table, and how it was made, in docs/checked-facts.md"


def test_a_table_without_a_source_is_noticed():
    table = "| a | b |\n| --- | --- |\n| 1.5 | **.25 ± .01** |\n"
    assert list(typed_tables(f"## A\n\n{table}")) == ["A"]
    made = f"## A\n\n<!-- facts: x -->\n\n{table}\n<!-- end of facts -->"
    assert list(typed_tables(made)) == []


def test_deployments_of_others_have_a_source():
    """The few figures of other people's deployments have a source beside them."""
    text = (pages.DOCS / "which-epsilon.md").read_text()
    table = text.split("| who | what |")[1].split("\n\n")[0].splitlines()[2:]
    assert len(table) == 5
    assert all("https://" in line or "| the same |" in line for line in table)
