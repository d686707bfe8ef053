"""The data sets graphveil knows by name: what they are, how they load, on what terms.

    data = load("pubmed", root="/data")     # raw files as PyG lays them out; they are only read
    data = load("facebook100:Berkeley13")   # one school of many: what follows is a variant
    data = load("molbace")                  # many graphs, each a record: see graph_sets.py
    data = load("my-graph/")                # a graph of your own, see files.py

``root`` defaults to the environment's ``GRAPHVEIL_DATA``, and that to the cache.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from graphveil._errors import InvalidInputError
from graphveil._inputs import at_home
from graphveil.data._cache import cache
from graphveil.data._link_sets import LINK_SETS
from graphveil.data._places import files_of, is_generated, is_there
from graphveil.data._task_sets import TASK_SETS
from graphveil.graph.shares import part_ends

if TYPE_CHECKING:
    from torch_geometric.data import Data

Loader = Callable[[str, Path, str], "Data"]  # the name as written, the root, the variant


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What is known of a data set before it is loaded. None, or 0 classes: it depends on the files.

    ``task`` is what is learnt, see :mod:`graphveil.graph.targets`, and ``value_range`` between
    which values.
    ``record`` is what is labelled and split, a ``node`` of one graph or a ``graph`` of many, or a
    ``link``: see :mod:`graphveil.data._link_sets`;
    ``unit`` is what such a record is in the world, hence what a guarantee for one protects.
    ``num_nodes`` counts the nodes of all graphs, of the name without a variant. ``variants``: the
    name may be followed by a colon and more, as the note says; ``of_variant`` gives the fields
    that are others then. ``own_split``: the data brings masks. ``takes_own_split``: they are
    taken where nobody asks for another, because the data set is defined by them; ``split`` is how
    many records are to train, validate and test on. ``download`` says what becomes of
    files that are not here: they are downloaded and ``checked`` by a known SHA-256, downloaded
    ``unchecked`` because no checksum of them is known, or there is ``none``.
    """

    name: str
    title: str
    load: Loader
    unit: str
    num_nodes: int | None
    num_features: int | None
    num_classes: int
    task: str | None = "multiclass"
    value_range: tuple[float, float] | None = None
    record: str = "node"
    num_graphs: int | None = None
    target_features: int | None = None
    directed: bool = False
    own_split: bool = False
    shares: tuple[float, float, float] | None = None  # of a drawn split, where its paper has others
    takes_own_split: bool = False
    split: tuple[int, int, int] | None = None
    variants: bool = False
    of_variant: Callable[[str], Mapping[str, Any]] = lambda variant: {}
    download: Literal["checked", "unchecked", "none"] = "unchecked"
    licence: str
    citation: str
    url: str
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The public sizes of a data set, which a plan needs; None where they depend on the files.

    ``record`` is ``"node"``, ``"graph"`` or ``"link"``; ``directed`` is False where the records
    are graphs. The last four are those of :class:`Entry`.
    """

    num_records: int | None
    num_features: int | None
    num_classes: int | None
    directed: bool
    record: str
    own_split: bool = False
    takes_own_split: bool = False
    split: tuple[int, int, int] | None = None
    task: str | None = "multiclass"
    value_range: tuple[float, float] | None = None
    target_features: int | None = None


def sizes_of(source: str) -> Sizes | None:
    """The public sizes of the data set ``source``, a name perhaps with a variant.

    None for any other name or path. Nothing is loaded: neither data nor a library to read it.
    """
    entry = entry_of(source)
    if entry is None:
        return None
    of_graphs = entry.record == "graph"
    return Sizes(
        num_records=entry.num_graphs if of_graphs else entry.num_nodes,
        num_features=entry.num_features,
        num_classes=1 if entry.task == "regression" else entry.num_classes or None,
        directed=entry.directed and not of_graphs,
        record=entry.record,
        own_split=entry.own_split,
        takes_own_split=entry.takes_own_split,
        split=entry.split,
        task=entry.task,
        value_range=entry.value_range,
        target_features=entry.target_features,
    )


def entry_of(source: str) -> Entry | None:
    """The entry of the name ``source``, with what its variant changes; None for any other name."""
    name, _, variant = source.partition(":")
    entry = CATALOG.get(name)
    if entry is None or not variant:
        return entry
    return replace(entry, **entry.of_variant(variant))


def names() -> list[str]:
    """The names that :func:`load` knows."""
    return list(CATALOG)


def load(
    source: Any = None,
    root: str | Path | None = None,
    *,
    nodes: Any = None,
    edges: Any = None,
    schema: Any = None,
    classes: Any = None,
    directed: bool | None = None,
    people: Any = None,
    target: str | None = None,
    link: str | None = None,
) -> Data:
    """The graph or graphs called ``source``, at the path ``source``, or in two tables.

    A data set of the catalog has ``x`` (float32), ``edge_index``, ``y``, ``num_classes``, and the
    three masks if it brings a split of its own; undirected graphs have each edge in both
    directions. Many graphs have ``batch`` and ``num_graphs`` besides, and ``y`` and masks of one
    entry for each graph. A name goes before a path: write ``./cora`` for a folder called cora.

    ``nodes`` and ``edges`` are tables in memory: DataFrames of pandas or polars, or anything that
    streams Arrow (pyarrow, DuckDB), with the columns that files have. ``source`` may be such a
    pair, or a graph of NetworkX, too. ``schema``, ``classes`` and ``directed`` are for data of
    your own, see :func:`graphveil.data.files.read`.

    Of tables of several types, and of PyG's ``HeteroData``, ``people`` names the types that are
    people, ``target`` the one whose label is predicted, and ``link`` a relation to predict; see
    :mod:`graphveil.data.typed`.

    *Guarantee*: none; loading is not releasing.
    """
    typed = {"people": people, "target": target, "link": link}
    if nodes is not None or edges is not None:
        if source is not None or nodes is None or edges is None:
            raise InvalidInputError(
                "Give a name or a path, or both 'nodes' and 'edges'. Got something else instead."
            )
        source = nodes, edges
    if not isinstance(source, (str, Path)):
        from graphveil.data.in_memory import read_memory

        return read_memory(source, schema=schema, classes=classes, directed=directed, **typed)
    entry = entry_of(source) if isinstance(source, str) else None
    if entry is None:
        check_exists(source)
        from graphveil.data import files

        return files.read(source, schema=schema, classes=classes, directed=directed, **typed)
    of_files = {"schema": schema, "classes": classes, "directed": directed, **typed}
    for what, stated in of_files.items():
        if stated is not None:
            raise InvalidInputError(
                f"The '{what}' parameter is for files of your own. Got {stated!r} for "
                f"{entry.name!r} instead, of which it is known; leave it out."
            )
    return _load_entry(entry, str(source), root)


def _load_entry(entry: Entry, source: str, root: str | Path | None) -> Data:
    name, _, variant = source.partition(":")
    if variant and not entry.variants:
        raise InvalidInputError(
            f"The data set {name!r} has no variants. Got {source!r} instead; write {name!r}."
        )
    data = entry.load(source, _root(root), variant)
    if "directed" not in data:  # files may say it of themselves
        data.directed = entry.directed
    if entry.num_classes and entry.record != "link":
        data.num_classes = entry.num_classes
    if entry.task not in (None, "multiclass", "link") and "task" not in data:
        data.task = entry.task
    from graphveil.graph.checks import check

    try:
        return check(data, labels=False, masks=False)
    except InvalidInputError as error:
        raise InvalidInputError(f"The files of {source!r} are damaged: {error}") from None


def available(source: str, root: str | Path | None = None) -> bool:
    """Whether the files of ``source`` are all on this machine, or it is generated.

    Nothing is loaded, downloaded or read. For any other name: whether there is such a path.

    *Guarantee*: none is needed; it looks at names of files alone.
    """
    name, _, variant = source.partition(":")
    if name not in CATALOG:
        return at_home(source).exists()
    return is_there(name, variant, _root(root))


def how_to_get(source: str) -> str:
    """In one sentence, how the files of the data set ``source`` are got."""
    name, _, variant = source.partition(":")
    entry = entry_of(source)
    if entry is None:
        return f"{source} is no data set of the catalog: give the path of a file."
    if is_generated(name):
        return f"{source} is generated: nothing is needed."
    place = " or ".join(dict.fromkeys(folder for folder, _ in files_of(name, variant)))
    place = place or f"the folder that {name} names"
    if entry.download == "none":
        return f"Get {entry.title} from {entry.url} and put the files into {place} below --root."
    return (
        f"{entry.title} ({entry.url}) is downloaded when it is first loaded; without a network put "
        f"its files into {place} below --root."
    )


def check_exists(source: str | Path) -> None:
    """Refuse what is neither a name of the catalog nor a path, before anything is loaded."""
    if str(source).partition(":")[0] not in CATALOG and not at_home(source).exists():
        raise InvalidInputError(
            f"There is no file or directory {str(source)!r}, and no data set of that name; give a "
            f"path or one of {', '.join(CATALOG)}."
        )


def _root(root: str | Path | None) -> Path:
    if root is None:
        return at_home(os.environ.get("GRAPHVEIL_DATA") or cache())
    path = at_home(root)
    if not path.is_dir():
        raise InvalidInputError(
            f"The 'root' parameter must be a folder with data. Got {str(root)!r} instead; leave it "
            "out to use GRAPHVEIL_DATA or the cache."
        )
    return path


def _loader(path: str, *args: Any, **options: Any) -> Loader:
    """The function ``module:function`` of this package, imported when it is first called."""

    def load_raw(name: str, root: Path, variant: str) -> Data:
        module, _, function = path.partition(":")
        loader = getattr(importlib.import_module(f"graphveil.data.{module}"), function)
        return loader(name, root, variant, *args, **options)

    return load_raw


_pyg = partial(_loader, "node_sets:pyg")

_CORA_ML = "https://github.com/abojchevski/graph2gauss/raw/master/data/cora_ml.npz"
_FACEBOOK_PAGES = "https://graphmining.ai/datasets/ptg/facebook.npz"
_NOT_STATED = "not stated by its authors"


def _about(
    name: str, title: str, unit: str, nodes: int | None, features: int | None, classes: int
) -> dict[str, Any]:
    """The fields of an entry that say what the data set is, and its sizes."""
    sizes = {"num_nodes": nodes, "num_features": features, "num_classes": classes}
    return {"name": name, "title": title, "unit": unit, **sizes}


def _planetoid(folder: str, title: str, *sizes: int) -> Entry:
    nodes, _, classes = sizes
    full = {"takes_own_split": True, "split": (nodes - 1500, 500, 1000)}
    return Entry(
        **_about(folder.lower(), title, "a paper", *sizes),
        load=_loader("node_sets:planetoid", folder),
        own_split=True,
        split=(20 * classes, 500, 1000),
        variants=True,
        of_variant=_variants(full=full),
        download="checked",
        licence=_NOT_STATED,
        citation="Yang, Cohen, Salakhutdinov (2016), Revisiting semi-supervised learning with "
        "graph embeddings",
        url="https://github.com/kimiyoung/planetoid",
        note="The raw files are pickles, which PyG unpickles: use files you trust. Its own split "
        "has 20 nodes a class to train on and is taken by the split given; else one is drawn. "
        "NAME:full trains on whoever is not in validation or test, as Igamberdiev & Habernal do.",
    )


def _variants(**changes: Mapping[str, Any]) -> Callable[[str], Mapping[str, Any]]:
    """What each variant changes of an entry; others change nothing."""
    return lambda variant: changes.get(variant, {})


_ARXIV_SPLIT = (90_941, 29_799, 48_603)


def citations_variant(variant: str) -> tuple[int, int] | None:
    """Nodes and seed of ``synthetic-citations:VARIANT``; None if that is neither."""
    nodes, _, seed = (variant or "169343").partition(":")
    if not re.fullmatch(r"[1-9][0-9]{3,6}", nodes) or not re.fullmatch(r"[0-9]{0,18}", seed):
        return None
    return (int(nodes), int(seed or 0)) if int(nodes) <= 1_000_000 else None


def citations_split(nodes: int) -> tuple[int, int, int]:
    """How many of so many synthetic papers are to train, validate and test on: arXiv's shares."""
    train, left, _ = part_ends(nodes, [part / sum(_ARXIV_SPLIT) for part in _ARXIV_SPLIT])
    return train, left - train, nodes - left


