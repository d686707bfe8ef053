"""Electrocardiograms as graphs: a record is a graph, a lead a node, its samples the features.

**WFDB** is PhysioNet's format: a header ``A0001.hea`` in text, and the samples in ``.dat`` or
``.mat``. :func:`read_record` reads both with the package wfdb (``pip install 'graphveil[data]'``),
in the formats 16 and 212. Segmented records and other formats are refused.

**Wiring**, as Mueller et al.: the six limb leads are all joined with each other, so are the six
chest leads, and so are I, aVR, V5 and V6. That is 34 edges, each in both directions.

**Scale**: millivolts, whatever the file's unit. Nothing is learnt from the data, and nothing is
centred: a record's rows depend on that record alone.
"""

from __future__ import annotations

import importlib
import warnings
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch_geometric.data import Data

from graphveil._errors import InvalidInputError
from graphveil._inputs import at_home
from graphveil.data._cache import cache, find, reading, reason, refuse_variant
from graphveil.graph.owners import set_owners

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
    if signals.dim() != 3 or signals.shape[1] != len(LEADS) or len(signals) != len(y):
        raise InvalidInputError(
            f"The 'signals' parameter must be of shape ({len(y)}, 12, samples). Got shape "
            f"{tuple(signals.shape)} instead."
        )
    count, wires = len(signals), torch.from_numpy(lead_edges())
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
        refuse_variant("ecg", "':ptbxl' or ':cpsc', and that by ':spectrum'", name)
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
    centred = signals - signals.mean(dim=1, keepdim=True)
    return 2 * torch.fft.rfft(centred).abs()[:, :bins] / signals.shape[1] ** 0.5


def _ptbxl(name: str, root: Path) -> Data:
    """1987 records of PTB-XL: 12 leads, 2.5 seconds at 100 Hz, and whether any is abnormal.

    A patient may have several. Whose each is stands in ``patient_id`` of the file, or by ``ecg_id``
    in PTB-XL's own ``ptbxl_database.csv`` beside it; without either a recording is the unit.
    """
    folder, file = "PTBXL", "ptbxl_2s5_1987.npz"
    place = find(root, Path(folder), [file])
    if place is None:
        _refuse_absent(name, root, f"{folder}/{file}", "https://physionet.org/content/ptb-xl")
    with reading(name, place):
        with np.load(place / file, allow_pickle=False) as arrays:
            microvolts, y = arrays["signal_uV"], arrays["abnormal"]
            patients = _patients(arrays, place / "ptbxl_database.csv")
        if microvolts.ndim != 3 or microvolts.shape[:2] != (len(y), len(LEADS)):
            raise ValueError(f"signal_uV {microvolts.shape}, abnormal {y.shape}")
        signals = torch.from_numpy(microvolts.astype(np.float32) / np.float32(1000))
        data = as_graphs(signals, torch.from_numpy(y.astype(np.int64)))
    data.class_names, data.unit_name = ["normal", "abnormal"], "recording"
    return data if patients is None else set_owners(data, patients, name="patient")


def _patients(arrays: Any, database: Path) -> Tensor | None:
    """Whose each recording is, where the files say."""
    if "patient_id" in arrays:
        return torch.from_numpy(arrays["patient_id"].astype(np.int64))
    if not database.is_file():
        return None
    table = pd.read_csv(database, usecols=["ecg_id", "patient_id"]).set_index("ecg_id")
    return torch.from_numpy(table.patient_id.loc[arrays["ecg_id"]].to_numpy().astype(np.int64))


def _cpsc(name: str, root: Path) -> Data:
    """Records of CPSC 2018 with left bundle branch block (1) or sinus rhythm (0), by name.

    The first 512 samples of each. Records with neither are left out, which their own header says.
    """
    headers = _headers(root) or _headers(cache())
    if not headers:
        url = "https://physionet.org/content/challenge-2020"
        _refuse_absent(name, root, "CPSC2018/raw/*.hea", url)
    signals, y = [], []
    for path in headers:
        header = _read_header(path)
        diagnoses = _diagnoses(_notes(header))
        if diagnoses & (LBBB | SINUS):
            signals.append(twelve_leads(_read_signals(path, header), CPSC_SAMPLES))
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


