"""The catalog: real files where they are at hand, small ones of the same format where not."""

import dataclasses
import gzip
import io
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.io
import scipy.sparse as sp
import torch

from graphveil._errors import InvalidInputError
from graphveil.data import CATALOG, Entry, Sizes, available, how_to_get, load, names, sizes_of
from graphveil.data._cache import find, sha256_of
from graphveil.data._places import files_of, is_generated
from graphveil.data.catalog import entry_of
from graphveil.graph.checks import MASKS, check
from graphveil.graph.splits import split
from graphveil.graph.targets import LINK, TASKS

# name: nodes, undirected edges, features, classes
KNOWN = {
    "cora": (2708, 5278, 1433, 7),
    "citeseer": (3327, 4552, 3703, 6),
    "pubmed": (19717, 44324, 500, 3),
    "cora-ml": (2995, 8158, 2879, 7),
    "cs": (18333, 81894, 6805, 15),
    "computers": (13752, 245861, 767, 10),
    "facebook-pages": (22470, 170823, 4714, 4),
    "facebook100:Berkeley13": (22937, 852444, 522, 6),
}
FOLDERS = {
    "cora": "Cora",
    "citeseer": "CiteSeer",
    "pubmed": "PubMed",
    "cora-ml": "cora_ml",
    "cs": "CS",
    "computers": "Computers",
    "facebook-pages": "FacebookPagePage",
    "facebook100:Berkeley13": "facebook100",
}


def snapshot(folder):
    return {path: path.lstat().st_mtime_ns for path in [folder, *folder.rglob("*")]}


