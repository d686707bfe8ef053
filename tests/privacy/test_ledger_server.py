"""A ledger on a server: connections that are lost, rights, passwords, and a server that lies."""

import json

import dp_accounting as dpa
import pytest

import postgres_proxy
from graphveil._errors import BudgetError, InvalidInputError
from graphveil.privacy.events import repeated
from graphveil.privacy.guarantee import Charge
from graphveil.privacy.ledger import Ledger
from graphveil.privacy.ledger_entries import hide_passwords, identity, public_url
from graphveil.privacy.ledger_state import Promise, canonical, entry_hash
from graphveil.privacy.ledger_tables import roles_sql

NODE = Promise(unit="node")


def charges(count=1, noise=40.0):
    return [Charge(paid_for="a test", event=repeated(dpa.GaussianDpEvent(noise), count))]


def reserve(ledger, id, count=30, **more):
    ledger.reserve(id, "people", charges(count), NODE, purpose="a test", **more)


def make(place):
    ledger = Ledger(place)
    ledger.open("people", 3.0, 1e-5)
    reserve(ledger, "one")
    ledger.begin("one", "first")
    ledger.note("one", "first", "checkpoint", 2)
    return ledger


@pytest.fixture
def ledger(postgres):
    """A run has begun, and two of its thirty steps."""
    return make(postgres.new_url())


@pytest.fixture
def schema(ledger):
    return ledger.place.partition("search_path%3D")[2]


@pytest.fixture
def quickly(monkeypatch):
    """Nobody waits long between two attempts, or for a server that is away."""
    monkeypatch.setattr("graphveil.privacy.ledger_server._PAUSE", 0.001)
    monkeypatch.setattr("graphveil.privacy.ledger_server._LONGEST", 0.01)
    monkeypatch.setattr("graphveil.privacy.ledger_server._FIRST", 0.05)


@pytest.fixture
def proxy(postgres, quickly):
    made = postgres_proxy.Proxy(postgres)
    yield made
    made.close()


def one_line(error):
    text = str(error.value)
    assert "\n" not in text
    return text


def kinds(ledger):
    return [json.loads(text)["kind"] for text, _ in ledger.read().entries]


# --- connections that are lost --------------------------------------------------------------------

ACTIONS = {
    "reserve": lambda ledger: reserve(ledger, "two", 5),
    "begin": lambda ledger: ledger.begin("one", "second", "first"),
    "note": lambda ledger: ledger.note("one", "first", "checkpoint", 7),
    "settle": lambda ledger: ledger.settle("one", charges(9), "first"),
    "account": lambda ledger: ledger.open("others", 1.0, 1e-5),
}


def check_done(action, ledger, before):
    """What was asked for was done, and once."""
    state = ledger.verify()
    assert state.entries[: len(before)] == before
    assert len(state.entries) == len(before) + (action != "note")
    assert state.progress == {"one": {"checkpoint": 7 if action == "note" else 2}}


def some_slow(quick, *slow):
    """Actions, of which one is for the fast tests."""
    return [quick, *(pytest.param(action, marks=pytest.mark.slow) for action in slow)]


