"""The approver sees a preview of a call's changes; the call changes exactly that, or nothing."""

import asyncio
import json
import math
import os
import re
import shutil
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.agents import Args, Note, answers, fields_but, ok, prompt, recorded
from support.approvals import Which, asking, noting, tree
from support.programs import (
    STATE,
    Cell,
    Counted,
    ForkableCell,
    Heard,
    Plain,
    Program,
    Redirect,
    World,
    programs,
    run,
    session,
)
from weakincentives.evaluation.approval import (
    Approve,
    Approver,
    Change,
    Decision,
    Deny,
    Preview,
    ReplaceArguments,
)
from weakincentives.evaluation.conversation import Conversation
from weakincentives.evaluation.main_loop import MainLoop
from weakincentives.evaluation.messages import AssistantMessage, ToolCall
from weakincentives.evaluation.response import ApprovalRequested
from weakincentives.filesystem import Filesystem, HostFilesystem, InMemoryFilesystem
from weakincentives.prompt import (
    MarkdownSection,
    Prompt,
    PromptTemplate,
    PromptValidationError,
    Tool,
    ToolContext,
    ToolResult,
)
from weakincentives.resources import Binding, ResourceRegistry
from weakincentives.runtime.events import (
    ApprovalDecided,
    Event,
    InProcessEventBus,
    PromptRendered,
    ToolInvoked,
)
from weakincentives.runtime.session import Session
from weakincentives.runtime.session.differences import state_differences
from weakincentives.runtime.session.snapshots import SessionSnapshot
from weakincentives.testing.scripted import ScriptedAdapter, call, say


def approve(preview: Preview) -> Decision:
    """Approves everything."""
    return Approve()


def deny(preview: Preview) -> Decision:
    """Denies everything."""
    return Deny("not today")


async def approve_later(preview: Preview) -> Decision:
    """Approves everything, as a coroutine."""
    await asyncio.sleep(0)
    return Approve()


def previews(
    tool: Tool[Any, Any], at: Session, decision: Decision, **resources: Any
) -> list[Preview]:
    """Returns the previews of one call of the tool."""
    shown: list[Preview] = []

    adapter = ScriptedAdapter([call(("run", {})), say("done")])
    asked = prompt(tool).bind(**resources)
    adapter.evaluate(asked, session=at, approver=noting(shown, decision))
    return shown


# --------------------------------------------------------------------------------------------------
# the laws, over random calls


def story(
    calls: Sequence[Program], approval: Any, approver: Approver | None, how: str
) -> tuple[object, ...]:
    """Returns everything observable of an evaluation whose tool runs `calls`, one in each turn."""
    numbers = iter(range(len(calls)))
    script = [call(("run", {"number": next(numbers)})) for _ in calls]

    def handler(params: Which, *, context: ToolContext) -> ToolResult[object]:
        return run(calls[params.number], context)

    world, at = World(), session()
    at[Plain].seed(Plain(0))
    events = recorded(at.bus, Event)
    asked = prompt(asking(handler, approval, params=Which)).bind(resources=world.registry())
    adapter = ScriptedAdapter([*script, say("done")])
    ending: object = None
    try:
        if how == "async":
            coroutine = adapter.evaluate_async(asked, session=at, approver=approver)
            ending = asyncio.run(coroutine).transcript
        else:
            ending = adapter.evaluate(asked, session=at, approver=approver).transcript
    except BaseException as error:
        ending = repr(error)
    published = [
        (type(event), fields_but(event))
        for event in events
        if not isinstance(event, ApprovalDecided)
    ]
    logged = [fields_but(event) for kind in (Heard, Counted) for event in at[kind].all()]
    return ending, [at[kind].all() for kind in STATE], world.numbers(), published, logged


CALLS = st.lists(programs((None, None, None, False, ValueError)), min_size=1, max_size=3)


@settings(max_examples=50)
@given(calls=CALLS, mode=st.sampled_from(["arguments", "effects"]))
def test_approved_calls_behave_like_calls_without_approval(calls: list[Program], mode: str) -> None:
    wanted = story(calls, None, None, "sync")
    assert story(calls, mode, approve, "sync") == wanted
    assert story(calls, mode, approve_later, "async") == wanted


@pytest.mark.claim("N-07")
@settings(max_examples=50)
@given(calls=CALLS, mode=st.sampled_from(["arguments", "effects"]))
def test_denied_calls_change_only_their_answers(calls: list[Program], mode: str) -> None:
    transcript, state, numbers, published, logged = story(calls, mode, deny, "sync")
    _, before, untouched, _, _ = story([], None, None, "sync")
    assert (state, numbers, logged) == (before, untouched, [])
    assert isinstance(transcript, tuple | list)
    assert all(answer.content.startswith("A person denied") for answer in answers(transcript))
    assert isinstance(published, list)
    assert not [kind for kind, _ in published if kind in (Heard, Counted)]


@settings(max_examples=50)
@given(
    called=programs((None,), resources=False),
    others=st.lists(programs((None,), resources=False), max_size=3),
)
def test_approved_call_changes_state_as_previewed_despite_other_changes(
    called: Program, others: list[Program]
) -> None:
    at, shown = session(), list[Preview]()
    at[Plain].seed(Plain(0))
    meanwhile = iter(others)
    before: list[SessionSnapshot] = []

    def decide(preview: Preview) -> Decision:
        shown.append(preview)
        if (other := next(meanwhile, None)) is not None:
            bus = at.bus
            adapter: Any = ScriptedAdapter([])  # Any: see `AdapterOfCall`
            context = ToolContext(prompt(), None, adapter, at, bus)
            run(other, context)
        before.append(at.snapshot())
        return Approve()

    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        return run(called, context)

    adapter = ScriptedAdapter([call(("run", {})), say("done")])
    adapter.evaluate(prompt(asking(handler)), session=at, approver=decide)
    if shown[-1].approval == "effects":
        differences = state_differences(before[-1], at.snapshot())
        shown_values = {
            change.name: [(line[0], line.split(" = ")[1]) for line in change.diff.splitlines()]
            for change in shown[-1].changes
        }
        assert shown_values == {
            name.split(":")[1]: sides(values) for name, values in differences.items()
        }


