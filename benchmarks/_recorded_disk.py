"""A disk that loses power: the file operations of a run are recorded, and replayed as a crash may leave them.

`Recorder` patches what Python writes files with, below one folder. `Disk` makes the trees that a crash after some
operations may leave, by what POSIX promises and no more:

- the bytes of a file are safe once the file is synced; before, any of its writes may be missing, cut short or zeros;
- the entries of a folder are safe once the folder is synced; before, each new, renamed or removed name may be missing,
  in any order, but a rename is whole.

SQLite writes files by itself; its functions for files are wrapped.
"""

import builtins
import ctypes
import ctypes.util
import errno
import io
import os
import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

Tree = dict[str, bytes | None]
"""The content of each file by its path, and None for each folder."""

BLOCK = 512
"""Bytes of which a disk writes all or none."""
VOLATILE = "-shm"
"""End of the names of shared memory of SQLite, which creates it again."""
FULL = (errno.ENOSPC, errno.EDQUOT)
REFUSED = {
    errno.EROFS: ("open", "create", "write", "truncate", "rename", "link", "remove"),
    **dict.fromkeys(FULL, ("create", "write", "rename", "link")),
    errno.EIO: ("open", "create", "write", "truncate", "rename", "link", "remove", "sync"),
}
"""The kinds of operations that fail with an error. All but EIO fail until the end."""


@dataclass(slots=True)
class Operation:
    """One change.  places: the entries that it changes, as (number of the folder, name).  file: the number of the file.

    offset: where `data` is written, or the size to which the file is cut.
    """

    kind: str
    file: int = -1
    places: tuple[tuple[int, str], ...] = ()
    data: bytes = b""
    offset: int = 0


@dataclass(slots=True)
class Disk:
    """The operations of a run.  folders: the numbers of folders; 0 is the top one."""

    operations: list[Operation] = field(default_factory=list)
    folders: set[int] = field(default_factory=lambda: {0})

    def whole(self, end: int) -> Tree:
        """Return the tree after the first `end` operations, as a killed process leaves it."""
        return self._tree(range(end), end, {})

    def torn(self, end: int, draw: random.Random) -> Tree:
        """Return a tree that a loss of power after the first `end` operations may leave."""
        synced: dict[int, int] = {}
        for number, each in enumerate(self.operations[:end]):
            if each.kind == "sync":
                synced[each.file] = number
        share = draw.choice((0.0, 0.1, 0.5, 0.9, 1.0))
        kept = []
        for number, each in enumerate(self.operations[:end]):
            safe = any(synced.get(folder, -1) > number for folder, _ in each.places)
            if not each.places or safe or draw.random() < share:
                kept.append(number)
        way = draw.choice(("all", "none", "mixed", "mixed"))
        ways = {
            file: draw.choice(("all", "none", "cut", "zeros", "holes")) if way == "mixed" else way
            for file in {each.file for each in self.operations[:end]}
        }
        return self._tree(kept, end, ways, synced, draw)

    def _tree(
        self,
        kept: "range | list[int]",
        end: int,
        ways: Mapping[int, str],
        synced: Mapping[int, int] | None = None,
        draw: random.Random | None = None,
    ) -> Tree:
        entries: dict[int, dict[str, int]] = {each: {} for each in self.folders}
        changes: dict[int, list[tuple[int, Operation]]] = {}
        for number in kept:
            each = self.operations[number]
            if each.kind in ("create", "link"):
                (folder, name), *_ = each.places
                entries[folder][name] = each.file
            elif each.kind == "remove":
                (folder, name), *_ = each.places
                entries[folder].pop(name, None)
            elif each.kind == "rename":
                (folder, name), (other, new) = each.places
                if entries[folder].get(name) == each.file:
                    del entries[folder][name]
                entries[other][new] = each.file
            elif each.kind in ("write", "truncate"):
                changes.setdefault(each.file, []).append((number, each))
        contents = {
            file: _content(some, (synced or {}).get(file, -1), ways.get(file, "all"), draw)
            for file, some in changes.items()
        }
        tree: Tree = {}

        def walk(folder: int, above: str, seen: frozenset[int]) -> None:
            for name, file in entries[folder].items():
                if file in self.folders:
                    if file not in seen:
                        tree[above + name] = None
                        walk(file, f"{above}{name}/", seen | {file})
                elif not name.endswith(VOLATILE):
                    tree[above + name] = contents.get(file, b"")

        walk(0, "", frozenset([0]))
        return tree


