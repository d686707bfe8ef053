"""Whose a record is: groups, splits that part nobody's records, caps by a public rule, refusals."""

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from graphveil import cap_owners, load, set_owners, split
from graphveil._errors import InvalidInputError
from graphveil.graph.checks import check
from graphveil.graph.collate import collate, uncollate
from graphveil.graph.owners import count_owners, group, rank_owners
from graphveil.graph.splits import leave_out_small_classes, separate, thin
from graphveil.graph.subsets import select_graphs

RECORDS, PEOPLE = 300, 90


def nodes(seed=0):
    rng = torch.Generator().manual_seed(seed)
    edges = torch.randint(RECORDS, (2, 900), generator=rng)
    data = Data(x=torch.randn(RECORDS, 3, generator=rng), edge_index=edges.unique(dim=1))
    data.y = torch.arange(RECORDS) % 3
    data.num_classes = 3
    return set_owners(data, torch.randint(PEOPLE, (RECORDS,), generator=rng) * 7 - 50)


def many(seed=0):
    rng = torch.Generator().manual_seed(seed)
    edges = torch.tensor([[0, 1], [1, 0]])
    listed = [
        Data(x=torch.randn(2, 3, generator=rng), edge_index=edges, y=torch.tensor([n % 2]))
        for n in range(RECORDS)
    ]
    people = torch.randint(PEOPLE, (RECORDS,), generator=rng)
    return set_owners(collate(listed, num_classes=2), people, name="patient")


both = pytest.mark.parametrize("make", [nodes, many], ids=["nodes", "graphs"])


def parts(data):
    return [set(data.owner[data[f"{part}_mask"]].tolist()) for part in ("train", "val", "test")]


@both
@pytest.mark.parametrize("seed", range(5))
def test_nobody_is_in_two_parts_of_a_split(make, seed):
    data = split(make(), seed=seed)
    train, val, test = parts(data)
    assert not train & val
    assert not (train | val) & test
    people = count_owners(data)
    assert len(train) == round(0.75 * people)  # shares are of owners
    assert len(train | val | test) == people
    assert count_owners(data, "train_mask") == len(train)
    check(data)


@both
def test_a_smaller_share_is_of_owners(make):
    data = split(make())
    half, fifth = thin(data, 0.5), thin(data, 0.2)
    train = parts(data)[0]
    assert len(parts(half)[0]) == round(len(train) / 2)
    assert parts(fifth)[0] < parts(half)[0] < train
    for owner in parts(half)[0]:
        rows = data.owner == owner
        assert torch.equal(half.train_mask[rows], data.train_mask[rows])


@both
def test_parts_of_data_keep_owners(make):
    data = split(make())
    training, testing = separate(data)
    assert not set(training.owner.tolist()) & set(testing.owner.tolist())
    ids = "graph_id" if "batch" in data else "node_id"
    assert torch.equal(training.owner, data.owner[training[ids]])
    assert training.owner_name == data.owner_name
    assert torch.equal(leave_out_small_classes(data, 1).owner, data.owner)


@both
def test_caps_keep_what_a_public_draw_says(make):
    data = make()
    capped = cap_owners(data, 2)
    ids = capped["graph_id" if "batch" in data else "node_id"]
    kept = capped.owner.unique(return_counts=True)
    whole = data.owner.unique(return_counts=True)
    assert torch.equal(kept[0], whole[0])
    assert torch.equal(kept[1], whole[1].clamp_max(2))
    assert capped.owner_rows == 2
    assert torch.equal(capped.owner, data.owner[ids])
    # It reads no feature, no label and no edge.
    other = make(1)
    other.owner = data.owner
    assert torch.equal(cap_owners(other, 2)["graph_id" if "batch" in data else "node_id"], ids)
    assert not torch.equal(cap_owners(data, 2, seed=1).owner, capped.owner) or (
        cap_owners(data, 2, seed=1).y.tolist() != capped.y.tolist()
    )
    smaller = cap_owners(data, 1)["graph_id" if "batch" in data else "node_id"]
    assert set(smaller.tolist()) < set(ids.tolist())


