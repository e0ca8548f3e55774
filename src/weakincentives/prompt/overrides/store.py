"""Stores overrides as JSON files in a repository, one for each prompt and tag.

This is the only module in `prompt` that uses the disk. Entries are sorted and texts are lists of
lines, so that people can read and compare the files. A write replaces the entire file under a lock;
if the write fails, the old file is kept.
"""

import json
import os
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ... import serde
from ...atomic_writes import replacing
from ...errors import SerdeError, missing_extra
from ...repository import MARKERS, repository_root
from ..errors import OverridesStoreError
from ..sections import KEY
from .model import (
    HasDescriptor,
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
from .rebase import Rebase, rebase

__all__ = ["LocalPromptOverridesStore", "PromptOverridesStore"]

_SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredOverride:
    """One entry in a file: a text as lines, the base text that it replaces, and the base's hash."""

    kind: TextKind
    at: str
    hash: str
    base: tuple[str, ...]
    text: tuple[str, ...]

    @classmethod
    def against(cls, descriptor: PromptDescriptor, text_id: TextId, text: str) -> "StoredOverride":
        """Returns the entry for `text`, based on the prompt's current text."""
        current = descriptor.texts.get(text_id)
        base, hash_ = (tuple(current.text.split("\n")), current.hash) if current else ((), "")
        lines = tuple(text.split("\n"))
        return cls(kind=text_id.kind, at=text_id.at, hash=hash_, base=base, text=lines)

    def staleness(self, descriptor: PromptDescriptor) -> StaleOverride | None:
        """Explains why the text does not apply to the current prompt; `None` if it applies."""
        text_id, base, text = self.id, "\n".join(self.base), "\n".join(self.text)
        current = descriptor.texts.get(text_id)
        if current is None:
            return StaleOverride(text_id, "gone", base, text, None)
        if not current.accepts_overrides:
            return StaleOverride(text_id, "fixed", base, text, current.text)
        if current.hash != self.hash:
            return StaleOverride(text_id, "changed", base, text, current.text)
        return None

    @property
    def id(self) -> TextId:
        """The id of the overridden text."""
        return TextId(self.kind, self.at)


type Entries = dict[TextId, StoredOverride]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Version:
    schema: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _File(_Version):
    overrides: tuple[StoredOverride, ...]


class LocalPromptOverridesStore(PromptOverridesStore):
    """Stores overrides in `.weakincentives/prompts/overrides/{ns}/{key}/{tag}.json` under `root`.

    `root` defaults to the nearest folder upwards that contains `.weakincentives`, `.git` or
    `pyproject.toml`. The parts of `ns`, the key and the tag follow the rules for section keys. The
    store rereads a file only if it has changed. A file that cannot be read can still be deleted as
    a whole. Writing requires the `overrides` extra; without it, `ImportError` is raised.
    """

    def __init__(self, root: "str | os.PathLike[str] | None" = None) -> None:
        repository = _repository(Path.cwd()) if root is None else Path(root)
        self.folder = repository.resolve() / ".weakincentives" / "prompts" / "overrides"
        self._cache: dict[tuple[Path, str], tuple[object, PromptOverride]] = {}

    def path(self, stored: OverridesTag, suffix: str = ".json") -> Path:
        """Returns the path of a set of overrides, even if it does not exist."""
        parts = (*stored.ns.split("/"), stored.key, stored.tag)
        for part in parts:
            if re.fullmatch(KEY, part) is None:
                rule = "use 1 to 64 characters from a-z, 0-9, '.', '_' and '-'"
                raise _error(stored, f"{part!r} cannot be part of the file's path; {rule}")
        return self._inside(stored, self.folder.joinpath(*parts[:-1], parts[-1] + suffix))

    def resolve(self, descriptor: PromptDescriptor, tag: str = "latest") -> PromptOverride:
        stored = OverridesTag(descriptor.ns, descriptor.key, tag)
        path = self.path(stored)
        with _reporting(stored, f"read '{path}'"):
            try:
                status = path.stat()
            except FileNotFoundError:
                return PromptOverride(tag)
        stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
        cached = self._cache.get((path, descriptor.hash))
        if cached is None or cached[0] != stamp:
            cached = stamp, _resolve(self._read(stored), descriptor, tag)
            self._cache[path, descriptor.hash] = cached
        return cached[1]

    def upsert(
        self, descriptor: PromptDescriptor, override: Override, tag: str = "latest"
    ) -> tuple[StaleOverride, ...]:
        return self.replace(descriptor, texts_of(override), tag)

    def replace(
        self, descriptor: PromptDescriptor, texts: Mapping[TextId, str], tag: str = "latest"
    ) -> tuple[StaleOverride, ...]:
        """Stores texts by id, like `upsert`."""
        for text_id, text in texts.items():
            descriptor.check(text_id, text)
        changes = _to_entries(texts, descriptor)
        with self._edited(OverridesTag(descriptor.ns, descriptor.key, tag)) as entries:
            entries.update(changes)
        return _resolve(changes, descriptor, tag).stale

    def delete(self, stored: OverridesTag, text: TextId | None = None) -> bool:
        if text is not None:
            with self._edited(stored) as entries:
                return entries.pop(text, None) is not None
        with self._locked(stored):
            path = self.path(stored)
            existed = path.exists()
            path.unlink(missing_ok=True)
            self.path(stored, ".conflicts.md").unlink(missing_ok=True)
            return existed

    def seed(self, prompt: HasDescriptor, tag: str = "latest") -> PromptOverride:
        descriptor = prompt.descriptor
        own = {
            text_id: text.text
            for text_id, text in descriptor.texts.items()
            if text.text and text.accepts_overrides
        }
        with self._edited(OverridesTag(descriptor.ns, descriptor.key, tag)) as entries:
            for text_id, entry in _to_entries(own, descriptor).items():
                entries.setdefault(text_id, entry)
        return _resolve(entries, descriptor, tag)

    def rebase(self, descriptor: PromptDescriptor, tag: str = "latest") -> Rebase:
        """Rebases stale overrides onto the current prompt.

        Overrides with conflicts are left unchanged, and the conflicts are written to
        `{tag}.conflicts.md` next to the file.
        """
        stored = OverridesTag(descriptor.ns, descriptor.key, tag)
        review = self.path(stored, ".conflicts.md")
        with self._edited(stored) as entries:
            merged, conflicts = rebase(descriptor, _resolve(entries, descriptor, tag).stale)
            entries.update(_to_entries(merged, descriptor))
            result = Rebase(tuple(merged), tuple(conflicts))
            if conflicts:
                _write(review, str(result))
            else:
                review.unlink(missing_ok=True)
        return result

    def list(self) -> tuple[OverridesTag, ...]:
        tags: list[OverridesTag] = []
        for path in self.folder.rglob("*.json"):
            # a key may also end in .json
            parts = path.relative_to(self.folder).with_suffix("").parts
            if path.is_file() and parts[2:] and all(re.fullmatch(KEY, part) for part in parts):
                tags.append(OverridesTag("/".join(parts[:-2]), *parts[-2:]))
        return tuple(sorted(tags))

    def _inside(self, stored: OverridesTag, path: Path) -> Path:
        if not os.path.realpath(path).startswith(f"{self.folder}{os.sep}"):
            raise _error(stored, f"'{path}' is a link that leaves '{self.folder}'; remove the link")
        return path

    def _read(self, stored: OverridesTag) -> Entries:
        path = self.path(stored)
        with _reporting(stored, f"read '{path}'"):
            if not path.exists():
                return {}
            if not path.is_file():  # reading a pipe would block forever
                raise OSError("not a regular file")
            text = path.read_bytes().removeprefix(b"\xef\xbb\xbf")  # Windows editors add a BOM
            schema = serde.parse_json(_Version, text, allow_extra=True).schema
            if schema != _SCHEMA:
                what = f"'{path}' has schema {schema}, this version knows {_SCHEMA}"
                raise _error(stored, f"{what}; upgrade weakincentives")
            serde.check_unique_keys("overrides", text)
            overrides = serde.parse_json(_File, text).overrides
        entries = {override.id: override for override in overrides}
        if len(entries) < len(overrides):
            raise _error(stored, f"'{path}' has two entries for one text; remove one of them")
        return entries

    @contextmanager
    def _edited(self, stored: OverridesTag) -> Generator[Entries]:
        """Yields the entries, and writes the changed entries unless the block raises."""
        with self._locked(stored):
            entries = self._read(stored)
            before = dict(entries)
            yield entries
            if entries != before:
                overrides = tuple(entry for _, entry in sorted(entries.items()))
                value = serde.dump(_File(schema=_SCHEMA, overrides=overrides))
                text = json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False)
                _write(self.path(stored), text)

    @contextmanager
    def _locked(self, stored: OverridesTag) -> Generator[None]:
        """Locks out all other writers in this folder."""
        try:
            from filelock import FileLock
        except ImportError as error:
            raise missing_extra("Writing overrides", "filelock", "overrides") from error
        self.path(stored)  # creates nothing if the names are invalid
        lock = self._inside(stored, self.folder / ".lock")
        with _reporting(stored, f"write in '{self.folder}'"):
            self.folder.mkdir(parents=True, exist_ok=True)
            with FileLock(lock, timeout=30):
                yield


