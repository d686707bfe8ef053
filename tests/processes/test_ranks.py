"""Two processes train as one does: the same weights, one noise, coins of their own, one line."""

import functools
import json
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import ranks_cases as cases
import safetensors.torch
import torch
from scipy import stats

from graphveil import processes
from graphveil._errors import InvalidInputError
from graphveil.cli import cli
from graphveil.grads.clipped import ClippedSum
from graphveil.grads.clipping import Flat
from graphveil.graph import neighbourhoods
from graphveil.graph.blocks import block_sizes
from graphveil.methods import Facts
from graphveil.methods.terms import node_losses
from graphveil.privacy.ledger import Ledger
from graphveil.privacy.ledger_state import count_releases
from graphveil.runs import Run

FACTS = Facts(num_nodes=900, num_features=6, num_classes=3, num_train=900, directed=False)

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="this build of torch has no torch.distributed"
)


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """What two processes answer to every case, each for itself."""
    out = tmp_path_factory.mktemp("answers")
    both = cases.start([cases.HERE / "ranks_cases.py", out])
    said = [process.communicate(timeout=300)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    return [torch.load(out / f"{rank}.pt", weights_only=False) for rank in (0, 1)]


@pytest.mark.parametrize("case", cases.METHOD_CASES)
def test_weights_and_certificate_are_those_of_one_process(answers, case):
    alone, (first, second) = cases.fit(case), [answer[case] for answer in answers]
    assert first["certificate"] == second["certificate"] == alone["certificate"]
    for name, weight in alone["weights"].items():
        assert torch.equal(first["weights"][name], second["weights"][name])
        torch.testing.assert_close(first["weights"][name], weight, rtol=0, atol=1e-6)


@pytest.mark.parametrize("case", ["dp-mlp", "dp-gnn, two hops", "graph-dpsgd"])
def test_the_comparison_would_see_a_share_that_is_lost(case, monkeypatch):
    alone = cases.fit(case)
    monkeypatch.setattr(processes.Ranks, "share", lambda self, ids: ids[ids % 2 == 0])
    half = cases.fit(case)["weights"]
    apart = [(half[name] - weight).abs().max() for name, weight in alone["weights"].items()]
    assert max(apart) > 1e-3


def test_noise_is_added_once(answers):
    noise = answers[0]["noise"]
    assert torch.equal(noise, answers[1]["noise"])
    scale = cases.NOISE * cases.BOUND
    total = float((noise.double() / scale).square().sum())
    low, high = (stats.chi2(noise.numel()).ppf(p) for p in (1e-9, 1 - 1e-9))
    assert low < total < high
    assert 1.1 * high < 2 * noise.numel()  # so that noise of both ranks would be seen
    assert low / 1.1 > noise.numel() / 2
    apart = noise.flatten(1)
    assert (torch.corrcoef(apart) - torch.eye(len(apart))).abs().max() < 0.07  # fresh in every step


def test_rows_of_sums_are_shared_and_equal_to_the_last_bit(answers):
    alone, first = cases.fixed_sums(), answers[0]["sums"]
    assert torch.equal(first, alone)
    # What another rank holds is not what is released: it draws no noise.
    assert not torch.equal(answers[1]["sums"], alone)


def test_every_row_of_a_sum_gets_its_noise_once(answers):
    noise = answers[0]["noise of sums"] / (cases.NOISE * cases.BOUND)
    assert noise.shape == (130, 40)
    low, high = (stats.chi2(noise.numel()).ppf(p) for p in (1e-9, 1 - 1e-9))
    assert low < float(noise.square().sum()) < high
    assert 1.1 * high < 2 * noise.numel()
    rows = noise.square().sum(1)
    low, high = (stats.chi2(40).ppf(p) for p in (1e-11, 1 - 1e-11))
    assert low < float(rows.min()) < float(rows.max()) < high
    assert (torch.corrcoef(noise) - torch.eye(130)).abs().max() < 0.9  # no row has another's


@pytest.mark.parametrize("world", [1, 2, 3, 7])
@pytest.mark.parametrize("some", [slice(0, 10), slice(50, 51), slice(5, 19), slice(4, 4)])
def test_every_row_is_one_ranks(world, some):
    parts = []
    for rank in range(world):
        place = SimpleNamespace(world=world, rank=rank)
        place._rows_each = functools.partial(processes.Group._rows_each, place)
        parts.append(processes.Group.rows(place, some))
    rows = [row for part in parts for row in range(part.start, part.stop)]
    assert rows == list(range(some.start, some.stop))


def test_an_adaptive_bound_counts_the_terms_of_all(answers):
    alone, (first, second) = cases.learnt_bound(), [answer["bound"] for answer in answers]
    assert first["bound"] == second["bound"] == pytest.approx(alone["bound"], abs=1e-12)
    assert first["told"] == pytest.approx(alone["told"], abs=1e-6)
    assert second["told"] == []  # losses are private: rank 0 alone tells
    torch.testing.assert_close(first["weights"], alone["weights"], rtol=0, atol=1e-6)
    assert torch.equal(first["weights"], second["weights"])


def test_no_two_ranks_draw_the_same_side_coins(answers):
    first, second = (answer["coins"] for answer in answers)
    assert len(set(first)) == len(first) == 9 == len(second)
    assert not set(first) & set(second)


def test_a_rank_draws_other_side_coins_in_every_run(answers):
    # One process of a fixed stream repeats itself; the second rank has its system's numbers.
    assert answers[0]["coins"] == cases.side_coins()
    assert not set(answers[1]["coins"]) & set(cases.side_coins())


def test_what_cannot_be_shared_is_refused_on_all_ranks(answers):
    for answer in answers:
        assert "in the open" in answer["refusals"]["open-gap"]
        assert "has neither" in answer["refusals"]["dp-popularity"]
        assert "Rank 1 has another than rank 0" in answer["refusals"]["noise"]
        for unlike in ("dp-mlp, rows", "dp-link, links", "examples", "beliefs"):
            assert "Rank 1 has another than rank 0" in answer["refusals"][unlike]


@pytest.mark.parametrize("world", [1, 2, 3, 7])
def test_every_id_is_one_ranks(world):
    ids = torch.randperm(1000)[:500]
    shares = [
        processes.Group.share(SimpleNamespace(world=world, rank=rank), ids) for rank in range(world)
    ]
    assert torch.equal(torch.cat(shares).sort().values, ids.sort().values)
    others = torch.cat([ids, torch.arange(1000, 1200)])
    for rank, share in enumerate(shares):  # whose they are follows from the id alone
        more = processes.Group.share(SimpleNamespace(world=world, rank=rank), others)
        assert torch.equal(more[: len(share)], share)


def test_a_term_that_leaves_changes_blocks_of_its_own_share_alone():
    """Blocks of a share join where a term leaves, and nowhere else: as those of all terms do."""
    ids = torch.arange(3, 4000, 2)  # a share of two ranks

    def blocks(numbers):
        sizes = block_sizes(numbers, torch.full_like(numbers, 3), 96)
        return {tuple(block.tolist()) for block in numbers.split(sizes)}

    whole = blocks(ids)
    for left in (0, 777, len(ids) - 1):
        kept = ids[torch.arange(len(ids)) != left]
        fewer = blocks(kept)
        lost, made = whole - fewer, fewer - whole
        assert len(made) <= 1
        assert int(ids[left]) in set().union(*map(set, lost))
        assert set().union(*map(set, made)) == set().union(*map(set, lost)) - {int(ids[left])}


def test_shares_of_terms_in_blocks_add_up(monkeypatch):
    monkeypatch.setattr(neighbourhoods, "_MANY", 1)
    torch.manual_seed(0)
    x, y = torch.randn(900, 6), torch.arange(900) % 3
    edges, roots = torch.randint(900, (2, 2000)), torch.arange(900)
    terms = neighbourhoods.RootedTerms.capped(x, y, edges, roots, 1, max_sent=3)
    assert terms.in_blocks
    network = cases.METHODS["dp-gnn"](epsilon=1.0).build(FACTS)
    losses = node_losses(cases.METHODS["dp-gnn"](epsilon=1.0).task(FACTS), None)
    summed = ClippedSum(network, losses, Flat(1.0))
    drawn = torch.randperm(900)[:700]

    def total(ids):
        return torch.cat([value.flatten() for value in summed(terms.batches(ids)).values()])

    halves = total(drawn[drawn % 2 == 0]) + total(drawn[drawn % 2 == 1])
    torch.testing.assert_close(halves, total(drawn), rtol=0, atol=1e-6 * 700)
    assert (total(drawn[drawn % 2 == 0]) - total(drawn)).abs().max() > 1


# --- who a process is -----------------------------------------------------------------------------


def test_a_process_without_a_launcher_is_alone(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with processes.join() as ranks:
        assert ranks is processes.ALONE
        assert processes.current() is processes.ALONE


@pytest.mark.parametrize("name, value", [("RANK", "2"), ("RANK", "x"), ("MASTER_PORT", "0")])
def test_a_place_that_cannot_be_is_refused(monkeypatch, name, value):
    plain = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    for key, what in (plain | {name: value}).items():
        monkeypatch.setenv(key, what)
    with pytest.raises(InvalidInputError, match="start with torchrun"):
        processes.place()


def test_more_ranks_than_are_paid_for_are_refused(monkeypatch):
    plain = {"RANK": "0", "WORLD_SIZE": "65", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    for key, what in plain.items():
        monkeypatch.setenv(key, what)
    with pytest.raises(InvalidInputError, match="At most 64"), processes.join():
        pass


# --- failures -------------------------------------------------------------------------------------

_FAILING = """
import json, os, signal, sys
import torch
from graphveil import processes
from graphveil._errors import BudgetError
said = {}
with processes.join(30.0) as ranks:
    ranks.add(torch.ones(3))
    if ranks.rank == int(sys.argv[2]) and sys.argv[1] == "refuses":
        raise BudgetError("no more is left")
    if ranks.rank == int(sys.argv[2]) and sys.argv[1] == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        ranks.add(torch.ones(3))
        ranks.once(lambda: torch.ones(3))
    except Exception as error:
        print(json.dumps([type(error).__name__, str(error)]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "how, whose, kind, line",
    [
        ("refuses", 1, "BudgetError", "On rank 1: no more is left"),
        ("refuses", 0, "EndedError", "Rank 0 has ended"),
        ("dies", 1, "LostRankError", "rank 1 was lost"),
    ],
)
def test_a_rank_that_is_gone_ends_the_others(how, whose, kind, line):
    both = cases.start(["-c", _FAILING, how, whose])
    try:
        said, _ = both[1 - whose].communicate(timeout=120)
        both[whose].communicate(timeout=120)
    finally:
        for process in both:
            process.kill()
    name, message = json.loads(said)
    assert name == kind
    assert line in message


@pytest.mark.slow
def test_a_killed_rank_ends_a_charged_run_that_goes_on_alone(tmp_path):
    """As torchrun starts them: the ledger counts what was begun, and nothing is left running."""
    book, place = tmp_path / "ledger", tmp_path / "run"
    cli.main(["ledger", "open", str(book), "--name", "people", "--epsilon", "9", "--delta", "1e-5"],
             standalone_mode=False)  # fmt: skip
    plan = ["train", "dp-mlp", "--data", "social", "--epsilon", "1", "--delta", "1e-5"]
    asked = [*plan, "--set", "steps=1000", "--out", str(place)]
    run, charged = Run(place), ["--ledger", str(book), "--account", "people"]
    launcher = ["-m", "torch.distributed.run", "--nproc_per_node=2"]
    launcher += [f"--master_port={cases.free_port()}", "-m", "graphveil"]
    with (tmp_path / "said").open("w") as said:
        started = subprocess.Popen(
            [sys.executable, *launcher, *asked, *charged],
            env=cases.plain_environment(),
            stderr=said,
        )
        try:
            while started.poll() is None and not run.checkpoint.steps_begun():
                time.sleep(0.05)
            ranks = cases.children_of(started.pid)
            assert len(ranks) == 2
            os.kill(max(ranks), signal.SIGKILL)
            assert started.wait(timeout=60) == 1
        finally:
            started.kill()
    assert not [pid for pid in ranks if cases.is_running(pid)]
    lines = [line for line in (tmp_path / "said").read_text().splitlines() if "--resume" in line]
    assert len(lines) <= 1
    begun = run.checkpoint.steps_begun()
    ledger = Ledger(book).read()
    reservation = ledger.reservation(run.charged_to()["reservation"])
    assert reservation.settled is None
    assert 0 < begun <= sum(ledger.progress[reservation.id].values())
    cli.main([*asked, "--resume"], standalone_mode=False)
    assert count_releases(run.read().charges_) == 1001  # the steps, and the mean of the rows
    assert Ledger(book).read().reservation(reservation.id).settled


_LOST = """
import os, signal, sys
from graphveil import processes
from graphveil.cli import cli
from graphveil.methods import hop_training

how, *words = sys.argv[1:]
collect, classify = processes.Group.collect, hop_training.classify

def die():
    if processes.current().rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)

def die_in_sums(self, *rest):
    die()
    return collect(self, *rest)

def die_after_sums(*rest):
    die()
    return classify(*rest)

if how == "in the sums":
    processes.Group.collect = die_in_sums
else:
    hop_training.classify = die_after_sums
cli.main(words)
"""


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["node", "edge"])
@pytest.mark.parametrize("how", ["in the sums", "after the sums"])
def test_gap_that_loses_a_rank_counts_what_it_released(how, unit, tmp_path):
    """Sums that nobody has seen cost nothing; those on disk are counted, and not made again."""
    book, place = tmp_path / "ledger", tmp_path / "run"
    delta = "1e-5" if unit == "node" else "1e-9"  # there are more pairs than nodes
    cli.main(["ledger", "open", str(book), "--name", "people", "--epsilon", "9", "--delta", delta],
             standalone_mode=False)  # fmt: skip
    asked = ["train", "gap", "--data", "social", "--epsilon", "1", "--delta", delta]
    asked += ["--set", "steps=5", "--set", f"unit={unit}", "--out", str(place)]
    both = cases.start(["-c", _LOST, how, *asked, "--ledger", str(book), "--account", "people"])
    told = [process.communicate(timeout=120)[1] for process in both]
    assert [process.returncode for process in both] == [1, -signal.SIGKILL], told
    assert "rank 1 was lost" in told[0]
    assert "--resume" in told[0]

    run = Run(place)
    sums = run.checkpoint.directory / "hop1.safetensors"
    assert "hop1" in run.checkpoint.releases
    assert sums.exists() == (how == "after the sums")
    before = safetensors.torch.load(sums.read_bytes())["sums"] if sums.exists() else None
    ledger = Ledger(book).read()
    reservation = ledger.reservation(run.charged_to()["reservation"])
    assert reservation.settled is None
    noted = ledger.progress.get(reservation.id, {})
    if unit == "node":
        assert any(str(name).endswith("encoder") and taken >= 5 for name, taken in noted.items())
    assert any("hop1" in str(name) for name in noted) == sums.exists()

    cli.main([*asked, "--resume"], standalone_mode=False)  # alone, and at no further cost
    method = run.read()
    assert before is None or torch.equal(method.cache_[:, 0], before)
    assert count_releases(method.charges_) == count_releases(method.plan_.charges)
    assert Ledger(book).read().reservation(reservation.id).settled