def test_owners_stand_in_the_order_of_their_first_rows():
    owner = torch.tensor([9, -4, 9, 7, -4, 9])
    assert rank_owners(owner).tolist() == [0, 1, 0, 2, 1, 0]
    grouped = group(owner)
    assert grouped.order.tolist() == [0, 2, 5, 1, 4, 3]
    assert grouped.sizes.tolist() == [3, 2, 1]
    values = torch.tensor([[1.0], [2.0], [3.0], [4.0], [5.0], [6.0]])
    assert grouped.mean(values).tolist() == [[10 / 3], [3.5], [4.0]]
    assert rank_owners(torch.empty(0, dtype=torch.long)).tolist() == []


def test_names_become_numbers():
    data = Data(x=torch.ones(3, 1), edge_index=torch.empty(2, 0, dtype=torch.long))
    assert set_owners(data, ["ann", "bob", "ann"]).owner.tolist() == [0, 1, 0]


def refused(call, *args, **settings):
    with pytest.raises(InvalidInputError) as caught:
        call(*args, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_list_of_graphs_keeps_owners():
    data = many()
    listed = uncollate(data)
    again = collate(listed)
    assert torch.equal(again.owner, data.owner)
    assert again.owner_name == "patient"
    listed[3].owner = torch.tensor([1, 2])
    assert "'owner'" in refused(collate, listed)
    del listed[3].owner
    assert "in all graphs or in none" in refused(collate, listed)


def test_what_is_no_owner_is_refused_in_one_line():
    data = split(nodes())
    assert "owner.long()" in refused(set_owners, data, data.owner.float())
    assert "of shape (300,)" in refused(set_owners, data, data.owner[:-1])
    assert "'owner_name'" in refused(set_owners, data, data.owner, name="<b>")
    assert "set_owners" in refused(cap_owners, Data(x=data.x, edge_index=data.edge_index), 2)
    data.owner_rows = 1
    assert "a rule that the data obeys" in refused(check, data)
    data.owner_rows = 100
    check(data)


def test_masks_that_part_a_persons_records_are_refused():
    data = split(many())
    row = int(data.train_mask.nonzero()[0])
    rows = (data.owner == data.owner[row]).nonzero().flatten()
    data.train_mask[rows[0]], data.test_mask[rows[0]] = False, True
    if len(rows) == 1:
        pytest.fail("the first patient has one recording; take another")
    message = refused(check, data)
    assert f"patient {int(data.owner[row])} in 'train_mask' and in 'test_mask' (1 such)" in message
    assert "graphveil.split" in message
    check(split(data))  # which is the way out


def test_files_keep_owners(tmp_path):
    data = split(many())
    arrays = {name: data[name].numpy() for name in data.keys() if torch.is_tensor(data[name])}  # noqa: SIM118
    np.savez(tmp_path / "a.npz", num_graphs=RECORDS, owner_name="patient", **arrays)
    read = load(tmp_path / "a.npz")
    assert torch.equal(read.owner, data.owner)
    assert read.owner_name == "patient"
    torch.save(data, tmp_path / "a.pt")
    assert torch.equal(load(tmp_path / "a.pt").owner, data.owner)
    assert torch.equal(select_graphs(read, data.test_mask).owner, data.owner[data.test_mask])


@both
def test_an_owner_in_two_parts_is_named_by_the_ids_of_records(make):
    data = split(make())
    data.ids = [f"r{number}" for number in range(RECORDS)]
    mine = (data.owner == data.owner[data.train_mask][0]).nonzero()[:, 0]
    data.train_mask[mine], data.val_mask[mine], data.test_mask[mine] = False, False, False
    data.train_mask[mine[0]] = data.test_mask[mine[1]] = True
    with pytest.raises(InvalidInputError) as error:
        check(data)
    one, other = mine[:2].tolist()
    assert f"'train_mask' (as 'r{one}') and in 'test_mask' (as 'r{other}')" in str(error.value)
    assert "--split transductive" in str(error.value)
