"""A session's state as JSON: law L6 (JSON round-trips) for snapshots, and allowed file content."""

import json
import pickle
import sys
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from functools import partial
from operator import ge
from pathlib import Path
from subprocess import run
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weakincentives.errors import SerdeError
from weakincentives.runtime.events import ToolsInjected
from weakincentives.runtime.session import Session, state
from weakincentives.runtime.session.snapshots import SessionSnapshot, parse_changes, type_name
from weakincentives.visibility import SectionVisibility, SetVisibilityOverride, VisibilityOverrides


class Mood(Enum):
    GOOD = "good"
    BAD = "bad"


@dataclass(frozen=True)
class Step:
    number: int
    text: str = ""
    mood: Mood = Mood.GOOD
    due: datetime | None = None


@dataclass(frozen=True)
class Plan:
    steps: tuple[Step, ...] = ()
    notes: dict[str, list[float]] = field(default_factory=dict[str, list[float]])


STEPS = st.builds(
    Step,
    st.integers(),
    st.text(st.characters(exclude_categories=["Cs"])),
    st.sampled_from(Mood),
    # JSON has no fold
    st.none() | st.datetimes(timezones=st.just(UTC)).map(lambda at: at.replace(fold=0)),
)
PLANS = st.builds(
    Plan,
    st.lists(STEPS, max_size=3).map(tuple),
    st.dictionaries(st.text("abc"), st.lists(st.floats(allow_nan=False, allow_infinity=False))),
)


def session(*values: object) -> Session:
    result = Session()
    for value in values:
        result.dispatch(value)
    return result


@given(values=st.lists(STEPS | PLANS | st.integers(), max_size=8))
def test_snapshot_round_trips_through_json(values: list[object]) -> None:
    before, after = session(*values), Session()
    text = before.snapshot().to_json()
    after.restore(after.parse_snapshot(text, types=[Step, Plan, int]))
    for kind in (Step, Plan, int):
        assert after[kind].all() == before[kind].all()
    assert json.loads(after.snapshot().to_json()) == json.loads(text)


def test_visibility_overrides_round_trip_through_a_snapshot() -> None:
    before = session(
        SetVisibilityOverride(path=("a", "b.c"), visibility=SectionVisibility.FULL),
        SetVisibilityOverride(path=("a",), visibility=SectionVisibility.SUMMARY),
    )
    after = Session()
    after.restore(after.parse_snapshot(before.snapshot().to_json()))
    assert after[VisibilityOverrides].all() == before[VisibilityOverrides].all()
    assert after[VisibilityOverrides].latest() is not None


def test_snapshot_json_excludes_events_and_empty_slices() -> None:
    before = session(1)
    before.bus.publish(ToolsInjected((), "x"))
    assert before[str].all() == ()
    assert json.loads(before.snapshot().to_json()) == {
        "version": 1,
        "slices": {"builtins:int": [1]},
    }


@pytest.mark.parametrize(
    "copied", [deepcopy, lambda snapshot: pickle.loads(pickle.dumps(snapshot))]
)
def test_copied_or_pickled_snapshot_restores_the_same_state(
    copied: Callable[[SessionSnapshot], SessionSnapshot],
) -> None:
    before, after = session("gone", *map(Step, range(5000))), Session()
    before[str].clear()
    after.restore(copied(before.snapshot()))
    assert after[Step].all() == before[Step].all()
    assert not after[str]


def test_restoring_a_snapshot_with_event_slices_keeps_recorded_events() -> None:
    after = Session()
    after.bus.publish(ToolsInjected((), "x"))
    name = f"{ToolsInjected.__module__}:{ToolsInjected.__qualname__}"
    after.restore(
        after.parse_snapshot(
            json.dumps({"version": 1, "slices": {name: []}}), types=[ToolsInjected]
        )
    )
    assert len(after[ToolsInjected]) == 1


# ----------------------------------------------------------------------------------------------
# names in a file


def test_parse_snapshot_knows_the_types_of_slices_and_reducers() -> None:
    text = session(Step(1)).snapshot().to_json()
    by_use, by_reducer = session(Step(2)), Session()
    by_reducer[Step].register(int, lambda view, event: _never())
    for knowing in (by_use, by_reducer):
        knowing.restore(knowing.parse_snapshot(text))
        assert knowing[Step].all() == (Step(1),)


def _never() -> Any:
    raise AssertionError("no reducer runs when a snapshot is read")