@pytest.mark.parametrize("answered", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("action", some_slow("note", "reserve", "begin", "settle"))
def test_a_connection_lost_at_any_message_writes_once(postgres, proxy, action, answered):
    """Before the server has a message, or after it has answered; at COMMIT, too."""
    text = make(postgres.new_url()).export()
    number, lost = 0, 0
    while lost == number:
        number += 1
        ledger = Ledger(postgres.new_url())
        ledger.restore(text)
        before = ledger.read().entries
        proxy.cut(number, answered=answered)
        ACTIONS[action](Ledger(proxy.url(ledger.place)))
        lost += proxy.cuts
        proxy.cut(None)
        check_done(action, ledger, before)
    assert number > 8  # a transaction has that many messages, and there are two or more


@pytest.mark.slow
@pytest.mark.parametrize("answered", [False, True], ids=["before", "after"])
def test_a_connection_lost_at_any_message_makes_one_ledger(postgres, proxy, answered):
    number, lost = 0, 0
    while lost == number:
        number += 1
        place = postgres.new_url()
        proxy.cut(number, answered=answered)
        Ledger(proxy.url(place)).open("people", 3.0, 1e-5)
        lost += proxy.cuts
        proxy.cut(None)
        state = Ledger(place).verify()
        assert (len(state.entries), list(state.accounts)) == (2, ["people"])
    assert number > 8


@pytest.mark.parametrize("action", some_slow("settle", "begin"))
def test_a_server_that_stays_away_is_one_clear_line_and_may_be_asked_again(
    postgres, proxy, action, monkeypatch
):
    """Whether it was written is asked then, or said to be unknown; to go on counts it once."""
    monkeypatch.setattr("graphveil.privacy.ledger_server._PATIENCE", 0.05)
    text, written, unsure, number = make(postgres.new_url()).export(), 0, 0, 0
    while True:
        number += 1
        ledger = Ledger(postgres.new_url())
        ledger.restore(text)
        before = ledger.read().entries
        through = Ledger(proxy.url(ledger.place))
        through.read()  # it was there
        proxy.cut(number, answered=True, always=True)
        try:
            ACTIONS[action](through)
        except InvalidInputError as error:
            assert "cannot be used" in str(error)  # noqa: PT017
            assert "\n" not in str(error)  # noqa: PT017
            unknown = "is not known" in str(error)
        else:
            break  # it was done before that message
        finally:
            proxy.cut(None)
        state = ledger.read()
        is_written = len(state.entries) > len(before) or state.progress["one"]["checkpoint"] == 7
        assert unknown or not is_written  # never: nothing was written, when it was
        written, unsure = written + is_written, unsure + unknown
        if not is_written:
            ACTIONS[action](Ledger(proxy.url(ledger.place)))
        check_done(action, ledger, before)
    assert unsure >= written > 0


def test_a_run_that_cannot_note_does_not_release(ledger, proxy, monkeypatch):
    """The note comes before the release, and it fails loudly."""
    monkeypatch.setattr("graphveil.privacy.ledger_server._PATIENCE", 0.05)
    proxy.cut(1, always=True)
    through = Ledger(proxy.url(ledger.place))
    for call in (
        lambda: through.note("one", "first", "checkpoint", 3),
        lambda: through.begin("one", "second", "first"),
        through.read,
        through.exists,
    ):
        with pytest.raises(InvalidInputError, match="cannot be used"):
            call()


def test_an_entry_is_known_again_by_its_hash_and_not_by_its_place(ledger, monkeypatch):
    """The connection was lost at COMMIT, nothing was written, and somebody else was faster."""
    real, entries = ledger._entries._run, ledger._entries
    other = Ledger(ledger.place)

    def lose(work, *, writes):
        if writes:
            monkeypatch.undo()
            reserve(other, "of another", 1)
            return real(lambda connection, unsure: work(connection, True), writes=True)
        return real(work, writes=writes)

    monkeypatch.setattr(entries, "_run", lose)
    reserve(ledger, "two", 5)
    reservations = ledger.verify().account("people").reservations
    assert list(reservations) == ["one", "of another", "two"]


# --- what the server guards by itself -------------------------------------------------------------


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE graphveil_entries SET body = '{}' WHERE seq = 3",
        "DELETE FROM graphveil_entries WHERE seq = 3",
        "TRUNCATE graphveil_entries",
        "UPDATE graphveil_progress SET noted = 1",
        "DELETE FROM graphveil_progress",
        "TRUNCATE graphveil_progress",
        "INSERT INTO graphveil_entries SELECT seq + 1, body, previous, hash FROM graphveil_entries "
        "WHERE seq = 4",
        "INSERT INTO graphveil_entries SELECT 9, '{}', hash, hash || 'x' FROM graphveil_entries "
        "WHERE seq = 4",
        "SET session_replication_role = replica; DELETE FROM graphveil_entries",
    ],
)
def test_a_server_changes_and_removes_nothing_for_anybody(postgres, ledger, schema, statement):
    import psycopg

    before = ledger.read()
    with pytest.raises(psycopg.errors.IntegrityConstraintViolation):
        postgres.execute(statement, schema=schema)
    assert ledger.verify() == before


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE graphveil_entries DISABLE TRIGGER graphveil_keep",
        "ALTER TABLE graphveil_progress ENABLE TRIGGER graphveil_keep",
        "DROP TRIGGER graphveil_append ON graphveil_entries",
        "ALTER TABLE graphveil_progress SET UNLOGGED",
    ],
)
def test_verify_sees_that_a_guard_is_gone(postgres, ledger, schema, statement):
    ledger.verify()
    postgres.execute(statement, schema=schema)
    with pytest.raises(InvalidInputError, match=r"does not hold: the trigger graphveil_"):
        ledger.verify()


