"""The work folder, read and written by the trusted side without ever leaving it.

A model (and what it starts in its shell) may put links, pipes and devices into the folder. So every
path is opened one component at a time, from a descriptor of the folder, and links are refused:
nothing outside can be read or written through it, whatever changes meanwhile.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from cuda_agent.errors import CandidateError

MAX_READ_BYTES = 4 << 20
MAX_ENTRIES = 20_000
"""Files and folders that `walk` looks at."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class PathRefused(CandidateError):
    """A path that leaves the folder, or is no plain file; one sentence for the model."""


class Folder:
    """`root` must exist. Paths are relative, with "/" between components."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root).resolve(strict=True)

    def clean(self, path: str) -> str:
        """The path without "." and doubled slashes; an absolute one below the root is made
        relative. Raises PathRefused."""
        if not path or "\0" in path or len(path) > 4096:
            raise PathRefused(f"{path[:80]!r} is no path; give one inside the work folder")
        pure = PurePosixPath(path)
        if pure.is_absolute():
            if not pure.is_relative_to(self.root):
                raise PathRefused(f"{path} is outside the work folder; give a path inside it")
            pure = pure.relative_to(self.root)
        if ".." in pure.parts:
            raise PathRefused(f"{path}: '..' is not followed; give a path inside the work folder")
        return str(pure)

    def read(self, path: str, limit: int = MAX_READ_BYTES, offset: int = 0) -> bytes:
        """At most `limit` bytes from `offset`. Raises PathRefused, or FileNotFoundError."""
        with self._opened(path, os.O_RDONLY) as fd:
            os.lseek(fd, offset, os.SEEK_SET)
            parts: list[bytes] = []
            while limit > 0 and (part := os.read(fd, min(limit, 1 << 20))):
                parts.append(part)
                limit -= len(part)
            return b"".join(parts)

    def text(self, path: str) -> str:
        """A whole file. Raises PathRefused where it is too large or not UTF-8."""
        data = self.read(path, MAX_READ_BYTES + 1)
        if len(data) > MAX_READ_BYTES:
            raise PathRefused(f"{path} is larger than {MAX_READ_BYTES >> 20} MiB")
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise PathRefused(f"{path} is not UTF-8 text") from None

    def size(self, path: str) -> int:
        with self._opened(path, os.O_RDONLY) as fd:
            return os.fstat(fd).st_size

    def exists(self, path: str) -> bool:
        """Whether a plain file is there. Raises PathRefused for a path outside."""
        try:
            with self._opened(path, os.O_RDONLY):
                return True
        except FileNotFoundError:
            return False

    def write(self, path: str, text: str) -> None:
        """The whole file or nothing; folders on the way are made. A link in its place is replaced,
        not followed. Raises PathRefused."""
        with self._parent(path, make=True) as (parent, name):
            with contextlib.suppress(FileNotFoundError):
                if stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
                    raise PathRefused(f"{path} is a folder")
            temporary = f".{secrets.token_hex(6)}.new"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE
            fd = os.open(temporary, flags, 0o644, dir_fd=parent)
            try:
                with open(fd, "wb") as file:
                    file.write(text.encode())
                os.replace(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary, dir_fd=parent)
                raise

    def make_folder(self, path: str) -> None:
        """With those on the way; one that is there will do. Raises PathRefused."""
        with self._folder(self.clean(path), make=True):
            pass

    def remove(self, path: str) -> None:
        """A file, or a link itself. Raises PathRefused, or FileNotFoundError."""
        with self._parent(path, make=False) as (parent, name):
            os.unlink(name, dir_fd=parent)

    def append(self, path: str, data: bytes) -> None:
        """To a file that is made where it is missing. Raises PathRefused."""
        with self._parent(path, make=True) as (parent, name):
            fd = self._open_plain(path, name, parent, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            with open(fd, "wb") as file:
                file.write(data)

    def walk(self, under: str = ".") -> Iterator[str]:
        """Plain files below a folder, sorted; hidden ones, caches and links are left out. Raises
        PathRefused where there are more than can be looked at."""
        top, seen = self.clean(under), 0
        with self._folder(top, make=False) as fd:
            prefix = "" if top == "." else f"{top}/"
            for base, folders, files, folder in os.fwalk(".", dir_fd=fd, follow_symlinks=False):
                folders[:] = sorted(f for f in folders if f[0] != "." and f != "__pycache__")
                seen += len(folders) + len(files)
                if seen > MAX_ENTRIES:
                    raise PathRefused(f"{under} holds more than {MAX_ENTRIES} files; remove some")
                inside = base.removeprefix(".").removeprefix("/")
                for name in sorted(files):
                    with contextlib.suppress(OSError):
                        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
                        if name[0] != "." and stat.S_ISREG(mode):
                            yield f"{prefix}{inside}/{name}" if inside else f"{prefix}{name}"

    def glob(self, pattern: str) -> list[str]:
        """Files that match; `*`, `?` and `[...]` stay within a component, `**` does not."""
        parts = self.clean(pattern).split("/")
        return [name for name in self.walk() if _matches(name.split("/"), parts)]

    # --- descriptors ----------------------------------------------------------------------------

    @contextlib.contextmanager
    def _opened(self, path: str, flags: int) -> Iterator[int]:
        with self._parent(path, make=False) as (parent, name):
            fd = self._open_plain(path, name, parent, flags)
        try:
            yield fd
        finally:
            os.close(fd)

    def _open_plain(self, path: str, name: str, parent: int, flags: int) -> int:
        try:
            fd = os.open(name, flags | _FILE, 0o644, dir_fd=parent)
        except FileNotFoundError:
            raise FileNotFoundError(f"there is no {path}") from None
        except OSError as error:
            raise PathRefused(f"{path} {_reason(error)}") from None
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise PathRefused(f"{path} is no plain file")
        return fd

    @contextlib.contextmanager
    def _parent(self, path: str, make: bool) -> Iterator[tuple[int, str]]:
        clean = self.clean(path)
        if clean == ".":
            raise PathRefused(f"{path} is a folder; give a file")
        folder, _, name = clean.rpartition("/")
        with self._folder(folder or ".", make) as fd:
            yield fd, name

    @contextlib.contextmanager
    def _folder(self, path: str, make: bool) -> Iterator[int]:
        fd = os.open(self.root, _FOLDER)
        try:
            for name in PurePosixPath(path).parts:
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(name, 0o755, dir_fd=fd)
                try:
                    below = os.open(name, _FOLDER, dir_fd=fd)
                except FileNotFoundError:
                    raise FileNotFoundError(f"there is no folder {path}") from None
                except OSError as error:
                    raise PathRefused(f"{path} {_reason(error, name)}") from None
                os.close(fd)
                fd = below
            yield fd
        finally:
            os.close(fd)


def _reason(error: OSError, name: str = "") -> str:
    if error.errno == 40 or (error.errno == 20 and name):  # ELOOP, or ENOTDIR of a link
        what = f"({name}) " if name else ""
        return f"{what}is a link or no folder; links are not followed"
    return f"cannot be opened: {error.strerror}"


def _matches(names: list[str], parts: list[str]) -> bool:
    places = {0}
    for part in parts:
        if part == "**":
            places = set(range(min(places, default=len(names) + 1), len(names) + 1))
        else:
            places = {
                p + 1 for p in places if p < len(names) and fnmatch.fnmatchcase(names[p], part)
            }
    return len(names) in places