def _refuse_absent(name: str, root: Path, file: str, url: str) -> NoReturn:
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
    path = path if path.suffix == ".hea" else Path(f"{path}.hea")
    return _read_signals(path, _read_header(path))


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


def _wfdb() -> Any:
    try:
        with warnings.catch_warnings():  # of what it uses of pandas
            warnings.simplefilter("ignore", DeprecationWarning)
            return importlib.import_module("wfdb")
    except ImportError:
        raise InvalidInputError(
            "Reading WFDB records needs wfdb; pip install 'graphveil[data]'."
        ) from None


def _read_header(path: Path) -> Any:
    """The header as a ``wfdb.Record``: one segment, of formats that are read here."""
    wfdb = _wfdb()
    if not path.is_file():
        raise InvalidInputError(f"{path} cannot be read (no such file); check the path.")
    try:
        header = wfdb.rdheader(str(path.with_suffix("")))
    except Exception as error:  # also of keys and places, where a line is missing
        rule = (
            "a first line with name, number of signals and frequency, and a line for each signal, "
            "of one segment and files beside the header"
        )
        _refuse_header(path, rule, reason(error))
    lines = len(header.file_name or ()) if getattr(header, "n_seg", None) is None else 0
    if not 1 <= header.n_sig == lines:
        _refuse_header(path, f"a line for each of {header.n_sig} signals", f"{lines} lines")
    for n, file in enumerate(header.file_name):
        form, unit, gain = header.fmt[n], header.units[n], header.adc_gain[n]
        if form not in _MISSING or header.samps_per_frame[n] != 1 or header.skew[n]:
            _refuse_header(path, "signals of format 16 or 212, one sample at a time", form)
        if Path(file).name != file or file in (".", ".."):
            _refuse_header(path, "files beside the header", file)
        if form != header.fmt[header.file_name.index(file)]:
            _refuse_header(path, "one format in each file", file)
        if unit not in _MILLIVOLTS or not 0 < abs(gain) < np.inf:
            _refuse_header(path, "signals with a gain such as 1000/mV", f"{gain:g}/{unit}")
    return header


def _refuse_header(path: Path, rule: str, got: str) -> NoReturn:
    raise InvalidInputError(f"The header {path} must have {rule}. Got {got!r} instead.")


def _notes(header: Any) -> dict[str, str]:
    parts = [line.partition(":") for line in header.comments or ()]
    return {key.strip(): value.strip() for key, _, value in parts}


def _diagnoses(notes: dict[str, str]) -> set[str]:
    return {word.strip() for word in notes.get("Dx", "").split(",") if word.strip()}


def _read_signals(path: Path, header: Any) -> Record:
    stored = _read_samples(path, header)
    for n, row in enumerate(stored):
        missing = np.isnan(row) | (row == _MISSING[header.fmt[n]])
        millivolts = _MILLIVOLTS[header.units[n]] / header.adc_gain[n]
        row[:] = np.where(missing, 0.0, (row - header.baseline[n]) * millivolts)
    leads, signals = tuple(name or "" for name in header.sig_name), stored.astype(np.float32)
    return Record(path.stem, float(header.fs), leads, signals, _notes(header))


def _read_samples(path: Path, header: Any) -> NDArray[np.float64]:
    """(signals, samples): the numbers as they are stored."""
    files = list(dict.fromkeys(header.file_name))
    try:
        if all(file.endswith(".mat") for file in files):
            from scipy.io import loadmat  # wfdb takes Matlab's newer files for samples

            values = np.concatenate([loadmat(path.with_name(file))["val"] for file in files])
            if values.shape[0] != header.n_sig or values.dtype.kind not in "iuf":
                raise ValueError(f"val is {values.dtype} {values.shape}, not {header.n_sig} rows")
        else:
            values = _wfdb().rdrecord(str(path.with_suffix("")), physical=False).d_signal.T
        if header.sig_len and values.shape[1] < header.sig_len:
            raise ValueError(f"{values.shape[1]} samples of each signal")
    except Exception as error:  # scipy, wfdb and odd contents raise many kinds
        length = f"{header.sig_len} samples of each signal, " if header.sig_len else ""
        raise InvalidInputError(
            f"{path.with_name(files[0])} cannot be read ({reason(error)}): {path.name} must have "
            f"{length}in files beside it; they may be cut short: get them again."
        ) from None
    return values[:, : header.sig_len].astype(np.float64)
