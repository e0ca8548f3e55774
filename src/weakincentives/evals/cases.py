"""`Case` is one input for a prompt; a `Dataset` is a checked sequence of cases."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, overload
from unicodedata import normalize

from ..content import Part
from ..serde.json_types import Json

__all__ = ["Case", "Dataset"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One input for a prompt, and what is expected of its runs.

    `params` are bound to the prompt, and `message` is the user's message. Before the run, the
    values in `state` are appended to the session, and `files` are written to the prompt's
    `Filesystem`, by path. `expected` and `metadata` are for evaluators. Cases with the same
    `cluster` are similar to each other, which comparisons take into account. `source` is the place
    in the file that the case was read from. An `id` is compared as text in Unicode's NFC form.
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
    """A sequence of cases with different ids.

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
            checked[case_id] = case if case.id == case_id else replace(case, id=case_id)
        self._cases = tuple(checked.values())

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
