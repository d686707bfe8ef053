"""Electrocardiograms as graphs: a record is a graph, a lead a node, its samples the features.

**WFDB** is PhysioNet's format: a header ``A0001.hea`` in text, and the samples in ``.dat`` or
``.mat``. :func:`read_record` reads both, in the formats 16 and 212, with several signals in a file
or one in each. Segmented records and other formats are refused.

**Wiring**, as Mueller et al.: the six limb leads are all joined with each other, so are the six
chest leads, and so are I, aVR, V5 and V6. That is 34 edges, each in both directions.

**Scale**: millivolts, whatever the file's unit. Nothing is learnt from the data, and nothing is
centred: a record's rows depend on that record alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import numpy as np
from numpy.typing import NDArray

from graphveil._errors import InvalidInputError
from graphveil._inputs import at_home
from graphveil.data._cache import cache, find, reason, refuse_files

if TYPE_CHECKING:
    from torch import Tensor
    from torch_geometric.data import Data

LIMB = ("I", "II", "III", "aVR", "aVL", "aVF")
CHEST = ("V1", "V2", "V3", "V4", "V5", "V6")
LEADS = (*LIMB, *CHEST)
BRIDGE = ("I", "aVR", "V5", "V6")

# What a header may say under #Dx: the codes of SNOMED CT, or the words of the first release.
SINUS = frozenset({"426783006", "Normal"})
LBBB = frozenset({"164909002", "733534002", "LBBB"})

CPSC_SAMPLES = 512  # at 500 Hz, the first second
_MILLIVOLTS = {"V": 1e3, "mV": 1.0, "uV": 1e-3, "nV": 1e-6}
_MISSING = {"16": -(2**15), "212": -(2**11)}


@dataclass(frozen=True)
class Record:
    """One recording: ``signals`` (leads, samples) in millivolts, and what the header tells."""

    name: str
    frequency: float
    leads: tuple[str, ...]
    signals: NDArray[np.float32]
    notes: dict[str, str]

    @property
    def diagnoses(self) -> set[str]:
        """The codes or words under #Dx."""
        return _diagnoses(self.notes)


def lead_edges() -> NDArray[np.int64]:
    """(2, 68): which leads are joined, in both directions, by their places in :data:`LEADS`."""
    pairs = {
        (LEADS.index(one), LEADS.index(other))
        for group in (LIMB, CHEST, BRIDGE)
        for one, other in combinations(group, 2)
    }
    ends = np.array(sorted(pairs), dtype=np.int64).T
    return np.concatenate([ends, ends[::-1]], axis=1)


def as_graphs(signals: Tensor, y: Tensor) -> Data:
    """Recordings (records, 12, samples), leads in the order of :data:`LEADS`, as many graphs.

    *Guarantee*: none needed; each graph is its own recording's.
    """
    import torch
    from torch_geometric.data import Data

    if signals.dim() != 3 or signals.shape[1] != len(LEADS) or len(signals) != len(y):
        raise InvalidInputError(
            f"The 'signals' parameter must be of shape ({len(y)}, 12, samples). Got shape "
            f"{tuple(signals.shape)} instead."
        )
    count = len(signals)
    wires = torch.from_numpy(lead_edges())
    starts = torch.arange(count).mul(len(LEADS)).repeat_interleave(wires.shape[1])
    data = Data(x=signals.float().reshape(count * len(LEADS), -1), y=y.long())
    data.edge_index = wires.repeat(1, count) + starts
    data.batch = torch.arange(count).repeat_interleave(len(LEADS))
    data.num_graphs = count
    return data


# --- The data sets --------------------------------------------------------------------------------


