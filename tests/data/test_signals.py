"""Electrocardiograms: WFDB records, and twelve leads wired as the paper has them."""

import importlib.util
import math
import sys

import numpy as np
import pytest
import scipy.io
import torch

from graphveil._errors import InvalidInputError
from graphveil.data import load
from graphveil.data.signals import (
    BRIDGE,
    CHEST,
    LEADS,
    LIMB,
    as_graphs,
    lead_edges,
    read_record,
    spectra,
    twelve_leads,
)
from graphveil.graph.checks import check
from graphveil.graph.splits import split


def refused(call, *args, **options):
    with pytest.raises(InvalidInputError) as caught:
        call(*args, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def pack_212(samples):
    """Pairs of 12 bits in three bytes, as the standard draws them."""
    stored = bytearray()
    values = [*samples, 0] if len(samples) % 2 else list(samples)
    for one, other in zip(values[::2], values[1::2], strict=True):
        one, other = one & 0xFFF, other & 0xFFF
        stored += bytes([one & 0xFF, (one >> 8) | ((other >> 8) << 4), other & 0xFF])
    return bytes(stored)


needs_wfdb = pytest.mark.skipif(
    importlib.util.find_spec("wfdb") is None, reason="wfdb is not installed (extra 'data')"
)


def write(folder, name, values, form="16", gain="1000/mV", leads=None, end="dat", dx="LBBB", **kw):
    """A record with ``values`` (signals, samples) of whole numbers, in one file."""
    folder.mkdir(parents=True, exist_ok=True)
    values = np.asarray(values)
    leads = leads or LEADS[: len(values)]
    offset = ""
    if end == "mat":
        old = kw.get("old", True)
        scipy.io.savemat(
            folder / f"{name}.mat", {"val": values.astype(np.int16)}, format="4" if old else "5"
        )
        offset = "+24"
    else:
        flat = values.T.reshape(-1)
        stored = flat.astype("<i2").tobytes() if form == "16" else pack_212(flat.tolist())
        (folder / f"{name}.dat").write_bytes(kw.get("before", b"") + stored)
        offset = f"+{len(kw['before'])}" if "before" in kw else ""
    lines = [f"{name} {len(values)} 500 {values.shape[1]} 05-Feb-2020 11:39:16"]
    lines += [f"{name}.{end} {form}{offset} {gain} 16 0 0 0 0 {lead}" for lead in leads]
    lines += ["#Age: 74", f"#Dx: {dx}"]
    (folder / f"{name}.hea").write_text("\n".join(lines) + "\n")
    return folder / f"{name}.hea"


VALUES = np.random.default_rng(0).integers(-2047, 2048, size=(12, 600))


@needs_wfdb
@pytest.mark.parametrize("form", ["16", "212"])
@pytest.mark.parametrize("shape", [(12, 600), (3, 7), (1, 1), (1, 3), (2, 5)])
def test_samples_come_back_in_millivolts(tmp_path, form, shape):
    values = VALUES[: shape[0], : shape[1]]
    record = read_record(write(tmp_path, "r", values, form))
    np.testing.assert_allclose(record.signals, values / 1000, rtol=1e-6)
    assert record.signals.dtype == np.float32
    assert (record.name, record.frequency, record.diagnoses) == ("r", 500, {"LBBB"})
    assert record.notes["Age"] == "74"
    assert np.array_equal(read_record(tmp_path / "r").signals, record.signals)


@needs_wfdb
def test_format_212_by_hand(tmp_path):
    # 0x123 and -1 (0xFFF): the low byte, then the two high halves, then the other low byte.
    assert pack_212([0x123, -1]) == bytes([0x23, 0xF1, 0xFF])
    header = write(tmp_path, "r", [[0x123], [-1]], "212", gain="1/mV")
    assert read_record(header).signals.tolist() == [[291], [-1]]


@needs_wfdb
@pytest.mark.parametrize("old", [True, False])
def test_matlab_files_of_both_kinds(tmp_path, old):
    record = read_record(write(tmp_path, "r", VALUES, end="mat", old=old))
    np.testing.assert_allclose(record.signals, VALUES / 1000, rtol=1e-6)


@needs_wfdb
def test_offsets_units_gains_and_baselines(tmp_path):
    values = [[100, -100, 0]]
    for gain, expected in (
        ("200/mV", [0.5, -0.5, 0]),
        ("200(100)/mV", [0, -1, -0.5]),
        ("200.0(-100)/mV", [1, 0, 0.5]),
        ("0", [0.5, -0.5, 0]),
        ("1/uV", [0.1, -0.1, 0]),
        ("1e3/V", [100, -100, 0]),
    ):
        header = write(tmp_path, "r", values, gain=gain, before=b"head")
        np.testing.assert_allclose(read_record(header).signals, [expected], rtol=1e-6)


@needs_wfdb
def test_missing_samples_are_0_and_a_length_may_be_left_out(tmp_path):
    for form, missing in (("16", -32768), ("212", -2048)):
        header = write(tmp_path, "r", [[5, missing, 7]], form, gain="1(2)/mV")
        assert read_record(header).signals.tolist() == [[3, 0, 5]]
    header = write(tmp_path, "r", VALUES[:2, :5])
    header.write_text(header.read_text().replace("r 2 500 5 05-Feb-2020 11:39:16", "r 2 500"))
    assert read_record(header).signals.shape == (2, 5)


@needs_wfdb
def test_one_file_for_each_signal(tmp_path):
    for n in range(2):
        (tmp_path / f"r{n}.dat").write_bytes(VALUES[n, :4].astype("<i2").tobytes())
    lines = ["r 2 100 4", "r0.dat 16 1000/mV 16 0 0 0 0 I", "r1.dat 16 1000/mV 16 0 0 0 0 II"]
    (tmp_path / "r.hea").write_text("\n".join(lines))
    np.testing.assert_allclose(read_record(tmp_path / "r").signals, VALUES[:2, :4] / 1000)


HEADER_FAULTS = {
    "empty": ("", "a first line"),
    "one word": ("r\n", "a first line"),
    "no number": ("r x 500\n", "a first line"),
    "segments": ("r/3 2 500 9\n", "one segment"),
    "lines": ("r 2 500 4\nr.dat 16 1/mV\n", "a line for each of 2"),
    "format": ("r 1 500 4\nr.dat 80 1/mV\n", "format 16 or 212.*'80'"),
    "frames": ("r 1 500 4\nr.dat 16x2 1/mV\n", "format 16 or 212"),
    "no format": ("r 1 500 4\nr.dat\n", "a line for each signal"),
    "elsewhere": ("r 1 500 4\n../r.dat 16 1/mV\n", "beside the header"),
    "unit": ("r 1 500 4\nr.dat 16 1/bpm\n", "a gain"),
    "gain": ("r 1 500 4\nr.dat 16 x/mV\n", "a gain"),
    "absent": ("r 1 500 4\nother.dat 16 1/mV\n", "cannot be read"),
    "short": ("r 1 500 99\nr.dat 16 1/mV\n", "r.dat cannot be read.*99 samples"),
    "mixed": ("r 2 500 4\nr.dat 16 1/mV\nr.dat 212 1/mV\n", "one format"),
    "skew": ("r 1 500 4\nr.dat 16:3 1/mV\n", "format 16 or 212"),
    "infinite": ("r 1 500 4\nr.dat 16 1e400/mV\n", "a gain"),
    "no signal": ("r 0 500 4\n", "a line for each of 0"),
    "web": ("r 1 500 4\nhttps://a.org/r.dat 16 1/mV\n", "beside the header"),
    "more lines": ("r 1 500 4\nr.dat 16 1/mV\nr.dat 16 1/mV\n", "a line for each of 1"),
    "garbled": ("\x00\x01\x02", "a first line"),
}


@needs_wfdb
@pytest.mark.parametrize("fault", HEADER_FAULTS)
def test_bad_records_are_one_line(tmp_path, fault):
    text, message = HEADER_FAULTS[fault]
    (tmp_path / "r.dat").write_bytes(bytes(8))
    (tmp_path / "r.hea").write_text(text)
    with pytest.raises(InvalidInputError, match=message):
        read_record(tmp_path / "r.hea")
    assert str(tmp_path) in refused(read_record, tmp_path / "r.hea")


@needs_wfdb
def test_absent_and_damaged_files_are_one_line(tmp_path):
    assert "absent.hea" in refused(read_record, tmp_path / "absent")
    header = write(tmp_path, "r", VALUES, end="mat")
    whole = (tmp_path / "r.mat").read_bytes()
    for kept in (b"", whole[:30], whole[:-100], b"noise" * 50):
        (tmp_path / "r.mat").write_bytes(kept)
        assert "r.mat" in refused(read_record, header)


@needs_wfdb
def test_leads_are_put_in_order_whatever_their_capitals(tmp_path):
    mixed = [lead.upper() for lead in LEADS[::-1]]
    record = read_record(write(tmp_path, "r", VALUES, leads=mixed))
    np.testing.assert_allclose(twelve_leads(record, 512), VALUES[::-1, :512] / 1000, rtol=1e-6)
    assert "601 samples" in refused(twelve_leads, record, 601)
    few = read_record(write(tmp_path, "few", VALUES[:11]))
    assert "twelve leads" in refused(twelve_leads, few, 5)
    twice = read_record(write(tmp_path, "twice", VALUES, leads=["I", "i", *LEADS[2:]]))
    assert "twelve leads" in refused(twelve_leads, twice, 5)


def test_without_wfdb_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wfdb", None)
    (tmp_path / "r.hea").write_text("r 1 500 4\nr.dat 16 1/mV\n")
    assert "graphveil[data]" in refused(read_record, tmp_path / "r")


def test_the_wiring_is_the_papers():
    joined = {(LEADS[a], LEADS[b]) for a, b in lead_edges().T}
    assert len(joined) == lead_edges().shape[1] == 68
    for one in LEADS:
        for other in LEADS:
            together = any(one in g and other in g for g in (LIMB, CHEST, BRIDGE))
            assert ((one, other) in joined) == (together and one != other)


def test_recordings_become_graphs_of_their_own():
    signals = torch.arange(2 * 12 * 5).reshape(2, 12, 5).float()
    data = check(as_graphs(signals, torch.tensor([0, 1])), masks=False)
    assert data.batch.tolist() == [0] * 12 + [1] * 12
    assert torch.equal(data.x.reshape(2, 12, 5), signals)
    assert torch.equal(data.edge_index[:, 68:] - 12, data.edge_index[:, :68])
    assert data.is_undirected()
    assert "(2, 11, 5)" in refused(as_graphs, signals[:, :11], torch.tensor([0, 1]))


@needs_wfdb
def test_cpsc_takes_lbbb_and_sinus_rhythm_and_leaves_out_the_rest(tmp_path):
    folder = tmp_path / "CPSC2018" / "raw"
    for name, dx, end in (
        ("A3", "426783006", "dat"),
        ("A1", "LBBB", "mat"),
        ("A2", "59118001", "dat"),
        ("A4", "Normal", "mat"),
        ("A5", "164889003,164909002", "dat"),
    ):
        write(folder, name, np.full((12, 520), int(name[1])), end=end, dx=dx)
    data = load("ecg:cpsc", root=tmp_path)
    assert data.y.tolist() == [1, 0, 0, 1]
    assert data.class_names == ["sinus rhythm", "LBBB"]
    assert data.x.shape == (48, 512)
    assert data.x[::12, 0].tolist() == pytest.approx([0.001, 0.003, 0.004, 0.005])
    write(folder, "A6", VALUES[:, :100])
    assert "A6" in refused(load, "ecg:cpsc", root=tmp_path)


@needs_wfdb
def test_absent_or_other_recordings_are_one_line(tmp_path):
    for name in ("ecg", "ecg:ptbxl", "ecg:cpsc"):
        message = refused(load, name, root=tmp_path)
        assert "physionet.org" in message
        assert str(tmp_path) in message
    assert "ecg:x" in refused(load, "ecg:x", root=tmp_path)
    write(tmp_path / "CPSC2018", "A1", VALUES, dx="AF")
    assert "LBBB or sinus" in refused(load, "ecg:cpsc", root=tmp_path)


def test_ptbxl_arrays_are_scaled_to_millivolts(tmp_path):
    path = tmp_path / "PTBXL" / "ptbxl_2s5_1987.npz"
    path.parent.mkdir()
    signal = np.arange(3 * 12 * 4, dtype=np.int16).reshape(3, 12, 4)
    np.savez(path, signal_uV=signal, abnormal=np.array([0, 1, 0], dtype=np.int8))
    data = load("ecg", root=tmp_path)
    np.testing.assert_allclose(data.x, signal.reshape(36, 4) / 1000, rtol=1e-6)
    assert data.y.tolist() == [0, 1, 0]
    np.savez(path, signal_uV=signal, abnormal=np.array([0, 2, 0]))
    assert "2 at graph 1" in refused(load, "ecg", root=tmp_path)
    np.savez(path, signal_uV=signal[:, :11], abnormal=np.array([0, 1, 0]))
    assert "cannot be read" in refused(load, "ecg", root=tmp_path)
    np.savez(path, signal_uV=signal)
    assert "cannot be read" in refused(load, "ecg", root=tmp_path)
    path.write_bytes(path.read_bytes()[:99])
    assert "cannot be read" in refused(load, "ecg", root=tmp_path)


def test_recordings_of_ptbxl_are_a_patients_where_the_files_say_so(tmp_path):
    path = tmp_path / "PTBXL" / "ptbxl_2s5_1987.npz"
    path.parent.mkdir()
    ids = {"ecg_id": np.array([7, 3, 9])}
    signal = {"signal_uV": np.ones((3, 12, 4), np.int16), "abnormal": np.array([0, 1, 0])}
    np.savez(path, **signal, **ids)
    assert "owner" not in load("ecg", root=tmp_path)
    table = path.parent / "ptbxl_database.csv"
    table.write_text("ecg_id,patient_id,age\n3,15709.0,50\n7,13243.0,60\n9,15709.0,51\n8,1.0,9\n")
    data = load("ecg:ptbxl:spectrum", root=tmp_path)
    assert data.owner.tolist() == [13243, 15709, 15709]
    assert (data.owner_name, data.unit_name) == ("patient", "recording")
    table.write_text("ecg_id,patient_id\n3,15709\n")
    assert "cannot be read" in refused(load, "ecg", root=tmp_path)
    table.unlink()
    np.savez(path, **signal, patient_id=np.array([4, 4, 5]))
    assert load("ecg", root=tmp_path).owner.tolist() == [4, 4, 5]


def test_a_spectrum_is_a_rows_own_and_knows_no_beginning():
    time = torch.arange(200.0)
    waves = torch.stack([torch.sin(time * 2 * math.pi * k / 200 + k) + k for k in range(1, 6)])
    found = spectra(waves)
    assert found.shape == (5, 64)
    assert found.argmax(dim=1).tolist() == [1, 2, 3, 4, 5]
    assert found.amax(dim=1).tolist() == pytest.approx([200**0.5] * 5, rel=1e-4)
    assert found[:, 0].abs().max() < 1e-3  # the mean is gone
    torch.testing.assert_close(spectra(waves.roll(17, dims=1)), found, rtol=1e-3, atol=1e-3)
    assert torch.equal(spectra(waves[2:3])[0], found[2])


def test_spectra_by_name(tmp_path):
    path = tmp_path / "PTBXL" / "ptbxl_2s5_1987.npz"
    path.parent.mkdir()
    signal = np.random.default_rng(0).integers(-500, 500, (2, 12, 250)).astype(np.int16)
    np.savez(path, signal_uV=signal, abnormal=np.array([0, 1], dtype=np.int8))
    plain = load("ecg", root=tmp_path)
    for name in ("ecg:spectrum", "ecg:ptbxl:spectrum"):
        assert torch.equal(load(name, root=tmp_path).x, spectra(plain.x))
    assert "':spectrum'" in refused(load, "ecg:ptbxl:x", root=tmp_path)


def test_the_real_recordings_of_ptbxl(real):
    data = load("ecg", root=real("PTBXL").parent)
    assert (data.num_graphs, data.x.shape) == (1987, (23_844, 250))
    assert torch.bincount(data.y).tolist() == [1051, 936]
    # Leads stand in the order of LEADS: Einthoven's law holds, up to each lead's own mean.
    one, two, three = data.x.reshape(-1, 12, 250)[:, :3].double().unbind(dim=1)
    off = three - (two - one)
    assert (off - off.mean(dim=1, keepdim=True)).abs().median() < 0.002
    check(split(data))


@needs_wfdb
def test_the_ten_real_records_of_cpsc(real):
    folder = real("CPSC2018") / "raw"
    kinds = []
    for header in sorted(folder.glob("*.hea")):
        record = read_record(header)
        lines = [line.split() for line in header.read_text().splitlines()[1:13]]
        stored = np.rint(record.signals.astype(np.float64) * 1000).astype(np.int64)
        assert stored[:, 0].tolist() == [int(line[5]) for line in lines]  # its own first values
        assert ((stored.sum(axis=1) - [int(line[6]) for line in lines]) % 2**16 == 0).all()
        assert record.leads == LEADS
        assert twelve_leads(record, 512).shape == (12, 512)
        kinds += record.diagnoses
    assert sorted(kinds) == ["AF"] * 4 + ["Normal", "PVC"] + ["RBBB"] * 3 + ["STD"]
    data = load("ecg:cpsc", root=folder.parent.parent)
    assert (data.num_graphs, data.y.tolist()) == (1, [0])