def sides(differences: Any) -> list[tuple[str, str]]:
    """Returns the removed and the added values."""
    return [
        (sign, json.dumps(difference[side]))
        for difference in differences
        for sign, side in (("-", "before"), ("+", "after"))
        if side in difference
    ]


# --------------------------------------------------------------------------------------------------
# files

PATHS = st.sampled_from(["a", "b", "d", "d/a", "d/e/b"])
TEXTS = st.sampled_from(["", "one\n", "one\ntwo\n", "zwölf"])
FILE_OPS = st.one_of(
    st.tuples(st.just("write_text"), PATHS, TEXTS),
    st.tuples(st.just("append_text"), PATHS, TEXTS),
    st.tuples(st.just("mkdir"), PATHS),
    st.tuples(st.just("rename"), PATHS, PATHS),
    st.tuples(st.just("remove"), PATHS),
    st.tuples(st.just("read_text"), PATHS),
    st.tuples(st.just("list"), PATHS),
)
type FileOp = tuple[str, ...]


def do(files: Filesystem, operations: Sequence[FileOp]) -> str:
    """Performs the operation if possible, and returns what it read."""
    seen: list[object] = []
    for name, *arguments in operations:
        try:
            if name == "remove":
                files.delete(*arguments, recursive=True)
            elif name == "list":
                seen.append([(item.path, item.kind) for item in files.list(*arguments)])
            else:
                seen.append(getattr(files, name)(*arguments))
        except OSError as error:
            seen.append(type(error).__name__)
    return repr(seen)


def applied(before: dict[str, str | None], changes: Sequence[Change]) -> dict[str, str | None]:
    """Returns the tree after the diffs in a preview."""
    after = dict(before)
    for change in changes:
        if change.action == "remove":
            del after[change.name]
        elif change.kind == "directory" and not change.note:
            after[change.name] = None
        elif change.kind == "directory":
            after[change.name] = "?"
        else:
            after[change.name] = patched(before.get(change.name) or "", change.diff)
    return after


def patched(text: str, diff: str) -> str:
    """Returns the text after a unified diff with one hunk, which may omit lines before it."""
    if not diff:
        return text
    start = int(diff.split("\n")[2].removeprefix("@@ -").split(",")[0].split(" ")[0])
    lines = [f" {line}" for line in text.splitlines(keepends=True)[: max(start - 1, 0)]]
    for line in diff.split("\n")[3:-1]:
        if line.startswith("\\"):
            lines[-1] = lines[-1].removesuffix("\n")
        else:
            lines.append(line + "\n")
    return "".join([line[1:] for line in lines if not line.startswith("-")])


@pytest.mark.claim("N-08")
@pytest.mark.parametrize("kind", ["memory", "host"])
@settings(max_examples=40)
@given(
    start=st.lists(FILE_OPS, max_size=5),
    called=st.lists(FILE_OPS, max_size=5),
    others=st.lists(st.lists(FILE_OPS, max_size=2), max_size=3),
    denied=st.booleans(),
)
def test_approved_call_changes_files_as_previewed_and_denied_call_does_not(
    kind: str,
    start: list[FileOp],
    called: list[FileOp],
    others: list[list[FileOp]],
    denied: bool,
) -> None:
    with TemporaryDirectory() as folder:
        files = HostFilesystem(folder) if kind == "host" else InMemoryFilesystem()
        do(files, start)
        meanwhile, shown, before = iter(others), list[Preview](), dict[str, str | None]()

        def decide(preview: Preview) -> Decision:
            shown.append(preview)
            do(files, next(meanwhile, []))
            before.clear()
            before.update(tree(files))
            return Deny() if denied else Approve()

        def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
            return ToolResult(do(context.resources.get(Filesystem), called))

        adapter = ScriptedAdapter([call(("run", {})), say("done")])
        asked = prompt(asking(handler)).bind(resources={Filesystem: files})
        transcript = adapter.evaluate(asked, session=Session(), approver=decide).transcript
        [answer] = answers(transcript)
        if denied:
            assert (tree(files), len(shown)) == (before, 1)
        else:
            assert answer.content == shown[-1].answer
            assert shown[-1].approval == "effects"
            wanted = applied(before, shown[-1].changes)
            after = tree(files)
            assert after == {
                path: after.get(path) if text == "?" else text for path, text in wanted.items()
            }


def test_preview_renders_as_text_and_markdown() -> None:
    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        files = context.resources.get(Filesystem)
        files.write_text("notes.md", "# Notes\n\nNew.\n")
        files.write_bytes("logo.png", b"\x89PNG\0")
        files.mkdir("empty")
        files.delete("old.txt")
        context.session.dispatch(Note("x"))
        context.event_bus.publish(Heard(number=4))
        return ToolResult("Written.")

    files = InMemoryFilesystem({"notes.md": "# Notes\n\nOld.\n", "old.txt": "gone"})
    at = Session()
    at.dispatch(Note("before"))
    [preview] = previews(asking(handler), at, Deny(), resources={Filesystem: files})
    assert str(preview) == (Path(__file__).with_name("preview.txt").read_text().rstrip("\n"))
    markdown = preview._repr_markdown_()
    assert "```diff\n--- a/notes.md" in markdown
    assert preview.omitted == ()


