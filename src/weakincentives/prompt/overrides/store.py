"""Overrides as JSON files of a repository, one for each prompt and tag; the only module of `prompt`
that uses the disk.

Files are meant to be read and compared by people: entries sorted, texts as lists of lines. A file
is replaced as a whole, under a lock; whatever goes wrong, the old one stays.
"""

import json
import os
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ... import serde
from ...errors import SerdeError
from ..errors import OverridesStoreError
from ..sections import KEY
from .model import (
    Override,
    OverridesTag,
    PromptDescriptor,
    PromptOverride,
    PromptOverridesStore,
    StaleOverride,
    TextId,
    TextKind,
    texts_of,
)

if TYPE_CHECKING:
    from pathlib import Path

    from ..prompt import Prompt
    from ..template import PromptTemplate
    from .rebase import Rebase

__all__ = ["LocalPromptOverridesStore", "PromptOverridesStore"]

_SCHEMA = 1
_MARKS = (".weakincentives", ".git", "pyproject.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredOverride:
    """One entry of a file: a text, and hash and text of what it was written against; texts as
    lines.
    """

    kind: TextKind
    at: str
    hash: str
    base: tuple[str, ...]
    text: tuple[str, ...]

    @classmethod
    def against(cls, descriptor: PromptDescriptor, one: TextId, text: str) -> "StoredOverride":
        """`text` for `one`, written against the prompt as it is now."""
        now = descriptor.texts.get(one)
        base, known = (tuple(now.text.split("\n")), now.hash) if now else ((), "")
        return cls(kind=one.kind, at=one.at, hash=known, base=base, text=tuple(text.split("\n")))

    def staleness(self, descriptor: PromptDescriptor) -> StaleOverride | None:
        """Why it does not apply to the prompt as it is now; `None` when it does."""
        one, base, text = TextId(self.kind, self.at), "\n".join(self.base), "\n".join(self.text)
        now = descriptor.texts.get(one)
        if now is None:
            return StaleOverride(one, "gone", base, text, None)
        if now.accepts_overrides and now.hash == self.hash:
            return None
        return StaleOverride(
            one, "changed" if now.accepts_overrides else "fixed", base, text, now.text
        )


type Entries = dict[TextId, StoredOverride]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Version:
    schema: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _File(_Version):
    overrides: tuple[StoredOverride, ...]


class LocalPromptOverridesStore(PromptOverridesStore):
    """Overrides under `.weakincentives/prompts/overrides/{ns}/{key}/{tag}.json` of the repository
    at `root`.

    `root` is by default the nearest folder upwards that has `.weakincentives`, `.git` or
    `pyproject.toml`. Parts of `ns`, key and tag are written as section keys are. A file that has
    not changed is not read again; one that cannot be read can still be deleted as a whole. Writing
    needs the extra `overrides`, and raises `ImportError` without it.
    """

    def __init__(self, root: "str | os.PathLike[str] | None" = None) -> None:
        from pathlib import Path  # not loaded by `import weakincentives`

        top = _repository(Path.cwd()) if root is None else Path(root)
        self.folder = top.resolve() / ".weakincentives" / "prompts" / "overrides"
        self._seen: dict[tuple[Path, str], tuple[object, PromptOverride]] = {}

    def path(self, stored: OverridesTag, suffix: str = ".json") -> "Path":
        """Where a set of overrides is kept, whether or not there is one."""
        parts = (*stored.ns.split("/"), stored.key, stored.tag)
        for part in parts:
            if re.fullmatch(KEY, part) is None:
                raise _error(
                    stored,
                    f"{part!r} cannot be part of its path; use 1 to 64 of a-z, 0-9, '.', '_' and '-', no mark first",
                )
        return self._inside(stored, self.folder.joinpath(*parts[:-1], parts[-1] + suffix))

    def resolve(self, descriptor: PromptDescriptor, tag: str = "latest") -> PromptOverride:
        stored = OverridesTag(descriptor.ns, descriptor.key, tag)
        path = self.path(stored)
        with _telling(stored, f"read '{path}'"):
            try:
                found = path.stat()
            except FileNotFoundError:
                return PromptOverride(tag)
        stamp = (found.st_ino, found.st_mtime_ns, found.st_size)
        seen = self._seen.get((path, descriptor.hash))
        if seen is None or seen[0] != stamp:
            seen = self._seen[path, descriptor.hash] = (
                stamp,
                _held(self._read(stored), descriptor, tag),
            )
        return seen[1]

    def upsert(
        self, descriptor: PromptDescriptor, override: Override, tag: str = "latest"
    ) -> tuple[StaleOverride, ...]:
        return self.replace(descriptor, texts_of(override), tag)

    def replace(
        self, descriptor: PromptDescriptor, texts: Mapping[TextId, str], tag: str = "latest"
    ) -> tuple[StaleOverride, ...]:
        """Does as `upsert`, for texts by id."""
        from .descriptors import check_text

        for one, text in texts.items():
            check_text(descriptor, one, text)
        written = {
            one: StoredOverride.against(descriptor, one, text) for one, text in texts.items()
        }
        with self._edited(OverridesTag(descriptor.ns, descriptor.key, tag)) as entries:
            entries.update(written)
        return _held(written, descriptor, tag).stale

    def delete(self, stored: OverridesTag, text: TextId | None = None) -> bool:
        if text is not None:
            with self._edited(stored) as entries:
                return entries.pop(text, None) is not None
        with self._locked(stored):
            path = self.path(stored)
            existed = path.exists()
            for one in (path, self.path(stored, ".conflicts.md")):
                one.unlink(missing_ok=True)
            return existed

    # Any: prompts of every output type.
    def seed(
        self, prompt: "PromptTemplate[Any] | Prompt[Any]", tag: str = "latest"
    ) -> PromptOverride:
        descriptor = prompt.descriptor
        with self._edited(OverridesTag(prompt.ns, prompt.key, tag)) as entries:
            for one, now in descriptor.texts.items():
                if now.text and now.accepts_overrides and one not in entries:
                    entries[one] = StoredOverride.against(descriptor, one, now.text)
        return _held(entries, descriptor, tag)

    def rebase(self, descriptor: PromptDescriptor, tag: str = "latest") -> "Rebase":
        """Carries stale overrides over to the prompt as it is now.

        Conflicts leave their overrides as they are and are written to `{tag}.conflicts.md` beside
        the file.
        """
        from .rebase import Rebase, rebase

        stored = OverridesTag(descriptor.ns, descriptor.key, tag)
        review = self.path(stored, ".conflicts.md")
        with self._edited(stored) as entries:
            merged, conflicts = rebase(descriptor, _held(entries, descriptor, tag).stale)
            entries.update(
                {one: StoredOverride.against(descriptor, one, text) for one, text in merged.items()}
            )
            done = Rebase(tuple(merged), tuple(conflicts))
            if done.conflicts:
                _write(review, str(done))
            else:
                review.unlink(missing_ok=True)
        return done

    def list(self) -> tuple[OverridesTag, ...]:
        # a key may end in .json, too
        files = [path for path in self.folder.rglob("*.json") if path.is_file()]
        places = [path.relative_to(self.folder).with_suffix("").parts for path in files]
        good = [
            parts
            for parts in places
            if parts[2:] and all(re.fullmatch(KEY, part) for part in parts)
        ]
        return tuple(sorted(OverridesTag("/".join(ns), key, tag) for *ns, key, tag in good))

    def _inside(self, stored: OverridesTag, path: "Path") -> "Path":
        if not os.path.realpath(path).startswith(f"{self.folder}{os.sep}"):
            raise _error(
                stored, f"'{path}' leads out of '{self.folder}' by a link; remove the link"
            )
        return path

    def _read(self, stored: OverridesTag) -> Entries:
        path = self.path(stored)
        with _telling(stored, f"read '{path}'"):
            if not path.exists():
                return {}
            if not path.is_file():  # reading a pipe would wait for ever
                raise OSError("it is no file")
            text = path.read_bytes()
            schema = serde.parse_json(_Version, text, allow_extra=True).schema
            if schema != _SCHEMA:
                raise _error(
                    stored,
                    f"'{path}' has schema {schema}, this version knows {_SCHEMA}; upgrade weakincentives",
                )
            serde.check_unique_keys("overrides", text)
            overrides = serde.parse_json(_File, text).overrides
        entries = {TextId(one.kind, one.at): one for one in overrides}
        if len(entries) < len(overrides):
            raise _error(stored, f"'{path}' has two entries for one text; remove one of them")
        return entries

    @contextmanager
    def _edited(self, stored: OverridesTag) -> Generator[Entries]:
        """The entries to be changed; they are written when all went well."""
        with self._locked(stored):
            entries = self._read(stored)
            before = dict(entries)
            yield entries
            if entries != before:
                file = _File(
                    schema=_SCHEMA, overrides=tuple(entries[one] for one in sorted(entries))
                )
                _write(
                    self.path(stored),
                    json.dumps(serde.dump(file), indent=2, sort_keys=True, ensure_ascii=False),
                )

    @contextmanager
    def _locked(self, stored: OverridesTag) -> Generator[None]:
        """Alone among all that write under this folder."""
        try:
            from filelock import FileLock
        except ImportError as error:
            raise ImportError(
                "Writing overrides needs filelock: pip install 'weakincentives[overrides]'"
            ) from error
        self.path(stored)  # nothing is made for names that are refused
        lock = self._inside(stored, self.folder / ".lock")
        with _telling(stored, f"write in '{self.folder}'"):
            self.folder.mkdir(parents=True, exist_ok=True)
            with FileLock(lock, timeout=30):
                yield


def _write(path: "Path", text: str) -> None:
    """Puts a new file in the place of `path`; the lock makes the new one's name ours."""
    new = path.with_name(f"{path.name}.new")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        new.unlink(missing_ok=True)  # what a killed writer left
        with new.open("xb") as file:
            file.write(text.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except BaseException:
        with suppress(OSError):
            new.unlink(missing_ok=True)
        raise


@contextmanager
def _telling(stored: OverridesTag, what: str) -> Generator[None]:
    try:
        yield
    # the second says that the disk knows no locks
    except (OSError, NotImplementedError, SerdeError) as error:
        raise _error(
            stored, f"cannot {what}: {error}; mend what is in the way, or delete these overrides"
        ) from error


def _error(stored: OverridesTag, what: str) -> OverridesStoreError:
    return OverridesStoreError(
        f"overrides of {stored.ns!r} {stored.key!r}, tag {stored.tag!r}: {what}"
    )


def _held(entries: Entries, descriptor: PromptDescriptor, tag: str) -> PromptOverride:
    stale = {one: found for one, entry in entries.items() if (found := entry.staleness(descriptor))}
    fresh = {one: "\n".join(entry.text) for one, entry in entries.items() if one not in stale}
    return PromptOverride(tag, fresh, tuple(stale.values()))


def _repository(here: "Path") -> "Path":
    for folder in (here, *here.parents):
        if any((folder / mark).exists() for mark in _MARKS):
            return folder
    raise OverridesStoreError(
        f"no folder from '{here}' upwards has {' or '.join(_MARKS)}; "
        "make the folder .weakincentives at the top of your project, or give root="
    )
