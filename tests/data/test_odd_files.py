"""Files that are not what they seem: refused in one line, before they cost memory or time."""

import gzip
import os
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from torch_geometric.data import Data

from graphveil._errors import InvalidInputError
from graphveil.data import text
from graphveil.data.files import node_ids, read
from graphveil.graph.checks import public_of

IDS = [f"n{i}" for i in range(6)]


def tables(folder, nodes, edges="source,target\nn0,n1\n"):
    for name, content in (("nodes.csv", nodes), ("edges.csv", edges)):
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def rows(head, *cells):
    """A table with a row for each id, whose last cells are ``cells``."""
    lines = [",".join(row) for row in zip(IDS, *cells, strict=True)]
    return "\n".join((head, *lines)) + "\n"


def refusal(path, reads=read):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(InvalidInputError) as caught:
            reads(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000
    return str(caught.value)


# --- numbers --------------------------------------------------------------------------------------

LARGE = {
    "2^63": "9223372036854775808",
    "2^64": "18446744073709551616",
    "1e300": "1e300",
    "-1e300": "-1e300",
    "beyond floats": "1e400",
    "400 digits": "1" * 400,
    "5000 digits": "1" * 5000,
}


@pytest.mark.parametrize("label", LARGE.values(), ids=LARGE)
def test_a_label_that_is_no_64_bit_number_is_refused_and_never_unlabelled(tmp_path, label):
    labels = ("0", "1", "0", label, "0", "1")
    folder = tables(tmp_path, rows("id,label,a", labels, ("1",) * 6))
    assert "'label'" in (said := refusal(folder))
    assert "row 4" in said


@pytest.mark.parametrize("value", [2**63, 2**64 - 1])
@pytest.mark.parametrize("name", ["y", "edge_index"])
def test_arrays_beyond_int64_are_refused_and_do_not_turn_negative(tmp_path, name, value):
    x, edges = np.ones((3, 1), "f4"), np.zeros((2, 1), "u8")
    arrays = {"x": x, "edge_index": edges, "y": np.array([0, 1, 0], "u8")}
    arrays[name].ravel()[-1] = value
    np.savez(tmp_path / "g.npz", **arrays)
    assert name in refusal(tmp_path / "g.npz")


@pytest.mark.parametrize(
    "value", ["1e308", "-1e308", "1e39", "1" * 400, "1" * 5000], ids=lambda text: text[:6]
)
def test_a_feature_beyond_float32_is_refused_without_a_warning(tmp_path, value):
    folder = tables(tmp_path, rows("id,a", ("1", "1", value, "2.5", "1", "1")))
    assert "'a'" in (said := refusal(folder))
    assert "row 3" in said


def test_an_array_beyond_float32_is_refused_without_a_warning(tmp_path):
    np.savez(tmp_path / "g.npz", x=np.array([[1.0], [1e308]]), edge_index=np.zeros((2, 0), "i8"))
    assert "'x'" in refusal(tmp_path / "g.npz")


# --- encodings and separators ---------------------------------------------------------------------

NODES = "id,a\nn0,1\nn1,é\n"
ENCODINGS = {
    "UTF-16": (NODES.encode("utf-16"), "UTF-16"),
    "UTF-16 without a mark": (NODES.encode("utf-16-le"), "UTF-16"),
    "latin-1": (NODES.encode("latin-1"), "latin-1"),
    "semicolons": (NODES.replace(",", ";"), "commas.*semicolons"),
    "tabs": (NODES.replace(",", "\t"), "commas.*tabs"),
    "bars": (NODES.replace(",", "|"), "commas.*bars"),
}


def test_a_line_with_a_cell_too_many_is_named(tmp_path):
    content = b"id,a,street\nn0,1,Main St\nn1,2,Main St 1, Anytown\n"
    line = "line 3 has 4 cells, and the lines before it 3.*between quotation marks"
    with pytest.raises(InvalidInputError, match=line):
        read(tables(tmp_path, content))


@pytest.mark.parametrize("content, named", ENCODINGS.values(), ids=ENCODINGS)
def test_other_encodings_and_separators_are_named(tmp_path, content, named):
    with pytest.raises(InvalidInputError, match=f"nodes.csv.*{named}"):
        read(tables(tmp_path, content))
    documents = tmp_path / "docs.csv"
    documents.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InvalidInputError, match=f"docs.csv.*{named}"):
        text.read_documents(documents, text="a")


# --- parquet --------------------------------------------------------------------------------------


def parquet(folder, nodes, edges):
    pytest.importorskip("pyarrow")
    nodes.to_parquet(folder / "nodes.parquet")
    edges.to_parquet(folder / "edges.parquet")
    return folder


def frames(ids=IDS):
    nodes = pd.DataFrame({"id": ids, "label": [0, 1] * 3, "a": np.arange(6.0)})
    return nodes, pd.DataFrame({"source": ids[:2], "target": ids[1:3]})