def _write(path: Path, text: str) -> None:
    """Replaces the file at `path`; the lock reserves the name of the temporary file."""
    new = path.with_name(f"{path.name}.new")
    path.parent.mkdir(parents=True, exist_ok=True)
    new.unlink(missing_ok=True)  # left by a killed writer
    with replacing(path, temporary=new, sync=True) as file:
        file.write(text.encode() + b"\n")


@contextmanager
def _reporting(stored: OverridesTag, action: str) -> Generator[None]:
    try:
        yield
    # a disk that does not support locks raises NotImplementedError
    except (OSError, NotImplementedError, SerdeError) as error:
        remedy = "remove the cause, or delete these overrides"
        raise _error(stored, f"cannot {action}: {error}; {remedy}") from error


def _error(stored: OverridesTag, problem: str) -> OverridesStoreError:
    return OverridesStoreError(
        f"overrides of {stored.ns!r} {stored.key!r}, tag {stored.tag!r}: {problem}"
    )


def _to_entries(texts: Mapping[TextId, str], descriptor: PromptDescriptor) -> Entries:
    return {
        text_id: StoredOverride.against(descriptor, text_id, text)
        for text_id, text in texts.items()
    }


def _resolve(entries: Entries, descriptor: PromptDescriptor, tag: str) -> PromptOverride:
    fresh: dict[TextId, str] = {}
    stale: list[StaleOverride] = []
    for text_id, entry in entries.items():
        if staleness := entry.staleness(descriptor):
            stale.append(staleness)
        else:
            fresh[text_id] = "\n".join(entry.text)
    return PromptOverride(tag, fresh, tuple(stale))


def _repository(here: Path) -> Path:
    if (root := repository_root(here)) is not None:
        return root
    raise OverridesStoreError(
        f"cannot find a project: neither '{here}' nor a parent folder has {' or '.join(MARKERS)}; "
        "create the folder .weakincentives in your project's root, or pass root= to "
        "LocalPromptOverridesStore"
    )