def ecg(name: str, root: Path, variant: str) -> Data:
    """``ecg`` or ``ecg:ptbxl``: normal or abnormal. ``ecg:cpsc``: sinus rhythm or LBBB.

    With ``:spectrum`` at the end a lead's row is its spectrum, see :func:`spectra`.
    """
    source, _, kind = variant.partition(":")
    if source == "spectrum" and not kind:
        source, kind = "", "spectrum"
    if source not in ("", "ptbxl", "cpsc") or kind not in ("", "spectrum"):
        raise InvalidInputError(
            "The data set 'ecg' may be followed by ':ptbxl' or ':cpsc', and that by ':spectrum'. "
            f"Got {name!r} instead."
        )
    data = _cpsc(name, root) if source == "cpsc" else _ptbxl(name, root)
    if kind:
        data.x = spectra(data.x)
    return data


def spectra(signals: Tensor, bins: int = 64) -> Tensor:
    """How strong each of the first ``bins`` frequencies is in every row, its mean taken away.

    A shift in time changes a recording's samples, and hardly its spectrum. Sizes are those of
    Fourier coefficients times 2 / sqrt(samples), about 1 for a signal of about 1.

    *Guarantee*: no cost; each row is made from itself.
    """
    import torch

    centred = signals - signals.mean(dim=1, keepdim=True)
    return 2 * torch.fft.rfft(centred).abs()[:, :bins] / signals.shape[1] ** 0.5


def _ptbxl(name: str, root: Path) -> Data:
    """1987 records of PTB-XL: 12 leads, 2.5 seconds at 100 Hz, and whether any is abnormal."""
    import torch

    folder, file = "PTBXL", "ptbxl_2s5_1987.npz"
    place = find(root, Path(folder), [file])
    if place is None:
        _not_here(name, root, f"{folder}/{file}", "https://physionet.org/content/ptb-xl")
    try:
        with np.load(place / file, allow_pickle=False) as arrays:
            microvolts, y = arrays["signal_uV"], arrays["abnormal"]
        if microvolts.ndim != 3 or microvolts.shape[:2] != (len(y), len(LEADS)):
            raise ValueError(f"signal_uV {microvolts.shape}, abnormal {y.shape}")
        signals = torch.from_numpy(microvolts.astype(np.float32) / np.float32(1000))
        data = as_graphs(signals, torch.from_numpy(y.astype(np.int64)))
    except Exception as error:  # zip, header, key and value errors
        refuse_files(name, place, error)
    data.class_names = ["normal", "abnormal"]
    return data


def _cpsc(name: str, root: Path) -> Data:
    """Records of CPSC 2018 with left bundle branch block (1) or sinus rhythm (0), by name.

    The first 512 samples of each. Records with neither are left out, which their own header says.
    """
    import torch

    headers = next((found for place in (root, cache()) if (found := _headers(place))), [])
    if not headers:
        _not_here(name, root, "CPSC2018/raw/*.hea", "https://physionet.org/content/challenge-2020")
    signals, y = [], []
    for path in headers:
        header = _read_header(path)
        diagnoses = _diagnoses(header.notes)
        if diagnoses & (LBBB | SINUS):
            signals.append(twelve_leads(_record(header), CPSC_SAMPLES))
            y.append(1 if diagnoses & LBBB else 0)
    if not y:
        raise InvalidInputError(
            f"The records of {name!r} in {headers[0].parent} must have one with LBBB or sinus "
            f"rhythm under #Dx. Got {len(headers)} of other kinds instead."
        )
    data = as_graphs(torch.from_numpy(np.stack(signals)), torch.tensor(y))
    data.class_names = ["sinus rhythm", "LBBB"]
    data.public = ["which recordings were left out, by their own diagnosis"]
    return data


def _headers(place: Path) -> list[Path]:
    return sorted((place / "CPSC2018").rglob("*.hea"), key=lambda path: path.stem)


def _not_here(name: str, root: Path, file: str, url: str) -> NoReturn:
    raise InvalidInputError(
        f"The data set {name!r} is not in {root} (looked for {file}) and not downloaded; get it "
        f"from {url}, and pass the root folder that holds it."
    )


# --- WFDB -----------------------------------------------------------------------------------------