def _citations(variant: str) -> Mapping[str, Any]:
    sizes = citations_variant(variant)
    return {} if sizes is None else {"num_nodes": sizes[0], "split": citations_split(sizes[0])}


def _shchur(kind: str, folder: str, file: str, *sizes: int) -> Entry:
    url = "https://github.com/shchur/gnn-benchmark"
    more, unit = (", bought together", "a product") if kind == "Amazon" else ("", "an author")
    return Entry(
        **_about(folder.lower(), f"{kind} {folder}{more}", unit, *sizes),
        load=_pyg(kind, folder, f"{url}/raw/master/data/npz/{file}.npz", member=folder),
        licence="MIT (the benchmark's repository)",
        citation="Shchur et al. (2018), Pitfalls of graph neural network evaluation",
        url=url,
    )


_HU = "Hu et al. (2020), Open Graph Benchmark"
_defined_by_split = partial(Entry, own_split=True, takes_own_split=True)
_ogb_entry = partial(_defined_by_split, citation=_HU, url="https://ogb.stanford.edu")
_reddit_entry = partial(
    _defined_by_split,
    licence=_NOT_STATED,
    citation="Hamilton, Ying, Leskovec (2017), Inductive representation learning on large graphs",
    url="https://snap.stanford.edu/graphsage/",
)
_graphs_entry = partial(Entry, record="graph")
_tu_entry = partial(
    _graphs_entry,
    citation="Morris et al. (2020), TUDataset: a collection of benchmark datasets",
    url="https://chrsmrrs.github.io/datasets",
)

