"""The ledger: nothing is lost, nothing overdrawn, nothing changed without notice."""

import contextlib
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import dp_accounting as dpa
import pytest

from graphveil._errors import BudgetError, InvalidInputError, UnprovenError
from graphveil.privacy.accounting import price
from graphveil.privacy.events import composed, repeated
from graphveil.privacy.guarantee import Charge
from graphveil.privacy.ledger import Ledger, round_down
from graphveil.privacy.ledger_state import (
    Account,
    LedgerState,
    Promise,
    canonical,
    entry_hash,
)

NODE, GRAPH = Promise(unit="node"), Promise(unit="graph")


def charges(noise, count=1):
    return [Charge(paid_for="a test", event=repeated(dpa.GaussianDpEvent(noise), count))]


def epsilon_of(*noises):
    return price(composed(*map(dpa.GaussianDpEvent, noises)), 1e-5).epsilon


def reserve(ledger, id, noise=4.0, name="people", promise=NODE, **more):
    ledger.reserve(id, name, charges(noise), promise, purpose="a test", **more)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two ledgers, copied for every test: one with an account, one with a bit of everything."""
    found = Ledger(tmp_path_factory.mktemp("made") / "study.ledger")
    found.open("people", 3.0, 1e-5)
    new, exported = found.path.read_bytes(), found.export()
    found.open("graphs", 5.0, 1e-6, unit="graph")
    reserve(found, "one", 4.0, fingerprint="abc", facts={"num_nodes": 5})
    found.settle("one", charges(4.0))
    reserve(found, "two", 5.0)
    reserve(found, "three", 6.0, name="graphs", promise=GRAPH)
    found.settle("three", [])
    return new, found.path.read_bytes(), exported


@pytest.fixture(params=["file", "server"])
def ledger(request, made, tmp_path):
    """A ledger with an account: wherever it is kept, it decides the same."""
    if request.param == "server":
        found = Ledger(request.getfixturevalue("postgres").new_url())
        found.restore(made[2])
        return found
    (tmp_path / "study.ledger").write_bytes(made[0])
    return Ledger(tmp_path / "study.ledger")


@pytest.fixture
def used(made, tmp_path):
    (tmp_path / "study.ledger").write_bytes(made[1])
    return Ledger(tmp_path / "study.ledger")


def people(ledger):
    return ledger.read().account("people")


def one_line(error):
    said = str(error.value)
    assert "\n" not in said
    return said


# --- spending -------------------------------------------------------------------------------------


def test_reserved_and_settled_charges_are_priced_together(ledger):
    reserve(ledger, "one", 4.0)
    reserve(ledger, "two", 5.0)
    ledger.settle("one", charges(4.0))
    assert people(ledger).spent() == epsilon_of(4.0, 5.0)
    assert people(ledger).plain_sum() == epsilon_of(4.0) + epsilon_of(5.0)
    assert [each.id for each in people(ledger).waiting] == ["two"]
    ledger.settle("two", [])
    assert people(ledger).spent() == epsilon_of(4.0)
    assert not people(ledger).waiting


def test_over_budget_is_refused_with_what_is_spent_left_and_would_fit(ledger):
    reserve(ledger, "one", 2.0)
    before = ledger.read().head
    with pytest.raises(BudgetError) as refused:
        reserve(ledger, "two", 1.8, would_fit=lambda fits, left: f"{fits(charges(9.0))}, {left:g}")
    said = one_line(refused)
    assert "epsilon 3 at delta 1e-05" in said
    assert "1.994 is spent (66.5 % of the budget)" in said
    left = people(ledger).left()
    assert f"left is epsilon {round_down(left)}" in said
    assert said.endswith(f"True, {left:g}")
    assert ledger.read().head == before


def test_one_run_may_take_all_of_it_and_nothing_fits_beside_it(tmp_path):
    """What one run costs is priced as sharply as can be: nobody chose it by looking."""
    ledger = Ledger(tmp_path / "study.ledger")
    ledger.open("people", epsilon_of(2.0) * (1 + 1e-9), 1e-5)
    reserve(ledger, "one", 2.0)
    assert 0.999 < people(ledger).used() <= 1
    assert people(ledger).left() == 0.0
    with pytest.raises(BudgetError, match=r"spent \(100 % of the budget\)"):
        reserve(ledger, "two", 1000.0)
    assert not ledger.verify().account("people").overdrawn


def test_a_run_that_had_it_all_leaves_nothing_also_if_it_released_less(tmp_path):
    """Whether it stops early may depend on what it has released: no rule covers both ends."""
    ledger = Ledger(tmp_path / "study.ledger")
    ledger.open("people", epsilon_of(2.0) * (1 + 1e-9), 1e-5)
    reserve(ledger, "one", 2.0)
    ledger.settle("one", charges(8.0))
    assert people(ledger).left() == 0.0
    with pytest.raises(BudgetError):
        reserve(ledger, "two", 50.0)
    assert people(ledger).spent() == epsilon_of(8.0)
    ledger.verify()


def test_runs_that_fit_only_if_fixed_beforehand_are_refused(ledger):
    """By composition both are within the budget; by choice of the second they would not be."""
    reserve(ledger, "one", 2.0)
    second = next(noise / 100 for noise in range(200, 400) if epsilon_of(2.0, noise / 100) <= 3.0)
    with pytest.raises(BudgetError, match="would bring it to 1"):
        reserve(ledger, "two", second)
    reserve(ledger, "two", 1.2 * second)
    assert people(ledger).spent() < 3.0
    assert people(ledger).share(people(ledger).events()) <= people(ledger).used() <= 1


def test_runs_admitted_by_their_price_alone_are_told_from_forged_ones(ledger, monkeypatch):
    with monkeypatch.context() as before:
        before.setattr(Account, "share", lambda self, events: 0.0)
        reserve(ledger, "one", 2.0)
        reserve(ledger, "two", 2.02)
    assert people(ledger).spent() < 3.0 < 3.0 * people(ledger).used()
    with pytest.raises(BudgetError, match="holds for runs fixed beforehand only: entry 4"):
        ledger.verify()


def test_what_settles_to_less_gives_back(ledger):
    reserve(ledger, "one", 1.5)
    with pytest.raises(BudgetError):
        reserve(ledger, "two", 3.0)
    ledger.settle("one", [])
    reserve(ledger, "two", 3.0)


def test_what_settles_to_more_is_written_and_shown(ledger):
    reserve(ledger, "one", 4.0)
    ledger.settle("one", charges(0.5))
    assert people(ledger).spent() > people(ledger).epsilon
    assert people(ledger).left() == 0.0
    with pytest.raises(BudgetError, match=r"'people'.*overdrawn: since entry 4") as refused:
        ledger.verify()  # the reservations were within the budget; what happened is not hidden
    assert re.search(r"[0-9.]+ % of its epsilon 3 is used", one_line(refused))


def test_an_overdraft_does_not_hide_an_earlier_forged_reservation(used):
    used.settle("two", charges(0.5))
    with pytest.raises(BudgetError, match="overdrawn"):
        used.verify()
    rewritten(used.path, with_less_budget)
    with pytest.raises(InvalidInputError, match="reserves more than"):
        used.verify()


def test_a_second_reservation_under_one_id_replaces_the_first(ledger):
    reserve(ledger, "one", 4.0)
    entries = len(ledger.read().entries)
    reserve(ledger, "one", 4.0)  # nothing new: nothing written
    assert len(ledger.read().entries) == entries
    reserve(ledger, "one", 2.0)
    assert len(ledger.read().entries) == entries + 1
    assert people(ledger).spent() == epsilon_of(2.0)
    with pytest.raises(BudgetError):
        reserve(ledger, "one", 0.5)
    assert people(ledger).spent() == epsilon_of(2.0)


def test_settling_is_once_and_for_all_and_may_be_repeated(ledger):
    reserve(ledger, "one", 4.0)
    ledger.settle("one", charges(4.0))
    entries = len(ledger.read().entries)
    ledger.settle("one", charges(4.0))
    assert len(ledger.read().entries) == entries
    for wrong in ([], charges(9.0)):
        with pytest.raises(InvalidInputError, match="settled already"):
            ledger.settle("one", wrong)
    with pytest.raises(InvalidInputError, match="not there"):
        ledger.settle("nobody", [])
    with pytest.raises(InvalidInputError, match="settled"):
        reserve(ledger, "one", 4.0)


def test_what_has_no_epsilon_is_refused(ledger):
    raw = [Charge(paid_for="raw", event=dpa.NonPrivateDpEvent())]
    with pytest.raises(UnprovenError, match="proven epsilon"):
        ledger.reserve("one", "people", raw, NODE, purpose="a test")


# --- what an account is about ---------------------------------------------------------------------


def test_another_unit_or_relation_is_refused(ledger):
    reserve(ledger, "one", 9.0, fingerprint="abc")
    removal = Promise(unit="node", relation="remove", public_degree=9)
    with pytest.raises(InvalidInputError, match="graph") as refused:
        reserve(ledger, "two", 9.0, promise=GRAPH)
    assert "ledger open" in one_line(refused)
    with pytest.raises(InvalidInputError, match=r"public degree 9.*settings that protect the same"):
        reserve(ledger, "two", 9.0, promise=removal)  # of the same unit: no second account helps
    reserve(ledger, "two", 9.0, fingerprint="abc")


def test_a_run_that_gave_all_back_binds_nothing(ledger):
    reserve(ledger, "one", 9.0, promise=GRAPH, fingerprint="abc")
    ledger.settle("one", [])
    reserve(ledger, "two", 9.0, fingerprint="xyz")
    assert people(ledger).promise == NODE
    assert people(ledger).seen.fingerprint == "xyz"


def test_the_same_data_has_one_account_for_each_unit(ledger):
    for name in ("others", "edges"):
        ledger.open(name, 3.0, 1e-5)
    reserve(ledger, "one", 9.0, fingerprint="abc")
    with pytest.raises(InvalidInputError, match="--account people"):
        reserve(ledger, "two", 9.0, name="others", fingerprint="abc")
    for other in (
        Promise(unit="node", relation="remove"),
        Promise(unit="node", relation="remove", public_degree=9),
    ):
        with pytest.raises(InvalidInputError, match="--account people"):
            reserve(ledger, "two", 9.0, name="others", promise=other, fingerprint="abc")
    edge = Promise(unit="edge-undirected")
    reserve(ledger, "three", 9.0, name="edges", promise=edge, fingerprint="abc")


def test_a_unit_given_in_advance_binds_the_first_run(ledger):
    ledger.open("graphs", 3.0, 1e-5, unit="graph")
    with pytest.raises(InvalidInputError, match="for the unit 'graph'"):
        reserve(ledger, "one", 9.0, name="graphs")


@pytest.mark.parametrize("ledger", ["file"], indirect=True)
@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "people"},
        {"name": ""},
        {"name": "two\nlines"},
        {"epsilon": 0.0},
        {"epsilon": float("inf")},
        {"delta": 0.0},
        {"delta": 1.0},
        {"unit": "person"},
    ],
)
def test_accounts_that_make_no_sense_are_refused(ledger, wrong, tmp_path):
    asked = {"name": "new", "epsilon": 1.0, "delta": 1e-5, **wrong}
    with pytest.raises(InvalidInputError) as refused:
        ledger.open(**asked)
    one_line(refused)
    if asked["name"] != "people":  # nor is a file made for it
        with pytest.raises(InvalidInputError):
            Ledger(tmp_path / "other.ledger").open(**asked)
        assert not (tmp_path / "other.ledger").exists()


def test_an_account_may_be_left_out_only_where_there_is_one(ledger):
    assert ledger.read().account(None).name == "people"
    ledger.open("others", 1.0, 1e-5)
    with pytest.raises(InvalidInputError, match=r"'people', 'others'; say which"):
        ledger.read().account(None)
    with pytest.raises(InvalidInputError, match="'nobody'"):
        ledger.read().account("nobody")


# --- the file -------------------------------------------------------------------------------------


def entries_of(path):
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT * FROM entries ORDER BY seq").fetchall()


def test_entries_cannot_be_updated_or_deleted(used):
    for statement in ("UPDATE entries SET body = '{}'", "DELETE FROM entries WHERE seq = 3"):
        with (
            contextlib.closing(sqlite3.connect(used.path)) as connection,
            pytest.raises(sqlite3.IntegrityError),
        ):
            connection.execute(statement)


@pytest.mark.parametrize("start", range(4))
def test_a_flipped_byte_is_noticed_or_harmless(used, start, tmp_path):
    """Every 97th byte of the file: verify fails, or every entry is read exactly as it was."""
    whole, entries = bytearray(used.path.read_bytes()), used.read().entries
    noticed = 0
    for place in range(start * 24, len(whole), 97):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << (place % 8)
        path = tmp_path / "damaged.ledger"
        path.write_bytes(damaged)
        try:
            found = Ledger(path).verify().entries
        except InvalidInputError:
            noticed += 1
        else:
            assert found == entries
    assert noticed


@pytest.mark.parametrize("column", ["body", "previous", "hash"])
@pytest.mark.parametrize("seq", [1, 2, 5, 8])
def test_a_flipped_byte_in_an_entry_is_noticed(used, column, seq, tmp_path):
    rows = entries_of(used.path)
    text = rows[seq - 1][{"body": 1, "previous": 2, "hash": 3}[column]]
    whole = used.path.read_bytes()
    at = whole.find(text.encode())
    for place in range(at, at + len(text), 13):
        damaged = bytearray(whole)
        damaged[place] ^= 1
        (tmp_path / "damaged.ledger").write_bytes(damaged)
        with pytest.raises(InvalidInputError):
            Ledger(tmp_path / "damaged.ledger").verify()


def rewritten(path, change):
    """The same file with its entries changed, and the chain made to fit again."""
    rows, before, made = change([json.loads(row[1]) for row in entries_of(path)]), "0" * 64, []
    for number, body in enumerate(rows, 1):
        text = body if isinstance(body, str) else canonical(body)
        made.append((number, text, before, entry_hash(before, text)))
        before = made[-1][3]
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DROP TRIGGER no_delete")
        connection.execute("DELETE FROM entries")
        connection.executemany("INSERT INTO entries VALUES (?, ?, ?, ?)", made)


def with_format(rows):
    return [{**rows[0], "format": 3}, *rows[1:]]


def without_reservation(rows):
    return [row for row in rows if not (row["kind"] == "reserve" and row["id"] == "one")]


def with_less_budget(rows):
    return [{**row, "epsilon": 0.5} if row["kind"] == "open" else row for row in rows]


@pytest.mark.parametrize(
    "change, word",
    [
        (with_format, "format must be 1 or 2"),
        (without_reservation, "entry 4 cannot be"),
        (with_less_budget, "reserves more than 'graphs' had left"),
        (lambda rows: rows[1:], "first entry"),
        (lambda rows: [], "no entries"),
        (lambda rows: [*rows, {"kind": "gift"}], "not known"),
        (lambda rows: [*rows, rows[1]], "there already"),
        (lambda rows: [*rows, "no json"], "cannot be"),
        (lambda rows: [*rows, "[1]"], "cannot be"),
        (lambda rows: [*rows, {"kind": "settle", "id": "two", "charges": [{}]}], "cannot be"),
    ],
)
def test_entries_that_cannot_be_are_one_clear_line(used, change, word):
    """Whoever rewrites a ledger can make the chain fit; what it says must make sense still."""
    rewritten(used.path, change)
    with pytest.raises(InvalidInputError, match=word) as refused:
        used.verify()
    assert str(used.path) in one_line(refused)


def left_behind(ledger, folder):
    """A copy as a kill leaves it: half written, and beside it the pages as they were before."""
    folder.mkdir(exist_ok=True)
    with contextlib.closing(sqlite3.connect(ledger.path, isolation_level=None)) as writer:
        writer.execute("PRAGMA cache_size = 1")  # pages go to the file before it is committed
        writer.execute("BEGIN IMMEDIATE")
        for number in range(100, 110):
            row = (number, "x" * 5000, "", "")
            writer.execute("INSERT INTO entries VALUES (?, ?, ?, ?)", row)
        for end in ("", "-journal"):
            (folder / f"x{end}").write_bytes(Path(f"{ledger.path}{end}").read_bytes())
    assert (folder / "x").read_bytes() != ledger.path.read_bytes()
    return Ledger(folder / "x")


@pytest.mark.parametrize("name", ["x", "link"])
def test_what_a_kill_left_half_written_is_rolled_back_by_the_next_reader(used, tmp_path, name):
    copy = left_behind(used, tmp_path / "copy")
    (tmp_path / "copy" / "link").symlink_to(copy.path)
    assert Ledger(tmp_path / "copy" / name).read() == used.read()
    assert not (tmp_path / "copy" / "x-journal").exists()
    assert copy.path.read_bytes() == used.path.read_bytes()
    reserve(copy, "new", 90.0)
    copy.verify()


def test_what_a_kill_left_half_written_is_not_read_where_nobody_can_roll_it_back(used, small_disk):
    copy = left_behind(used, small_disk)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for call in (copy.read, copy.verify, copy.export, lambda: reserve(copy, "new")):
        with pytest.raises(InvalidInputError, match=r"cannot be used.*its directory can be writ"):
            call()
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    assert copy.verify() == used.read()


@pytest.mark.skipif(os.name != "posix", reason="needs file modes")
def test_what_sqlite_puts_beside_a_ledger_is_its_owner_s_alone(used):
    used.path.chmod(0o600)
    before = os.umask(0)
    try:
        with contextlib.closing(sqlite3.connect(used.path, isolation_level=None)) as writer:
            writer.execute("BEGIN IMMEDIATE")
            writer.execute("INSERT INTO entries VALUES (99, '', '', '')")
            assert Path(f"{used.path}-journal").stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(before)


# --- ledgers of earlier versions, with a write-ahead log ------------------------------------------


def with_a_log(ledger):
    """The same ledger as an earlier version kept it; an open connection keeps it so."""
    other = sqlite3.connect(ledger.path, isolation_level=None)
    assert other.execute("PRAGMA journal_mode = WAL").fetchone() == ("wal",)
    return contextlib.closing(other)


def has_a_log(path):
    return path.read_bytes()[18] == 2  # the version of the file's format, for writers


def test_a_ledger_with_a_log_is_used_as_it_is_while_others_have_it_open(used):
    with with_a_log(used) as other:
        other.execute("SELECT count(*) FROM entries").fetchone()
        reserve(used, "new", 90.0)
        assert has_a_log(used.path)
        assert Path(f"{used.path}-wal").stat().st_size
    used.read()
    assert not has_a_log(used.path)
    assert used.verify().reservation("new") is not None


def test_a_ledger_with_a_log_is_taken_over_with_what_a_kill_left_in_it(used, tmp_path):
    (tmp_path / "copy").mkdir()
    with with_a_log(used) as other:
        other.execute("SELECT count(*) FROM entries").fetchone()
        reserve(used, "new", 90.0)
        for end in ("", "-wal"):
            (tmp_path / "copy" / f"x{end}").write_bytes(Path(f"{used.path}{end}").read_bytes())
    copy = Ledger(tmp_path / "copy" / "x")
    assert copy.read().reservation("new") is not None
    assert not has_a_log(copy.path)
    assert [path.name for path in (tmp_path / "copy").iterdir()] == ["x"]
    assert copy.verify() == used.read()


def test_a_ledger_with_a_log_on_a_read_only_disk_is_one_clear_line(used, small_disk):
    with with_a_log(used):
        pass
    shutil.copy(used.path, small_disk / "x")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(InvalidInputError, match=r"cannot be used.*its directory can be written"):
        Ledger(small_disk / "x").read()


def test_a_cut_off_end_is_noticed_by_a_head_or_a_count_noted_before(used):
    head, count = used.read().head, len(used.read().entries)
    used.verify(head=head, at_least=count)
    reserve(used, "later", 9.0)
    used.verify(head=head, at_least=count)  # it has grown since, and still holds it
    rewritten(used.path, lambda rows: rows[:-2])
    used.verify()  # by itself a chain does not know
    with pytest.raises(InvalidInputError, match="cut off"):
        used.verify(head=head)
    with pytest.raises(InvalidInputError, match=f"{count - 1} entries, not {count}"):
        used.verify(at_least=count)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3, 0.6, 0.9, 0.999])
def test_a_truncated_file_is_one_clear_line(used, share):
    whole = used.path.read_bytes()
    used.path.write_bytes(whole[: int(share * len(whole))])
    for call in (used.read, used.verify, lambda: reserve(used, "new"), used.export):
        with pytest.raises(InvalidInputError) as refused:
            call()
        assert str(used.path) in one_line(refused)


def other_sqlite(path):
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE entries (seq, body, previous, hash)")


def other_sqlite_with_a_log(path):
    other_sqlite(path)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")


@pytest.mark.parametrize(
    "make",
    [
        other_sqlite,
        other_sqlite_with_a_log,
        lambda path: path.write_bytes(b"hello, this is no ledger at all" * 100),
        lambda path: path.write_bytes(os.urandom(5000)),
        lambda path: path.mkdir(),
        lambda path: None,
    ],
    ids=["sqlite", "log", "text", "noise", "directory", "missing"],
)
def test_another_kind_of_file_is_one_clear_line_and_left_alone(make, tmp_path):
    path = tmp_path / "study.ledger"
    make(path)
    before = path.read_bytes() if path.is_file() else None
    calls = [Ledger(path).read, Ledger(path).verify, lambda: reserve(Ledger(path), "new")]
    for call in (*calls, *([lambda: Ledger(path).open("new", 1.0, 1e-5)] * path.exists())):
        with pytest.raises(InvalidInputError) as refused:
            call()
        assert str(path) in one_line(refused)
    assert before is None or path.read_bytes() == before


def test_an_export_makes_the_same_ledger(used, tmp_path):
    again = Ledger(tmp_path / "again.ledger")
    again.restore(used.export())
    assert again.verify() == used.read()
    assert again.export() == used.export()
    reserve(again, "later", 9.0)
    with pytest.raises(InvalidInputError, match="there already"):
        again.restore(used.export())


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace("people", "peoplf", 1),
        lambda text: text.replace('"hash": "', '"hash": "0', 1),
        lambda text: "[]",
        lambda text: "{}",
        lambda text: '{"entries": [1]}',
        lambda text: '{"entries": []}',
        lambda text: "\ud800",
    ],
)
def test_a_damaged_export_is_refused_and_makes_no_file(used, tmp_path, change):
    with pytest.raises(InvalidInputError) as refused:
        Ledger(tmp_path / "again.ledger").restore(change(used.export()))
    one_line(refused)
    assert not (tmp_path / "again.ledger").exists()


def test_swapped_entries_of_an_export_are_refused(used, tmp_path):
    content = json.loads(used.export())
    content["entries"][3], content["entries"][5] = content["entries"][5], content["entries"][3]
    with pytest.raises(InvalidInputError, match="entry 4"):
        Ledger(tmp_path / "again.ledger").restore(json.dumps(content))


# --- disks, and other processes -------------------------------------------------------------------


def test_a_full_disk_writes_nothing_and_loses_nothing(used):
    resource = pytest.importorskip("resource")
    entries, hard = used.read().entries, resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (used.path.stat().st_size // 2, hard[1]))
    try:
        with pytest.raises(InvalidInputError, match="cannot be used") as refused:
            reserve(used, "new", 9.0, facts={"padding": "x" * 20_000})
        assert "nothing was written" in one_line(refused)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, hard)
    assert used.verify().entries == entries
    reserve(used, "new", 9.0)
    assert used.verify().entries[:-1] == entries


def test_a_disk_that_fills_up_loses_no_entry(small_disk):
    ledger = Ledger(small_disk / "study.ledger")
    ledger.open("people", 50.0, 1e-5)
    written, refused = [], 0
    for number in range(60):
        try:
            reserve(ledger, f"run {number}", 50.0, facts={"padding": "x" * 4000})
            written.append(f"run {number}")
        except InvalidInputError:
            refused += 1
    assert written
    assert refused
    assert list(people(ledger).reservations) == written
    subprocess.run(["mount", "-o", "remount,size=1m", str(small_disk)], check=True)
    ledger.verify()
    reserve(ledger, "later", 50.0)
    assert list(people(ledger).reservations) == [*written, "later"]


def test_a_read_only_disk_can_be_read_and_is_not_written(small_disk):
    ledger = Ledger(small_disk / "study.ledger")
    ledger.open("people", 3.0, 1e-5)
    reserve(ledger, "one", 4.0)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert ledger.verify().account("people").spent() == epsilon_of(4.0)
    for call in (lambda: reserve(ledger, "two", 9.0), lambda: ledger.settle("one", [])):
        with pytest.raises(InvalidInputError, match="cannot be used"):
            call()


_RACE = """
import os, sys, time
import dp_accounting as dpa
from graphveil._errors import BudgetError
from graphveil.privacy.ledger_state import Promise
from graphveil.privacy.guarantee import Charge
from graphveil.privacy.ledger import Ledger
ledger, start = Ledger(sys.argv[1]), time.time() + 0.3
charges = [Charge(paid_for="a race", event=dpa.GaussianDpEvent(4.0))]
children = []
for number in range(int(sys.argv[2])):
    if (child := os.fork()) == 0:
        time.sleep(max(0.0, start - time.time()))
        try:
            ledger.reserve(str(number), "people", charges, Promise(unit="node"), purpose="a race")
        except BudgetError:
            os._exit(3)
        os._exit(0)
    children.append(child)