def test_unknown_type_raises_serde_error_with_its_name() -> None:
    with pytest.raises(SerdeError) as caught:
        Session().parse_snapshot(session(Step(1)).snapshot().to_json())
    [fault] = caught.value.issues
    assert fault.path == ("slices", f"{__name__}:Step")
    assert fault.message == "no type of that name is known here; pass it in types="


def test_parse_snapshot_does_not_import_named_modules(tmp_path: Path) -> None:
    """Runs in a new process in which the named module could be imported."""
    (tmp_path / "trap.py").write_text("raise SystemExit('imported')")
    text = json.dumps({"version": 1, "slices": {"trap:Anything": [1]}})
    code = (
        "from weakincentives.runtime.session import Session\n"
        "try:\n    Session().parse_snapshot(" + repr(text) + ")\n"
        "except Exception as error: print(type(error).__name__)\n"
        "import sys; print('trap' in sys.modules)"
    )
    path = [str(tmp_path), *sys.path]
    done = run(
        [sys.executable, "-c", f"import sys; sys.path[:] = {path!r}\n{code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["SerdeError", "False"]


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("", ()),
        ("[]", ()),
        ("{", ()),
        ('{"version": 1}', ("slices",)),
        ('{"slices": {}}', ("version",)),
        ('{"version": 2, "slices": {}}', ("version",)),
        ('{"version": 1, "slices": {}, "more": 1}', ("more",)),
        ('{"version": 1, "slices": {"builtins:int": 1}}', ("slices", "builtins:int")),
        ('{"version": 1, "slices": {"builtins:int": ["x"]}}', ("slices", "builtins:int", 0)),
        (
            '{"version": 1, "slices": {"builtins:int": [1], "os:system": ["x"]}}',
            ("slices", "os:system"),
        ),
        (b"\xff", ()),
    ],
)
def test_invalid_snapshot_json_raises_serde_error_with_the_path(
    text: str | bytes, path: tuple[object, ...]
) -> None:
    @state(name="shorter", removed=["gone"])
    @dataclass(frozen=True)
    class Shorter:
        number: int

    for types in ([int], [int, Shorter]):
        with pytest.raises(SerdeError) as caught:
            Session().parse_snapshot(text, types=types)
        assert path in [fault.path for fault in caught.value.issues]


def test_parse_snapshot_reports_all_issues_at_once() -> None:
    text = '{"version": 1, "slices": {"builtins:int": ["x", 1, "y"], "a:B": []}}'
    with pytest.raises(SerdeError) as caught:
        Session().parse_snapshot(text, types=[int])
    assert len(caught.value.issues) == 3


class Opaque:
    """A type that JSON cannot represent."""


def test_value_not_representable_in_json_raises_serde_error_on_to_json() -> None:
    with pytest.raises(SerdeError):
        session(Opaque()).snapshot().to_json()


def test_unserializable_slice_does_not_prevent_parsing_others() -> None:
    reading = session(Opaque())
    reading.restore(reading.parse_snapshot(session(1).snapshot().to_json(), types=[int]))
    assert reading[int].all() == (1,)


# --- What is written is what is read


@dataclass(frozen=True)
class Pay:
    amount: int


@dataclass(frozen=True)
class Card(Pay):
    number: str = ""


@dataclass(frozen=True)
class Order:
    pay: Pay
    by: dict[int | str, int] = field(default_factory=dict[int | str, int])
    note: str | bytes = ""


@dataclass(frozen=True)
class Zähler:  # noqa: PLC2401 - a name that JSON may escape
    wert: int


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (Order(Card(5, "4111")), r"Order\.0\.pay: JSON makes a Pay of this Card"),
        (Order(Pay(5), {1: 1, "1": 2}), r"Order\.0\.by: JSON does not keep this dict"),
        (Order(Pay(5), note=b"\x01"), r"Order\.0\.note: JSON makes a str of this bytes"),
    ],
    ids=["subclass", "keys", "bytes"],
)
def test_value_changed_by_json_raises_serde_error_with_slice_path_and_type(
    order: Order, message: str
) -> None:
    original = Session()
    start = original.snapshot()
    original.dispatch(order)
    with pytest.raises(SerdeError, match=message):
        original.snapshot().to_json()
    with pytest.raises(SerdeError, match=message):
        original.snapshot().since(start)


def test_subclass_value_in_a_slice_of_its_base_raises_serde_error() -> None:
    original = Session()
    original[Pay].append(Pay(1))
    original[Pay].append(Card(2, "4111"))
    assert original[Pay].latest() == Card(2, "4111")
    with pytest.raises(SerdeError, match=r"Pay\.1: JSON makes a Pay of this Card"):
        original.snapshot().to_json()