def read_record(path: str | Path) -> Record:
    """The recording with the header ``path`` (``.hea``, or without the ending).

    Refused in one line: headers or samples that are absent, cut short or of another format.
    Samples marked as missing are 0.

    *Guarantee*: none; reading is not releasing.
    """
    path = at_home(path)
    return _record(_read_header(path if path.suffix == ".hea" else Path(f"{path}.hea")))


def _record(header: _Header) -> Record:
    stored = _stored(header)
    for row, line in zip(stored, header.lines, strict=True):
        missing = np.isnan(row) | (row == _MISSING[line.format])
        row[:] = np.where(missing, 0.0, (row - line.baseline) * line.millivolts)
    leads = tuple(line.lead for line in header.lines)
    name = header.path.stem
    return Record(name, header.frequency, leads, stored.astype(np.float32), header.notes)


def _diagnoses(notes: dict[str, str]) -> set[str]:
    return {word.strip() for word in notes.get("Dx", "").split(",") if word.strip()}


def twelve_leads(record: Record, samples: int) -> NDArray[np.float32]:
    """The first ``samples`` of each of the twelve leads, in the order of :data:`LEADS`."""
    places = {lead.lower(): row for row, lead in enumerate(record.leads)}
    absent = [lead for lead in LEADS if lead.lower() not in places]
    if absent or len(places) != len(record.leads):
        raise InvalidInputError(
            f"The record {record.name} must have the twelve leads, each once. Got "
            f"{', '.join(record.leads)} instead."
        )
    if record.signals.shape[1] < samples:
        raise InvalidInputError(
            f"The record {record.name} must have {samples} samples or more. Got "
            f"{record.signals.shape[1]} instead; leave it out."
        )
    return record.signals[[places[lead.lower()] for lead in LEADS], :samples]


@dataclass(frozen=True)
class _Line:
    """What a header says of one signal."""

    file: str
    format: str
    offset: int  # bytes before the first sample
    baseline: float
    millivolts: float  # of one step
    lead: str


@dataclass(frozen=True)
class _Header:
    path: Path
    frequency: float
    samples: int | None
    lines: list[_Line]
    notes: dict[str, str]


_GAIN = re.compile(r"(?P<gain>[-+0-9.eE]+)(\((?P<baseline>[-+0-9]+)\))?(/(?P<unit>\S+))?")
_FORMAT = re.compile(r"(?P<format>[0-9]+)(?P<other>[x:][^+]*)?(\+(?P<offset>[0-9]+))?")


def _read_header(path: Path) -> _Header:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InvalidInputError(f"{path} cannot be read ({error.strerror}).") from None
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    notes = [line.lstrip("#").partition(":") for line in lines if line.startswith("#")]
    content = [line for line in lines if not line.startswith("#")]
    if not content:
        _bad_header(path, "a first line with name, number of signals and frequency", "none")
    fields = content[0].split()
    if "/" in fields[0]:
        _bad_header(path, "one segment", fields[0])
    try:
        count = int(fields[1])
        frequency = float(re.split("[/(]", fields[2])[0]) if len(fields) > 2 else 250.0
        samples = int(fields[3]) if len(fields) > 3 else 0
    except (ValueError, IndexError):
        _bad_header(path, "a first line with name, number of signals and frequency", content[0])
    if not 1 <= count <= 1000 or len(content) != count + 1 or samples < 0:
        _bad_header(path, f"a line for each of {count} signals", f"{len(content) - 1} lines")
    found = [_signal_line(path, line) for line in content[1:]]
    told = {key.strip(): value.strip() for key, _, value in notes}
    return _Header(path, frequency, samples or None, found, told)


