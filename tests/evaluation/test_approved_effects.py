"""No call runs before its approval, and no change takes effect that the approver did not see."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from support.agents import Args, Note, ok, prompt
from support.suspensions import showing
from weakincentives.content import Image
from weakincentives.errors import SerdeError
from weakincentives.evaluation.approval import (
    Approve,
    Approver,
    Decision,
    Deny,
    Preview,
    ReplaceArguments,
)
from weakincentives.evaluation.chat import Chat
from weakincentives.evaluation.inner_loop import RunConfig
from weakincentives.evaluation.main_loop import MainLoop
from weakincentives.evaluation.suspension import RunSuspended, Suspension
from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.prompt import (
    MarkdownSection,
    PromptTemplate,
    PromptValidationError,
    Tool,
    ToolContext,
    ToolResult,
)
from weakincentives.prompt.tool import Effect
from weakincentives.runtime.session import Session
from weakincentives.testing.scripted import ScriptedAdapter, call, say

BOTH_WAYS = r"effect='repeatable' .* use approval='arguments'"


def asking(
    handler: Callable[..., Any], approval: Any = "effects", effect: Any = "repeatable"
) -> Tool[Any, Any]:
    return Tool[Args, Any](name="run", handler=handler, approval=approval, effect=effect)


def suspended(tool: Tool[Any, Any], *more: Any) -> Suspension:
    adapter = ScriptedAdapter([call(("run", {"a": 1}), *more)])
    with pytest.raises(RunSuspended) as waiting:
        MainLoop(adapter).execute(prompt(tool), session=Session())
    return waiting.value.suspension


# --- A tool that declares no effect


@pytest.mark.claim("N-10")
def test_effects_approval_of_an_undeclared_tool_is_rejected_with_both_fixes() -> None:
    undeclared = Tool[Args, Any](name="run", handler=ok)
    with pytest.raises(PromptValidationError, match=BOTH_WAYS):
        Tool[Args, Any](name="run", handler=ok, approval="effects")
    with pytest.raises(PromptValidationError, match=BOTH_WAYS):
        replace(undeclared, approval="effects")
    section = MarkdownSection(title="T", template="x", tools=[undeclared], approval="effects")
    with pytest.raises(PromptValidationError, match=BOTH_WAYS):
        PromptTemplate(ns="tests", key="agent", sections=[section])
    with pytest.raises(PromptValidationError, match=BOTH_WAYS):
        Tool.from_schema(
            name="run", description="x", parameters=None, handler=ok, approval="effects"
        )
    inner = prompt(undeclared).template
    assert Tool.from_prompt(inner, name="agent").effect == "undeclared"
    with pytest.raises(PromptValidationError, match=BOTH_WAYS):
        Tool.from_prompt(inner, name="agent", approval="effects")


def test_effects_approval_is_rejected_if_a_nested_tool_must_not_run_twice() -> None:
    inner = prompt(Tool[Args, Any](name="pay", handler=ok, effect="at_most_once")).template
    with pytest.raises(PromptValidationError, match="has tools that must not run twice; use "):
        Tool.from_prompt(inner, name="agent", effect="repeatable", approval="effects")


def test_selector_returning_effects_does_not_run_an_undeclared_tool() -> None:
    sent: list[int] = []

    def mail(params: Args, *, context: ToolContext) -> ToolResult[object]:
        sent.append(params.a)
        return ToolResult("Sent.")

    for approval in (lambda: "effects", lambda params: "effects"):
        tool = asking(mail, approval, "undeclared")
        adapter = ScriptedAdapter([call(("run", {"a": 1})), say("done")])
        shown: list[Preview] = []
        adapter.evaluate(prompt(tool), session=Session(), approver=deciding(shown, Deny()))
        assert (sent, shown[0].approval) == ([], "arguments")
        assert shown[0].reason == "The effects cannot be shown: the tool declares no effect."
        [preview] = suspended(tool).pending
        assert (sent, preview.approval) == ([], "arguments")


def deciding(shown: list[Preview], decision: Decision) -> Approver:
    def decide(preview: Preview) -> Decision:
        shown.append(preview)
        return decision

    return decide


def test_only_tools_with_a_declared_effect_run_in_parallel() -> None:
    ran: list[int] = []

    def count(params: Args, *, context: ToolContext) -> ToolResult[object]:
        ran.append(len(context.session[Note]))
        context.session.dispatch(Note("x"))
        return ToolResult("counted")

    expected: dict[Effect, int] = {"undeclared": 3, "repeatable": 5}
    for effect, runs in expected.items():
        ran.clear()
        tool = Tool[Args, Any](name="run", handler=count, effect=effect)
        config = RunConfig(parallel_tool_calls="isolated")
        calls = call(*[("run", {"a": n}) for n in range(3)])
        ScriptedAdapter([calls, say("done")], config=config).evaluate(
            prompt(tool), session=Session()
        )
        assert len(ran) == runs
        assert ran[-1] == 2


# --- What the approver sees


class Opaque:
    def __init__(self, value: int) -> None:
        self.value = value

    def __repr__(self) -> str:
        return "Opaque"


@dataclass(frozen=True)
class Holder:
    value: object
    amount: int = field(default=0, repr=False)


@dataclass(frozen=True)
class CancelTickets:
    event_id: str
    count: int


@dataclass(frozen=True)
class Silent:
    shown: int
    hidden: str = field(default="", repr=False)


def local_types() -> list[type[Any]]:
    kinds: list[type[Any]] = []
    for _ in range(2):

        @dataclass(frozen=True)
        class Counter:
            number: int

        kinds.append(Counter)
    return kinds


FIRST, SECOND = local_types()


def png(name: str) -> Image:
    pixel = (
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4"
        "2mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    )
    image = Image.from_base64(pixel)
    assert image.data is not None
    return Image.from_bytes(image.data + name.encode())


def publish_event(context: ToolContext, value: int) -> ToolResult[object]:
    context.event_bus.publish(CancelTickets(f"concert-{value}", 3))
    return ToolResult("ok")


def publish_hidden_field(context: ToolContext, value: int) -> ToolResult[object]:
    context.event_bus.publish(Silent(1, f"DELETE {value}"))
    return ToolResult("ok")


def write_opaque_state(context: ToolContext, value: int) -> ToolResult[object]:
    context.session[Holder].append(Holder(Opaque(value), value))
    return ToolResult("ok")


def write_tuple_as_state(context: ToolContext, value: int) -> ToolResult[object]:
    context.session[Holder].append(Holder((1,) if value == 1 else [1]))
    return ToolResult("ok")


def publish_opaque_event(context: ToolContext, value: int) -> ToolResult[object]:
    context.event_bus.publish(Opaque(value))
    return ToolResult("ok")


def write_two_types_of_one_name(context: ToolContext, value: int) -> ToolResult[object]:
    context.session[FIRST].append(FIRST(value))
    context.session[SECOND].append(SECOND(1))
    return ToolResult("ok")


def return_image(context: ToolContext, value: int) -> ToolResult[object]:
    return ToolResult("Here.", media=[png(str(value))])


def return_hidden_value(context: ToolContext, value: int) -> ToolResult[object]:
    return ToolResult("ok", value=Args(value), exclude_value_from_context=True)


def write_true_for_one(context: ToolContext, value: int) -> ToolResult[object]:
    context.session[Holder].seed(Holder([0.0, True] if value == 1 else [-0.0, 1]))
    return ToolResult("ok")


def preview_of(handler: Callable[[ToolContext, int], ToolResult[object]], value: int) -> Preview:
    def run(params: Args, *, context: ToolContext) -> ToolResult[object]:
        return handler(context, value)

    shown: list[Preview] = []
    adapter = ScriptedAdapter([call(("run", {"a": 1})), say("done")])
    session = Session()
    session[Holder].append(Holder([0, 1]))
    adapter.evaluate(prompt(asking(run)), session=session, approver=deciding(shown, Deny()))
    return shown[0]


@pytest.mark.claim("N-09")
@pytest.mark.parametrize(
    ("handler", "text"),
    [
        (publish_event, 'event_id="concert-1"'),
        (publish_hidden_field, "hidden=(not shown)"),
        (write_two_types_of_one_name, "Counter'"),
        (return_image, "bytes with SHA-256 "),
        (return_hidden_value, 'a value that the model does not read: {"a": 1}'),
        (write_true_for_one, "+ [0].value[1] = true"),
        (write_true_for_one, "+ [0].value[0] = 0.0"),
    ],
)
def test_preview_contains_each_effect_and_differs_for_different_effects(
    handler: Any, text: str
) -> None:
    first, same, other = (preview_of(handler, value) for value in (1, 1, 2))
    assert first.approval == "effects"
    assert text in str(first)
    assert first.shows_same(same)
    assert not first.shows_same(other)


@pytest.mark.parametrize(
    ("handler", "reason"),
    [
        (write_opaque_state, "cannot preview the state"),
        (write_tuple_as_state, "cannot preview the state"),
        (publish_opaque_event, "cannot preview the event Opaque"),
    ],
)
def test_call_with_effects_not_representable_in_json_is_approved_by_arguments(
    handler: Any, reason: str
) -> None:
    preview = preview_of(handler, 1)
    assert preview.approval == "arguments"
    assert preview.reason.startswith(f"The effects cannot be shown: {reason}")


def test_omitted_diff_is_reported_with_its_file_name() -> None:
    def write(params: Args, *, context: ToolContext) -> ToolResult[object]:
        files = context.resources.get(Filesystem)
        files.write_text("a_changes.md", "x\n" * 30_000)
        for number in range(230):
            files.write_text(f"b{number:03}", "x")
        return ToolResult("ok")

    shown: list[Preview] = []
    bound = prompt(asking(write)).bind(resources={Filesystem: InMemoryFilesystem()})
    adapter = ScriptedAdapter([call(("run", {"a": 1})), say("done")])
    adapter.evaluate(bound, session=Session(), approver=deciding(shown, Deny()))
    cut, rest = shown[0].omitted
    assert cut.endswith("characters of the diff of a_changes.md")
    assert rest == "31 of 231 changes"


def test_preview_keeps_all_digits_of_numbers_in_arguments() -> None:
    amount = "100000000000000000000.01"
    text = f'{{"amount": "{amount}", "x": {amount}}}'
    preview = Preview(tool="pay", call_id="1", arguments=text, approval="arguments")
    assert f'{{"amount": "{amount}", "x": {amount}}}' in str(preview)


# --- A suspension that somebody changed


def tampered(value: Any) -> Any:
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case str():
            return f"{value}x" if value else "x"
        case list():
            return ["x"] if not value else value[:-1]
        case _:
            return value


@pytest.mark.parametrize("approval", ["effects", "arguments"])
@pytest.mark.parametrize(
    "name",
    [
        "tool",
        "arguments",
        "changes",
        "events",
        "answer",
        "success",
        "reason",
        "omitted",
        "digest",
        "inside",
        "call_id",
    ],
)
def test_changed_preview_in_a_stored_suspension_is_rejected(approval: str, name: str) -> None:
    def write(params: Args, *, context: ToolContext) -> ToolResult[object]:
        context.session.dispatch(Note("x"))
        context.event_bus.publish(Silent(1))
        return ToolResult("ok")

    suspension = suspended(asking(write, approval))
    assert Suspension.from_json(suspension.to_json()) == suspension
    stored = json.loads(suspension.to_json())
    shown = stored["log"]["entries"][-1]["preview"]
    before = shown[name]
    shown[name] = tampered(before)
    assert shown[name] != before
    with pytest.raises(SerdeError):
        Suspension.from_json(json.dumps(stored))
    changed = {name: tampered(getattr(suspension.pending[0], name))}
    if name in ("changes", "events", "omitted", "inside"):
        changed = {name: ()} if before else {name: ("x",)}
    forged = showing(suspension, replace(suspension.pending[0], **changed))
    tool, session = asking(write, approval), Session()
    with pytest.raises(
        ValueError, match=r"cannot resume the suspension|decisions must be for suspended calls"
    ):
        MainLoop(ScriptedAdapter([say("done")])).resume(
            prompt(tool),
            forged,
            {"call_1": Approve()},
            session=session,
        )
    assert session[Note].all() == ()


def test_changed_preview_of_a_nested_call_is_rejected() -> None:
    tool = asking(ok, "arguments")
    agent = Tool.from_prompt(prompt(tool).template, name="agent")
    replies = [call(("agent", {"message": "Go."})), call(("run", {"a": 1}))]
    with pytest.raises(RunSuspended) as waiting:
        MainLoop(ScriptedAdapter(replies)).execute(prompt(agent), session=Session())
    suspension = Suspension.from_json(waiting.value.suspension.to_json())
    for changes in ({"inside": ("other",)}, {"arguments": '{"a": 2}'}, {"reason": "All good."}):
        stored = json.loads(suspension.to_json())
        [inside] = stored["log"]["inside"].values()
        inside["runs"][0]["log"]["entries"][-1]["preview"] |= json.loads(json.dumps(changes))
        with pytest.raises(SerdeError):
            Suspension.from_json(json.dumps(stored))


def test_approval_of_a_forged_preview_does_not_commit_the_call() -> None:
    """Anyone who changes a preview can also compute its digest."""

    def write(params: Args, *, context: ToolContext) -> ToolResult[object]:
        context.session.dispatch(Note("evil"))
        return ToolResult("ok")

    suspension = suspended(asking(write))
    [preview] = suspension.pending
    forged = replace(preview, changes=()).with_reason("")
    assert forged.is_intact
    session = Session()
    with pytest.raises(RunSuspended):
        MainLoop(ScriptedAdapter([say("done")])).resume(
            prompt(asking(write)),
            showing(suspension, forged),
            {"call_1": Approve()},
            session=session,
        )
    assert session[Note].all() == ()


# --- Malformed decisions


def replaced_by(arguments: Any) -> Decision:  # Any: arguments from a caller without a type checker
    return ReplaceArguments(arguments)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (replaced_by('{"a": 3}'), TypeError),
        (replaced_by({"a": b"3"}), TypeError),
        (replaced_by({"a": float("nan")}), TypeError),
        (replaced_by({1: 2}), TypeError),
        (replaced_by({"a": (1,)}), TypeError),
        (replaced_by({"a": "many"}), ValueError),
        (replaced_by({"b": 1}), ValueError),
        ("approve", TypeError),
        (Approve, TypeError),
        (None, TypeError),
    ],
)
@pytest.mark.parametrize("place", [0, 1])
def test_malformed_decision_is_rejected_before_anything_runs(
    wrong: Any, error: type[Exception], place: int
) -> None:
    ran: list[int] = []

    def note(params: Args, *, context: ToolContext) -> ToolResult[object]:
        ran.append(params.a)
        return ToolResult("ok")

    tool, session = asking(note, "arguments"), Session()
    adapter = ScriptedAdapter([call(("run", {"a": 1}), ("run", {"a": 2})), say("done")])
    with pytest.raises(RunSuspended) as waiting:
        MainLoop(adapter).execute(prompt(tool), session=session)
    suspension = waiting.value.suspension
    ids = [preview.call_id for preview in suspension.pending]
    decisions: dict[str, Any] = dict.fromkeys(ids, Approve())
    with pytest.raises(error):
        MainLoop(adapter).resume(
            prompt(tool), suspension, decisions | {ids[place]: wrong}, session=session
        )
    assert ran == []
    assert MainLoop(adapter).resume(prompt(tool), suspension, decisions, session=session).text
    assert ran == [1, 2]


def test_decisions_must_be_a_mapping() -> None:
    suspension, wrong = suspended(asking(ok, "arguments")), [Approve()]
    decisions: Any = wrong
    with pytest.raises(TypeError, match=r"^decisions must be a mapping of call ids, got \["):
        MainLoop(ScriptedAdapter([])).resume(
            prompt(asking(ok, "arguments")), suspension, decisions, session=Session()
        )


def test_replaced_arguments_that_do_not_fit_a_nested_tool_are_rejected() -> None:
    agent = Tool.from_prompt(prompt(asking(ok, "arguments")).template, name="agent")
    replies = [call(("agent", {"message": "Go."})), call(("run", {"a": 1}))]
    session = Session()
    with pytest.raises(RunSuspended) as waiting:
        MainLoop(ScriptedAdapter(replies)).execute(prompt(agent), session=session)
    suspension = waiting.value.suspension
    [preview] = suspension.pending
    with pytest.raises(ValueError, match=r"do not fit tool 'run' \(.*\); correct them$"):
        MainLoop(ScriptedAdapter([])).resume(
            prompt(agent),
            suspension,
            {preview.call_id: ReplaceArguments({"a": "many"})},
            session=session,
        )


def test_resume_error_of_a_continued_chat_explains_how_to_rerun_the_calls() -> None:
    ran: list[int] = []

    def note(params: Args, *, context: ToolContext) -> ToolResult[object]:
        ran.append(params.a)
        return ToolResult("ok")

    asking_again = call(("run", {"a": 1}))
    replies = [say("Hello."), asking_again, say("Fine."), asking_again, say("Noted.")]
    loop = MainLoop(ScriptedAdapter(replies))
    chat = Chat(loop, prompt(asking(note, "arguments")), session=Session())
    chat.send("Hello.")
    with pytest.raises(RunSuspended) as waiting:
        chat.send("Note it.")
    chat.send("Never mind.")
    for decision in (Approve(), Deny()):
        with pytest.raises(ValueError, match="drop the suspension, and send the request again"):
            chat.resume(waiting.value.suspension, {"call_1": decision})
    assert chat.send("Note it.", approver=lambda preview: Approve()).text == "Noted."
    assert ran == [1]