def test_a_history_that_the_owner_rewrote_is_noticed(postgres, ledger, schema):
    """Who may switch the guards off can rewrite; a hash that was noted elsewhere is gone then."""
    head, count = ledger.read().head, len(ledger.read().entries)
    off = "ALTER TABLE graphveil_entries DISABLE TRIGGER ALL"
    on = [
        f"ALTER TABLE graphveil_entries ENABLE ALWAYS TRIGGER {name}"
        for name in ("graphveil_keep", "graphveil_append")
    ]
    change = "UPDATE graphveil_entries SET body = replace(body, '30', '3') WHERE seq = 3"
    postgres.execute(off, change, *on, schema=schema)
    with pytest.raises(InvalidInputError, match="entry 3 is not what was written"):
        ledger.verify()
    postgres.execute(off, "DELETE FROM graphveil_entries WHERE seq > 2", *on, schema=schema)
    with pytest.raises(InvalidInputError, match="the reservation one"):
        ledger.verify()  # by the notes beside the chain
    remove = "DELETE FROM graphveil_progress"
    keep = "ALTER TABLE graphveil_progress {} TRIGGER graphveil_keep"
    postgres.execute(
        keep.format("DISABLE"), remove, keep.format("ENABLE ALWAYS"), schema=schema
    )  # as after a backup was put back
    ledger.verify()
    with pytest.raises(InvalidInputError, match="cut off"):
        ledger.verify(head=head)
    with pytest.raises(InvalidInputError, match=f"2 entries, not {count}"):
        ledger.verify(at_least=count)


@pytest.mark.parametrize("setting", ["synchronous_commit"])
def test_a_server_that_may_forget_is_refused(postgres, ledger, schema, setting):
    place = postgres.url(schema=schema).replace("options=", f"options=-c{setting}%3Doff%20")
    careless = Ledger(place)
    before = careless.verify()
    for call in (
        lambda: reserve(careless, "two", 5),
        lambda: careless.note("one", "first", "checkpoint", 3),
    ):
        with pytest.raises(InvalidInputError, match=f"{setting} = off") as refused:
            call()
        assert "nothing was written" in one_line(refused)
    assert ledger.verify() == before


def test_who_asks_for_a_standby_reads_and_does_not_write(ledger):
    reader = Ledger(f"{ledger.place}&target_session_attrs=any")
    assert reader.verify() == ledger.read()
    with pytest.raises(InvalidInputError, match=r"asks for a standby.*nothing was written"):
        reserve(reader, "two", 5)


# --- who may do what ------------------------------------------------------------------------------


@pytest.fixture
def users(postgres, ledger, schema):
    """Two people of the roles that ``ledger roles`` makes, and one of neither."""
    trainers, auditors = f"{schema}_trainers", f"{schema}_auditors"
    names = [f"{schema}_{name}" for name in ("anna", "bob", "eve")]
    postgres.execute(
        roles_sql(trainers, auditors),
        roles_sql(trainers, auditors),  # again: it changes nothing
        *(f"CREATE ROLE {name} LOGIN" for name in names),
        f"GRANT {trainers} TO {names[0]}",
        f"GRANT {auditors} TO {names[1]}",
        schema=schema,
    )
    return [Ledger(postgres.url(name, schema=schema)) for name in names]


def test_a_trainer_charges_and_opens_no_account(users, ledger):
    anna = users[0]
    reserve(anna, "two", 5)
    anna.begin("two", "first")
    anna.note("two", "first", "checkpoint", 3)
    anna.note("two", "first", "checkpoint", 4)
    anna.settle("two", charges(4), "first")
    with pytest.raises(BudgetError):
        reserve(anna, "three", 100_000)
    before = ledger.verify()
    with pytest.raises(InvalidInputError, match=r"opened.*by their owner alone") as refused:
        anna.open("mine", 100.0, 1e-5)
    assert "ledger roles" in one_line(refused)
    with pytest.raises(InvalidInputError, match="by their owner alone"):
        anna._append(lambda state: {"kind": "move", "to": "/mine"})
    assert ledger.verify() == before


