"""The pages in a real browser: they render, complain of nothing, fit a phone, sort and slide.

Skipped where no Chromium is installed.
"""

import json

import pytest
import report_chromium
from report_cases import rename_classes, trimmed
from report_chromium import Chromium

from graphveil.cli.plan import plan_rows
from graphveil.methods import DPAR, Facts
from graphveil.privacy.guarantee import round_up
from graphveil.report import evidence, growth, officer, page, plan_page
from graphveil.report.owner import Owner

DAY = "2026-11-19"
EVERY = ("eight", "one", "void", "parts", "edge", "claimed", "mlp", "gnn")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    chromium = Chromium(report_chromium.find_chromium(), tmp_path_factory.mktemp("profile"))
    yield chromium
    chromium.close()


@pytest.fixture(scope="module")
def pages(browser, rendered, read, tmp_path_factory):
    """One run's page, a comparison, an officer's page, and a plan."""
    folder = tmp_path_factory.mktemp("pages")
    (folder / "one.html").write_text(rendered("parts"))
    (folder / "many.html").write_text(rendered(*EVERY))
    facts = Facts(num_nodes=1000, num_features=10, num_classes=3, num_train=700)
    method = DPAR(epsilon=4.0)
    every = plan_page._axes
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan_page, "_axes", lambda m: trimmed(every(m), ("epsilon", "steps"), 3))
        grid = plan_page.grid(method, facts)
    facts_of = Owner(name="Ward risk", owner=("Hospital of Anytown",), purpose="To plan beds.")
    steps = [growth.Step(day=DAY, purpose="training, dp-mlp", alone=1.0, so_far=n, settled=True)
             for n in (1.0, 1.4, 1.7)]  # fmt: skip
    spent = growth.Growth(
        account="patients", who="patients of ward 3", epsilon=8.0, delta=1e-5, unit="node",
        steps=tuple(steps), used="21.3 %", left="6", overdrawn=False,
    )  # fmt: skip
    statement = officer.render(read("parts"), facts_of, day=DAY, growth=spent)
    (folder / "officer.html").write_text(statement)
    (folder / "plan.html").write_text(plan_page.render(method, facts, *grid, plan_rows))
    return folder


@pytest.mark.parametrize("name", ["one", "many", "officer", "plan"])
@pytest.mark.parametrize("width", [390, 1100])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_renders_fits_and_the_console_is_clean(browser, pages, name, width, scheme):
    path = pages / f"{name}.html"
    browser.open(path, width=width, scheme=scheme)
    assert browser.run("window.innerWidth") == width
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.run("document.querySelector('h1').getBoundingClientRect().height") > 20
    assert browser.run("document.querySelectorAll('svg.plot').length") >= 1
    wide = "[...document.querySelectorAll('svg.plot, p, li, dl, figure, .scroll')]"
    assert browser.run(f"{wide}.filter(e => e.getBoundingClientRect().right > {width}).length") == 0
    assert browser.problems == []
    assert browser.requests == [path.as_uri()]  # itself, and nothing from anywhere


def test_folded_parts_open_without_overflowing_a_phone(browser, pages):
    browser.open(pages / "one.html", width=390)
    browser.run("document.querySelectorAll('details').forEach(e => { e.open = true; })")
    assert browser.run("document.documentElement.scrollWidth") <= 390
    assert browser.run("document.querySelector('details dd').getBoundingClientRect().height") > 0


def test_dark_is_dark_and_light_is_light(browser, pages):
    shown = {}
    for scheme in ("light", "dark"):
        browser.open(pages / "one.html", scheme=scheme)
        colour = browser.run("getComputedStyle(document.body).backgroundColor")
        ink = browser.run("getComputedStyle(document.body).color")
        dot = browser.run("getComputedStyle(document.querySelector('svg .dot')).fill")
        shown[scheme] = (brightness(colour), brightness(ink), dot, browser.picture())
    assert shown["light"][0] > 240
    assert shown["light"][1] < 60
    assert shown["dark"][0] < 40
    assert shown["dark"][1] > 200
    assert shown["light"][2] != shown["dark"][2]
    assert shown["light"][3] != shown["dark"][3]