def test_preview_escapes_control_characters_and_markdown_fences() -> None:
    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        context.resources.get(Filesystem).write_text("a", "\x1b[2J\u202e```zwölf\t12\n")
        context.session.dispatch(Note("zwölf"))
        return ToolResult("ok")

    files = InMemoryFilesystem()
    [preview] = previews(asking(handler), Session(), Deny(), resources={Filesystem: files})
    assert "+\\x1b[2J\\u202e```zwölf\t12" in str(preview)  # letters and tabs stay
    assert '{"text": "zwölf"}' in str(preview)
    assert "\n````diff\n" in preview._repr_markdown_()


def test_large_preview_is_truncated_and_lists_omitted_parts() -> None:
    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        files = context.resources.get(Filesystem)
        for number in range(300):
            files.write_text(f"f{number:03}", "line\n" * 1_000)
        return ToolResult("x" * 50_000)

    files = InMemoryFilesystem()
    [preview] = previews(asking(handler), Session(), Approve(), resources={Filesystem: files})
    assert len(preview.changes) == 200
    assert len(str(preview)) < 200_000
    assert preview.omitted[-1] == "100 of 300 changes"
    assert "- 100 of 300 changes" in str(preview)
    assert preview.answer == "x" * 10_000 + "… (40,000 more characters)"
    assert len(files.list()) == 300
    # The diffs shown consist of complete lines; the number of omitted characters is exact.
    cut = [note for note in preview.omitted if "characters of the diff" in note]
    whole = [change for change in preview.changes if change.diff.count("\n") == 1_003]
    assert len(whole) + len(cut) == 200
    assert sum([len(change.diff) for change in preview.changes]) <= 100_000
    for note, change in zip(cut, preview.changes[len(whole) :], strict=True):
        left, total = re.findall(r"[\d,]+", note)[:2]
        assert int(left.replace(",", "")) + len(change.diff) == int(total.replace(",", ""))
        assert not change.diff or change.diff.endswith("\n+line")
        assert note.endswith(f" of {change.name}")


def test_diff_and_answer_at_the_size_limit_are_not_truncated() -> None:
    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        head = len("--- a/f\n+++ b/f\n@@ -0,0 +1 @@\n+\n")
        for name in "fghij":  # 100,000 characters in all
            context.resources.get(Filesystem).write_text(name, "x" * (20_000 - head) + "\n")
        return ToolResult("y" * 10_000)

    files = InMemoryFilesystem()
    [preview] = previews(asking(handler), Session(), Deny(), resources={Filesystem: files})
    assert [len(change.diff) for change in preview.changes] == [20_000] * 5
    assert (preview.answer, preview.omitted) == ("y" * 10_000, ())


@pytest.mark.parametrize(("size", "omitted"), [(200, ()), (201, ("1 of 201 changes",))])
def test_preview_lists_200_changes_and_the_number_of_the_others(
    size: int, omitted: tuple[str, ...]
) -> None:
    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        for number in range(size):
            context.resources.get(Filesystem).write_text(f"f{number}", "")
        return ToolResult("ok")

    files = InMemoryFilesystem()
    [preview] = previews(asking(handler), Session(), Deny(), resources={Filesystem: files})
    assert (len(preview.changes), preview.omitted) == (200, omitted)


@pytest.mark.parametrize("data", [b"a\0b", b"\xff", b"x" * 500_001])
def test_binary_or_large_file_is_previewed_by_size_and_digest(data: bytes) -> None:
    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        context.resources.get(Filesystem).write_bytes("new", data)
        context.resources.get(Filesystem).delete("old")
        context.resources.get(Filesystem).mkdir("old")
        return ToolResult("ok")

    files = InMemoryFilesystem({"old": data})
    [preview] = previews(asking(handler), Session(), Deny(), resources={Filesystem: files})
    shown = f"{len(data):,} bytes with SHA-256 {sha256(data).hexdigest()}"
    assert [(change.kind, change.name, change.note) for change in preview.changes] == [
        ("file", "new", f"nothing before, {shown} after"),
        ("directory", "old", f"{shown} before, a directory after"),
    ]
    assert [change.diff for change in preview.changes] == ["", ""]


def test_preview_lists_100_events_and_its_digest_covers_all() -> None:
    def publish_100(params: Args, *, context: ToolContext) -> ToolResult[object]:
        for number in range(100):
            context.event_bus.publish(Which(number))
        return ToolResult("ok")

    [complete] = previews(asking(publish_100), Session(), Deny())
    assert (len(complete.events), complete.omitted) == (100, ())
    digests: set[str] = set()
    for last in (149, 150):

        def handler(params: Args, *, context: ToolContext, last: int = last) -> ToolResult[object]:
            for number in [*range(149), last]:
                context.event_bus.publish(Which(number))
            return ToolResult("ok")

        [preview] = previews(asking(handler), Session(), Deny())
        assert preview.events == tuple([f"Which(number={number})" for number in range(100)])
        assert preview.omitted == ("50 of 150 events",)
        digests.add(preview.digest)
    assert len(digests) == 2


@dataclass(frozen=True)
class Stock:
    counts: dict[str, int]


def test_mapping_order_in_state_does_not_change_the_preview_digest() -> None:
    digests: set[str] = set()
    for names in ("ab", "ba"):

        def handler(params: Args, *, context: ToolContext, names: str = names) -> Any:
            context.session.dispatch(Stock(dict.fromkeys(names, 1)))
            return ToolResult("ok")

        [preview] = previews(asking(handler), Session(), Deny())
        digests.add(preview.digest)
    assert len(digests) == 1


# --------------------------------------------------------------------------------------------------
# who is asked, and when


def test_invalid_arguments_and_unknown_tools_are_not_sent_for_approval() -> None:
    shown: list[Preview] = []
    script = [call(("run", {"a": "x"}), ("walk", {})), say("done")]
    asked = prompt(asking(ok))
    response = ScriptedAdapter(script).evaluate(
        asked, session=Session(), approver=noting(shown, Approve())
    )
    wrong, unknown = answers(response.transcript)
    assert wrong.content.startswith("Invalid arguments for 'run'")
    assert unknown.content.startswith("Unknown tool 'walk'")
    assert shown == []


