"""How time and memory grow with a graph that stays on disk, and what a much larger one would take.

    python benchmarks/scale.py [--quick] [--method late-graph] [--out results/scale.json]

One axis is changed at a time: nodes, edges for each node, features, classes, the cap K of dp-gnn,
and processes. Graphs are planted (a neighbour has the same class with probability 0.8), written as
stores, and trained and predicted on by a process of their own. ``seconds`` are those of the
processor in training and prediction, without loading a library, a plan or a store; ``gib`` is the
most memory that was held beside pages of files. With several ranks both are those of the rank with
most; rank 0 predicts. Exponents are slopes of logarithms. The last part is an estimate of
ogbn-papers100M from constants that were measured here: nobody ran it.
"""

import argparse
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

from graphveil.data.store_format import ArrayFacts, Manifest, sha256_of

AXES = {
    "nodes": (50_000, 100_000, 200_000, 400_000),
    "degree": (5, 10, 20, 40),
    "features": (25, 50, 100, 200),
    "classes": (5, 10, 20, 40),
    "cap": (1, 3, 7, 15),
    "ranks": (1, 2),
}
BASE = {"nodes": 100_000, "degree": 10, "features": 100, "classes": 10, "cap": 7, "ranks": 1}
QUICK = {
    "nodes": (20_000, 80_000),
    "degree": (10, 40),
    "features": (100, 400),
    "classes": (10, 40),
    "cap": (2, 7),
    "ranks": (1, 2),
}
METHODS = ("late-graph", "gap", "dp-gnn")
PAPERS = {"nodes": 111_059_956, "messages": 2 * 1_615_685_872, "features": 128, "classes": 172}
BATCH, STEPS, TRAINED = 10_000, 100, 0.1
_AT_ONCE = 1 << 20


# --- stores ---------------------------------------------------------------------------------------


class Planted:
    """Nodes with classes ``y``; whom one of them names has its class with probability 0.8."""

    def __init__(self, rng, nodes, classes):
        self.y = rng.integers(classes, size=nodes, dtype=np.int16)
        self._members = np.argsort(self.y, kind="stable").astype(np.int32)
        self._counts = np.bincount(self.y, minlength=classes)
        self._firsts = np.cumsum(self._counts) - self._counts

    def others(self, rng, nodes):
        """Whom some nodes name, one each."""
        any_other = rng.integers(len(self.y), size=len(nodes))
        of_class, share = self.y[nodes], rng.random(len(nodes))
        places = (share * self._counts[of_class]).astype(np.int64) + self._firsts[of_class]
        return np.where(rng.random(len(nodes)) < 0.8, self._members[places], any_other)


