"""What a graph is by itself, as one sparse row: counts of its patterns, moments of its columns.

    rows = count_patterns(data, rounds=3, columns=1024)      # (graphs, num_columns(...)), csr

The first columns are few and dense: sizes, degrees, moments of node columns and of edges, and how
edges lie in the plane. Where nodes have places, waves follow: each column is a sum over nodes of a
cosine, in a public random direction, of where a node is and which way its edges go. Then come
Weisfeiler-Lehman counts, hashed: a node's colour is the set of its labels, then, once a round, a
hash of its own colour and of its neighbours' with the labels of the edges between them. Rows are
scaled to one length. A column of 0 and 1 in one graph is a label there, any other an attribute;
each graph decides that for itself, so that nothing has to be declared.

Sums are of whole numbers, or of numbers rounded to multiples of 2^-20. So a row is the same to the
last bit in whatever order nodes and edges come, and whichever other graphs there are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from scipy import sparse
    from torch_geometric.data import Data

DEGREES = 16  # columns of the histogram of degrees, the last for all above
EDGE_COLUMNS = 32  # that columns of edge attributes share
LENGTH = 4.0  # of every row
WAVES = 128  # columns of cosines of centred places, and as many of places as they are
_SIZES, _PLACES = 4, 29
_PLANE = (2, 3)  # so many node columns are places, where the data names no others
_ONE = float(2**20)  # of a number that is summed exactly
_MOST = 1e4  # what such a number is cut at
_DENSE = 1.5  # about the length of the dense columns of a row
_COUNT = 0.1  # what the square root of a count is multiplied by
_WAVE = 0.8  # about the length of either kind of waves
_PLACE, _WAY = (1.0, 2.0), 0.6  # units of centred places, of places as they are, of edges' ways
_SHORTEST, _LONGEST = 0.3, 1.5  # frequencies of waves
_WAVES_AT_ONCE = 16

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Hashes = NDArray[np.uint64]


def num_columns(num_features: int, *, rounds: int, columns: int) -> int:
    """How wide rows are, by public numbers alone."""
    return _num_dense(num_features) + (rounds + 1) * columns


def _num_dense(num_features: int) -> int:
    return _SIZES + DEGREES + 3 * num_features + EDGE_COLUMNS + _PLACES + 2 * WAVES


def count_patterns(data: Data, *, rounds: int, columns: int) -> sparse.csr_array:
    """One row for each graph of ``data``; colours of each round have ``columns`` of their own.

    Square roots of counts are a tenth of themselves beside dense columns that are together at
    most 1.5 long; then a row is scaled to :data:`LENGTH`, so that no graph is so large that it
    drowns in a bound on its gradient.

    *Guarantee*: no cost where the records are graphs: a row reads its own graph and nothing else,
    to the last bit.
    """
    from scipy import sparse

    graphs = _Union(data)
    dense = np.concatenate(
        [graphs.sizes(), graphs.degrees(), *graphs.moments(), graphs.edges(), graphs.places()], 1
    )
    length = np.sqrt(np.square(dense).sum(1, keepdims=True))
    dense *= _DENSE / np.sqrt(_DENSE**2 + length**2)
    blocks = [sparse.csr_array(dense), sparse.csr_array(graphs.waves())]
    for number, colours in enumerate(graphs.colours(rounds)):
        place = (_mix(colours + np.uint64(number)) % np.uint64(columns)).astype(np.int64)
        shape = (graphs.count, columns)
        counts = sparse.coo_array((np.ones(len(place)), (graphs.owner, place)), shape).tocsr()
        counts.data = _COUNT * np.sqrt(counts.data)
        blocks.append(counts)
    return _scale(sparse.csr_array(sparse.hstack(blocks, format="csr")))


def _scale(rows: sparse.csr_array) -> sparse.csr_array:
    """Rows of one length; a row without entries stays so. Squares are added in one order."""
    owner = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
    length = np.sqrt(np.bincount(owner, rows.data**2, minlength=rows.shape[0]))
    rows.data *= (LENGTH / np.where(length > 0, length, 1.0))[owner]
    return rows


class _Union:
    """Many graphs side by side, each edge once and none from a node to itself."""

    def __init__(self, data: Data) -> None:
        self.count = int(data.num_graphs)
        self.owner: Ints = data.batch.numpy()
        self.x: Floats = data.x.double().numpy()
        self.source, self.target, self.attributes = _edges_once(data)
        self.edge_owner = self.owner[self.target]
        self.nodes = np.bincount(self.owner, minlength=self.count)
        self.sent = np.bincount(self.edge_owner, minlength=self.count)
        self.degree = np.bincount(self.target, minlength=len(self.x))
        self.is_label = _labels(self.x, self.owner, self.count)
        self.pos: Floats | None = None
        if "pos" in data and data.pos is not None and data.pos.shape[1] >= 2:
            self.pos = data.pos.double().numpy()[:, :2]
        elif self.x.shape[1] in _PLANE:
            self.pos = self.x[:, :2]

    # --- dense columns ---------------------------------------------------------------------------

    def sizes(self) -> Floats:
        """Logarithms of nodes and edges, edges for each node and for each pair; about centred."""
        pairs = np.maximum(self.nodes * (self.nodes - 1), 1)
        per_node = self.sent / np.maximum(self.nodes, 1)
        columns = [
            np.log1p(self.nodes) - 3,
            np.log1p(self.sent) - 4,
            np.log1p(per_node) - 1,
            2 * self.sent / pairs - 0.5,
        ]
        return 0.5 * np.stack(columns, 1)

    def degrees(self) -> Floats:
        """Square roots of how many nodes have each degree."""
        at = self.owner * DEGREES + np.minimum(self.degree, DEGREES - 1)
        counts = np.bincount(at, minlength=self.count * DEGREES)
        return 0.2 * np.sqrt(counts.reshape(self.count, DEGREES))

    def moments(self) -> tuple[Floats, Floats, Floats]:
        """Of each column its mean, its deviation, and how far the ends of an edge differ.

        The mean of an attribute is in units of half of its own standard error, that of a label is
        the label's share.
        """
        x = np.arcsinh(self.x)
        mean = self._mean(x, self.owner, self.nodes)
        square = self._mean(x * x, self.owner, self.nodes)
        apart = self._mean(np.abs(x[self.source] - x[self.target]), self.edge_owner, self.sent)
        unit = np.where(self.is_label, 1.0, 0.5 * np.sqrt(self.nodes)[:, None])
        return mean * unit, np.sqrt(np.maximum(square - mean * mean, 0.0)), apart

    def edges(self) -> Floats:
        """Means of edge attributes; wide ones share columns."""
        result = np.zeros((self.count, EDGE_COLUMNS))
        if self.attributes is not None:
            means = self._mean(np.arcsinh(self.attributes), self.edge_owner, self.sent)
            for column, mean in enumerate(means.T):
                result[:, column % EDGE_COLUMNS] += mean
        return result

    def places(self) -> Floats:
        """How edges lie in the plane, and where in their graph; zeros where nobody says."""
        if self.pos is None:
            return np.zeros((self.count, _PLACES))
        centre, where, _, ways = self._plane()
        u, v = where.T / 2
        halves = np.stack([u * u, v * v, u * v], 1) / 2
        by = np.concatenate([np.ones((len(u), 1)), u[:, None], v[:, None], halves], 1)
        terms = (ways[:, :, None] * by[self.target][:, None, :]).reshape(len(ways), 24)
        sums = [self._sum(halves, self.owner), self._sum(terms, self.edge_owner)]
        whole = np.concatenate([centre, *sums], 1)
        whole[:, :2] = np.arcsinh(whole[:, :2])
        return 0.5 * np.sign(whole) * np.sqrt(np.abs(whole))

    def waves(self) -> Floats:
        """Sums over nodes of cosines of where they are, and which way their edges go.

        Sums are over the root of a graph's size. Zeros where nobody says where nodes are.
        """
        result = np.zeros((self.count, 2 * WAVES))
        if self.pos is None:
            return result
        _, where, offsets, ways = self._plane()
        around = np.concatenate([ways, np.ones((len(ways), 1)), offsets], 1)
        heard = _WAY * self._sum(around, self.target, len(self.x))
        directions, phases = _draw_waves(2 + heard.shape[1])
        for kind, place in enumerate((where, np.arcsinh(self.pos))):
            values = np.concatenate([_PLACE[kind] * place, heard], 1)
            for first in range(kind * WAVES, (kind + 1) * WAVES, _WAVES_AT_ONCE):
                columns = slice(first, first + _WAVES_AT_ONCE)
                angles = np.repeat(phases[None, columns], len(values), 0)
                for value, direction in zip(values.T, directions[:, columns], strict=True):
                    angles += value[:, None] * direction  # a product would round by company
                result[:, columns] = self._sum(np.cos(angles), self.owner)
        unit = np.sqrt(WAVES / 2 * np.maximum(self.nodes, 1))
        return _WAVE * result / unit[:, None]

    def _plane(self) -> tuple[Floats, Floats, Floats, Floats]:
        """The middle of each graph, nodes from there, edges, and four numbers of their ways.

        All but the first are in units of the graph's own edges.
        """
        assert self.pos is not None
        pos = np.clip(self.pos, -_MOST, _MOST)
        dx, dy = (pos[self.target] - pos[self.source]).T
        length = self._mean((dx * dx + dy * dy)[:, None], self.edge_owner, self.sent)[:, 0]
        scale = np.sqrt(np.where(length > 0, length, 1.0))
        centre = self._mean(pos, self.owner, self.nodes)
        where = (pos - centre[self.owner]) / scale[self.owner, None]
        offsets = np.stack([dx, dy], 1) / scale[self.edge_owner, None]
        square, product = dx * dx - dy * dy, dx * dy
        own = np.maximum(dx * dx + dy * dy, np.finfo(np.float64).tiny)
        unit = scale[self.edge_owner] ** 2
        ways = np.stack([square / own, 2 * product / own, product / unit, square / unit], 1)
        return centre, where, offsets, ways

    def _mean(self, values: Floats, owner: Ints, counts: Ints) -> Floats:
        return self._sum(values, owner) / np.maximum(counts, 1)[:, None]

    def _sum(self, values: Floats, owner: Ints, count: int | None = None) -> Floats:
        """The sum of each owner's rows, exact once they are rounded: no order changes it.

        Owners are the graphs, or ``count`` others.
        """
        from scipy import sparse

        whole = np.rint(np.clip(values, -_MOST, _MOST) * _ONE).astype(np.int64)
        ones, rows = np.ones(len(owner), np.int64), np.arange(len(owner))
        members = sparse.csr_array(
            (ones, (owner, rows)), shape=(self.count if count is None else count, len(owner))
        )
        total: Floats = (members @ whole) / _ONE
        return total

    # --- colours ---------------------------------------------------------------------------------

    def colours(self, rounds: int) -> list[Hashes]:
        """The colour of every node, before the first round and after each."""
        kinds = _hash_labels(self.x, self.is_label[self.owner], 1)
        bonds = np.zeros(len(self.source), np.uint64)
        if self.attributes is not None:
            is_label = _labels(self.attributes, self.edge_owner, self.count)
            bonds = _hash_labels(self.attributes, is_label[self.edge_owner], 2)
        result = [kinds]
        for _ in range(rounds):
            heard = np.zeros(len(kinds), np.uint64)
            np.add.at(heard, self.target, _mix(result[-1][self.source] + _mix(bonds)))
            result.append(_mix(_mix(result[-1]) + heard))
        return result


def _edges_once(data: Data) -> tuple[Ints, Ints, Any]:
    from torch_geometric.utils import coalesce, remove_self_loops

    attributes = data.edge_attr if "edge_attr" in data else None
    if attributes is not None:
        attributes = attributes.double()
        attributes = attributes.unsqueeze(1) if attributes.dim() == 1 else attributes
    edges, attributes = remove_self_loops(data.edge_index, attributes)
    if attributes is None:
        return (*coalesce(edges, num_nodes=len(data.x)).numpy(), None)
    edges, attributes = coalesce(edges, attributes, num_nodes=len(data.x), reduce="mean")
    return (*edges.numpy(), attributes.numpy())


def _labels(values: Floats, owner: Ints, count: int) -> NDArray[np.bool_]:
    """Which columns are 0 and 1 alone, in each graph."""
    result = np.ones((count, values.shape[1]), dtype=bool)
    row, column = np.nonzero((values != 0) & (values != 1))
    result[owner[row], column] = False
    return result


def _hash_labels(values: Floats, is_label: NDArray[np.bool_], salt: int) -> Hashes:
    """A hash of the set of labels that each row has."""
    names = _mix(np.arange(values.shape[1], dtype=np.uint64) + np.uint64(salt << 32))
    row, column = np.nonzero((values == 1) & is_label)
    total = np.zeros(len(values), np.uint64)
    np.add.at(total, row, names[column])
    return _mix(total)


def _draw_waves(width: int) -> tuple[Floats, Floats]:
    """Public random directions, of several frequencies, and phases; the same everywhere."""
    from scipy.special import ndtri

    seeds = np.arange((width + 2) * 2 * WAVES, dtype=np.uint64) + np.uint64(3 << 32)
    uniform = ((_mix(seeds) >> np.uint64(11)).astype(np.float64) + 0.5) / 2.0**53
    *rows, frequency, phases = uniform.reshape(width + 2, 2 * WAVES)
    longer = np.log(_LONGEST / _SHORTEST)
    directions: Floats = ndtri(np.stack(rows)) * (_SHORTEST * np.exp(longer * frequency))
    turns: Floats = 2 * np.pi * phases
    return directions, turns


def _mix(values: Hashes) -> Hashes:
    """Splitmix64: the same on every machine."""
    mixed = values + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