def test_a_trainer_opens_no_account_by_other_words(users, ledger, postgres, schema):
    """The kind of an entry is what a reader of JSON makes of it."""
    import psycopg

    state = ledger.read()
    for text in (
        '{"kind" : "open"}',
        '{"kind":"reserve","kind":"open"}',
        '{"kind":"\\u006fpen"}',
        '{"a":"\\ud800","kind":"open"}',
        '{"a":"\\\\ud800","kind":"open"}',
        '{"a":{"kind":"reserve"}}',
        "no json",
        '["kind"]',
    ):
        row = (len(state.entries) + 1, text, state.head, entry_hash(state.head, text))
        with pytest.raises(psycopg.errors.Error, match=r"by their owner alone|json"):
            postgres.execute(
                f"INSERT INTO graphveil_entries VALUES ({row[0]}, $a${text}$a$, '{row[2]}', "
                f"'{row[3]}')",
                schema=schema,
                user=users[0]._entries._server._fields["user"],
            )
    assert ledger.verify() == state


def test_an_auditor_reads_and_is_told_in_one_line_that_it_does_not_write(users, ledger):
    bob = users[1]
    assert bob.verify(head=ledger.read().head) == ledger.read()
    assert bob.export() == ledger.export()
    for call in (*(lambda action=action: action(bob) for action in ACTIONS.values()),):
        with pytest.raises(InvalidInputError, match=r"permission denied.*nothing was") as refused:
            call()
        assert "ledger roles" in one_line(refused)


def test_somebody_else_neither_reads_nor_writes(users):
    eve = users[2]
    for call in (
        eve.read,
        eve.verify,
        lambda: reserve(eve, "two", 5),
        lambda: eve.open("x", 1, 1e-5),
    ):
        with pytest.raises(InvalidInputError):
            call()


@pytest.mark.parametrize("names", [("a b", "c"), ("a", "a"), ("$$", "x"), ("", "x"), ("A", "b")])
def test_names_of_roles_are_plain_words(names):
    with pytest.raises(InvalidInputError):
        roles_sql(*names)


# --- passwords, and URLs --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "public"),
    [
        ("postgresql://u:secret@h/d", "postgresql://u@h/d"),
        ("postgres://u:secret@h1:1,h2:2/d?a=b", "postgres://u@h1:1,h2:2/d?a=b"),
        ("postgresql://:secret@/d?host=/s", "postgresql://@/d?host=/s"),
        ("postgresql:///d?user=u&password=secret&host=/s", "postgresql:///d?user=u&host=/s"),
        ("postgresql:///d?pass%77ord=secret", "postgresql:///d"),
        ("postgresql://[::1]:5432/d?sslpassword=secret", "postgresql://[::1]:5432/d"),
        ("postgresql://h:5432", "postgresql://h:5432"),
    ],
)
def test_a_password_is_in_no_place_that_is_noted(url, public):
    assert public_url(url) == public
    assert "secret" not in hide_passwords(f"Got {url!r} instead: {url} ({url})")


@pytest.mark.parametrize(
    "url",
    [
        "mysql://u:secret@h/d",
        "postgresql+psycopg://u:secret@h/d",
        "postgresql://u:sec/ret@h/d",
        "postgresql://u:sec@secret@h/d",
        "postgresql://u:sec?ret@h/d",
        "postgresql://u:sec ret@h/d",
        "https://secret",
    ],
)
def test_a_url_that_may_hide_a_password_is_refused_unprinted(url):
    with pytest.raises(InvalidInputError, match="USER@HOST/DATABASE") as refused:
        Ledger(url)
    assert "ret" not in one_line(refused).replace("password", "")


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("postgresql://u:secret@h/d?hst=1", "library reads"),
        ("postgresql://u:secret%zz@h/d", "library reads"),
        ("postgresql:///d?hst=1", 'invalid URI query parameter: "hst"'),
    ],
)
def test_a_url_that_postgresql_does_not_read_is_one_line(postgres, url, why):
    with pytest.raises(InvalidInputError, match=why) as refused:
        Ledger(url)
    assert "secret" not in one_line(refused)