def brightness(colour):
    channels = colour.removeprefix("rgb(").removesuffix(")").split(",")
    return sum(map(float, channels)) / 3


# --- sorting --------------------------------------------------------------------------------------

_ROWS = (
    "[...document.querySelectorAll('table.sortable')[0].tBodies[0].rows]"
    ".map(r => r.dataset.run.split('/').pop())"
)


def head(column):
    return f"document.querySelectorAll('table.sortable')[0].tHead.rows[0].cells[{column}]"


def test_tables_sort_by_click_and_by_key_and_void_runs_stay_last(browser, pages, read):
    browser.open(pages / "many.html")
    assert browser.run(f"{head(2)}.textContent") == "epsilon"
    # What learnt nothing stays below by a score, too, whichever way it is sorted.
    place = {name: (read(name).failed, read(name).metrics["accuracy"]) for name in EVERY}
    ranked = ["one", "eight", "parts", "mlp", "gnn"]
    assert browser.run(f"{head(5)}.getAttribute('aria-sort')") == "none"
    # Whatever a void run's figure is, it gives no rank: here it would be first, both times.
    void = "document.querySelector('tr.unranked td.accuracy').dataset.value"
    browser.run(f"{void} = '-1'")
    browser.run(f"{head(5)}.querySelector('button').click()")
    rows = browser.run(_ROWS)
    assert [place[name] for name in rows[:-1]] == sorted(place[name] for name in ranked)
    assert rows[-1] == "void"
    assert browser.run(f"{head(5)}.getAttribute('aria-sort')") == "ascending"
    browser.run(f"{void} = '2'")
    browser.run(f"{head(5)}.querySelector('button').focus()")
    browser.press("Enter", 13)
    rows = browser.run(_ROWS)
    assert [place[name] for name in rows[:-1]] == sorted(
        (place[name] for name in ranked), key=lambda pair: (pair[0], -pair[1])
    )
    assert rows[-1] == "void"
    assert browser.run(f"{head(5)}.getAttribute('aria-sort')") == "descending"
    browser.run(f"{head(2)}.querySelector('button').focus()")
    browser.press(" ", 32)
    assert browser.run(_ROWS)[:3] == ["one", "parts", "eight"]  # epsilon 1, 3, 8
    assert set(browser.run(_ROWS)[3:5]) == {"mlp", "gnn"}  # no epsilon: behind those that have one
    assert browser.run(f"{head(5)}.getAttribute('aria-sort')") == "none"
    assert browser.problems == []


# --- a hostile run --------------------------------------------------------------------------------


def test_a_hostile_run_runs_no_script(browser, copied, tmp_path):
    attack = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    directory, change = copied("eight")
    rename_classes(directory, [attack, "</title>" + attack, "']]>"])
    change("settings.json", lambda c: c["data"].update(data="</style></script>" + attack))
    change("environment.json", lambda c: c.update(system=attack))
    path = tmp_path / "page.html"
    path.write_text(page.render([evidence.read(str(directory))]))
    browser.open(path)
    assert "owned" not in browser.run("document.title").split(attack)[0]
    assert browser.run("document.title") != "owned"
    assert browser.run("document.scripts.length") == 1
    assert browser.run("document.images.length") == 0
    assert browser.problems == []


def test_the_policy_stops_a_script_that_is_not_ours(browser, pages, tmp_path):
    """The second wall: were something to slip through unescaped, it would not run."""
    text = (pages / "one.html").read_text()
    path = tmp_path / "page.html"
    path.write_text(text.replace("</main>", "<script>document.title = 'owned'</script></main>"))
    browser.open(path)
    assert browser.run("document.title") != "owned"
    assert "Content Security Policy" in json.dumps(browser.problems)


# --- the plan -------------------------------------------------------------------------------------