def test_call_that_registers_a_reducer_is_approved_by_its_arguments() -> None:
    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        slices: Any = context.session  # its protocol has no `register`
        slices[Note].register(int, lambda view, event: None)
        return ToolResult("ok")

    [preview] = previews(asking(handler), Session(), Deny())
    assert preview.approval == "arguments"
    assert "cannot be shown: a reducer registered by one call would stay" in preview.reason


def test_call_that_uses_a_fork_without_preview_is_approved_by_its_arguments() -> None:
    class Fork(Cell):
        pass

    class Silent(Cell):
        def fork(self) -> Fork:
            return Fork()

        def merge(self, fork: Fork, /) -> bool:
            self.numbers += fork.numbers
            return True

    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        context.resources.get(Silent).add(1)
        return ToolResult("ok")

    for decision, numbers in ((Deny(), list[int]()), (Approve(), [1])):
        cell = Silent()
        [preview] = previews(asking(handler), Session(), decision, resources={Silent: cell})
        assert (preview.approval, cell.numbers) == ("arguments", numbers)
        assert preview.reason.startswith("The effects cannot be shown: the fork of ")
        assert preview.reason.endswith("Silent has no preview().")


def test_preview_names_the_filesystem_of_each_path_if_there_are_several(tmp_path: Path) -> None:
    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        context.resources.get(HostFilesystem).write_text("a.txt", "new\n")
        context.resources.get(InMemoryFilesystem).write_text("a.txt", "new\n")
        return ToolResult("ok")

    with closing(HostFilesystem(tmp_path)) as host:
        memory = InMemoryFilesystem()
        resources = {HostFilesystem: host, InMemoryFilesystem: memory}
        [preview] = previews(asking(handler), Session(), Deny(), resources=resources)
        names = {f"{files!r} a.txt" for files in resources.values()}
    assert {change.name for change in preview.changes} == names


def test_order_in_which_a_call_uses_its_filesystems_does_not_change_the_preview(
    tmp_path: Path,
) -> None:
    seen: list[Preview] = []
    with closing(HostFilesystem(tmp_path)) as host:
        resources = {HostFilesystem: host, InMemoryFilesystem: InMemoryFilesystem()}
        for order in ([*resources], [*resources][::-1]):

            def handler(
                params: Args, *, context: ToolContext, order: Sequence[type[Any]] = order
            ) -> ToolResult[object]:
                for kind in order:
                    context.resources.get(kind).write_text("a.txt", "new\n")
                return ToolResult("ok")

            seen += previews(asking(handler), Session(), Deny(), resources=resources)
    first, second = seen
    assert (first.changes, first.digest) == (second.changes, second.digest)
    assert len(first.changes) == 2


def test_replaced_arguments_are_used_and_reported_to_the_model() -> None:
    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        context.session.dispatch(Note(str(params.a)))
        return ToolResult(f"wrote {params.a}")

    for mode, asked in (("arguments", 1), ("effects", 2)):
        at, shown = Session(), list[Preview]()

        def decide(preview: Preview, shown: list[Preview] = shown) -> Decision:
            shown.append(preview)
            return ReplaceArguments({"a": 7}) if len(shown) == 1 else Approve()

        adapter = ScriptedAdapter([call(("run", {"a": 1})), say("done")])
        tool = asking(handler, mode)
        response = adapter.evaluate(prompt(tool), session=at, approver=decide)
        [answer] = answers(response.transcript)
        assert answer.content == 'The arguments were replaced by {"a": 7}\n\nwrote 7'
        assert at[Note].all() == (Note("7"),)
        assert len(shown) == asked
        [event] = at[ToolInvoked].all()
        assert event.content == answer.content


def test_replaced_arguments_without_effects_approval_are_not_previewed_again() -> None:
    at, shown = Session(), list[Preview]()

    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        context.session.dispatch(Note(str(params.a)))
        return ToolResult("ok")

    adapter = ScriptedAdapter([call(("run", {"a": 1})), say("done")])
    tool = asking(handler, lambda params: "effects" if params.a == 1 else "arguments")
    replacing = noting(shown, ReplaceArguments({"a": 7}))
    adapter.evaluate(prompt(tool), session=at, approver=replacing)
    assert [preview.approval for preview in shown] == ["effects"]
    assert at[Note].all() == (Note("7"),)


