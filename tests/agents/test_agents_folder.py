"""The work folder: nothing outside is read or written, whatever lies in it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cuda_agent.agents.tools.folder import Folder, PathRefused


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    (tmp_path / "work").mkdir()
    (tmp_path / "secret").write_text("secret")
    return Folder(tmp_path / "work")


def test_files_come_back_as_written(folder: Folder) -> None:
    folder.write("kernels/deep/a.cu", "text é")
    assert folder.text("kernels/deep/a.cu") == folder.text("./kernels//deep/a.cu") == "text é"
    assert folder.text(str(folder.root / "kernels/deep/a.cu")) == "text é"
    folder.append("log", b"12")
    folder.append("log", b"345")
    assert folder.read("log", 2, 1) == b"23" and folder.size("log") == 5
    assert folder.exists("log") and not folder.exists("kernels/none") and not folder.exists("no/x")


@pytest.mark.parametrize(
    "path", ["../secret", "/etc/passwd", "a/../../secret", "", "x\0y", ".", "kernels/.."]
)
def test_paths_outside_are_refused(folder: Folder, path: str) -> None:
    for attempt in (folder.text, folder.exists, lambda p: folder.write(p, "x")):
        with pytest.raises(PathRefused):
            attempt(path)


def test_links_are_never_followed(folder: Folder) -> None:
    secret = folder.root.parent / "secret"
    os.symlink(secret, folder.root / "file")
    os.symlink(secret.parent, folder.root / "folder")
    os.symlink("file", folder.root / "inner")
    for path in ("file", "inner", "folder/secret"):
        with pytest.raises(PathRefused, match="link"):
            folder.text(path)
    with pytest.raises(PathRefused, match="link"):
        folder.write("folder/secret", "changed")
    with pytest.raises(PathRefused):
        folder.append("file", b"changed")
    assert list(folder.walk()) == []
    folder.write("file", "own")  # takes the link's place
    assert folder.text("file") == "own" and secret.read_text() == "secret"


def test_pipes_devices_and_huge_files_are_refused_without_waiting(folder: Folder) -> None:
    os.mkfifo(folder.root / "pipe")
    with open(folder.root / "huge", "wb") as file:
        file.truncate(1 << 40)
    (folder.root / "binary").write_bytes(b"\xff\xfe")
    for path in ("pipe", "huge", "binary"):
        with pytest.raises(PathRefused):
            folder.text(path)
    (folder.root / "sub").mkdir()
    for attempt in (folder.text, lambda p: folder.write(p, "")):
        with pytest.raises(PathRefused):
            attempt("sub")
    assert [p.name for p in folder.root.iterdir() if p.name.endswith(".new")] == []


def test_glob_walks_folders(folder: Folder) -> None:
    for name in ("a.cu", "kernels/b.cu", "kernels/deep/c.cu", "kernels/d.cpp", ".hidden/e.cu"):
        folder.write(name, "")
    assert folder.glob("*.cu") == ["a.cu"]
    assert folder.glob("**/*.cu") == ["a.cu", "kernels/b.cu", "kernels/deep/c.cu"]
    assert folder.glob("kernels/*") == ["kernels/b.cu", "kernels/d.cpp"]
    assert folder.glob("kernels/**") == ["kernels/b.cu", "kernels/d.cpp", "kernels/deep/c.cu"]
    assert folder.glob("kernels/[bd].*") == ["kernels/b.cu", "kernels/d.cpp"]
    assert folder.glob("nothing/*") == []
    assert list(folder.walk("kernels/deep")) == ["kernels/deep/c.cu"]
    folder.glob("*a" * 500)  # ends at once


def test_a_failed_write_keeps_what_was_there(folder: Folder) -> None:
    folder.write("a", "before")
    with pytest.raises(UnicodeEncodeError):
        folder.write("a", "\ud800")
    assert folder.text("a") == "before" and os.listdir(folder.root) == ["a"]
