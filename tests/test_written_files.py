"""Files written whole or added to, and on disk when that returns."""

import os
import stat

import pytest

from graphveil._files import append_file, partial_name, write_file

WAYS = {"whole": write_file, "added": append_file}


@pytest.mark.skipif(os.name != "posix", reason="needs file modes")
@pytest.mark.parametrize("way", WAYS)
def test_a_private_file_is_its_owner_s_alone(tmp_path, way):
    before = os.umask(0)
    try:
        WAYS[way](tmp_path / "private", b"x", private=True)
        WAYS[way](tmp_path / "open", b"x")
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("private", "open")]
    assert modes == [0o600, 0o666]


@pytest.mark.parametrize("way, content", [("whole", b"two"), ("added", b"onetwo")])
def test_a_second_write_takes_the_place_of_the_first_or_is_added_to_it(tmp_path, way, content):
    for text in (b"one", b"two"):
        WAYS[way](tmp_path / "file", text)
    assert (tmp_path / "file").read_bytes() == content
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("way", WAYS)
def test_content_is_on_disk_before_the_call_returns(tmp_path, monkeypatch, way):
    sizes, sync = [], os.fsync

    def note(handle):
        status = os.fstat(handle)
        sizes.extend([status.st_size] if stat.S_ISREG(status.st_mode) else [])
        sync(handle)

    monkeypatch.setattr("os.fsync", note)
    WAYS[way](tmp_path / "file", b"text")
    assert sizes == [4]


def test_a_full_disk_leaves_the_file_that_was_there(tmp_path, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    write_file(tmp_path / "file", b"before")
    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full)
        with pytest.raises(OSError, match="No space left"):
            write_file(tmp_path / "file", b"after")
    assert (tmp_path / "file").read_bytes() == b"before"
    assert not (tmp_path / partial_name("file")).exists()