def plant(path, nodes, degree, features, classes, seed=0):
    """Write a planted undirected graph as a store, and say how large it is."""
    rng = np.random.default_rng(seed)
    planted = Planted(rng, nodes, classes)
    y, one = planted.y, rng.integers(nodes, size=nodes * degree // 2)
    other = planted.others(rng, one)
    words = np.concatenate([one * nodes + other, other * nodes + one])
    words = np.unique(words[words // nodes != words % nodes])
    senders, receivers = words // nodes, (words % nodes).astype(np.int32)
    path.mkdir(parents=True)
    offsets = np.concatenate([[0], np.cumsum(np.bincount(senders, minlength=nodes))])
    part = rng.random(nodes)
    arrays = {
        "offsets": offsets.astype(np.int64),
        "receivers": receivers,
        "y": y.astype(np.int64),
        "train_mask": part < TRAINED,
        "val_mask": (part >= TRAINED) & (part < 2 * TRAINED),
        "test_mask": part >= 2 * TRAINED,
    }
    for name, array in arrays.items():
        np.save(path / f"{name}.npy", array)
    means = 0.3 * rng.standard_normal((classes, features), dtype=np.float32)
    shape = nodes, features
    x = np.lib.format.open_memmap(path / "x.npy", "w+", np.float32, shape)
    for first in range(0, nodes, _AT_ONCE):
        some = slice(first, min(first + _AT_ONCE, nodes))
        noise = rng.standard_normal((some.stop - first, features), dtype=np.float32)
        x[some] = means[y[some]] + noise
    x.flush()
    listed = {
        name: ArrayFacts(str(a.dtype), a.shape, sha256_of(path / f"{name}.npy"))
        for name, a in {**arrays, "x": x}.items()
    }
    Manifest(
        num_nodes=nodes, num_features=features, num_classes=classes, num_messages=len(receivers),
        directed=False, arrays=listed, source="planted",
    ).write(path)  # fmt: skip
    return len(receivers)


def disk(nodes, messages, features):
    """The bytes of a store with float32 features, labels and masks."""
    return 8 * (nodes + 1) + 4 * messages + 4 * nodes * features + (8 + 3) * nodes


# --- one run --------------------------------------------------------------------------------------


def held():
    """Bytes that are held beside pages of files."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return 1024 * int(line.split()[1])
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # with pages of files


class Watch:
    """The most that was held inside a ``with``, and the processor's seconds."""

    def __enter__(self):
        self.peak, self._done = held(), threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        self._wall, self._start = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_):
        self.seconds = time.process_time() - self._start
        self.wall = time.perf_counter() - self._wall
        self._done.set()
        self._thread.join()

    def _look(self):
        while not self._done.wait(0.02):
            self.peak = max(self.peak, held())


def run_here(path, name, cap):
    """Train in this process, and predict if it is the first; a JSON line on stdout."""
    import graphveil
    from graphveil import processes
    from graphveil.methods import DPGNN, GAP, LateGraph
    from graphveil.methods.plan import Facts

    data = graphveil.load(path)
    rate = min(1.0, BATCH / int(data.train_mask.sum()))
    makers = {
        "late-graph": lambda: LateGraph(epsilon=8.0, steps=STEPS),
        "gap": lambda: GAP(epsilon=8.0, hops=2),
        "dp-gnn": lambda: DPGNN(
            epsilon=8.0, sender_cap=cap, sample_rate=rate, steps=STEPS, delivery=1.0
        ),
    }
    method = makers[name]()
    plan = method.plan(Facts.of(data)).on(data)
    with processes.join() as ranks, Watch() as fit:
        method.run(plan, data)
    figures = {"fit_seconds": fit.seconds, "wall_seconds": fit.wall, "gib": fit.peak / 2**30}
    figures |= {"seconds": fit.seconds, "rank": ranks.rank}
    if ranks.first:
        with Watch() as predict:
            answers = method.predict_proba(data)
        right = (answers.argmax(1) == data.y)[data.test_mask]
        figures |= {
            "seconds": fit.seconds + predict.seconds,
            "predict_seconds": predict.seconds,
            "wall_seconds": fit.wall + predict.wall,
            "gib": max(fit.peak, predict.peak) / 2**30,
            "test_accuracy": float(right.float().mean()),
        }
    print(json.dumps(figures))


def run(folder, name, point):
    """Figures of one method on one point, in a process of its own."""
    sizes = [point[axis] for axis in ("nodes", "degree", "features", "classes")]
    path = folder / "-".join(map(str, sizes))
    if not path.exists():
        plant(path, *sizes)
    manifest = json.loads((path / "manifest.json").read_text())
    code = [sys.executable, "-W", "ignore", __file__, "--store", str(path)]
    code += ["--method", name, "--cap", str(point["cap"])]
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        port = place.getsockname()[1]
    world = {
        "WORLD_SIZE": str(point["ranks"]),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    ranks = []
    for rank in range(point["ranks"]):
        environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": "1"}
        if point["ranks"] > 1:
            environment |= {**world, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        pipe = subprocess.PIPE
        ranks.append(subprocess.Popen(code, env=environment, stdout=pipe, stderr=pipe, text=True))
    answers = [process.communicate() for process in ranks]
    for process, (_, trouble) in zip(ranks, answers, strict=True):
        if process.returncode:
            raise SystemExit(f"{name} on {path.name}: {trouble[-2000:]}")
    all_ranks = [json.loads(shown.splitlines()[-1]) for shown, _ in answers]
    figures = next(one for one in all_ranks if one.pop("rank") == 0)
    for most in ("fit_seconds", "seconds", "gib"):
        figures[most] = max(one[most] for one in all_ranks)
    size = sum(file.stat().st_size for file in path.iterdir())
    return {"method": name, **point, "messages": manifest["num_messages"], "disk": size, **figures}


# --- what they come to ----------------------------------------------------------------------------


def exponent(sizes, figures):
    """The slope of log(figure) over log(size); None of fewer than two sizes."""
    if len(set(sizes)) < 2:
        return None
    return float(np.polyfit(np.log(sizes), np.log(figures), 1)[0])


def _time_terms(nodes, messages, features, classes):
    """What time may be a sum of, each with a constant that is not negative."""
    return {
        "once": 1.0,
        "message": messages,
        "feature of a node": nodes * features,
        "class of a node": nodes * classes,
    }


def _memory_terms(nodes, messages, features, classes):
    """What memory may be a sum of: nothing that is held is as long as messages, or N x D."""
    return {"once": 1.0, "node": nodes, "class of a node": nodes * classes}


def large_runs(name, path):
    """The runs of a method on the two large graphs of benchmarks/products.py, as those here."""
    sizes = {"products": (100, 47), "large": (16, 10)}
    content = json.loads(path.read_text())["rows"]
    built = {row["graph"]: row for row in content.values() if "nodes" in row}
    runs = []
    for key, row in content.items():
        if key.split()[0] != name:
            continue
        features, classes = sizes[row["graph"]]
        phases = [row[phase] for phase in ("fit", "predict")]
        runs.append(
            {
                **{size: built[row["graph"]][size] for size in ("nodes", "messages")},
                "features": features,
                "classes": classes,
                "seconds": sum(phase["processor"] for phase in phases),
                "gib": max(phase["gib"] for phase in phases),
            }
        )
    return runs


def estimate(result, path=Path("results/products.json")):
    """An estimate of papers100M for every method, where large runs weigh as much as small ones."""
    for name in result["exponents"]:
        runs = [run for run in result["runs"] if run["method"] == name]
        base = result["base"]
        small = [r for r in runs if r["cap"] == base["cap"] and r["ranks"] == 1]
        large = large_runs(name, path) if path.exists() else []
        weights = [1.0] * len(small) + [len(small) / max(len(large), 1)] * len(large)
        result["papers100M"][name] = extrapolate([*small, *large], weights, **PAPERS)


def extrapolate(runs, weights, nodes, messages, features, classes):
    """Disk, memory and hours of a larger graph, by constants that fit all ``runs`` of a method.

    An estimate: it assumes a disk that feeds the processor, and nothing that grows faster than the
    sizes. ``off`` is the largest factor by which the constants miss a run.
    """
    sizes = ("nodes", "messages", "features", "classes")
    result = {"disk_gib": disk(nodes, messages, features) / 2**30}
    figures = (
        ("seconds", "hours", 3600.0, _time_terms),
        ("gib", "memory_gib", 1.0, _memory_terms),
    )
    for figure, name, unit, terms in figures:
        larger = terms(nodes, messages, features, classes)
        rows = [[*terms(*(r[size] for size in sizes)).values()] for r in runs]
        measured = np.array([r[figure] for r in runs])
        # Relative errors, so that small runs count as much as large ones.
        heavy = np.sqrt(weights)
        scaled = np.array(rows) / measured[:, None]
        norms = np.linalg.norm(scaled * heavy[:, None], axis=0)
        constants = nnls(scaled * heavy[:, None] / norms, heavy)[0] / norms
        result[name] = float(constants @ [*larger.values()]) / unit
        said = scaled @ constants
        result[f"{figure}_off"] = float(max(said.max(), (1 / said).max()))
        result[f"{figure}_for_each"] = dict(zip(larger, constants.tolist(), strict=True))
    return result


def measure(methods, axes, base, out):
    """Every method along every axis that it has; written when a method is done."""
    result = {"base": base, "runs": [], "exponents": {}, "papers100M": {}}
    with tempfile.TemporaryDirectory() as folder:
        for name in methods:
            known = {}
            for axis, values in axes.items():
                if axis == "cap" and name != "dp-gnn":
                    continue
                along = []
                for value in values:
                    point = {**base, axis: value}
                    key = tuple(point.values())
                    if key not in known:
                        known[key] = run(Path(folder), name, point)
                        report(known[key])
                    along.append(known[key])
                slopes = {f: exponent(values, [r[f] for r in along]) for f in ("seconds", "gib")}
                result["exponents"].setdefault(name, {})[axis] = slopes
            result["runs"] += known.values()
            estimate(result)
            out.write_text(json.dumps(result, indent=1) + "\n")
    return result


def table(result):
    """What was measured, for the page about training on stores."""
    lines = ["| method | axis | from | to | time grows as | memory grows as |"]
    lines += ["| --- | --- | --- | --- | --- | --- |"]
    for name, slopes in result["exponents"].items():
        for axis, slope in slopes.items():
            if slope["seconds"] is not None:
                ends = [run[axis] for run in result["runs"] if run["method"] == name]
                grows = " | ".join(f"{axis}^{slope[figure]:.2f}" for figure in ("seconds", "gib"))
                lines.append(f"| `{name}` | {axis} | {min(ends):,} | {max(ends):,} | {grows} |")
    lines += ["", "| estimate of ogbn-papers100M | disk, GiB | memory, GiB | hours of one core |"]
    lines[-1] += " constants miss a run by at most |"
    lines += ["| --- | --- | --- | --- | --- |"]
    for name, larger in result["papers100M"].items():
        sizes = f"{larger['disk_gib']:.0f} | {larger['memory_gib']:,.0f} | {larger['hours']:.1f}"
        off = f"a factor of {larger['gib_off']:.1f} (memory), {larger['seconds_off']:.1f} (time)"
        lines.append(f"| `{name}` | {sizes} | {off} |")
    return "\n".join(lines)


def report(figures):
    """One line of a run, at once."""
    sizes = " ".join(f"{axis}={figures[axis]:,}" for axis in BASE)
    print(
        f"{figures['method']:11s} {sizes}  {figures['seconds']:7.2f} s  {figures['gib']:5.2f} GiB",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small graphs, for a look")
    parser.add_argument("--method", choices=METHODS, help="one method; default: all")
    parser.add_argument("--out", default="results/scale.json")
    parser.add_argument("--estimate", action="store_true", help="of OUT, without a run")
    parser.add_argument("--store", help=argparse.SUPPRESS)
    parser.add_argument("--cap", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.store:
        run_here(options.store, options.method, options.cap)
        return
    if options.estimate:
        result = json.loads(Path(options.out).read_text())
        estimate(result)
        Path(options.out).write_text(json.dumps(result, indent=1) + "\n")
        print(table(result))
        return
    base = {**BASE, "nodes": 20_000} if options.quick else BASE
    methods = [options.method] if options.method else METHODS
    axes = QUICK if options.quick else AXES
    result = measure(methods, axes, base, Path(options.out))
    for name, slopes in result["exponents"].items():
        for axis, slope in slopes.items():
            if slope["seconds"] is not None:
                print(
                    f"{name:11s} {axis:9s} time ^{slope['seconds']:.2f} memory ^{slope['gib']:.2f}"
                )
    for name, larger in result["papers100M"].items():
        print(
            f"estimate of papers100M, {name}: {larger['disk_gib']:.0f} GiB of disk, "
            f"{larger['memory_gib']:.0f} GiB of memory, {larger['hours']:.1f} hours of one core"
        )


if __name__ == "__main__":
    main()