print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize(
    ("new_place", "racers"), [("file", 8), ("server", 8)], indirect=["new_place"]
)
def test_racers_for_the_last_budget_do_not_both_win(new_place, racers):
    ledger = Ledger(new_place)
    ledger.open("people", 1.12 * epsilon_of(4.0, 4.0, 4.0), 1e-5)  # room for three, not for four
    for id in ("before", "before that"):
        reserve(ledger, id, 4.0)
    done = subprocess.run(
        [sys.executable, "-c", _RACE, new_place, str(racers)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert sorted(json.loads(done.stdout)) == [0] + [3] * (racers - 1)
    assert len(ledger.verify().account("people").charged) == 3
    assert len(ledger.read().entries) == 5


_READERS = """
import os, sys
from graphveil.privacy.ledger import Ledger
children = []
for number in range(8):
    if (child := os.fork()) == 0:
        os._exit(0 if len(Ledger(sys.argv[1]).read().entries) == int(sys.argv[2]) else 1)
    children.append(child)
print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_readers_that_all_meet_what_a_kill_left_all_read_the_same(used, tmp_path):
    copy = left_behind(used, tmp_path / "copy")
    done = subprocess.run(
        [sys.executable, "-c", _READERS, str(copy.path), str(len(used.read().entries))],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == [0] * 8


def test_entries_that_were_read_before_are_folded_once(ledger, monkeypatch):
    """What is read on top of what was known is what anybody reads who knows nothing."""
    counted, real = [], LedgerState.apply
    monkeypatch.setattr(
        LedgerState, "apply", lambda self, body: counted.append(body) or real(self, body)
    )
    other = Ledger(ledger.place)
    for number in range(3):
        reserve(other, str(number), 90.0)
        state = Ledger(ledger.place).read()
        counted.clear()
        assert ledger.read() == state
        assert len(counted) == (1 if number else len(state.entries))
    assert ledger.verify() == state
    assert len(counted) > len(state.entries)  # which trusts nothing


def test_a_history_that_was_rewritten_is_noticed_by_who_has_read_it(used):
    used.read()
    rewritten(used.path, without_reservation)
    with pytest.raises(InvalidInputError, match="entry 4 cannot be"):
        used.read()


def test_what_is_left_is_rounded_down():
    assert [round_down(value) for value in (0.0, -1.0, 0.01239, 2.4199, 12345.0)] == [
        "0", "0", "0.0123", "2.41", "1.23e+04",
    ]  # fmt: skip