def refusal(*args, **options):
    with pytest.raises(InvalidInputError) as caught:
        load(*args, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", KNOWN)
def test_real_data_loads_with_the_known_counts_and_is_only_read(name, real):
    folder = real(FOLDERS[name])
    before = snapshot(folder)
    data = load(name, root=folder.parent)
    assert snapshot(folder) == before
    nodes, edges, features, classes = KNOWN[name]
    assert data.x.shape == (nodes, features)
    assert (data.x.dtype, data.edge_index.dtype, data.y.dtype) == (
        torch.float32,
        torch.long,
        torch.long,
    )
    assert data.num_edges == 2 * edges
    assert data.is_undirected()
    assert data.num_classes == classes == int(data.y.max()) + 1
    entry = CATALOG[name.partition(":")[0]]
    assert entry.num_nodes in (nodes, None)
    assert entry.num_features in (features, None)
    assert entry.own_split == ("train_mask" in data)
    check(split(data))


def write_npz(root, folder, file, nodes=6, features=4, classes=2):
    """A graph in the format of the gnn-benchmark files."""
    rng = np.random.default_rng(0)
    adjacency = sp.csr_matrix((np.ones(2), ([0, 1], [1, 2])), shape=(nodes, nodes))
    attributes = sp.csr_matrix(rng.integers(0, 2, size=(nodes, features)).astype(float))
    (root / folder / "raw").mkdir(parents=True)
    np.savez(
        root / folder / "raw" / file,
        adj_data=adjacency.data,
        adj_indices=adjacency.indices,
        adj_indptr=adjacency.indptr,
        adj_shape=adjacency.shape,
        attr_data=attributes.data,
        attr_indices=attributes.indices,
        attr_indptr=attributes.indptr,
        attr_shape=attributes.shape,
        labels=np.arange(nodes) % classes,
    )
    return attributes.toarray()


@pytest.mark.parametrize(
    "name, folder, file",
    [
        ("physics", "Physics", "ms_academic_phy.npz"),
        ("photo", "Photo", "amazon_electronics_photo.npz"),
    ],
)
def test_benchmark_files_load_through_pyg(root, name, folder, file):
    x = write_npz(root, folder, file)
    before = snapshot(root)
    data = load(name, root=root)
    assert data.x.tolist() == x.tolist()
    assert data.y.tolist() == [0, 1] * 3
    assert sorted(map(tuple, data.edge_index.t().tolist())) == [(0, 1), (1, 0), (1, 2), (2, 1)]
    assert data.num_classes == CATALOG[name].num_classes
    assert snapshot(root) == before


def test_the_root_may_come_from_the_environment(root, monkeypatch):
    write_npz(root, "Photo", "amazon_electronics_photo.npz")
    monkeypatch.setenv("GRAPHVEIL_DATA", str(root))
    assert load("photo").num_nodes == 6


def write_reddit(folder):
    folder.mkdir(parents=True)
    np.savez(
        folder / "reddit_data.npz",
        feature=np.ones((4, 3)),
        label=np.array([0, 40, 1, 2]),
        node_types=np.array([1, 1, 2, 3]),
    )
    graph = sp.coo_matrix((np.ones(2), ([0, 1], [1, 0])), shape=(4, 4))
    sp.save_npz(folder / "reddit_graph.npz", graph)


def test_reddit_brings_its_own_split(root):
    write_reddit(root / "Reddit" / "raw")
    data = check(load("reddit", root=root))
    assert data.train_mask.tolist() == [True, True, False, False]
    assert data.val_mask.tolist() == [False, False, True, False]
    assert data.edge_index.tolist() == [[0, 1], [1, 0]]


def test_a_download_is_kept_in_the_cache_and_not_in_the_root(root, tmp_path, serve):
    write_reddit(tmp_path / "server")
    archive = tmp_path / "reddit.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for path in (tmp_path / "server").iterdir():
            file.write(path, path.name)
    serve(lambda url: archive.read_bytes())
    assert load("reddit", root=root).num_nodes == 4
    assert not list(root.iterdir())
    cached = tmp_path / "cache" / "graphveil"
    kept = sorted(path.name for path in cached.rglob("*") if path.is_file())
    assert kept == ["reddit_data.npz", "reddit_graph.npz"]
    asked = serve(lambda url: b"")
    assert load("reddit", root=root).num_nodes == 4
    assert not asked


def test_a_broken_download_leaves_nothing_behind(root, tmp_path, serve):
    serve(lambda url: b"PK half a zip")
    for name in ("reddit", "ogbn-arxiv"):
        assert "could not be downloaded" in refusal(name, root=root)
        assert not list((tmp_path / "cache" / "graphveil").iterdir())


def test_planetoid_is_downloaded_by_its_checksums(root, tmp_path, real, serve):
    folder = real("Cora")
    files = {path.name: path.read_bytes() for path in (folder / "raw").iterdir()}
    asked = serve(lambda url: files[url.rpartition("/")[2]])
    data = load("cora", root=root)
    assert torch.equal(data.x, load("cora", root=folder.parent).x)
    assert all(map(sha256_of, asked))
    assert len(load("cora", root=root).y) == 2708
    assert len(asked) == 8  # not twice
    cached = (tmp_path / "cache" / "graphveil" / "Cora" / "raw").iterdir()
    assert {oct(path.stat().st_mode)[-3:] for path in cached} == {"644"}


def test_other_files_than_those_known_are_not_kept(root, tmp_path, serve):
    asked = serve(lambda url: b"a pickle that runs code")
    message = refusal("citeseer", root=root)
    assert "SHA-256" in message
    assert asked[0] in message
    assert sha256_of(asked[0]) in message
    assert not list((tmp_path / "cache" / "graphveil").iterdir())


def test_an_entry_says_whether_its_download_is_checked(root, serve):
    known = {
        "social", "hospital", "synthetic-er", "synthetic-citations", "facebook100", "pokec",
        "debian", "ecg", "relbench", "shop", "movielens-100k", "movielens-1m", "lastfm",
        "amazon-copurchase",
    }  # fmt: skip
    for name, entry in CATALOG.items():
        assert (entry.download == "none") == (name in known)
        if name not in known:
            asked = serve(lambda url: b"")
            refusal(example_of(name), root=root)
            assert bool(sha256_of(asked[0])) == (entry.download == "checked")


def write_csv(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as file:
        pd.DataFrame(rows).to_csv(file, header=False, index=False)


X = np.random.default_rng(1).normal(size=(5, 3)).round(6)
Y = [0, 1, 2, 1, 0]
E = [(0, 1), (1, 2), (4, 0)]
PARTS = {"train": [0, 1, 3], "valid": [2], "test": [4]}


def write_ogb(base, split_name):
    write_csv(base / "raw/node-feat.csv.gz", X)
    write_csv(base / "raw/node-label.csv.gz", Y)
    write_csv(base / "raw/edge.csv.gz", E)
    write_csv(base / "raw/num-node-list.csv.gz", [len(X)])
    write_csv(base / "raw/num-edge-list.csv.gz", [len(E)])
    for part, ids in PARTS.items():
        write_csv(base / f"split/{split_name}/{part}.csv.gz", ids)


def write_mag(base):
    write_csv(base / "raw/node-feat/paper/node-feat.csv.gz", X)
    write_csv(base / "raw/node-label/paper/node-label.csv.gz", Y)
    write_csv(base / "raw/relations/paper___cites___paper/edge.csv.gz", E)
    write_csv(base / "raw/relations/author___writes___paper/edge.csv.gz", [(9, 0)])
    for part, ids in PARTS.items():
        write_csv(base / f"split/time/paper/{part}.csv.gz", ids)


@pytest.mark.parametrize("name", ["ogbn-arxiv", "ogbn-products", "ogbn-mag"])
def test_ogb_files_are_read_with_their_split(root, name):
    base = root / name.replace("-", "_")
    if name == "ogbn-mag":
        write_mag(base)
    else:
        write_ogb(base, "time" if name == "ogbn-arxiv" else "sales_ranking")
    data = check(load(name, root=root))
    np.testing.assert_allclose(data.x, X, rtol=1e-6)
    assert data.y.tolist() == Y
    edges = E + [(b, a) for a, b in E] if name == "ogbn-products" else E
    assert sorted(map(tuple, data.edge_index.t().tolist())) == sorted(edges)
    assert data.is_directed() == CATALOG[name].directed
    for mask, ids in zip(MASKS, PARTS.values(), strict=True):
        assert data[mask].nonzero()[:, 0].tolist() == ids


@pytest.mark.parametrize("name", ["ogbn-arxiv", "ogbn-mag"])
def test_citations_made_undirected_stand_once_in_either_direction(root, name):
    base = root / name.replace("-", "_")
    if name == "ogbn-mag":
        write_mag(base)
        write_csv(base / "raw/relations/paper___cites___paper/edge.csv.gz", [*E, (1, 0)])
    else:
        write_ogb(base, "time")
        write_csv(base / "raw/edge.csv.gz", [*E, (1, 0)])
    data = check(load(f"{name}:undirected", root=root))
    assert sorted(map(tuple, data.edge_index.t().tolist())) == sorted(E + [(b, a) for a, b in E])
    assert (data.directed, sizes_of(f"{name}:undirected").directed) == (False, False)
    assert (load(name, root=root).directed, sizes_of(name).directed) == (True, True)
    assert "':undirected'" in refusal(f"{name}:both", root=root)


def test_ogbs_own_reader_sees_the_same_graph(root):
    reader = pytest.importorskip("ogb.io.read_graph_raw", reason="ogb is not installed")
    for name, mirror in (("ogbn-arxiv", False), ("ogbn-products", True)):
        base = root / name.replace("-", "_")
        write_ogb(base, "sales_ranking" if mirror else "time")
        (theirs,) = reader.read_csv_graph_raw(str(base / "raw"), add_inverse_edge=mirror)
        ours = load(name, root=root)
        np.testing.assert_array_equal(ours.x.numpy(), theirs["node_feat"].astype(np.float32))
        assert sorted(ours.edge_index.t().tolist()) == sorted(theirs["edge_index"].T.tolist())


def test_ogb_downloads_from_its_zip(root, tmp_path, serve):
    write_ogb(tmp_path / "server" / "arxiv", "time")
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        for path in (tmp_path / "server").rglob("*.gz"):
            file.write(path, path.relative_to(tmp_path / "server"))
    asked = serve(lambda url: archive.getvalue())
    assert load("ogbn-arxiv", root=root).num_nodes == 5
    assert load("ogbn-arxiv", root=root).num_nodes == 5
    assert asked == ["https://snap.stanford.edu/ogb/data/nodeproppred/arxiv.zip"]


def test_damaged_ogb_files_are_one_line(root):
    base = root / "ogbn_arxiv"
    write_ogb(base, "time")
    whole = (base / "raw/edge.csv.gz").read_bytes()
    (base / "raw/edge.csv.gz").write_bytes(whole[: len(whole) // 2])
    assert "cannot be read" in refusal("ogbn-arxiv", root=root)
    write_csv(base / "raw/edge.csv.gz", [(0, 7)])
    assert "0 -> 7" in refusal("ogbn-arxiv", root=root)
    write_csv(base / "raw/edge.csv.gz", E)
    write_csv(base / "raw/node-label.csv.gz", [0, 1, 2, 1, 40])
    assert "40 at node 4" in refusal("ogbn-arxiv", root=root)


def write_school(root, school, info):
    folder = root / "facebook100" / "raw"
    folder.mkdir(parents=True, exist_ok=True)
    friends = sp.csc_matrix(([1.0, 1.0], ([0, 1], [1, 0])), shape=(len(info), len(info)))
    info = np.array(info, dtype=np.uint16)
    scipy.io.savemat(folder / f"{school}.mat", {"A": friends, "local_info": info})


PEOPLE = [
    # status, gender, major, minor, dorm, year, high school
    [1, 2, 300, 301, 129, 2004, 9000],
    [2, 1, 301, 0, 0, 2009, 0],
    [0, 0, 0, 0, 0, 0, 0],
    [1, 1, 300, 0, 130, 2010, 1],
]


def test_facebook100_predicts_the_year_and_leaves_others_unlabelled(root):
    write_school(root, "Here1", PEOPLE)
    data = load("facebook100:Here1", root=root)
    assert data.y.tolist() == [0, 5, -1, -1]
    assert data.x.shape == (4, 522)
    assert data.x.sum(dim=1).tolist() == [5, 3, 0, 4]
    assert data.x[0].nonzero()[:, 0].tolist() == [0, 8 + 1, 10 + 43, 138 + 44, 266 + 128]
    assert data.edge_index.tolist() == [[1, 0], [0, 1]]


def test_facebook100_features_of_a_person_do_not_depend_on_the_others(root):
    write_school(root, "All1", PEOPLE)
    write_school(root, "Few1", PEOPLE[:2])
    everybody, few = (load(f"facebook100:{s}", root=root) for s in ("All1", "Few1"))
    assert torch.equal(everybody.x[:2], few.x)
    assert torch.equal(everybody.y[:2], few.y)


def test_facebook100_asks_which_school_when_there_are_several(root):
    assert "found there: none" in refusal("facebook100", root=root)
    write_school(root, "Here1", PEOPLE)
    assert load("facebook100", root=root).num_nodes == 4
    write_school(root, "There2", PEOPLE)
    assert "Here1, There2" in refusal("facebook100", root=root)
    assert "Here1, There2" in refusal("facebook100:../../secret", root=root)
    (root / "facebook100" / "raw" / "Here1.mat").write_bytes(b"garbled")
    assert "cannot be read" in refusal("facebook100:Here1", root=root)


@pytest.mark.parametrize("name", ["photo", "facebook-pages", "reddit", "ogbn-arxiv", "ogbn-mag"])
def test_absent_data_without_a_network_is_one_line(root, name):
    message = refusal(name, root=root)
    for part in (repr(name), str(root), "could not be downloaded", "no network", "root"):
        assert part in message
    assert not list(root.iterdir())


def test_damaged_files_are_one_line(root):
    write_npz(root, "Photo", "amazon_electronics_photo.npz", classes=6)
    path = root / "Photo" / "raw" / "amazon_electronics_photo.npz"
    path.write_bytes(path.read_bytes()[:300])
    assert "'photo'" in refusal("photo", root=root)
    path.write_bytes(b"")
    assert "cannot be read" in refusal("photo", root=root)


def test_names_roots_and_variants_are_checked(tmp_path):
    assert "ogbn-arxiv" in refusal("coar")
    assert "no variants" in refusal("cs:full")
    assert "'root'" in refusal("cora", root=tmp_path / "absent")


def test_a_path_is_read_as_a_path(tmp_path, monkeypatch):
    (tmp_path / "cora").mkdir()
    (tmp_path / "cora" / "nodes.csv").write_text("id,a\n1,2\n2,3\n")
    (tmp_path / "cora" / "edges.csv").write_text("source,target\n1,2\n")
    monkeypatch.chdir(tmp_path)
    assert load("./cora").num_nodes == 2
    assert load(Path("cora"), directed=True).num_edges == 1


def test_every_entry_says_what_it_is_and_on_what_terms():
    assert names() == list(CATALOG)
    assert len(CATALOG) == 33
    for name, entry in CATALOG.items():
        assert entry.name == name
        for field in ("title", "unit", "licence", "citation"):
            assert getattr(entry, field)
        assert entry.url.startswith("https://") or is_generated(name)
        assert entry.num_classes >= 2 or name in ("tu", "graphland", "relbench")
        assert entry.task in (*TASKS, LINK) or name in ("graphland", "relbench")
    with pytest.raises(dataclasses.FrozenInstanceError):
        CATALOG["cora"].licence = "mine"
    assert isinstance(CATALOG["cora"], Entry)


def test_listing_the_catalog_loads_no_library():
    code = (
        "import sys, graphveil.data, graphveil.graph.shares, graphveil.graph.transforms\n"
        "from graphveil.data.class_list import parse_classes\n"
        "graphveil.data.sizes_of('pubmed'), parse_classes('a,b')\n"
        "heavy = ('torch', 'torch_geometric', 'pandas', 'sklearn', 'numpy', 'scipy', 'pooch')\n"
        "sys.exit([name for name in heavy if name in sys.modules] or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_sizes_are_known_without_loading():
    known = {"num_features": 500, "num_classes": 3, "directed": False, "record": "node"}
    own = {"own_split": True, "takes_own_split": True, "split": (18_217, 500, 1000)}
    assert sizes_of("pubmed:full") == Sizes(num_records=19717, **known, **own)
    molecules = sizes_of("molbace")
    assert (molecules.num_records, molecules.record) == (1513, "graph")
    assert sizes_of("ogbn-arxiv").directed
    assert sizes_of("tu:MUTAG").num_classes is None
    assert sizes_of("./pubmed") is None


def test_the_page_lists_every_entry_with_its_terms():
    page = (Path(__file__).resolve().parents[2] / "docs" / "catalog.md").read_text()
    for entry in CATALOG.values():
        (row,) = [
            line
            for line in page.splitlines()
            if line.startswith((f"| [`{entry.name}`]", f"| `{entry.name}`"))
        ]
        classes = str(entry.num_classes or "varies")
        for text in (entry.unit, classes, entry.licence, entry.citation, entry.url):
            assert text in row


# --- what is on disk ------------------------------------------------------------------------------


def example_of(name):
    examples = {
        "tu": "tu:MUTAG",
        "facebook100": "facebook100:Here1",
        "graphland": "graphland:tolokers-2",
        "relbench": "relbench:rel-f1:driver-dnf",
    }
    return examples.get(name, name)


@pytest.mark.parametrize("name", [*CATALOG, "ogbn-mag:undirected", "ecg:cpsc", "pokec:vectors"])
def test_data_is_available_when_all_its_files_are_there(root, tmp_path, name):
    source = example_of(name)
    name, _, variant = source.partition(":")
    if is_generated(name):
        assert available(source, root)
        assert "generated" in how_to_get(source)
        return
    for folder, patterns in files_of(name, variant):
        for place in (root, tmp_path / "cache" / "graphveil"):
            assert not available(source, root)
            paths = [place / folder / pattern.replace("**/*", "raw/A1") for pattern in patterns]
            for path in paths:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
            assert available(source, root)
            for path in paths:
                path.unlink()
                assert not available(source, root)
                path.touch()
            for path in paths:
                path.unlink()
    sentence = how_to_get(source)
    assert entry_of(source).url in sentence
    assert folder in sentence
    assert ("downloaded" in sentence) == (CATALOG[name].download != "none")


@pytest.mark.parametrize("name", [name for name in CATALOG if not is_generated(name)])
def test_what_must_be_there_is_what_loaders_look_for(root, monkeypatch, name):
    if name in ("facebook100", "relbench"):
        pytest.skip("looks for files of any name: its own tests write one where it is said to be")
    asked = []

    def note(of, folder, files):
        asked.append((str(folder), tuple(files)))
        return find(of, folder, files)

    for module in ("_cache", "node_sets", "pokec", "recommendation_sets", "signals", "graphland"):
        monkeypatch.setattr(f"graphveil.data.{module}.find", note)
    source = example_of(name)
    refusal(source, root=root)
    expected = list(files_of(name, source.partition(":")[2]))
    assert [(folder, sorted(files)) for folder, files in asked] == [
        (folder, sorted(files)) for folder, files in expected
    ]


def test_of_other_names_the_path_is_looked_for(root, tmp_path):
    assert available(str(root), root)
    assert not available(str(tmp_path / "absent.npz"))
    assert "path" in how_to_get("absent.npz")
    for variant in ("cpsc", "cpsc:spectrum"):
        assert "content/challenge-2020" in how_to_get(f"ecg:{variant}")
    assert "content/ptb-xl" in how_to_get("ecg")
    write_school(root, "Here1", PEOPLE)
    assert available("facebook100:Here1:gap", root)
    assert available("facebook100", root)
    assert not available("facebook100:There2", root)
    with pytest.raises(InvalidInputError, match="root"):
        available("cora", tmp_path / "absent")


# --- Debian ---------------------------------------------------------------------------------------


def write_debian(folder, sections=19, each=2):
    folder.mkdir(parents=True)
    rows = [
        (n, f"p{n}", f"s{n % sections:02d}" if n < sections * each else "rare", f"word{n} of all")
        for n in range(sections * each + 1)
    ]
    packages = pd.DataFrame(rows, columns=["id", "name", "section", "text"])
    packages.to_csv(folder / "packages.csv.gz", index=False)
    links = pd.DataFrame([(0, 1), (2, sections * each)], columns=["source", "target"])
    links.to_csv(folder / "links.csv.gz", index=False)


def test_debian_has_the_large_sections_and_says_who_chose_them(root, monkeypatch):
    assert "packages.csv.gz" in refusal("debian", root=root)
    write_debian(root / "debian", each=10)
    monkeypatch.setattr("graphveil.data.node_sets._LEAST_SECTION", 10)
    before = snapshot(root)
    data = load("debian", root=root)
    assert snapshot(root) == before
    assert data.x.shape == (190, 1024)
    assert data.edge_index.tolist() == [[0, 1], [1, 0]]
    assert data.class_names == [f"s{n:02d}" for n in range(19)]
    assert data.y.tolist() == [n % 19 for n in range(190)]
    assert any("at least 10 documents" in line for line in data.unprotected)
    assert "no variants" in refusal("debian:tfidf", root=root)


def test_real_debian_has_the_known_counts(real):
    data = load("debian", root=real("debian").parent)
    entry = CATALOG["debian"]
    assert data.x.shape == (entry.num_nodes, entry.num_features)
    assert int(data.y.max()) + 1 == entry.num_classes == len(data.class_names)
    assert data.is_undirected()
