"""Several processes: whose randomness, in which order, and that none is left behind."""

import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

import jobs_cases
from graphveil._errors import BudgetError, GraphveilError, InvalidInputError
from graphveil._jobs import Failures, count_threads, do_all, show_progress

HERE = str(Path(jobs_cases.__file__).parent)
posix = pytest.mark.skipif(os.name != "posix", reason="sends signals of POSIX")


def test_one_job_is_done_here_item_after_item():
    results = [done.take() for done in do_all(jobs_cases.Counter(), "ab", jobs=1, name=str)]
    assert results == [(os.getpid(), 1, "a"), (os.getpid(), 2, "b")]


def test_several_are_done_elsewhere_and_what_is_loaded_stays():
    values = [done.take() for done in do_all(jobs_cases.Counter(), range(6), jobs=2, name=str)]
    places = {place for place, _, _ in values}
    assert sorted(item for *_, item in values) == list(range(6))
    assert os.getpid() not in places
    assert len(places) == 2
    assert sum(max(n for p, n, _ in values if p == place) for place in places) == 6


def test_no_process_is_a_copy_of_this_one_nor_are_its_random_numbers(monkeypatch):
    monkeypatch.setitem(jobs_cases.LOCAL, "changed", True)
    values = [done.take() for done in do_all(jobs_cases.draw, range(8), jobs=2, name=str)]
    assert len({noise for noise, _, _ in values}) == 8
    assert not any(changed for _, changed, _ in values)  # as a forked one would have it


def test_items_are_asked_for_when_somebody_is_free():
    asked, done = [], []

    def items():
        for item in range(6):
            asked.append((item, len(done)))
            yield item

    for one in do_all(str, items(), jobs=2, name=str):
        done.append(one.take())
    assert all(count >= item - 1 for item, count in asked)
    assert sorted(done) == list("012345")


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_error_names_its_item_and_others_are_done(jobs):
    items = ["fine", "refused", "broken", "noticed"]
    with pytest.warns(UserWarning, match="look here"):
        results = list(do_all(jobs_cases.fail_at, items, jobs=jobs, name="run {}".format))
    ended = {done.item: done for done in results}
    assert ended["fine"].take() == "fine"
    assert ended["noticed"].take() == "noticed"
    with pytest.raises(BudgetError, match=r"^run refused: The budget must last\.$"):
        ended["refused"].take()
    with pytest.raises(GraphveilError, match=r"^run broken: unexpected UnportableError: no"):
        ended["broken"].take()


def test_a_process_that_is_killed_is_one_line():
    results = do_all(jobs_cases.fail_at, ["fine", "killed"], jobs=2, name="run {}".format)
    assert next(results).take() == "fine"
    with pytest.raises(GraphveilError, match="want of memory, at one of: run killed"):
        next(results)


def test_failures_are_raised_at_once_or_at_the_end():
    with pytest.raises(BudgetError, match="first"):
        Failures(go_on=False).add(0, BudgetError("first"))
    failures = Failures(go_on=True)
    failures.raise_first()
    failures.add(3, GraphveilError("late."))
    failures.add(1, BudgetError("early."))
    with pytest.raises(BudgetError, match=r"^early\. And another one failed\.$"):
        failures.raise_first()


@pytest.mark.parametrize("jobs", [0, -1, 1.5, True, 2000])
def test_a_number_of_processes_that_makes_no_sense_is_refused(jobs):
    with pytest.raises(InvalidInputError, match="'jobs'"):
        next(do_all(str, [1], jobs=jobs, name=str))


def test_cores_are_shared_and_a_smaller_number_is_kept(monkeypatch):
    monkeypatch.setattr("joblib.cpu_count", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert [count_threads(jobs) for jobs in (1, 2, 3, 8, 20)] == [8, 4, 2, 1, 1]
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert [count_threads(jobs) for jobs in (2, 8)] == [2, 1]
    monkeypatch.setenv("OMP_NUM_THREADS", "4,2")
    assert count_threads(2) == 4


def test_progress_advances_with_what_is_done():
    shown, closed = [], []

    def progress(steps):
        assert len(steps) == 3
        try:
            for step in steps:
                yield step
                shown.append(step)
        finally:
            closed.append(True)

    with show_progress(progress, 3) as advance:
        assert shown == []
        for count in (1, 2, 3):
            advance()
            assert len(shown) == count
    assert closed
    with show_progress(None, 3) as advance:
        advance()


# --- nobody is left behind ------------------------------------------------------------------------


def is_there(process):
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        pass
    else:
        return state != "Z"
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return not Path("/proc").exists()


def wait_for(condition):
    for _ in range(1200):
        if condition():
            return True
        time.sleep(0.05)
    return False


@posix
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_who_started_it(number, tmp_path):
    code = f"import sys; sys.path.insert(0, {HERE!r}); import jobs_cases; import signal\n"
    code += "signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\n"
    code += f"jobs_cases.main({str(tmp_path)!r})"
    with subprocess.Popen(
        [sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as asking:
        assert wait_for(lambda: len(list(tmp_path.iterdir())) == 2)
        workers = [int(path.name) for path in tmp_path.iterdir()]
        assert all(map(is_there, workers))
        if number == signal.SIGKILL:  # which its own process alone gets
            asking.kill()
        else:  # as a terminal's Ctrl-C, or a scheduler: to all of them at once
            os.killpg(asking.pid, number)
        _, err = asking.communicate(timeout=60)
    assert asking.returncode != 0
    assert err.count("Traceback") == (number == signal.SIGINT)  # of the one that asked
    assert wait_for(lambda: not any(map(is_there, workers)))


def test_who_stops_asking_ends_the_processes(tmp_path):
    with (
        closing(do_all(jobs_cases.sleep_noted, [str(tmp_path)] * 2, jobs=2, name=str)) as results,
        pytest.raises(KeyboardInterrupt),
    ):
        raise_when_begun(results, tmp_path)
    workers = [int(path.name) for path in tmp_path.iterdir()]
    assert len(workers) == 2
    assert wait_for(lambda: not any(map(is_there, workers)))


def raise_when_begun(results, folder):
    """Interrupt this process once both are at work."""
    import threading

    def interrupt():
        wait_for(lambda: len(list(folder.iterdir())) == 2)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    next(results)


@pytest.mark.slow
def test_a_fixed_stream_gives_the_same_weights_in_every_process(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    elsewhere = [done.take() for done in do_all(jobs_cases.fit_fixed, [0, 0], jobs=2, name=str)]
    assert [threads for _, threads in elsewhere] == [1, 1]
    here, _ = jobs_cases.fit_fixed(0)
    assert {weights for weights, _ in elsewhere} == {here}
