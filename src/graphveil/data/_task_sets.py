"""Entries of the catalog with other targets than one class of several; ``load`` is a loader's name.

They stand apart from :mod:`graphveil.data.catalog`, which makes entries of them.
"""

from __future__ import annotations

from typing import Any

from graphveil.data._variants import describe_graphland, describe_relbench

TASK_SETS: tuple[dict[str, Any], ...] = (
    {
        "name": "ppi",
        "title": "Protein interactions in 24 tissues",
        "load": "ppi:ppi",
        "unit": "a protein in a tissue",
        "num_nodes": 56_944,
        "num_features": 50,
        "num_classes": 121,
        "task": "multilabel",
        "own_split": True,
        "takes_own_split": True,
        "split": (44_906, 6_514, 5_524),
        "licence": "not stated by its authors",
        "citation": "Zitnik, Leskovec (2017), Predicting multicellular function through "
        "multi-layer tissue networks",
        "url": "https://snap.stanford.edu/graphsage/",
        "note": "121 labels, each yes or no. One graph; whole tissues are to train, validate or "
        "test on. A protein in several tissues is several records.",
    },
    {
        "name": "graphland",
        "title": "GraphLand, graphs of industry",
        "load": "graphland:graphland",
        "unit": "a node",
        "num_nodes": None,
        "num_features": None,
        "num_classes": 0,
        "task": None,
        "own_split": True,
        "takes_own_split": True,
        "variants": True,
        "of_variant": describe_graphland,
        "licence": "CC BY 4.0 in its first version (TabGraphs); see its record",
        "citation": "Bazhenov, Platonov, Prokhorenkova (2025), GraphLand: evaluating graph machine "
        "learning models on diverse industrial data",
        "url": "https://zenodo.org/records/16895532",
        "note": "Write graphland:NAME, graphland:NAME:SPLIT (RL unless told, RH, TH), and behind "
        "it the public number of classes (graphland:NAME:RL:21) or range (graphland:NAME:RL:0..10) "
        "where the files state none.",
    },
    {
        "name": "relbench",
        "title": "RelBench, rows of one table of a database",
        "load": "relbench:relbench",
        "unit": "a row",
        "num_nodes": None,
        "num_features": None,
        "num_classes": 0,
        "task": None,
        "own_split": True,
        "takes_own_split": True,
        "variants": True,
        "of_variant": describe_relbench,
        "download": "none",
        "licence": "differs from database to database",
        "citation": "Robinson et al. (2024), RelBench: a benchmark for deep learning on relational "
        "databases",
        "url": "https://relbench.stanford.edu",
        "note": "Write relbench:DATABASE:TASK for a binary target, and behind it the public number "
        "of classes (:5) or range (:1..40) for another. Reads one table and its own links. Not "
        "downloaded: the package relbench puts its files into ~/.cache/relbench, which is the "
        "root.",
    },
)