@pytest.mark.parametrize("index", ["id", "label", ["id", "label"]])
def test_an_index_of_pandas_is_a_column_like_others(tmp_path, index):
    nodes, edges = frames()
    folder = parquet(tmp_path, nodes.set_index(index), edges.set_index(["source", "target"]))
    data = read(folder)
    assert data.x.tolist() == [[float(i)] for i in range(6)]
    assert data.y.tolist() == [0, 1] * 3
    assert data.num_edges == 4
    assert node_ids(folder) == IDS


def test_the_row_numbers_of_pandas_are_no_feature(tmp_path):
    nodes, edges = frames()
    assert read(parquet(tmp_path, nodes.sample(frac=1, random_state=0), edges)).x.shape == (6, 1)


def test_ids_as_bytes_are_text_or_refused(tmp_path):
    assert read(parquet(tmp_path, *frames([each.encode() for each in IDS]))).num_edges == 4
    assert node_ids(tmp_path) == IDS
    folder = parquet(tmp_path, *frames([b"\xff%d" % i for i in range(6)]))
    assert "'id' must be UTF-8" in refusal(folder)


@pytest.mark.parametrize(
    "values", [pd.date_range("2020", periods=6), pd.to_timedelta(np.arange(6), "s")]
)
def test_dates_are_no_numbers(tmp_path, values):
    nodes, edges = frames()
    assert "'a'" in refusal(parquet(tmp_path, nodes.assign(a=values), edges))


def test_a_small_parquet_with_many_equal_rows_is_refused_before_it_is_read(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    folder = parquet(tmp_path, *frames())
    part = pa.table({"id": np.zeros(1 << 20, "i8"), "a": np.zeros(1 << 20, "i8")})
    with pq.ParquetWriter(folder / "nodes.parquet", part.schema) as file:
        for _ in range(32):
            file.write_table(part)
    assert os.path.getsize(folder / "nodes.parquet") < 1_000_000
    assert "must unpack to at most 500 MB" in refusal(folder)


def test_a_text_told_once_for_many_rows_is_counted_in_every_row(tmp_path, monkeypatch):
    monkeypatch.setattr("graphveil.data._tables.TABLE", 10_000_000)
    folder = parquet(tmp_path, *frames())
    many = pd.DataFrame({"id": ["n" * 50_000] * 3000, "a": 1.0})
    many.to_parquet(folder / "nodes.parquet")
    assert "must unpack to at most" in refusal(folder)


# --- arrays ---------------------------------------------------------------------------------------


def test_an_archive_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch):
    arrays = {"x": np.zeros((1000, 1000), "f4"), "edge_index": np.zeros((2, 0), "i8")}
    np.savez_compressed(tmp_path / "g.npz", **arrays)
    assert read(tmp_path / "g.npz").num_nodes == 1000
    np.savez(tmp_path / "plain.npz", **arrays)
    monkeypatch.setattr("graphveil.data.files.ARRAYS", 1_000_000)
    assert "must unpack to at most 1 MB" in refusal(tmp_path / "g.npz")
    assert read(tmp_path / "plain.npz").num_nodes == 1000  # the way out


def graph(**more):
    given = {"x": torch.ones(6, 1), "edge_index": torch.zeros(2, 3, dtype=torch.long)} | more
    return Data(**given)


EXPANDED = {
    "rows of nothing": graph(x=torch.sparse_coo_tensor(size=(10**12, 3))),
    "features": graph(x=torch.ones(1, 1).expand(10**6, 10**4)),
    "edges": graph(edge_index=torch.zeros(2, 1, dtype=torch.long).expand(2, 10**9)),
    "one graph many times": [graph(x=torch.ones(10**5, 1), y=torch.tensor([1]))] * 3000,
}


@pytest.mark.parametrize("saved", EXPANDED.values(), ids=EXPANDED)
def test_tensors_that_say_more_than_the_file_holds_are_refused(tmp_path, saved):
    torch.save(saved, tmp_path / "g.pt")
    assert "must unpack to at most" in refusal(tmp_path / "g.pt")


LAYOUTS = {
    "sparse x": (graph(x=torch.eye(6).to_sparse_csc()), "'x'.*sparse_csc"),
    "meta x": (graph(x=torch.ones(6, 1, device="meta")), "'x'.*meta"),
    "sparse edges": (
        graph(edge_index=torch.zeros(2, 3, dtype=torch.long).to_sparse()),
        "'edge_index'.*sparse",
    ),
    "meta labels": (graph(y=torch.zeros(6, dtype=torch.long, device="meta")), "'y'.*meta"),
    "in a list": ([graph(y=torch.tensor([1])), graph(x=torch.eye(6).to_sparse())], "'x'.*sparse"),
}


@pytest.mark.parametrize("saved, named", LAYOUTS.values(), ids=LAYOUTS)
def test_sparse_and_meta_tensors_are_refused(tmp_path, saved, named):
    torch.save(saved, tmp_path / "g.pt")
    with pytest.raises(InvalidInputError, match=named):
        read(tmp_path / "g.pt")