def test_reformatted_snapshot_json_can_be_parsed() -> None:
    text = session(Zähler(1), Step(2)).snapshot().to_json()
    for again in (
        json.dumps(json.loads(text)),
        json.dumps(json.loads(text), indent=2, sort_keys=True),
    ):
        after = Session()
        after.restore(after.parse_snapshot(again.encode(), types=[Zähler, Step]))
        assert after[Zähler].all() == (Zähler(1),)
        assert after[Step].all() == (Step(2),)


# --- Types that have moved


MOVED = """
import sys
from dataclasses import dataclass
from pathlib import Path
from weakincentives.runtime.session import Session

@dataclass(frozen=True)
class Said:
    text: str

session = Session()
if __name__ == "__main__":
    session.dispatch(Said("a"))
    Path(sys.argv[1]).write_text(session.snapshot().to_json())
else:
    session.restore(session.parse_snapshot(Path(sys.argv[1]).read_text(), types=[Said]))
    print(session[Said].all())
"""


def test_module_can_read_state_saved_when_run_as_a_script(tmp_path: Path) -> None:
    script, saved = tmp_path / "app.py", tmp_path / "saved.json"
    script.write_text(MOVED)
    environment = {"PYTHONPATH": ":".join([str(tmp_path), *filter(None, sys.path)])}
    saving = run(
        [sys.executable, str(script), str(saved)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert saving.stdout == ""
    assert '"__main__:Said"' in saved.read_text()
    reading = [sys.executable, "-c", "import app", str(saved)]
    done = run(reading, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "(Said(text='a'),)\n"


def renamed(kind: type[Any], module: str) -> type[Any]:
    return type(kind.__name__, (kind,), {"__module__": module, "__qualname__": kind.__qualname__})


STEP = f"{__name__}:Step"


def test_type_of_another_module_is_found_only_if_passed_in_types() -> None:
    text = json.dumps({"version": 1, "slices": {"gone:Step": [{"number": 1}]}})
    by_use = session(Step(2))
    with pytest.raises(
        SerdeError, match=r"gone:Step: no type of that name is known here; pass it in types="
    ):
        by_use.parse_snapshot(text)
    by_use.restore(by_use.parse_snapshot(text, types=[Step]))
    assert by_use[Step].all() == (Step(1),)


def test_exact_type_name_takes_precedence_over_one_in_another_module() -> None:
    other = renamed(Step, "other")
    text = json.dumps(
        {"version": 1, "slices": {STEP: [{"number": 1}], "other:Step": [{"number": 2}]}}
    )
    snapshot = SessionSnapshot.from_json(text, [other, Step])
    after = Session()
    after.restore(snapshot)
    assert [step.number for step in after[Step]] == [1]
    assert [step.number for step in after[other]] == [2]


def test_ambiguous_type_name_raises_serde_error() -> None:
    text = json.dumps({"version": 1, "slices": {"gone:Step": []}})
    with pytest.raises(
        SerdeError, match="several types in types= have that name in other modules; pass one"
    ):
        Session().parse_snapshot(text, types=[Step, renamed(Step, "other")])


def test_two_slices_of_the_same_type_raise_serde_error() -> None:
    text = json.dumps(
        {"version": 1, "slices": {STEP: [{"number": 1}], "gone:Step": [{"number": 2}]}}
    )
    with pytest.raises(
        SerdeError, match=r"slices\.gone:Step: another slice here is read as the same type"
    ):
        Session().parse_snapshot(text, types=[Step])


def test_state_decorator_sets_the_stored_name_and_reads_renamed_types() -> None:
    @state(name="booking")
    @dataclass(frozen=True)
    class First:
        seats: int
        note: str = ""

    @state(name="reservation", renamed_from=["booking"], removed=["note"])
    @dataclass(frozen=True)
    class Second:
        seats: int
        paid: bool = False

    before = Session()
    before.dispatch(First(2, "window"))
    text = before.snapshot().to_json()
    assert text == '{"version":1,"slices":{"booking":[{"seats":2,"note":"window"}]}}'
    after = Session()
    after.restore(after.parse_snapshot(text, types=[Second]))
    assert after[Second].all() == (Second(2),)
    again = after.snapshot().to_json()
    assert again == '{"version":1,"slices":{"reservation":[{"seats":2,"paid":false}]}}'
    after.restore(after.parse_snapshot(again))
    assert after[Second].all() == (Second(2),)


def test_undecorated_class_can_be_renamed_by_its_full_name() -> None:
    @state(name="step", renamed_from=[STEP])
    @dataclass(frozen=True)
    class Better:
        number: int

    session = Session()
    text = json.dumps({"version": 1, "slices": {STEP: [{"number": 1}]}})
    session.restore(session.parse_snapshot(text, types=[Better]))
    assert session[Better].all() == (Better(1),)
    assert list(parse_changes({"added": {STEP: [{"number": 1}]}}, [Better])) == [
        ("added", Better, [Better(1)])
    ]


def test_parse_changes_ignores_removed_fields() -> None:
    @state(name="step", removed=["gone"])
    @dataclass(frozen=True)
    class Marked:
        number: int

    changes = parse_changes({"set": {"step": [{"number": 1, "gone": 1}]}}, [Marked])
    assert list(changes) == [("set", Marked, [Marked(1)])]


def test_unknown_field_is_rejected_unless_declared_removed() -> None:
    @state(name="step", removed=["gone"])
    @dataclass(frozen=True)
    class Marked:
        number: int

    rows = [{"number": 1, "gone": 1}, {"number": 2, "other": 2}]
    text = json.dumps({"version": 1, "slices": {"step": rows}})
    with pytest.raises(SerdeError, match=r"slices\.step\.1\.other"):
        Session().parse_snapshot(text, types=[Marked])


def test_state_name_is_not_inherited() -> None:
    @state(name="base")
    class Base: ...

    class Derived(Base): ...

    assert type_name(Base) == "base"
    assert type_name(Derived).endswith("Derived")


@pytest.mark.parametrize("name", ["", "a:b", "a b"])
def test_invalid_state_name_raises_value_error(name: str) -> None:
    with pytest.raises(ValueError, match="use only letters, digits"):
        state(name=name)


def test_parse_changes_finds_a_type_that_moved_to_another_module() -> None:
    assert list(parse_changes({"added": {"gone:Step": [{"number": 1}]}}, [Step])) == [
        ("added", Step, [Step(1)])
    ]


# --- Changes since a snapshot

OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["append", "seed", "clear", "back", "open"]), st.integers(0, 9)),
    max_size=12,
)