def _content(changes: list[tuple[int, Operation]], synced: int, way: str, draw: random.Random | None) -> bytes:
    """Return the bytes of a file, of whose changes those after the operation `synced` are not safe."""
    content = bytearray()
    waiting = []
    for number, each in changes:
        if number < synced or way == "all":
            _apply(content, each.kind, each.offset, each.data)
        else:
            waiting.append(each)
    if not waiting or way == "none" or draw is None:
        return bytes(content)
    if way == "cut":
        last = draw.randrange(len(waiting))
        for each in waiting[:last]:
            _apply(content, each.kind, each.offset, each.data)
        each = waiting[last]
        _apply(content, each.kind, each.offset, each.data[: draw.randrange(len(each.data) + 1)])
        return bytes(content)
    for each in waiting:
        if each.kind == "truncate":
            if draw.random() < 0.7:
                _apply(content, each.kind, each.offset, each.data)
            continue
        _apply(content, "write", each.offset + len(each.data), b"")  # its size, filled with zeros
        if way == "holes":
            for begin in range(0, len(each.data), BLOCK):
                if draw.random() < 0.5:
                    _apply(content, "write", each.offset + begin, each.data[begin : begin + BLOCK])
    return bytes(content)


def _apply(content: bytearray, kind: str, offset: int, data: bytes) -> None:
    if kind == "truncate":
        del content[offset:]
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


def read_tree(root: Path) -> Tree:
    """Return the tree below a folder."""
    return {
        path.relative_to(root).as_posix(): None if path.is_dir() else path.read_bytes()
        for path in root.rglob("*")
        if not path.name.endswith(VOLATILE)
    }