def _signal_line(path: Path, line: str) -> _Line:
    fields = line.split(maxsplit=8)
    form = _FORMAT.fullmatch(fields[1]) if len(fields) > 1 else None
    if form is None or form["format"] not in _MISSING or form["other"]:
        got = fields[1] if len(fields) > 1 else line
        _bad_header(path, "signals of format 16 or 212, one sample at a time", got)
    if Path(fields[0]).name != fields[0] or fields[0] in (".", ".."):
        _bad_header(path, "files beside the header", fields[0])
    gain = _GAIN.fullmatch(fields[2] if len(fields) > 2 else "200")
    try:
        if gain is None:
            raise ValueError
        # The standard's own defaults: 200 steps to a millivolt, and the ADC's zero as baseline.
        step = float(gain["gain"]) or 200.0
        zero = int(fields[4]) if len(fields) > 4 else 0
        baseline = float(gain["baseline"]) if gain["baseline"] else float(zero)
        millivolts = _MILLIVOLTS[gain["unit"] or "mV"] / step
        if not np.isfinite(millivolts):
            raise ValueError
    except (ValueError, KeyError):
        _bad_header(path, "signals with a gain such as 1000/mV", line)
    lead = fields[8].strip() if len(fields) > 8 else ""
    offset = int(form["offset"] or 0)
    return _Line(fields[0], form["format"], offset, baseline, millivolts, lead)


def _bad_header(path: Path, rule: str, got: str) -> NoReturn:
    raise InvalidInputError(f"The header {path} must have {rule}. Got {got!r} instead.")


def _stored(header: _Header) -> NDArray[np.float64]:
    """(signals, samples): the numbers as they are stored, file by file."""
    blocks, at = [], 0
    while at < len(header.lines):
        line = header.lines[at]
        group = 1
        while at + group < len(header.lines) and header.lines[at + group].file == line.file:
            group += 1
        if {each.format for each in header.lines[at : at + group]} != {line.format}:
            _bad_header(header.path, "one format in each file", line.file)
        blocks.append(_read_file(header, line, group))
        at += group
    if len({block.shape[1] for block in blocks}) > 1:
        raise InvalidInputError(f"The signals of {header.path} must be equally long.")
    return np.concatenate(blocks)


def _read_file(header: _Header, line: _Line, group: int) -> NDArray[np.float64]:
    path = header.path.with_name(line.file)
    try:
        if path.suffix == ".mat":
            from scipy.io import loadmat

            values = np.asarray(loadmat(path)["val"])
            if values.ndim != 2 or len(values) != group or values.dtype.kind not in "iuf":
                raise ValueError(f"val is {values.dtype} {values.shape}, not ({group}, samples)")
        else:
            stored = path.read_bytes()[line.offset :]
            flat = _format_16(stored) if line.format == "16" else _format_212(stored)
            # A file of format 212 may end in half a pair.
            values = flat[: len(flat) // group * group].reshape(-1, group).T
    except Exception as error:  # scipy and odd contents raise many kinds
        raise InvalidInputError(
            f"{path} cannot be read ({reason(error)}); it may be cut short: get it again."
        ) from None
    if header.samples is not None and values.shape[1] < header.samples:
        raise InvalidInputError(
            f"{path} must have {header.samples} samples of each signal, as its header says. Got "
            f"{values.shape[1]} instead; it may be cut short: get it again."
        )
    return values[:, : header.samples].astype(np.float64)


def _format_16(stored: bytes) -> NDArray[np.int16]:
    """Two bytes for each sample, the low one first."""
    return np.frombuffer(stored[: len(stored) // 2 * 2], dtype="<i2")


def _format_212(stored: bytes) -> NDArray[np.int16]:
    """Three bytes for two samples of 12 bits, whose high bits share the middle byte."""
    whole = len(stored) // 3 * 3
    tail = stored[whole:]
    rest = tail + b"\0" if len(tail) == 2 else b""
    low, middle, high = np.frombuffer(stored[:whole] + rest, np.uint8).reshape(-1, 3).T.astype(int)
    pairs = np.stack([low + (middle % 16) * 256, high + (middle // 16) * 256], axis=1).reshape(-1)
    if rest:
        pairs = pairs[:-1]
    return np.where(pairs >= 2048, pairs - 4096, pairs).astype(np.int16)