_ENTRIES = (
    Entry(
        **_about("social", "Synthetic social network", "a person", 20_000, 64, 6),
        load=_loader("synthetic:social"),
        download="none",
        licence="Apache-2.0 (generated by graphveil)",
        citation="none",
        url="",
        note="Synthetic: nobody in it is real. Needs no download.",
    ),
    Entry(
        **_about("hospital", "Synthetic hospital", "a patient", 5000, 41, 2),
        task="binary",
        load=_loader("hospital:hospital"),
        variants=True,
        of_variant=_variants(
            lab={"num_classes": 0, "task": "regression", "value_range": (10.0, 60.0)},
            triage={"num_classes": 5, "task": "ordinal"},
            diagnoses={"num_classes": 8, "task": "multilabel"},
            ward={"num_classes": 6, "num_features": 35, "task": "multiclass"},
            typed={"num_features": 88},
        ),
        download="none",
        licence="Apache-2.0 (generated by graphveil)",
        citation="none",
        url="",
        note="Synthetic: nobody in it is real. Predicts who died, about 3 in 100; hospital:lab an "
        "albumin (regression), hospital:triage a level 1 to 5 (ordinal), hospital:diagnoses eight "
        "labels, hospital:ward six wards, hospital:typed who is readmitted, by tables of patients, "
        "drugs and diagnoses. graphveil data export writes it as tables.",
    ),
    Entry(
        **_about(
            "synthetic-citations",
            "Synthetic citations, of arXiv's size",
            "a paper",
            169_343,
            128,
            40,
        ),
        load=_loader("synthetic:synthetic_citations"),
        own_split=True,
        takes_own_split=True,
        split=_ARXIV_SPLIT,
        variants=True,
        of_variant=_citations,
        download="none",
        licence="Apache-2.0 (generated by graphveil)",
        citation="none",
        url="",
        note="Synthetic: no paper in it is real. Sizes and shares of the split are ogbn-arxiv's; a "
        "paper's own features say little, its neighbours' much. Write synthetic-citations:NODES "
        "for 1,000 to 1,000,000 nodes, and synthetic-citations:NODES:SEED for other graphs.",
    ),
    _planetoid("Cora", "Cora citations", 2708, 1433, 7),
    _planetoid("CiteSeer", "CiteSeer citations", 3327, 3703, 6),
    _planetoid("PubMed", "PubMed diabetes citations", 19717, 500, 3),
    Entry(
        **_about("cora-ml", "Cora, machine learning papers", "a paper", 2995, 2879, 7),
        load=_pyg("CitationFull", "cora_ml", _CORA_ML, member="Cora_ML"),
        licence="MIT (the authors' repository)",
        citation="Bojchevski, Günnemann (2018), Deep Gaussian embedding of graphs",
        url="https://github.com/abojchevski/graph2gauss",
        note="Citations are read as undirected, as PyG does.",
    ),
    _shchur("Coauthor", "CS", "ms_academic_cs", 18333, 6805, 15),
    _shchur("Coauthor", "Physics", "ms_academic_phy", 34493, 8415, 5),
    _shchur("Amazon", "Computers", "amazon_electronics_computers", 13752, 767, 10),
    _shchur("Amazon", "Photo", "amazon_electronics_photo", 7650, 745, 8),
    Entry(
        **_about("facebook-pages", "Facebook page-page likes (MUSAE)", "a page", 22470, None, 4),
        load=_pyg("FacebookPagePage", "FacebookPagePage", _FACEBOOK_PAGES),
        licence=_NOT_STATED,
        citation="Rozemberczki, Allen, Sarkar (2021), Multi-scale attributed node embedding",
        url="https://snap.stanford.edu/data/facebook-large-page-page-network.html",
        note="128 features as PyG downloads it, 4714 in the original.",
    ),
    Entry(
        **_about("facebook100", "Facebook100, one school of 2005", "a person", None, 522, 6),
        load=_loader("node_sets:facebook100"),
        variants=True,
        download="none",
        licence="none; research use, real people",
        citation="Traud, Mucha, Porter (2012), Social structure of Facebook networks",
        url="https://archive.org/details/oxford-2005-facebook-matrix",
        note="Write facebook100:SCHOOL. Predicts the class year, 2004-2009; others are unlabelled. "
        "facebook100:SCHOOL:gap leaves the unlabelled out, and who then has no friends: read off "
        "private edges, so that no guarantee holds for it. Not downloaded: get the .mat files "
        "yourself.",
    ),
    _reddit_entry(
        **_about("reddit", "Reddit posts with common commenters", "a post", 232_965, 602, 41),
        load=_loader("node_sets:reddit"),
        split=(153_431, 23_831, 55_703),
    ),
    _reddit_entry(
        **_about("reddit-sample", "Reddit posts, a tenth of them", "a post", 23_297, 602, 41),
        load=_loader("node_sets:reddit_sample"),
        variants=True,
        note="Drawn from the ids by a public seed: write reddit-sample:SEED for another than 0. "
        "Reads the files of reddit.",
    ),
    Entry(
        **_about("pokec", "Pokec users with a cat or a dog", "a person", 20_000, None, 2),
        load=_loader("pokec:pokec"),
        shares=(0.8, 0.1, 0.1),
        directed=True,
        variants=True,
        download="none",
        licence="none; research use, real people",
        citation="Takac, Zabovsky (2012), Data analysis in public social networks",
        url="https://snap.stanford.edu/data/soc-Pokec.html",
        note="Write pokec:hash, pokec:vectors, pokec:sentence, pokec:columns or pokec:bow-public "
        "for the kind of features. Predicts cats or dogs, chosen as Igamberdiev & Habernal do; who "
        "is chosen counts as public. Not downloaded: get the files yourself.",
    ),
    Entry(
        **_about("debian", "Packages of Debian 12, one line each", "a package", 51_214, 1024, 19),
        load=_loader("node_sets:debian"),
        download="none",
        licence="differs from package to package",
        citation="Debian Project (2023), package list of Debian 12",
        url="https://packages.debian.org/bookworm/",
        note="Predicts the section from the words of the description, hashed, and from the "
        "packages depended on. Of sections with 1,000 packages or more; which they are counts as "
        "public. Not downloaded: put packages.csv.gz (id, section, text) and links.csv.gz (source, "
        "target) into the folder debian.",
    ),
    _ogb_entry(
        **_about("ogbn-arxiv", "arXiv computer science citations", "a paper", 169_343, 128, 40),
        load=_loader("node_sets:ogb", "time"),
        directed=True,
        split=_ARXIV_SPLIT,
        variants=True,
        of_variant=_variants(undirected={"directed": False}),
        licence="ODC-BY",
        note="ogbn-arxiv:undirected has each citation in both directions.",
    ),
    _ogb_entry(
        **_about(
            "ogbn-products", "Amazon products, bought together", "a product", 2_449_029, 100, 47
        ),
        load=_loader("node_sets:ogb", "sales_ranking", mirror=True),
        split=(196_615, 39_323, 2_213_091),
        licence="Amazon licence",
    ),
    _ogb_entry(
        **_about("ogbn-mag", "Microsoft Academic Graph, papers only", "a paper", 736_389, 128, 349),
        load=_loader("node_sets:ogb", "time", papers=True),
        directed=True,
        split=(629_571, 64_879, 41_939),
        variants=True,
        of_variant=_variants(undirected={"directed": False}),
        licence="ODC-BY",
        note="Reduced to papers and the citations between them, as Daigavane et al. do. "
        "ogbn-mag:undirected has each citation in both directions.",
    ),
    _graphs_entry(
        **_about("synthetic-er", "Synthetic Erdos-Renyi graphs", "a graph", 20_000, 9, 2),
        load=_loader("synthetic:synthetic_er"),
        num_graphs=1000,
        own_split=True,
        takes_own_split=True,
        split=(600, 100, 300),
        variants=True,
        download="none",
        licence="Apache-2.0 (generated by graphveil)",
        citation="Mueller et al. (2022), Differentially private graph classification with GNNs",
        url="https://arxiv.org/abs/2202.02575",
        note="Synthetic: needs no download. Write synthetic-er:NODES for 10 to 500 nodes a graph "
        "instead of 20, and synthetic-er:NODES:SEED for other graphs.",
    ),
    _tu_entry(
        **_about("fingerprint", "Fingerprint, four merged classes", "a fingerprint", 14_347, 2, 4),
        load=_loader("graph_sets:fingerprint"),
        num_graphs=1900,
        licence=_NOT_STATED,
        variants=True,
        of_variant=_variants(whorls={"num_nodes": 14_387}),
        note="Classes as Mueller et al. merge them; without the prints of other classes, and "
        "without those that have no node. fingerprint:whorls counts all whorls as such.",
    ),
    _ogb_entry(
        **_about(
            "molbace", "ogbg-molbace, inhibitors of beta-secretase 1", "a molecule", 51_577, 174, 2
        ),
        load=_loader("graph_sets:molbace"),
        record="graph",
        num_graphs=1513,
        split=(1210, 151, 152),
        licence="MIT",
        variants=True,
        of_variant=_variants(codes={"num_features": 9}),
        note="OGB's scaffold split. Atoms and bonds as columns of 0 and 1 from OGB's public lists; "
        "molbace:codes has the nine codes of an atom as they are.",
    ),
    _graphs_entry(
        **_about("ecg", "Electrocardiograms, twelve leads each", "a recording", 23_844, 250, 2),
        load=_loader("signals:ecg"),
        num_graphs=1987,
        variants=True,
        download="none",
        licence="CC BY 4.0",
        citation="Wagner et al. (2020), PTB-XL; Liu et al. (2018), CPSC 2018",
        url="https://physionet.org/content/ptb-xl",
        of_variant=lambda variant: (
            {"url": "https://physionet.org/content/challenge-2020"}
            if variant.partition(":")[0] == "cpsc"
            else {}
        ),
        note="ecg:ptbxl, the same, tells normal from abnormal; ecg:cpsc tells sinus rhythm from "
        "left bundle branch block in WFDB records, 512 samples a lead; with :spectrum behind it a "
        "lead is the size of its first 64 frequencies. A person with several "
        "recordings is several records. Not downloaded: get the files yourself.",
    ),
    _tu_entry(
        **_about("tu", "Any TU data set", "a graph", None, None, 0),
        load=_loader("graph_sets:tu"),
        variants=True,
        licence="differs; often not stated",
        note="Write tu:NAME, as in tu:MUTAG. Which labels occur counts as public.",
    ),
    *(Entry(**{**fields, "load": _loader(fields["load"])}) for fields in (*TASK_SETS, *LINK_SETS)),
)

CATALOG: dict[str, Entry] = {entry.name: entry for entry in _ENTRIES}