def test_one_ledger_is_the_same_for_all_its_users():
    place = "postgresql://{}db:5432/budgets?host=a{}"
    assert identity(place.format("anna@", "")) == identity(place.format("", "&sslmode=require"))
    assert identity(place.format("", "")) != identity(place.format("", "&options=-cx%3Dy"))
    assert identity("/a/file@b") == "/a/file@b"


def test_a_wrong_password_is_refused_at_once_and_never_printed(postgres, ledger, schema):
    """It is not tried again and again, which might lock somebody out."""
    name = f"{schema}_secretive"
    postgres.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'rightful'")
    file = postgres.data / "pg_hba.conf"
    file.write_text(f"local all {name} scram-sha-256\n{file.read_text()}")
    postgres.execute("SELECT pg_reload_conf()")
    place = postgres.url(schema=schema)
    for password in ("wrongful", None):
        user = name if password is None else f"{name}:{password}"
        with pytest.raises(InvalidInputError, match="password") as refused:
            Ledger(place.replace("postgres@", f"{user}@")).read()
        assert "wrongful" not in one_line(refused)
    right = Ledger(place.replace("postgres@", f"{name}:rightful@"))
    with pytest.raises(InvalidInputError, match="There is no ledger") as refused:
        right.read()  # whoever may not use the schema sees nothing in it
    assert "rightful" not in one_line(refused) + right.place + right.name + repr(vars(right))


def test_a_password_is_read_from_where_postgresql_reads_it(
    postgres, ledger, schema, tmp_path, monkeypatch
):
    name = f"{schema}_filed"
    postgres.execute(f"CREATE ROLE {name} LOGIN SUPERUSER PASSWORD 'rightful'")
    file = postgres.data / "pg_hba.conf"
    file.write_text(f"local all {name} scram-sha-256\n{file.read_text()}")
    postgres.execute("SELECT pg_reload_conf()")
    place = postgres.url(name, schema=schema)
    (tmp_path / "pass").write_text(f"*:*:*:{name}:rightful\n")
    (tmp_path / "pass").chmod(0o600)
    monkeypatch.setenv("PGPASSFILE", str(tmp_path / "pass"))
    assert Ledger(place).read() == ledger.read()
    monkeypatch.delenv("PGPASSFILE")
    (tmp_path / "services").write_text(
        f"[team]\nhost={postgres.socket}\nuser={name}\npassword=rightful\ndbname=postgres\n"
        f"options=-csearch_path={schema}\n"
    )
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
    assert Ledger("postgresql:///?service=team").read() == ledger.read()


def test_what_is_not_there_is_one_clear_line(postgres, quickly):
    for place, why in (
        (postgres.new_url(), "There is no ledger"),
        (postgres.url(database="nowhere"), "does not exist"),
        (postgres.url(user="nobody_at_all"), "does not exist"),
        (f"postgresql:///x?host={postgres.socket}/nowhere", "cannot be used"),
    ):
        for call in (Ledger(place).read, Ledger(place).verify, lambda: reserve(Ledger(place), "x")):  # noqa: B023
            with pytest.raises(InvalidInputError, match=why):
                call()
    with pytest.raises(InvalidInputError, match="has no path"):
        _ = Ledger(postgres.new_url()).path


def test_without_the_driver_one_line_names_the_extra(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "psycopg", None)
    monkeypatch.delitem(sys.modules, "graphveil.privacy.ledger_server", raising=False)
    with pytest.raises(InvalidInputError, match=r"pip install 'graphveil\[postgres\]'"):
        Ledger("postgresql:///x")
    assert canonical({})  # the rest works


# --- from one place to another --------------------------------------------------------------------


