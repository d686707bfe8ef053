"""MovieLens, Last.fm and co-purchases, on tiny files of the same shape."""

import gzip

import pytest

from graphveil._errors import InvalidInputError
from graphveil.data.recommendation_sets import amazon, lastfm, movielens_1m, movielens_100k


def write(root, folder, **files):
    (root / folder).mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        path = root / folder / name.replace("__", "-").replace("_dot_", ".")
        path.write_text(text, encoding="latin-1")


def flags(*names):
    from graphveil.data.recommendation_sets import _GENRES

    return "|".join(["0", *(str(int(genre in names)) for genre in _GENRES)])


@pytest.fixture
def films(tmp_path):
    write(
        tmp_path,
        "ml-100k",
        u_dot_data="7\t242\t3\t881250949\n9\t302\t5\t891717742\n7\t302\t1\t878887116\n",
        u_dot_item=(
            f"242|Kolya (1996)|24-Jan-1997||http://x|{flags('Comedy', 'Drama')}\n"
            f"302|L\xe9on (1994)|01-Jan-1994||http://y|{flags('Crime')}\n"
            f"267|unknown||||{flags()}\n"
        ),
        u_dot_user="7|24|M|technician|85711\n9|53|F|other|94043\n",
    )
    return tmp_path


def test_movielens_100k(films):
    data = movielens_100k("movielens-100k", films, "")
    assert data.links.tolist() == [[0, 0, 1], [0, 1, 1]]
    assert data.link_time.tolist() == [881250949, 878887116, 891717742]
    assert (data.ids, data.target_ids) == (["7", "9"], ["242", "302", "267"])
    rows = [
        {name for name, value in zip(data.target_columns, row, strict=True) if value}
        for row in data.target_x.tolist()
    ]
    assert rows == [{"Comedy", "Drama", "from 1990"}, {"Crime", "from 1990"}, set()]
    people = [
        {name for name, value in zip(data.columns, row, strict=True) if value}
        for row in data.x.tolist()
    ]
    assert people == [{"age 18 to 24", "technician"}, {"female", "age 50 to 55", "other"}]
    assert (data.directed, data.source_name, data.target_name) == (True, "user", "film")


def test_a_variant_takes_high_ratings_alone(films):
    data = movielens_100k("movielens-100k:4", films, "4")
    assert data.links.tolist() == [[1], [1]]
    with pytest.raises(InvalidInputError, match="least rating"):
        movielens_100k("movielens-100k:6", films, "6")


def test_movielens_1m(tmp_path):
    write(
        tmp_path,
        "ml-1m",
        ratings_dot_dat="1::1193::5::978300760\n2::661::3::978302109\n1::661::3::978302110\n",
        movies_dot_dat="661::Giant Peach, The (1996)::Animation|Children's\n"
        "1193::Cuckoo's Nest (1975)::Drama\n",
        users_dot_dat="1::F::1::10::48067\n2::M::56::16::70072\n",
    )
    data = movielens_1m("movielens-1m", tmp_path, "")
    assert data.links.tolist() == [[0, 0, 1], [0, 1, 0]]
    names = [
        {name for name, value in zip(data.target_columns, row, strict=True) if value}
        for row in data.target_x.tolist()
    ]
    assert names == [{"Animation", "Children's", "from 1990"}, {"Drama", "from 1970"}]
    assert data.x.shape == (2, len(data.columns))
    assert data.x[0, data.columns.index("age below 18")] == 1
    assert data.x[1, data.columns.index("age 56 or more")] == 1


def test_lastfm(tmp_path):
    write(
        tmp_path,
        "hetrec2011-lastfm-2k",
        user_artists_dot_dat="userID\tartistID\tweight\n2\t51\t13883\n2\t52\t11690\n5\t52\t1\n",
        artists_dot_dat="id\tname\turl\tpictureURL\n51\tDuran Duran\tu\tp\n52\tBj\xf6rk\tu\tp\n",
    )
    data = lastfm("lastfm", tmp_path, "")
    assert data.links.tolist() == [[0, 0, 1], [0, 1, 1]]
    assert data.x.tolist() == [[1], [1]]
    assert data.target_x.shape == (2, len(data.target_columns))
    assert data.target_x.norm(dim=1).tolist() == pytest.approx([1, 1])
    assert "link_time" not in data


META = """# Full information about Amazon Share the Love products
Total items: 3

Id:   0
ASIN: 0771044445
  discontinued product

Id:   1
ASIN: 0827229534
  title: Patterns of Preaching: A Sermon Sampler
  group: Book
  salesrank: 396585
  similar: 5  0804215715  156101074X

Id:   2
ASIN: B00000AU3R
  title: Batik
  group: Music
"""


def test_amazon_one_way_and_both(tmp_path):
    write(
        tmp_path,
        "amazon",
        Amazon0302_dot_txt="# FromNodeId\tToNodeId\n0\t1\n1\t0\n1\t2\n1\t2\n2\t2\n",
    )
    (tmp_path / "amazon" / "amazon-meta.txt.gz").write_bytes(gzip.compress(META.encode()))
    write(tmp_path, "amazon", **{"com__amazon_dot_ungraph_dot_txt": "# U\n2\t1\n0\t2\n1\t2\n"})
    data = amazon("amazon-copurchase", tmp_path, "")
    assert data.links.tolist() == [[0, 1, 1], [1, 0, 2]]
    assert data.directed
    assert "target_x" not in data
    groups = data.x[:, : data.columns.index("title 0")]
    assert groups.sum(1).tolist() == [0, 1, 1]
    assert data.x[0].abs().sum() == 0
    both = amazon("amazon-copurchase:undirected", tmp_path, "undirected")
    assert both.links.tolist() == [[0, 1], [2, 2]]
    assert not both.directed


def test_files_that_are_absent_or_cut_short_are_refused(films):
    with pytest.raises(InvalidInputError, match="is not downloaded; get it from"):
        lastfm("lastfm", films, "")
    (films / "ml-100k" / "u.data").write_text("7\t242\t3\n")
    with pytest.raises(InvalidInputError, match="line 1 must have 4 cells"):
        movielens_100k("movielens-100k", films, "")
    (films / "ml-100k" / "u.data").write_text("7\t999\t3\t1\n")
    with pytest.raises(InvalidInputError, match="Got '999', which is not"):
        movielens_100k("movielens-100k", films, "")
    (films / "ml-100k" / "u.data").write_text("7\t242\tx\t1\n")
    with pytest.raises(InvalidInputError, match="cannot be read"):
        movielens_100k("movielens-100k:2", films, "2")