class WithoutForks:
    """A session that follows the protocol but cannot fork."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.runs, self.session_id = session.runs, session.session_id
        self.bus, self.content = session.bus, session.content
        self.dispatch, self.declare = session.dispatch, session.declare
        self.snapshot, self.restore = session.snapshot, session.restore

    def __getitem__[T](self, slice_type: type[T], /) -> Any:  # Any: an accessor of the session
        return self._session[slice_type]


def test_call_in_a_session_without_fork_is_approved_by_its_arguments() -> None:
    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        context.session.dispatch(Note("x"))
        return ToolResult("ok")

    for decision, count in ((Deny(), 0), (Approve(), 1)):
        at = Session()
        without: Any = WithoutForks(at)
        [preview] = previews(asking(handler), without, decision)
        assert (preview.approval, len(at[Note])) == ("arguments", count)
        assert preview.reason == "The effects cannot be shown: the session has no fork()."


def test_approval_decided_event_records_preview_decision_and_reason() -> None:
    decisions: list[tuple[Decision, str, str]] = [
        (Approve(), "approve", ""),
        (Deny("not today"), "deny", "not today"),
        (ReplaceArguments({"a": 7}), "replace", ""),
    ]
    for decision, kind, reason in decisions:
        at = Session()
        [preview] = previews(asking(ok, "arguments"), at, decision)
        [event] = at[ApprovalDecided].all()
        assert (event.decision, event.reason) == (kind, reason)
        assert (event.name, event.call_id, event.approval) == ("run", "call_1", "arguments")
        assert (event.preview, event.session_id) == (str(preview), at.session_id)
        assert event.seconds >= 0


def test_approval_selector_receives_params_session_and_context() -> None:
    def selector(params: Args, *, session: Any, context: ToolContext) -> Any:
        assert context.call_id
        return "arguments" if params.a > 1 and session[Note].latest() else None

    at = Session()
    at.dispatch(Note("x"))
    calls = call(("run", {"a": 1}), ("run", {"a": 2}))
    asked: list[Preview] = []
    tool = asking(ok, selector)
    ScriptedAdapter([calls, say("done")]).evaluate(
        prompt(tool), session=at, approver=noting(asked, Deny())
    )
    assert [json.loads(preview.arguments) for preview in asked] == [{"a": 2}]


def test_call_does_not_run_if_its_approval_selector_fails() -> None:
    for selector in (lambda: 1 / 0, lambda: "sometimes"):
        at = Session()

        def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
            raise AssertionError("it ran")

        adapter = ScriptedAdapter([call(("run", {})), say("done")])
        response = adapter.evaluate(prompt(asking(handler, selector)), session=at, approver=approve)
        [answer] = answers(response.transcript)
        assert answer.content.startswith("The call was not approved: ")


@pytest.mark.parametrize("effect", ["at_most_once", "transactional"])
def test_at_most_once_and_transactional_calls_are_approved_by_their_arguments(effect: Any) -> None:
    with pytest.raises(PromptValidationError, match="use approval='arguments'"):
        asking(ok, "effects", effect=effect)
    ran: list[int] = []

    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        ran.append(1)
        return ToolResult("ok")

    for decision, count in ((Deny(), 0), (Approve(), 1)):
        tool = asking(handler, lambda: "effects", effect=effect)
        [preview] = previews(tool, Session(), decision)
        assert (preview.approval, len(ran)) == ("arguments", count)
        assert preview.reason == f"The effects cannot be shown: the tool is {effect!r}."


def test_stream_yields_approval_requested_for_a_pending_call() -> None:
    at = Session()
    adapter = ScriptedAdapter([call(("run", {})), say("done")])
    loop = MainLoop(adapter)
    events = list(loop.stream(prompt(asking(ok)), session=at, approver=approve))
    [requested] = [event for event in events if isinstance(event, ApprovalRequested)]
    assert requested.preview.tool == "run"
    [decided] = at[ApprovalDecided].all()
    assert (decided.name, decided.decision, decided.approval) == ("run", "approve", "effects")


def test_failing_approver_ends_the_run_without_effects() -> None:
    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        context.session.dispatch(Note("x"))
        return ToolResult("ok")

    failures = {
        ZeroDivisionError: ZeroDivisionError,
        KeyboardInterrupt: KeyboardInterrupt,
        asyncio.CancelledError: RuntimeError,  # the run was not cancelled
    }
    for failure, raised in failures.items():

        def decide(preview: Preview, failure: type[BaseException] = failure) -> Decision:
            raise failure

        at = Session()
        saved: list[Any] = []
        adapter = ScriptedAdapter([call(("run", {})), say("done")])
        with pytest.raises(raised):
            adapter.evaluate(
                prompt(asking(handler)), session=at, approver=decide, save=saved.append
            )
        assert not at[Note]
        assert [answer.unknown for answer in answers(saved[-1].messages)] == [False]


def test_deny_reason_must_be_a_string() -> None:
    with pytest.raises(TypeError, match="reason of Deny must be a string for the model, got 3"):
        Deny(3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def test_approver_must_be_callable_and_return_a_decision() -> None:
    adapter = ScriptedAdapter([call(("run", {})), say("done")])
    # Any: values that no type checker accepts
    wrong: Any = lambda _: True  # noqa: E731
    word: Any = "yes"
    with pytest.raises(TypeError, match=r"^the approver must return Approve\(\), Deny.*, got True"):
        adapter.evaluate(prompt(asking(ok)), session=Session(), approver=wrong)
    with pytest.raises(
        TypeError, match="approver must be a function that takes a Preview, got 'yes'"
    ):
        adapter.evaluate(prompt(asking(ok)), session=Session(), approver=word)


def test_changed_approval_mode_is_previewed_again_with_the_reason() -> None:
    at, shown = Session(), list[Preview]()

    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        context.session.dispatch(Note(f"note {len(context.session[Note])}"))
        return ToolResult("ok")

    def selector(params: Args, *, session: Any) -> Any:
        return "arguments" if session[Note].all() else "effects"

    def decide(preview: Preview) -> Decision:
        shown.append(preview)
        if len(shown) == 1:
            at.dispatch(Note("meanwhile"))
        return Approve()

    adapter = ScriptedAdapter([call(("run", {})), say("done")])
    adapter.evaluate(prompt(asking(handler, selector)), session=at, approver=decide)
    assert [(preview.approval, preview.reason) for preview in shown] == [
        ("effects", ""),
        (
            "arguments",
            "What this call would change is different now, so it is asked about again.",
        ),
    ]
    assert [note.text for note in at[Note].all()] == ["meanwhile", "note 1"]


@pytest.mark.parametrize("has_bus", [False, True])
def test_nested_run_in_a_previewed_call_publishes_only_after_approval(*, has_bus: bool) -> None:
    section = MarkdownSection(title="Task", template="Inner.")
    inner = PromptTemplate[str](ns="tests", key="inner", sections=[section])

    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        context.evaluate(inner.bind())
        asked = inner.bind()
        return ToolResult(context.adapter.evaluate(asked, session=context.session).text)

    for decision, rendered in ((Deny(), []), (Approve(), ["inner", "inner"])):
        at = Session()
        bus = InProcessEventBus() if has_bus else at.bus
        events = recorded(bus, PromptRendered)
        adapter = ScriptedAdapter([call(("run", {})), say("inside"), say("inside"), say("done")])
        adapter.evaluate(
            prompt(asking(handler)), session=at, bus=bus, approver=noting([], decision)
        )
        assert [event.key for event in events] == ["agent", *rendered]


def test_selector_context_cannot_be_used_after_the_selector_returns() -> None:
    kept: list[ToolContext] = []

    def selector(params: Args, *, context: ToolContext) -> Any:
        assert context.session is not None
        kept.append(context)
        return "arguments"

    previews(asking(ok, selector), Session(), Deny())
    [context] = kept
    with pytest.raises(RuntimeError):
        _ = context.session


def test_interrupt_in_a_previewed_handler_ends_the_run_without_asking() -> None:
    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        context.session.dispatch(Note("x"))
        raise KeyboardInterrupt

    at, shown = Session(), list[Preview]()
    adapter = ScriptedAdapter([call(("run", {})), say("done")])
    with pytest.raises(KeyboardInterrupt):
        adapter.evaluate(prompt(asking(handler)), session=at, approver=noting(shown, Approve()))
    assert (shown, at[Note].all()) == ([], ())


def test_replaced_arguments_keep_non_ascii_characters() -> None:
    @dataclass(frozen=True)
    class Line:
        text: str

    def handler(params: Line, *, context: ToolContext) -> ToolResult[object]:
        return ToolResult(f"wrote {params.text}")

    adapter = ScriptedAdapter([call(("run", {"text": "twelve"})), say("done")])
    response = adapter.evaluate(
        prompt(asking(handler, "arguments", params=Line)),
        session=Session(),
        approver=lambda _: ReplaceArguments({"text": "zwölf"}),
    )
    [answer] = answers(response.transcript)
    assert answer.content == 'The arguments were replaced by {"text": "zwölf"}\n\nwrote zwölf'


def test_preview_of_a_failing_call_contains_its_error_answer() -> None:
    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        context.session.dispatch(Note("x"))
        raise ValueError("no such account")

    [preview] = previews(asking(handler), Session(), Deny())
    assert (preview.approval, preview.success) == ("effects", False)
    assert preview.answer == "no such account"


def test_control_flow_of_a_previewed_handler_takes_effect_after_approval() -> None:
    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        context.session.dispatch(Note("x"))
        raise Redirect("elsewhere")

    for decision, ends in ((Approve(), True), (Deny(), False)):
        at, shown = Session(), list[Preview]()
        adapter = ScriptedAdapter([call(("run", {})), say("done")])
        with pytest.raises(Redirect) if ends else nullcontext():
            adapter.evaluate(prompt(asking(handler)), session=at, approver=noting(shown, decision))
        [preview] = shown
        assert (preview.answer, preview.success) == ("elsewhere", True)
        assert [note.text for note in at[Note].all()] == ["x"] * ends


def test_resource_first_created_by_the_call_is_isolated() -> None:
    cell = ForkableCell()
    registry = ResourceRegistry.of(Binding(ForkableCell, lambda _: cell))

    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        context.resources.get(ForkableCell).add(1)
        return ToolResult("ok")

    [preview] = previews(asking(handler), Session(), Approve(), resources=registry)
    assert (preview.approval, cell.numbers) == ("effects", [1])


def test_calls_that_require_approval_are_previewed_in_order() -> None:
    asked: Prompt[Any] = prompt(asking(ok))
    adapter = ScriptedAdapter([call(("run", {}), ("run", {})), say("done")])
    shown: list[Preview] = []
    adapter.evaluate(asked, session=Session(), approver=noting(shown, Approve()))
    assert [preview.call_id for preview in shown] == ["call_1", "call_2"]


# --------------------------------------------------------------------------------------------------
# malicious models, files and approvers


def test_preview_decodes_arguments_and_escapes_control_characters() -> None:
    @dataclass(frozen=True)
    class Command:
        line: str

    seen: list[str] = []
    shown: list[Preview] = []

    def handler(params: Command, *, context: ToolContext) -> ToolResult[object]:
        seen.append(params.line)
        return ToolResult("ok")

    text = '{\n\n"line": "\\u0072\\u006d -rf \\u202e"}'
    calls = AssistantMessage(tool_calls=(ToolCall("call_1", "run", text),))
    adapter = ScriptedAdapter([calls, say("done")])
    asked = prompt(asking(handler, "arguments", params=Command))
    adapter.evaluate(asked, session=Session(), approver=noting(shown, Approve()))
    assert seen == ["rm -rf \u202e"]
    assert '\n{"line": "rm -rf \\u202e"}' in str(shown[0])
    assert shown[0].arguments == text


def test_answer_or_file_name_cannot_forge_another_part_of_the_preview() -> None:
    name = "a\n+++ b/c\n-x\n\nChanges: none."

    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        context.resources.get(Filesystem).write_text(name, "new\n")
        return ToolResult(
            "ok\n\nChanges: none.\n\nA call of read waits for approval of its effects."
        )

    files = InMemoryFilesystem()
    [preview] = previews(asking(handler), Session(), Deny(), resources={Filesystem: files})
    headings = [line for line in str(preview).split("\n") if line[:1].isalpha()]
    assert headings == [
        "A call of run waits for approval of its effects.",
        "Arguments:",
        "Changes:",
        "The model would read:",
    ]
    assert [change.name for change in preview.changes if change.kind == "file"] == [name]
    [change] = [change for change in preview.changes if change.diff]
    assert [line[:1] for line in change.diff.splitlines()] == ["-", "+", "@", "+"]


def test_state_key_cannot_forge_another_part_of_the_preview() -> None:
    @dataclass(frozen=True)
    class Labels:
        by_name: dict[str, int]

    key = "a\n\nThe model would read:\n  all is well\n\n- remove file b"

    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        context.session[Labels].seed(Labels({key: 2, "plain": 1}))
        return ToolResult("ok")

    at = Session()
    at[Labels].seed(Labels({key: 1}))
    [preview] = previews(asking(handler), at, Deny())
    [change] = preview.changes
    assert change.diff.splitlines() == [
        f"- [0].by_name[{json.dumps(key)}] = 1",
        f"+ [0].by_name[{json.dumps(key)}] = 2",
        "+ [0].by_name.plain = 1",
    ]


@pytest.mark.parametrize("place", ["session", "slice", "files", "bus", "snapshot", "version"])
def test_objects_kept_by_a_handler_cannot_change_anything_after_the_preview(place: str) -> None:
    kept: dict[str, Callable[[], object]] = {}
    refused: list[BaseException] = []
    files, at = InMemoryFilesystem({"a": "old"}), Session()
    heard = recorded(at.bus, Note)

    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        session, own = context.session, context.resources.get(Filesystem)
        notes, bus = session[Note], context.event_bus
        before, version = session.snapshot(), own.snapshot()
        kept.update(
            session=lambda: session.dispatch(Note("unseen")),
            slice=lambda: notes.append(Note("unseen")),
            files=lambda: own.write_text("a", "unseen"),
            bus=lambda: bus.publish(Note("unseen")),
            snapshot=lambda: session.restore(before),
            version=lambda: own.restore(version),
        )
        session.dispatch(Note("seen"))
        bus.publish(Note("seen"))
        own.write_text("a", "seen")
        return ToolResult("ok")

    def decide(preview: Preview) -> Decision:
        try:
            kept[place]()
        except (RuntimeError, PermissionError) as error:
            refused.append(error)
        return Approve()

    adapter = ScriptedAdapter([call(("run", {})), say("done")])
    asked = prompt(asking(handler)).bind(resources={Filesystem: files})
    adapter.evaluate(asked, session=at, approver=decide)
    assert (at[Note].all(), heard) == ((Note("seen"),), [Note("seen")])
    assert files.read_text("a") == "seen"
    assert len(refused) == 1


def test_event_is_previewed_without_its_secrets() -> None:
    @dataclass(frozen=True)
    class Login:
        user: str
        password: str = field(repr=False)

    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        context.event_bus.publish(Login("ada", "hunter2"))
        return ToolResult("ok")

    [preview] = previews(asking(handler), Session(), Deny())
    assert [text.rpartition(".")[2] for text in preview.events] == [
        'Login(user="ada", password=(not shown))'
    ]
    assert "hunter2" not in f"{preview} {preview!r}"


@pytest.mark.parametrize(
    ("text", "problem"), [(None, "failed: out of order"), (3, "must return a string, got 3")]
)
def test_resource_with_a_failing_preview_is_approved_by_the_arguments(
    text: object, problem: str
) -> None:
    class Counter:
        def __init__(self, count: int = 0) -> None:
            self.count = count

        def snapshot(self) -> int:
            return self.count

        def restore(self, count: int) -> None:
            self.count = count

        def fork(self) -> "Counter":
            return Counter(self.count)

        def merge(self, fork: "Counter") -> bool:
            self.count = fork.count
            return True

        def preview(self) -> object:
            if text is None:
                raise RuntimeError("out of order")
            return text

    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        context.resources.get(Counter).count += 1
        return ToolResult("ok")

    counter = Counter()
    for decision, count in ((Deny(), 0), (Approve(), 1)):
        [preview] = previews(asking(handler), Session(), decision, resources={Counter: counter})
        assert (preview.approval, counter.count) == ("arguments", count)
        assert preview.reason.startswith("The effects cannot be shown: preview() of test_resource")
        assert preview.reason.endswith(f"Counter {problem}.")


@pytest.mark.parametrize(
    "arguments", [[1], None, {"a": object()}, {"a": math.nan}, {3: {}, "b": {4}}]
)
def test_replaced_arguments_must_be_a_json_object(arguments: Any) -> None:
    at = Session()

    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        context.session.dispatch(Note("x"))
        return ToolResult("ok")

    with pytest.raises(
        TypeError,
        match=r"^ReplaceArguments takes a mapping of JSON values, got",
    ):
        previews(asking(handler), at, ReplaceArguments(arguments))
    assert at[Note].all() == ()


class Later:
    """An approver that is an object with a coroutine method."""

    async def __call__(self, preview: Preview) -> Decision:
        return await approve_later(preview)


def soon(preview: Preview) -> Awaitable[Decision]:
    """Approves everything with a coroutine that it returns."""
    return approve_later(preview)


@pytest.mark.parametrize("approver", [Later(), soon], ids=["object", "function"])
@pytest.mark.parametrize("where", ["sync", "async", "sync in a loop"])
def test_approver_that_returns_an_awaitable_is_awaited(approver: Any, where: str) -> None:
    adapter = ScriptedAdapter([call(("run", {})), say("done")])
    at, asked = Session(), prompt(asking(ok))

    async def main() -> None:
        if where == "async":
            await adapter.evaluate_async(asked, session=at, approver=approver)
        else:
            adapter.evaluate(asked, session=at, approver=approver)

    if where == "sync":
        adapter.evaluate(asked, session=at, approver=approver)
    else:
        asyncio.run(main())
    assert [event.decision for event in at[ApprovalDecided].all()] == ["approve"]


def write_a(files: Filesystem) -> None:
    files.write_text("a.txt", "new\n")


def write_below_d(files: Filesystem) -> None:
    files.write_text("d/secret.txt", "new\n")


def delete_d(files: Filesystem) -> None:
    files.delete("d", recursive=True)


def as_directory(root: Path, outside: Path) -> None:
    (root / "a.txt").unlink()
    (root / "a.txt").mkdir()


def as_link(root: Path, outside: Path) -> None:
    (root / "a.txt").unlink()
    (root / "a.txt").symlink_to(outside / "secret.txt")


def as_pipe(root: Path, outside: Path) -> None:
    (root / "a.txt").unlink()
    os.mkfifo(root / "a.txt")


def as_linked_directory(root: Path, outside: Path) -> None:
    shutil.rmtree(root / "d")
    (root / "d").symlink_to(outside)


def as_nothing(root: Path, outside: Path) -> None:
    shutil.rmtree(root)


@pytest.mark.parametrize(
    ("write", "replace_by"),
    [
        (write_a, as_directory),
        (write_a, as_link),
        (write_a, as_pipe),
        (write_a, as_nothing),
        (write_below_d, as_linked_directory),
        (delete_d, as_linked_directory),
    ],
)
def test_files_replaced_during_approval_are_previewed_again_and_unchanged(
    write: Callable[[Filesystem], None],
    replace_by: Callable[[Path, Path], None],
    tmp_path: Path,
) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    for path, text in (("root/a.txt", "old"), ("root/d/x.txt", "x"), ("outside/secret.txt", "s")):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    shown: list[Preview] = []
    after: list[list[tuple[Path, bool]]] = []

    def everything() -> list[tuple[Path, bool]]:
        return [(path, path.is_symlink()) for path in sorted(tmp_path.rglob("*"))]

    def approver(preview: Preview) -> Decision:
        shown.append(preview)
        if len(shown) > 1:
            return Deny()
        replace_by(root, outside)
        after.append(everything())
        return Approve()

    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        write(context.resources.get(Filesystem))
        return ToolResult("ok")

    adapter = ScriptedAdapter([call(("run", {})), say("done")])
    with closing(HostFilesystem(root)) as files:
        asked = prompt(asking(handler)).bind(resources={Filesystem: files})
        adapter.evaluate(asked, session=Session(), approver=approver)
    assert shown[1].reason == (
        "What this call would change is different now, so it is asked about again."
    )
    assert [everything()] == after
    assert (outside / "secret.txt").read_text() == "s"


def test_preview_does_not_follow_a_symlink_out_of_the_root(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "secret.txt").write_text("hunter2")
    (tmp_path / "root/link").symlink_to(tmp_path / "secret.txt")

    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        context.resources.get(Filesystem).write_text("link", "new\n")
        return ToolResult("ok")

    with closing(HostFilesystem(tmp_path / "root")) as files:
        [preview] = previews(asking(handler), Session(), Approve(), resources={Filesystem: files})
    assert (preview.success, preview.changes) == (False, ())
    assert "hunter2" not in f"{preview}"
    assert (tmp_path / "secret.txt").read_text() == "hunter2"


@pytest.mark.parametrize("blocks", [False, True], ids=["async", "blocking"])
def test_cancelling_a_run_during_approval_leaves_no_effects(*, blocks: bool) -> None:
    at, files = Session(), InMemoryFilesystem()
    released = threading.Event()

    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        context.session.dispatch(Note("x"))
        context.resources.get(Filesystem).write_text("a", "x")
        return ToolResult("ok")

    async def main() -> None:
        loop, asked = asyncio.get_running_loop(), asyncio.Event()

        async def waiting(preview: Preview) -> Decision:
            asked.set()
            await asyncio.Event().wait()
            return Approve()

        def blocking(preview: Preview) -> Decision:
            loop.call_soon_threadsafe(asked.set)
            released.wait()
            return Approve()

        adapter = ScriptedAdapter([call(("run", {})), say("done")])
        evaluation = adapter.evaluate_async(
            prompt(asking(handler)).bind(resources={Filesystem: files}),
            session=at,
            approver=blocking if blocks else waiting,
        )
        task = asyncio.create_task(evaluation)
        await asked.wait()
        task.cancel()
        released.set()
        await asyncio.wait([task])
        assert task.cancelled()

    asyncio.run(main())
    assert (at[Note].all(), at[ToolInvoked].all(), files.list()) == ((), (), ())


def interrupt(*_: object) -> Any:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("approval", "where", "unknown"),
    [
        (None, "handler", True),
        ("arguments", "handler", True),
        ("effects", "handler", False),  # it runs on forks
        ("arguments", "approver", False),
        ("effects", "approver", False),
        ("effects", "approver after a change", False),
        ("arguments", "event", False),  # it has been answered
        ("effects", "event", False),
    ],
)
def test_interrupted_call_is_unknown_only_if_it_may_have_taken_effect(
    approval: Any, where: str, *, unknown: bool
) -> None:
    at, saved, asked = Session(), list[Conversation](), list[Preview]()

    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        if where == "handler":
            interrupt()
        context.session.dispatch(Note(f"after {len(context.session[Note])}"))
        return ToolResult("ok")

    def decide(preview: Preview) -> Decision:
        asked.append(preview)
        if where == "approver" or len(asked) == 2:
            interrupt()
        if where == "approver after a change":
            at.dispatch(Note("meanwhile"))
        return Approve()

    if where == "event":
        at.bus.subscribe(ToolInvoked, interrupt)
    adapter = ScriptedAdapter([call(("run", {}), ("run", {"a": 4})), say("done")])
    with pytest.raises(KeyboardInterrupt):
        adapter.evaluate(
            prompt(asking(handler, approval)), session=at, approver=decide, save=saved.append
        )
    [stopped] = saved
    first, second = answers(stopped.messages)
    assert (first.unknown, second.unknown) == (unknown, False)
    assert [made.call_id for made in stopped.unknown_calls] == [first.call_id] * unknown