def operate(original: Session, operations: list[tuple[str, int]]) -> None:
    snapshots = [original.snapshot()]
    for what, number in operations:
        match what:
            case "append":
                original[int].append(number)
            case "seed":
                original[int].seed(number, number)
            case "clear":
                original[int].clear(partial(ge, number))
            case "back":
                original.restore(snapshots[number % len(snapshots)])
            case _:
                original.dispatch(
                    SetVisibilityOverride(path=(str(number),), visibility=SectionVisibility.FULL)
                )
        snapshots.append(original.snapshot())


@given(before=OPERATIONS, after=OPERATIONS)
def test_changes_since_a_snapshot_reproduce_the_current_state(
    before: list[tuple[str, int]], after: list[tuple[str, int]]
) -> None:
    original, twin = Session(), Session()
    operate(original, before)
    start = original.snapshot()
    twin.restore(twin.parse_snapshot(start.to_json(), types=[int]))
    operate(original, after)
    changes = json.loads(json.dumps(original.snapshot().since(start)))
    for change, kind, values in parse_changes(changes, [int, VisibilityOverrides]):
        if change == "set":
            twin[kind].seed(*values)
        else:
            for value in values:
                twin[kind].append(value)
    assert twin.snapshot().to_json() == original.snapshot().to_json()


def test_changes_of_an_appended_slice_have_only_the_new_values() -> None:
    original = session(*range(1000))
    start = original.snapshot()
    original[int].append(7)
    assert original.snapshot().since(start) == {"added": {"builtins:int": [7]}}
    assert original.snapshot().since(original.snapshot()) == {}


def test_changes_of_an_unknown_type_raise_serde_error() -> None:
    with pytest.raises(SerdeError, match="no type of that name is known here; pass it in types="):
        list(parse_changes({"added": {"os:system": ["x"]}}, [int]))


def test_two_types_with_the_same_name_cannot_be_serialized() -> None:
    def local() -> type[Any]:
        @dataclass(frozen=True)
        class Local:
            n: int

        return Local

    session = Session()
    for kind in (local(), local()):
        session.dispatch(kind(1))
    with pytest.raises(SerdeError, match="Local: two types have this name; rename one"):
        session.snapshot().to_json()
