"""The commands of a ledger on a PostgreSQL server: as of one in a file, without its password."""

import json
import signal

import pytest

TRAIN = "train dp-mlp --epsilon 1 --delta 1e-4 --set steps=3 --set sample_rate=1.0"


@pytest.fixture
def ledger(answer, postgres):
    """A ledger by a URL with a password, which no answer may hold."""
    place = postgres.new_url().replace("postgres@", "postgres:geheim7@")
    opened = answer(f"ledger open {place} --name people --epsilon 4 --delta 1e-4")
    assert opened["ledger"] == place.replace(":geheim7", "")
    return place


def test_all_commands_take_a_url(run, answer, refused, ledger, graph, tmp_path):
    out, public = tmp_path / "run", ledger.replace(":geheim7", "")
    config = tmp_path / "run.toml"
    config.write_text(f'ledger = "{ledger}"\n')
    train = TRAIN.replace("dp-mlp", "late-graph")
    trained = answer(f"{train} --config {config} --data {graph} --out {out}")
    assert trained["ledger"]["ledger"] == public
    assert json.loads((out / "ledger.json").read_text())["ledger"] == public
    predicted = f"predict {out} --data {graph} --mode noisy --epsilon 1 --out {tmp_path / 'c.csv'}"
    assert answer(predicted)["ledger"]["ledger"] == public
    assert "would fit" in refused(f"{predicted} --force --epsilon 9", 3)
    shown = answer(f"ledger show {ledger}")
    assert [charge["settled"] for charge in shown["accounts"][0]["charges"]] == [True, True]
    verified = answer(f"ledger verify {ledger} --head {shown['head']} --runs {out}")
    assert verified["charges_of_runs"] == 2
    exported = tmp_path / "export.json"
    assert answer(f"ledger export {ledger} --out {exported}")["ledger"] == public
    copy = tmp_path / "copy.ledger"
    assert answer(f"ledger import {copy} {exported}")["head"] == shown["head"]
    assert "is there already" in refused(f"ledger import {ledger} {exported}")
    moved = answer(f"ledger migrate {ledger} {tmp_path / 'now.ledger'}")
    assert (moved["moved_from"], moved["entries"]) == (public, shown["entries"] + 2)
    assert answer(f"ledger show {ledger}")["moved_to"] == str(tmp_path / "now.ledger")
    assert "nothing is charged here any more" in " ".join(run(f"ledger show {ledger}")[1].split())
    assert "goes on at" in refused(
        f"{TRAIN} --data {graph} --out {tmp_path / 'x'} --ledger {ledger}"
    )
    for path in tmp_path.rglob("*"):
        assert path == config or not path.is_file() or b"geheim7" not in path.read_bytes()


@pytest.mark.parametrize(
    "line",
    [
        "ledger show {}nowhere",
        "ledger verify {} {}",
        "ledger show {}?hst=1",
        "ledger show mysql://a:geheim7@x/y",
        "ledger open {} --name people --epsilon 1 --delta 1e-5",
        "train dp-mlp --data {} --out x --epsilon 1",
        "{}",
        "predict {}",
    ],
)
def test_no_refusal_prints_a_password(run, ledger, line):
    code, out, err = run(line.format(*[ledger] * line.count("{}")))
    assert code == 2
    assert "geheim7" not in out + err
    assert len(err.splitlines()) == 1


def test_whoever_interrupts_is_told_how_it_goes_on_without_the_password(
    run, ledger, graph, tmp_path, monkeypatch
):
    from graphveil.grads.step import PrivateStep

    monkeypatch.setattr(PrivateStep, "_draw", lambda self: signal.raise_signal(signal.SIGINT))
    code, _, err = run(f"{TRAIN} --data {graph} --out {tmp_path / 'run'} --ledger {ledger}")
    assert code == 130
    assert "train --resume" in err
    assert "postgresql://postgres@/" in err
    assert "geheim7" not in err


def test_roles_are_printed_as_sql_that_runs(run, answer, refused, postgres):
    name = postgres.new_schema()
    answer(f"ledger open {postgres.url(schema=name)} --name people --epsilon 1 --delta 1e-5")
    code, out, err = run(f"ledger roles --trainers {name}_t --auditors {name}_a")
    assert (code, err) == (0, "")
    assert (
        answer(f"ledger roles --trainers {name}_t --auditors {name}_a")["sql"].strip()
        == out.strip()
    )
    postgres.execute(out, schema=name)
    granted = postgres.execute(
        "SELECT grantee, privilege_type FROM information_schema.role_table_grants WHERE table_name "
        f"= 'graphveil_entries' AND table_schema = '{name}' AND grantee <> 'postgres'"
    )
    assert sorted(granted) == [
        (f"{name}_a", "SELECT"), (f"{name}_t", "INSERT"), (f"{name}_t", "SELECT"),
    ]  # fmt: skip
    assert "1 to 63 letters" in refused("ledger roles --trainers x;y")
