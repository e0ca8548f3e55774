"""`Case` is one input for a prompt; a `Dataset` is a checked sequence of cases."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload
from unicodedata import normalize

from ..content import Part
from ..serde.json_types import Json

if TYPE_CHECKING:
    from ..prompt.template import AnyPrompt, AnyTemplate
    from .case_types import Paths

__all__ = ["Case", "Dataset", "metadata_texts"]

_TEXT = 100  # characters


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One input for a prompt, and what is expected of its runs.

    `params` are bound to the prompt, and `message` is the user's message. Before the run, the
    values in `state` are appended to the session, and `files` are written to the prompt's
    `Filesystem`, by path. `expected` and `metadata` are for evaluators. Cases with the same
    `cluster` are similar to each other, which comparisons take into account. `source` is the place
    in the file that the case was read from. `id` and `cluster` are compared in Unicode's NFC form.
    """

    id: str
    message: str | Sequence[Part] | None = None
    params: Sequence[object] = ()
    expected: Any = None  # Any: evaluators know the type
    state: Sequence[object] = ()
    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    cluster: str = ""
    metadata: Mapping[str, Json] = field(default_factory=dict[str, Json])
    source: str = field(default="", compare=False)


class Dataset(Sequence[Case]):
    """A sequence of cases with different ids, from Python or from files.

    Raises `ValueError` for two cases with the same id, and `TypeError` for anything but a `Case`.
    """

    def __init__(self, cases: Iterable[Case], *, name: str = "cases") -> None:
        self.name = name
        checked: dict[str, Case] = {}
        for case in cases:
            if not isinstance(case, Case):
                raise TypeError(f"a Dataset takes cases, such as Case(id='1'), got {case!r}")
            case_id = normalize("NFC", str(case.id))
            if (other := checked.get(case_id)) is not None:
                places = ", ".join(filter(None, (other.source, case.source)))
                raise ValueError(
                    f"two cases have the id {case_id!r}{places and f' ({places})'}; give one of "
                    "them another id"
                )
            cluster = normalize("NFC", case.cluster)
            is_normal = (case.id, case.cluster) == (case_id, cluster)
            checked[case_id] = case if is_normal else replace(case, id=case_id, cluster=cluster)
        self._cases = tuple(checked.values())

    @classmethod
    def load(
        cls, paths: "Paths", target: "AnyTemplate | AnyPrompt | None" = None, *, name: str = ""
    ) -> "Dataset":
        """Reads cases from files in YAML, JSON, JSON Lines or CSV; a path may be a glob.

        The types of `target`, a template or a prompt, determine how params, state and the expected
        output are read. Files that cases name are read from the folder of their own file. The
        name is that of the first file by default. Raises `CaseFileError` with every problem and
        its line, and `ImportError` for YAML without the extra `evals`.
        """
        from .case_types import load_cases

        cases = load_cases(paths, target)
        return cls(cases, name=name or Path(cases[0].source.rpartition(":")[0]).stem)

    def save(self, path: "str | PathLike[str]") -> None:
        """Replaces a file; its suffix is `.yaml`, `.yml`, `.json`, `.jsonl` or `.csv`.

        `Dataset.load` returns equal cases, with the values in `state` in groups of the same type.
        Raises `ValueError`, and leaves the file as it is, for a case that the format cannot
        represent.
        """
        from .case_types import save_cases

        save_cases(path, self)

    def select(
        self, ids: str | Iterable[str] | None = None, where: Mapping[str, Json] | None = None
    ) -> "Dataset":
        """Returns the cases with these ids whose `cluster` and metadata have all these values.

        Numbers and other values are compared by their JSON text, so `"3"` selects 3; a list
        has each of its items. Raises `ValueError`, with the known values, for an id or a value
        that no case has, and if no case is left.
        """
        filters = [(key, {_as_text(value)}) for key, value in (where or {}).items()]
        if ids is not None:
            wanted = [ids] if isinstance(ids, str) else ids
            filters.append(("id", {normalize("NFC", case_id) for case_id in wanted}))
        cases = [*self]
        for key, texts in filters:
            known = {text for case in self for text in _values(case, key)}
            if not known:
                keys = {"id", "cluster", *(name for case in self for name in case.metadata)}
                raise ValueError(f"no case has the key {key!r}; known: {_first(keys)}")
            if unknown := texts - known:
                raise ValueError(f"no case has the {key} {min(unknown)!r}; known: {_first(known)}")
            cases = [case for case in cases if texts.intersection(_values(case, key))]
        if not cases:
            raise ValueError(f"no case of {self.name!r} has all of ids={ids!r} and where={where!r}")
        return Dataset(cases, name=self.name)

    def __repr__(self) -> str:
        return f"<Dataset {self.name!r} of {len(self)} cases>"

    def __len__(self) -> int:
        return len(self._cases)

    @overload
    def __getitem__(self, index: int, /) -> Case: ...

    @overload
    def __getitem__(self, index: slice, /) -> Sequence[Case]: ...

    def __getitem__(self, index: int | slice, /) -> Case | Sequence[Case]:
        return self._cases[index]


def _values(case: Case, key: str) -> list[str]:
    fields: dict[str, Json] = {**case.metadata, "id": case.id}
    if case.cluster:
        fields["cluster"] = case.cluster
    value = fields.get(key, [])
    return [_as_text(item) for item in (value if isinstance(value, list) else [value])]


def metadata_texts(case: Case) -> dict[str, list[str]]:
    """Returns the metadata as short texts, by which results can be grouped."""
    found = {key: _values(case, key) for key in case.metadata}
    return {key: texts for key, texts in found.items() if all(len(it) <= _TEXT for it in texts)}


def _as_text(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _first(known: Iterable[str]) -> str:
    names = sorted(known)
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""  # noqa: PLR2004 - a choice
    return ", ".join(names[:20]) + more