def slide(number, place):
    return (
        f"(() => {{ const s = document.getElementById('axis-{number}'); s.value = {place};"
        " s.dispatchEvent(new Event('input', {bubbles: true})); })()"
    )


def test_sliders_show_the_plan_of_their_place(browser, pages):
    facts = Facts(num_nodes=1000, num_features=10, num_classes=3, num_train=700)
    browser.open(pages / "plan.html")
    text = "document.getElementById('{}').textContent"
    assert browser.run("document.getElementById('controls').hidden") is False
    assert browser.run(text.format("headline")) == "ε = 4"
    for epsilon, steps in ((0, 1), (2, 0), (1, 1)):
        browser.run(slide(0, epsilon))
        browser.run(slide(1, steps))
        plan = DPAR(epsilon=(1.0, 2.0, 4.0)[epsilon], steps=(13, 40)[steps]).plan(facts)
        assert browser.run(text.format("headline")) == f"ε = {round_up(plan.epsilon)}"
        rows = browser.run(text.format("rows"))
        assert f"{plan.details['noise_multiplier']:.6g}" in rows
        assert f"at most {plan.details['signal_to_noise']:.3g}" in rows
        assert browser.run(text.format("value-0")) == f"{(1, 2, 4)[epsilon]}"
        noise = plan.details["noise_multiplier"]
        ask = f"document.getElementById('noise').value = {noise * 1.0001}"
        browser.run(f"{ask}; document.getElementById('noise').dispatchEvent(new Event('input'))")
        assert f"epsilon is at most {round_up(plan.epsilon)}," in browser.run(
            text.format("inverse")
        )
    browser.run("document.getElementById('axis-0').focus()")
    browser.press("ArrowRight", 39)
    assert browser.run(text.format("value-0")) == "4"
    assert browser.run("document.getElementById('axis-0').getAttribute('aria-valuetext')") == "4"
    browser.run("document.getElementById('reset').click()")
    assert browser.run(text.format("value-1")) == "40"
    assert browser.problems == []


def test_without_scripts_the_pages_are_whole(browser, pages):
    browser.open(pages / "plan.html", scripts=False)
    browser.ask("Emulation.setScriptExecutionDisabled", value=False)
    assert browser.run("document.getElementById('controls').hidden") is True
    assert browser.run("document.getElementById('rows').textContent.includes('noise multiplier')")
    assert browser.run("document.querySelectorAll('#plans tbody tr').length") == 9


# --- paper ----------------------------------------------------------------------------------------


def test_printing_unfolds_everything_on_white(browser, pages):
    browser.open(pages / "one.html", scheme="dark", media="print")
    assert browser.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.run("document.querySelector('details dd').getBoundingClientRect().height") > 0
    assert browser.printed().startswith(b"%PDF")
    assert browser.problems == []


def test_an_officers_page_is_printed_on_few_sheets_and_its_lines_stay_together(browser, pages):
    browser.open(pages / "officer.html", width=720, scheme="dark", media="print")
    assert brightness(browser.run("getComputedStyle(document.body).backgroundColor")) == 255
    pdf = browser.printed()
    assert pdf.startswith(b"%PDF")
    assert 1 < pdf.count(b"/Type /Page\n") <= 6
    lines = "document.querySelector('.signature .lines')"
    assert browser.run(f"getComputedStyle({lines}).gridTemplateColumns").count("px") == 3
    section = "getComputedStyle(document.querySelector('.signature')).breakInside"
    assert browser.run(section) == "avoid"


def test_on_a_phone_every_column_of_an_officers_tables_is_in_sight(browser, pages):
    browser.open(pages / "officer.html", width=390)
    cells = "[...document.querySelectorAll('.shares td, .shares th, .spent td, .spent th')]"
    shown = f"{cells}.filter(e => e.offsetParent !== null)"
    assert browser.run(f"{shown}.length") > 20
    assert browser.run(f"{shown}.filter(e => e.getBoundingClientRect().right > 390).length") == 0