def test_attributes_that_are_not_one_for_each_edge_are_refused(tmp_path):
    torch.save(graph(edge_attr=torch.tensor(1.0)), tmp_path / "g.pt")
    assert "'edge_attr'" in refusal(tmp_path / "g.pt")


# --- what is no file ------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
@pytest.mark.usefixtures("alarm")
@pytest.mark.parametrize("name", ["g.npz", "g.pt"])
def test_a_pipe_is_refused_and_not_waited_for(tmp_path, name):
    os.mkfifo(tmp_path / name)
    assert "must be a file. Got a pipe" in refusal(tmp_path / name)


def test_a_name_that_is_too_long_is_refused(tmp_path):
    assert "There is no file" in refusal(tmp_path / ("y" * 300 + ".npz"))


# --- texts ----------------------------------------------------------------------------------------


def test_a_packed_table_of_texts_is_read_up_to_its_limit(tmp_path, monkeypatch):
    documents = tmp_path / "docs.csv.gz"
    documents.write_bytes(gzip.compress(b"id,text\nd0," + b"a" * 3_000_000))
    assert len(text.read_documents(documents)["text"][0]) == 3_000_000
    monkeypatch.setattr("graphveil.data._tables.TABLE", 1_000_000)
    assert "must unpack to at most 1 MB" in refusal(documents, text.read_documents)


# --- names that do not fit ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "names, said",
    [
        ({"columns": ["a"]}, "1 for 2 columns of x"),
        ({"columns": ["a", "a"]}, "'a' more than once"),
        ({"columns": ["a", " "]}, "an empty one"),
        ({"columns": [1, 2]}, "list of texts"),
        ({"class_names": ["a", "a"]}, "'a' more than once"),
        ({"class_names": ["", "a"]}, "an empty one"),
        ({"class_names": [0.5, 1.5]}, "list of texts"),
    ],
)
@pytest.mark.parametrize("end", ["npz", "pt"])
def test_names_that_do_not_fit_are_refused(tmp_path, names, said, end):
    path, x, edges = tmp_path / f"g.{end}", np.ones((20, 2)), np.zeros((2, 0), int)
    if end == "npz":
        np.savez(path, x=x, edge_index=edges, **names)
    else:
        given = {"x": torch.ones(20, 2), "edge_index": torch.from_numpy(edges)}
        torch.save(Data(**given, **names), path)
    with pytest.raises(InvalidInputError, match=said) as caught:
        read(path)
    assert "\n" not in str(caught.value)


def test_names_on_a_certificate_stay_one_plain_line():
    names = ["a\nVOID", "<b>", *map(str, range(20))]
    x = torch.ones(2, 22)
    (line,) = public_of(Data(x=x, edge_index=torch.zeros(2, 0).long(), columns=names))
    assert line.startswith("the names of the feature columns: a[U+000A]VOID, [less-than sign]b")
    assert line.endswith("17, and 2 more")


def test_a_quantized_tensor_is_refused_without_a_warning(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x = torch.quantize_per_tensor(torch.ones(4, 2), 0.1, 0, torch.qint8)
        torch.save(Data(x=x, edge_index=torch.zeros(2, 0).long()), tmp_path / "q.pt")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        with pytest.raises(InvalidInputError, match="float tensor"):
            read(tmp_path / "q.pt")


def test_words_for_empty_cells_are_printed_as_they_were_stated(tmp_path):
    (tmp_path / "nodes.csv").write_text("id,label,crp\n1,a,<5\n2,b,>89\n3,a,7\n")
    (tmp_path / "edges.csv").write_text("source,target\n1,2\n")
    (tmp_path / "schema.toml").write_text(
        'unit = "patient"\nempty = ["<5", ">89"]\n[columns.crp]\nkind = "number"\nlow = 0\n'
        'high = 90\noptional = true\n[label]\ntask = "multiclass"\nclasses = ["a", "b"]\n'
    )
    lines = [line for line in public_of(read(tmp_path)) if "empty" in line]
    assert any("[less-than sign]5, [greater-than sign]89" in line for line in lines)


def test_a_first_line_with_semicolons_is_called_so_before_a_schema_is_drafted(tmp_path):
    from graphveil.data._tables import column_names

    path = tmp_path / "nodes.csv"
    path.write_text("id;label;age\n1;a;3\n")
    with pytest.raises(InvalidInputError, match="Got semicolons instead"):
        column_names(path)
    path.write_text("id\n1\n")
    assert column_names(path) == ["id"]


def test_a_format_without_a_word_of_strptime_is_refused():
    from graphveil.data.column_kinds import Date

    with pytest.raises(InvalidInputError, match=r"'%d\.%m\.%Y'"):
        Date(origin="2020-01-01", format="DD.MM.YYYY")