def write_tree(root: Path, tree: Tree) -> None:
    """Write a tree into a folder, which is emptied first."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    for name, content in sorted(tree.items()):
        if content is None:
            (root / name).mkdir(exist_ok=True)
        else:
            (root / name).write_bytes(content)


class UnseenError(Exception):
    """A file was changed in a way that is not recorded."""


class Recorder:
    """Records the operations below `root`, from an empty folder, while the block of `recording` lasts.

    fail: makes the operation with this number fail, with the error `code` (0 for none).  count: of operations so far.
    foreign: whether a library writes files by functions of its own. Their changes are noticed before the next sync or
    rename; others would be an error.
    """

    def __init__(self, root: Path, *, fail: int = -1, code: int = 0, foreign: bool = False) -> None:
        self.root, self.disk, self.count, self.foreign = str(root.resolve()), Disk(), 0, foreign
        self._fail, self._code = fail, code
        self._numbers: dict[str, int] = {self.root: 0}  # of the file or folder at a path
        self._next = 1
        self._new_databases: dict[str, bool] = {}

    def start(self) -> int:
        """Record what is in the folder before the run as synced. Return the number of operations for that."""
        self.notice()
        for number in self._numbers.values():
            self.add("sync", number)
        return len(self.disk.operations)

    # What happens to paths.

    def path(self, path: Any, dir_fd: int | None = None) -> str | None:
        """Return the absolute path if it lies below the root."""
        if not isinstance(path, str | bytes | os.PathLike):
            return None
        name = os.fsdecode(path)
        if dir_fd is not None and not os.path.isabs(name):
            name = os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), name)
        name = os.path.abspath(name)
        name = os.path.join(os.path.realpath(os.path.dirname(name)), os.path.basename(name))
        return name if name.startswith(self.root + "/") or name == self.root else None

    def of_handle(self, handle: int) -> int | None:
        """Return the number of an open file or folder below the root."""
        with suppress(OSError):
            path = os.readlink(f"/proc/self/fd/{handle}")
            if path in self._numbers:
                return self._numbers[path]
            deleted = path.removesuffix(" (deleted)")
            if deleted != path and deleted.startswith(self.root):
                return -1
            if path.startswith(self.root) and not path.endswith(VOLATILE):
                raise UnseenError(path)
        return None

    def notice(self) -> None:
        """Record what was changed without being seen."""
        seen, real = self.disk.whole(len(self.disk.operations)), read_tree(Path(self.root))
        for name in sorted(seen.keys() - real.keys(), reverse=True):
            self.removed(f"{self.root}/{name}")
        for name, content in sorted(real.items()):
            path = f"{self.root}/{name}"
            if name not in seen:
                self.created(path, folder=content is None)
            if content != seen.get(name) and content is not None:
                self.add("truncate", self._numbers[path])
                self.add("write", self._numbers[path], data=content)

    def begin(self, kind: str, path: object = "") -> None:
        """Count an operation that is about to happen. Raises OSError if it shall fail."""
        if self.foreign and kind in ("sync", "rename", "remove"):
            self.notice()
        number, self.count = self.count, self.count + 1
        later = number > self._fail >= 0 and self._code != errno.EIO
        if self._code and (number == self._fail or later) and kind in REFUSED[self._code]:
            raise OSError(self._code, os.strerror(self._code), str(path))

    def add(self, kind: str, file: int = -1, *paths: str, data: bytes = b"", offset: int = 0) -> None:
        places = tuple((self._numbers[os.path.dirname(path)], os.path.basename(path)) for path in paths)
        self.disk.operations.append(Operation(kind, file, places, data, offset))

    def created(self, path: str, *, folder: bool = False) -> None:
        self._numbers[path] = number = self._next
        self._next += 1
        if folder:
            self.disk.folders.add(number)
        self.add("create", number, path)

    def renamed(self, old: str, new: str) -> None:
        self.add("rename", self._numbers[old], old, new)
        moved = {path: file for path, file in self._numbers.items() if path == old or path.startswith(f"{old}/")}
        for path in [path for path in self._numbers if path == new or path.startswith(f"{new}/")]:
            del self._numbers[path]
        for path, file in moved.items():
            del self._numbers[path]
            self._numbers[new + path.removeprefix(old)] = file

    def removed(self, path: str) -> None:
        self.add("remove", self._numbers.pop(path), path)

    def opened(self, path: str, flags: int, existed: bool) -> None:
        """Record what opening a file has changed."""
        if not existed:
            self.created(path)
        elif flags & os.O_TRUNC:
            self.add("truncate", self._numbers[path])

    # The patches.

    @contextmanager
    def recording(self) -> Iterator["Recorder"]:
        """Record in the block. Raises UnseenError if the folder is not as the operations made it."""
        with mock.patch.multiple(os, **self._of_os()), self._files(), self._sqlite():
            yield self
        seen, real = self.disk.whole(len(self.disk.operations)), read_tree(Path(self.root))
        if seen != real:
            names = [name for name in {**seen, **real} if seen.get(name, 0) != real.get(name, 0)]
            raise UnseenError(f"not as recorded: {', '.join(sorted(names)[:5])}")

    def _of_os(self) -> dict[str, Any]:
        real = {name: getattr(os, name) for name in dir(os)}

        def open_(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> Any:
            place = self.path(path, dir_fd)
            if place is None or not flags & (os.O_WRONLY | os.O_RDWR) or flags & os.O_TMPFILE == os.O_TMPFILE:
                return real["open"](path, flags, mode, dir_fd=dir_fd)
            existed = os.path.exists(place)
            self.begin("open" if existed else "create", path)
            handle: int = real["open"](path, flags, mode, dir_fd=dir_fd)
            self.opened(place, flags, existed)
            return handle

        def write(handle: int, data: bytes) -> int:
            file = self.of_handle(handle)
            offset = None if file is None else os.lseek(handle, 0, os.SEEK_CUR)
            return pwrite_to(file, data, offset, lambda: real["write"](handle, data))

        def pwrite(handle: int, data: bytes, offset: int) -> int:
            return pwrite_to(self.of_handle(handle), data, offset, lambda: real["pwrite"](handle, data, offset))

        def pwrite_to(file: int | None, data: bytes, offset: int | None, call: Callable[[], int]) -> int:
            if file is None or offset is None:
                return call()
            self.begin("write")
            count = call()
            self.add("write", file, data=bytes(data)[:count], offset=offset)
            return count

        def ftruncate(handle: int, size: int) -> None:
            if (file := self.of_handle(handle)) is not None:
                self.begin("truncate")
                self.add("truncate", file, offset=size)
            real["ftruncate"](handle, size)

        def sync(name: str) -> Callable[[int], None]:
            def synced(handle: Any) -> None:
                number = handle if isinstance(handle, int) else handle.fileno()
                if self.foreign:
                    self.notice()
                if (file := self.of_handle(number)) is not None:
                    self.begin("sync")
                    real[name](number)
                    self.add("sync", file)
                else:
                    real[name](number)

            return synced

        def rename(name: str) -> Callable[..., None]:
            def moved(old: Any, new: Any, **handles: Any) -> Any:
                before, after = self.path(old, handles.get("src_dir_fd")), self.path(new, handles.get("dst_dir_fd"))
                if before is None or after is None:
                    if before or after:
                        raise UnseenError(f"{old} to {new}")
                    return real[name](old, new, **handles)
                self.begin("rename", new)
                real[name](old, new, **handles)
                return self.renamed(before, after)

            return moved

        def remove(name: str) -> Callable[..., None]:
            def removed(path: Any, *, dir_fd: int | None = None) -> Any:
                place = self.path(path, dir_fd)
                if place is None or not os.path.lexists(place):
                    return real[name](path, dir_fd=dir_fd)
                self.begin("remove", path)
                real[name](path, dir_fd=dir_fd)
                return None if place.endswith(VOLATILE) else self.removed(place)

            return removed

        def mkdir(path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> Any:
            place = self.path(path, dir_fd)
            if place is None or os.path.exists(place):
                return real["mkdir"](path, mode, dir_fd=dir_fd)
            self.begin("create", path)
            real["mkdir"](path, mode, dir_fd=dir_fd)
            return self.created(place, folder=True)

        def link(old: Any, new: Any, **handles: Any) -> Any:
            before, after = self.path(old), self.path(new)
            if before is None or after is None:
                return real["link"](old, new, **handles)
            self.begin("link", new)
            real["link"](old, new, **handles)
            self._numbers[after] = self._numbers[before]
            return self.add("link", self._numbers[after], after)

        return {
            "open": open_, "write": write, "pwrite": pwrite, "ftruncate": ftruncate, "fsync": sync("fsync"),
            "fdatasync": sync("fdatasync"), "rename": rename("rename"), "replace": rename("replace"),
            "unlink": remove("unlink"), "remove": remove("remove"), "rmdir": remove("rmdir"), "mkdir": mkdir,
            "link": link,
        }  # fmt: skip

    @contextmanager
    def _files(self) -> Iterator[None]:
        """Let files that are opened for writing record what they write."""
        recorder, real = self, io.open

        class Raw(io.FileIO):
            number = -1

            def write(self, data: Any) -> Any:
                recorder.begin("write", self.name)
                content = memoryview(data).cast("B")
                end = "a" in self.mode or self._appends
                offset = os.fstat(self.fileno()).st_size if end else self.tell()
                count = super().write(content)
                recorder.add("write", self.number, data=bytes(content[:count]), offset=offset)
                return count

            def truncate(self, size: int | None = None) -> int:
                size = self.tell() if size is None else size
                recorder.begin("truncate", self.name)
                super().truncate(size)
                recorder.add("truncate", self.number, offset=size)
                return size

            _appends = False

        def opened(
            file: Any, mode: str = "r", buffering: int = -1, encoding: Any = None, errors: Any = None,
            newline: Any = None, closefd: bool = True, opener: Any = None,
        ) -> Any:  # fmt: skip
            place = recorder.path(file)
            if place is None or not set(mode) & set("wax+") or os.path.isdir(place):
                return real(file, mode, buffering, encoding, errors, newline, closefd, opener)
            plain = mode.replace("b", "").replace("t", "")
            existed = os.path.exists(place)
            recorder.begin("open" if existed else "create", file)
            with mock.patch.object(os, "open", recorder._real_open):
                raw = Raw(os.fspath(file), plain, closefd, opener)
            recorder.opened(place, os.O_TRUNC if "w" in mode else 0, existed)
            raw.number, raw._appends = recorder._numbers[place], "a" in mode
            if buffering == 0:
                return raw
            buffer = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
            if "b" in mode:
                return buffer
            text = io.TextIOWrapper(buffer, encoding, errors, newline, buffering == 1)
            text.mode = mode  # type: ignore[misc]  # as `open` does
            return text

        with (
            mock.patch.object(builtins, "open", opened),
            mock.patch.object(io, "open", opened),
            mock.patch.object(shutil, "_USE_CP_SENDFILE", False),
        ):
            yield

    _real_open = staticmethod(os.open)

    @contextmanager
    def _sqlite(self) -> Iterator[None]:
        """Let SQLite record what it writes: its functions to open and remove files are replaced by ours."""
        import _sqlite3

        library = ctypes.CDLL(_sqlite3.__file__)
        library.sqlite3_vfs_find.restype = ctypes.c_void_p
        vfs = _Vfs.from_address(library.sqlite3_vfs_find(None))
        kept: list[Any] = []
        _kept.append(kept)
        paths: dict[int, str] = {}  # of open files
        begun, removing = vfs.open, vfs.remove
        real_open, real_remove = _OPEN(begun), _REMOVE(removing)

        def failed(kind: str, code: int) -> int:
            try:
                self.begin(kind)
            except OSError as error:
                return _SQLITE_FULL if error.errno in FULL else code
            return 0

        def methods_of(real: Any) -> Any:
            ours = _Methods.from_buffer_copy(real)
            real_write, real_cut, real_sync = _WRITE(real.write), _CUT(real.truncate), _SYNC(real.sync)

            def write(file: int, data: int, size: int, offset: int) -> int:
                if code := failed("write", _SQLITE_IOERR_WRITE):
                    return code
                self.add("write", self._numbers[paths[file]], data=ctypes.string_at(data, size), offset=offset)
                return int(real_write(file, data, size, offset))

            def cut(file: int, size: int) -> int:
                if code := failed("truncate", _SQLITE_IOERR_WRITE):
                    return code
                self.add("truncate", self._numbers[paths[file]], offset=size)
                return int(real_cut(file, size))

            def sync(file: int, flags: int) -> int:
                if code := failed("sync", _SQLITE_IOERR_WRITE):
                    return code
                path = paths[file]
                self.add("sync", self._numbers[path])
                if self._new_databases.pop(path, False):  # SQLite syncs the folder of a new journal once
                    self.add("sync", self._numbers[os.path.dirname(path)])
                return int(real_sync(file, flags))

            for name, kind, function in (("write", _WRITE, write), ("truncate", _CUT, cut), ("sync", _SYNC, sync)):
                kept.append(kind(function))
                setattr(ours, name, ctypes.cast(kept[-1], ctypes.c_void_p).value)
            kept.append(ours)
            return ours

        def open_(this: int, name: int | None, file: int, flags: int, out: int) -> int:
            place = self.path(ctypes.string_at(name)) if name else None
            if place is None:
                return int(real_open(this, name, file, flags, out))
            existed = os.path.exists(place)
            pointer = ctypes.c_void_p.from_address(file)
            if not existed and (code := failed("create", _SQLITE_CANTOPEN)):
                pointer.value = None
                return code
            result = int(real_open(this, name, file, flags, out))
            if result == 0 and pointer.value:
                if not existed:
                    self.created(place)
                    self._new_databases[place] = place.endswith(("-wal", "-journal"))
                paths[file] = place
                pointer.value = ctypes.addressof(methods_of(_Methods.from_address(pointer.value)))
            return result

        def remove(this: int, name: bytes, and_sync: int) -> int:
            place = self.path(name)
            existed = place is not None and os.path.exists(place)
            if existed and (code := failed("remove", _SQLITE_IOERR_WRITE)):
                return code
            result = int(real_remove(this, name, and_sync))
            if existed and place is not None and not place.endswith(VOLATILE):
                self.removed(place)
                if and_sync:
                    self.add("sync", self._numbers[os.path.dirname(place)])
            return result

        kept += [_OPEN(open_), _REMOVE(remove)]
        vfs.open, vfs.remove = (ctypes.cast(each, ctypes.c_void_p).value for each in kept[:2])
        try:
            yield
        finally:
            vfs.open, vfs.remove = begun, removing


_kept: list[list[Any]] = []
"""Callbacks of SQLite, which may be called as long as a file is open."""
_SQLITE_FULL, _SQLITE_CANTOPEN, _SQLITE_IOERR_WRITE = 13, 14, 778
_P, _I, _L = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
_OPEN = ctypes.CFUNCTYPE(_I, _P, _P, _P, _I, _P)  # SQLite keeps the address of the name
_REMOVE = ctypes.CFUNCTYPE(_I, _P, ctypes.c_char_p, _I)
_WRITE = ctypes.CFUNCTYPE(_I, _P, _P, _I, _L)
_CUT = ctypes.CFUNCTYPE(_I, _P, _L)
_SYNC = ctypes.CFUNCTYPE(_I, _P, _I)


class _Vfs(ctypes.Structure):
    """The beginning of SQLite's sqlite3_vfs."""

    _fields_ = [
        ("version", _I), ("file_size", _I), ("path_size", _I), ("next", _P), ("name", ctypes.c_char_p), ("data", _P),
        ("open", _P), ("remove", _P),
    ]  # fmt: skip


class _Methods(ctypes.Structure):
    """SQLite's sqlite3_io_methods of version 3."""

    _fields_ = [
        ("version", _I), ("close", _P), ("read", _P), ("write", _P), ("truncate", _P), ("sync", _P),
        *((f"method{number}", _P) for number in range(13)),
    ]  # fmt: skip