@pytest.mark.parametrize("new_place", ["file", "server"], indirect=True)
@pytest.mark.parametrize("old", ["file", "server"])
def test_a_moved_ledger_goes_on_elsewhere_and_nowhere_else(postgres, tmp_path, old, new_place):
    place = tmp_path / "old.ledger" if old == "file" else postgres.new_url()
    source, target = make(place), Ledger(new_place)
    before = source.read()
    source.move(target)
    state = target.verify(head=before.head)
    assert state.entries[: len(before.entries)] == before.entries
    assert kinds(target)[-2:] == ["move", "arrive"]
    assert (state.progress, state.accounts) == (before.progress, before.accounts)
    ended = source.verify(head=before.head)
    assert (ended.moved_to, ended.entries) == (target.place, state.entries[:-1])
    for action in ACTIONS.values():
        with pytest.raises(InvalidInputError, match="was moved, and goes on at") as refused:
            action(source)
        assert target.place in one_line(refused)
    with pytest.raises(InvalidInputError, match="there already"):
        source.move(target)
    with pytest.raises(InvalidInputError, match="was moved"):
        source.move(Ledger(tmp_path / "another.ledger"))
    assert source.read() == ended
    for action in ACTIONS.values():
        if action is not ACTIONS["begin"]:
            action(target)
    target.verify(head=before.head)
    back = Ledger(tmp_path / "back.ledger")
    assert target.move(back).entries[: len(state.entries)] == state.entries
    reserve(back, "three", 1)


def test_a_move_that_was_killed_is_finished_by_the_same(postgres, tmp_path, monkeypatch):
    source, place = make(tmp_path / "old.ledger"), postgres.new_url()

    class Crash(BaseException):
        pass

    def crash(*_, **__):
        raise Crash

    before, append = source.read(), source._entries.append
    monkeypatch.setattr(source._entries, "append", crash)
    with pytest.raises(Crash):
        source.move(Ledger(place))
    assert source.read() == before  # only rehearsed
    assert not Ledger(place).exists()

    def append_and_crash(*given):
        append(*given)
        raise Crash

    monkeypatch.setattr(source._entries, "append", append_and_crash)
    with pytest.raises(Crash):
        source.move(Ledger(place))
    assert not Ledger(place).exists()
    with pytest.raises(InvalidInputError, match="was moved"):
        reserve(source, "two", 1)
    monkeypatch.undo()
    source.move(Ledger(place))
    reserve(Ledger(place), "two", 1)


def test_what_cannot_be_moved_to_changes_nothing(postgres, tmp_path, users):
    source = make(tmp_path / "old.ledger")
    before, other = source.read(), make(tmp_path / "other.ledger")
    denied = Ledger(postgres.url(users[2]._entries._server._fields["user"], schema="public"))
    for target in (other, Ledger(tmp_path / "no" / "folder"), denied, source):
        with pytest.raises(InvalidInputError):
            source.move(target)
        assert source.read() == before
    reserve(source, "two", 1)


def test_no_entry_says_that_it_arrived_where_nothing_was_moved(ledger):
    with pytest.raises(InvalidInputError, match="arrives where it was moved"):
        ledger._append(lambda state: {"kind": "arrive"})


# --- disks ----------------------------------------------------------------------------------------


def test_a_full_disk_of_the_server_loses_no_entry(postgres, small_disk, quickly):
    """A tablespace on a disk of 200 kilobytes: the tables cannot grow, and say so."""
    place = small_disk / "tables"
    place.mkdir()
    place.chmod(0o700)
    who = postgres.who
    if who:
        import os

        os.chown(place, who["user"], who["group"])
        for path in (place, *place.parents[:-1]):
            if path == place or path.stat().st_uid == 0:
                path.chmod(path.stat().st_mode | 0o111)
    name = postgres.new_schema()
    postgres.execute(f"CREATE TABLESPACE {name} LOCATION '{place}'")
    url = postgres.url(schema=name).replace("options=", f"options=-cdefault_tablespace%3D{name}%20")
    ledger = Ledger(url)
    ledger.open("people", 50.0, 1e-5)
    written, refused = [], 0
    for number in range(60):
        try:
            # Hardly compressible, or the server would keep it in no space at all.
            padding = "".join(entry_hash(str(number), str(i)) for i in range(60))
            reserve(ledger, f"run {number}", 1, facts={"padding": padding})
            written.append(f"run {number}")
        except InvalidInputError as error:
            assert "No space left" in str(error)  # noqa: PT017
            assert "nothing was written" in str(error)  # noqa: PT017
            refused += 1
    assert written
    assert refused
    assert list(ledger.verify().account("people").reservations) == written
    import subprocess

    subprocess.run(["mount", "-o", "remount,size=2m", str(small_disk)], check=True)
    reserve(ledger, "later", 1)
    assert list(ledger.verify().account("people").reservations) == [*written, "later"]
    postgres.execute(f"DROP SCHEMA {name} CASCADE", f"DROP TABLESPACE {name}")
