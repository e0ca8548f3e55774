"""Laws of conversations, over random trees, params, conditions and choices of the model.

A `Chat` is a prompt whose params and conditions change between turns. The text that the model has
read is computed here only from the messages.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.strategies import FULL, SUMMARY, Plan, Size, Who, forests, params, paths, sections
from weakincentives.adapters.core import PromptEvaluationError
from weakincentives.content import text_of
from weakincentives.evaluation.conversation import Conversation
from weakincentives.evaluation.inner_loop import RunConfig
from weakincentives.evaluation.main_loop import MainLoop
from weakincentives.evaluation.messages import (
    AssistantMessage,
    Instructions,
    Message,
    ToolMessage,
    UserMessage,
)
from weakincentives.evaluation.response import Completed
from weakincentives.limits import Budget
from weakincentives.prompt import (
    MarkdownSection,
    Prompt,
    PromptTemplate,
    RenderedPrompt,
    SectionPath,
    Tool,
    ToolContext,
    ToolResult,
)
from weakincentives.runtime.session import Session
from weakincentives.testing import ScriptedAdapter, SeenRequest, call, say
from weakincentives.visibility import VisibilityOverrides

type Calls = tuple[tuple[str, dict[str, Any]], ...]  # Any: arguments as JSON


@dataclass(frozen=True)
class World:
    """A tree whose selectors return the opposite for the sections at `flipped`."""

    roots: tuple[Plan, ...]
    closable: bool
    flipped: set[SectionPath] = field(default_factory=set[SectionPath])

    def prompt(self, bound: Iterable[object]) -> Prompt[Any]:
        used = {plan.params for plan in _all(self.roots)}
        template: PromptTemplate[Any] = PromptTemplate(
            ns="tests",
            key="laws",
            sections=[
                *sections(self.roots, flipped=self.flipped),
                MarkdownSection(title="Always", template="More.", visibility=SUMMARY),
            ],
            closable=self.closable,
        )
        return template.bind(*[value for value in bound if type(value) in used])


def _all(roots: Iterable[Plan]) -> Iterable[Plan]:
    for plan in roots:
        yield plan
        yield from _all(plan.children)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    return World(draw(forests(2)), draw(st.booleans()))


@st.composite
def turns(draw: st.DrawFn, world: World) -> list[Calls]:
    """The model's calls in one turn of a chat, request by request."""
    keys = [".".join(path) for path in paths(world.roots)] + ["always", "none such"]
    choice = st.tuples(
        st.sampled_from(("read_section", "read_section", "close_section")),
        st.fixed_dictionaries({"section_key": st.sampled_from(keys)}),
    )
    return draw(st.lists(st.lists(choice, min_size=1, max_size=2).map(tuple), max_size=3))


def bindings() -> st.SearchStrategy[list[object]]:
    return params().map(
        lambda values: [*{type(value): value for value in (Who(), Size(), *values)}.values()]
    )


@dataclass
class Seen:
    """The first request of a turn."""

    request: SeenRequest | None = None

    def then(self, reply: AssistantMessage) -> Callable[[SeenRequest], AssistantMessage]:
        def answer(request: SeenRequest) -> AssistantMessage:
            self.request = self.request or request
            return reply

        return answer


def replies(calls: Sequence[Calls], text: str = "So.") -> list[AssistantMessage]:
    return [*[call(*pairs) for pairs in calls], say(text)]


def take_turn(
    prompt: Prompt[Any],
    calls: Sequence[Calls],
    conversation: Conversation | None,
    session: Session,
    *,
    dynamic: bool = True,
    **options: Any,
) -> tuple[Conversation, SeenRequest]:
    seen = Seen()
    adapter = ScriptedAdapter([seen.then(reply) for reply in replies(calls)], dynamic_tools=dynamic)
    execution = MainLoop(adapter, max_expansions=100).execute(
        prompt, session=session, message="And?", conversation=conversation, **options
    )
    assert execution.conversation is not None
    assert seen.request is not None
    return execution.conversation, seen.request


def now(
    prompt: Prompt[Any], conversation: Conversation | None, session: Session
) -> RenderedPrompt[Any]:
    decisions = None if conversation is None else conversation.decisions_for(prompt)
    return prompt.render(session=session, decisions=decisions)


def read_last(messages: Iterable[Message], heading: str) -> str:
    """Returns the last text with this heading that the model has read."""
    said = [
        text_of(message.content)
        for message in messages
        if isinstance(message, Instructions | ToolMessage)
        or (isinstance(message, UserMessage) and message.content != "And?")
    ]
    text = "\n" + "\n\n".join(said) + "\n"
    return text[text.rindex(f"\n{heading}\n") + 1 :]


def check_read(
    messages: Sequence[Message], rendered: RenderedPrompt[Any], conversation: Conversation | None
) -> None:
    """Checks that the last text that the model has read for each section is current."""
    closed = {
        record.path
        for record in (conversation.sections if conversation else ())
        if record.opened is SUMMARY
    }
    for (node, shown), text in zip(rendered.sections.items(), rendered.section_texts, strict=True):
        last = read_last(messages, text.split("\n", 1)[0])
        allowed = [text]
        if shown is SUMMARY:
            view = rendered.view.with_visibility({node.path: FULL})
            allowed += view.render({node: FULL}).texts
        assert any(last.startswith(form) for form in allowed) or node.path in closed


def check_answered(messages: Sequence[Message]) -> None:
    """Checks that every call has one answer before the model's or the user's next message."""
    waiting: Counter[str] = Counter()
    for message in messages:
        match message:
            case ToolMessage(call_id):
                waiting[call_id] -= 1
                assert waiting[call_id] == 0
            case AssistantMessage(tool_calls=calls):
                assert not any(waiting.values())
                waiting = Counter([tool_call.call_id for tool_call in calls])
            case _:
                assert not any(waiting.values())
    assert not any(waiting.values())


def own_tools(request: SeenRequest) -> dict[str, Any]:
    return {tool.name: tool for tool in request.tools if tool.name.startswith("tool-")}


def drawn_chat(
    data: st.DataObject, world: World, session: Session, *, changes: bool = True
) -> tuple[Prompt[Any], Conversation]:
    """Draws a chat of some turns, between which params and conditions change."""
    conversation, prompt = None, world.prompt(data.draw(bindings()))
    for _ in range(data.draw(st.integers(1, 3))):
        if changes:
            prompt = world.prompt(data.draw(bindings()))
            known = sorted(paths(world.roots))
            flips = st.sets(st.sampled_from(known), max_size=2) if known else st.just(set())
            world.flipped.symmetric_difference_update(data.draw(flips))
        dynamic = data.draw(st.booleans())
        calls = data.draw(turns(world))
        conversation, _ = take_turn(prompt, calls, conversation, session, dynamic=dynamic)
    assert conversation is not None
    return prompt, conversation


def idle(prompt: Prompt[Any], conversation: Conversation, session: Session) -> Conversation:
    return take_turn(prompt, [], conversation, session)[0]


# --- continuing


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_model_has_last_received_the_current_text_of_each_visible_section(
    data: st.DataObject,
) -> None:
    world, session = data.draw(worlds()), Session()
    conversation: Conversation | None = None
    for _ in range(data.draw(st.integers(1, 4))):
        prompt = world.prompt(data.draw(bindings()))
        known = sorted(paths(world.roots))
        flips = st.sets(st.sampled_from(known), max_size=2) if known else st.just(set())
        world.flipped.symmetric_difference_update(data.draw(flips))
        before: Conversation | None = conversation
        rendered = now(prompt, before, session)
        calls = data.draw(turns(world))
        dynamic = data.draw(st.booleans())
        on_change = data.draw(st.sampled_from(("append", "append", "restate")))
        conversation, first = take_turn(
            prompt, calls, before, session, dynamic=dynamic, on_change=on_change
        )
        check_read(first.messages, rendered, before)
        check_answered(conversation.messages)
        own = {tool.name for tool in rendered.tools if tool.name.startswith("tool-")}
        assert own_tools(first).keys() == own
        if before is not None and on_change == "append":
            assert first.messages[: len(before.messages)] == before.messages


@pytest.mark.claim("N-02")
@given(st.data())
@settings(max_examples=60, deadline=None)
def test_unchanged_turn_adds_only_the_user_message_and_the_answer(data: st.DataObject) -> None:
    world, session = data.draw(worlds()), Session()
    prompt, conversation = drawn_chat(data, world, session)
    # the first idle turn may report sections that the last turn opened around others
    before = idle(prompt, conversation, session)
    after = idle(prompt, before, session)
    assert after.messages[: len(before.messages)] == before.messages
    assert after.messages[len(before.messages) :] == (UserMessage("And?"), say("So."))
    assert (after.tools, after.sections) == (before.tools, before.sections)


@pytest.mark.claim("N-01")
@given(st.data())
@settings(max_examples=60, deadline=None)
def test_json_round_trip_preserves_the_complete_conversation(data: st.DataObject) -> None:
    world, session = data.draw(worlds()), Session()
    prompt, conversation = drawn_chat(data, world, session)
    copy = Conversation.from_json(conversation.to_json())
    assert copy == conversation
    assert idle(prompt, copy, session) == idle(prompt, conversation, session)


# --- rebuilding


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_restated_conversation_keeps_tools_open_sections_and_state(
    data: st.DataObject,
) -> None:
    world, session = data.draw(worlds()), Session()
    prompt, conversation = drawn_chat(data, world, session)
    conversation, before = take_turn(prompt, [], conversation, session)
    state, rendered = session.snapshot().to_json(), now(prompt, conversation, session)
    keep = data.draw(st.none() | st.integers(0, 5))
    restated = conversation.restated(prompt, session, keep_turns=keep)
    assert session.snapshot().to_json() == state
    assert restated.messages[0] == Instructions(rendered.text)
    assert now(prompt, restated, session).visibility == rendered.visibility
    check_answered(restated.messages)
    users = [message for message in restated.messages if isinstance(message, UserMessage)]
    assert len(users) == min(keep if keep is not None else 9, len(conversation.turns))
    after, first = take_turn(prompt, [], restated, session)
    assert own_tools(first) == own_tools(before)
    check_read(first.messages, rendered, restated)
    assert after.messages == (*restated.messages, UserMessage("And?"), say("So."))
    assert restated.restated(prompt, session) == restated


# --- however it runs


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_all_entry_points_produce_the_same_conversation(data: st.DataObject) -> None:
    world, session = data.draw(worlds()), Session()
    prompt, conversation = drawn_chat(data, world, session)
    calls = data.draw(turns(world))
    snapshot = session.snapshot()

    def run(way: Callable[[Any, Any], Any], of: Callable[[ScriptedAdapter], Any]) -> Conversation:
        session.restore(snapshot)
        options = {"session": session, "message": "And?", "conversation": conversation}
        last = way(of(ScriptedAdapter(replies(calls))), options)
        result: Conversation = getattr(last, "response", last).conversation
        return result

    async def collect(runner: Any, options: Any) -> Any:
        return [event async for event in runner.stream_async(prompt, **options)][-1]

    def itself(adapter: ScriptedAdapter) -> ScriptedAdapter:
        return adapter

    expected = run(lambda runner, options: runner.execute(prompt, **options), MainLoop)
    for of in (itself, MainLoop):
        assert run(lambda runner, options: [*runner.stream(prompt, **options)][-1], of) == expected
        assert run(lambda runner, options: asyncio.run(collect(runner, options)), of) == expected
    evaluate = run(lambda runner, options: runner.evaluate(prompt, **options), itself)
    later = run(
        lambda runner, options: asyncio.run(runner.evaluate_async(prompt, **options)), itself
    )
    execute = run(
        lambda runner, options: asyncio.run(runner.execute_async(prompt, **options)), MainLoop
    )
    assert evaluate == later == execute == expected


# --- stopping


@dataclass(frozen=True)
class Amount:
    n: int


class Bank:
    """Payments that must be made at most once; `begun` has those whose handler has started."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.interrupts: set[int] = set()

    async def pay(self, params: Amount, /, *, context: ToolContext) -> ToolResult[str]:
        self.begun.append(params.n)
        for _ in range(3):
            await asyncio.sleep(0)
        if params.n in self.interrupts:
            self.interrupts.discard(params.n)
            raise KeyboardInterrupt
        return ToolResult(message=f"Paid {params.n}.")

    def look(self, params: Amount, /, *, context: ToolContext) -> ToolResult[str]:
        return ToolResult(message=f"Seen {params.n}.")

    def prompt(self) -> Prompt[Any]:
        pay = Tool[Amount, str](
            name="pay", description="Pays.", handler=self.pay, effect="at_most_once"
        )
        look = Tool[Amount, str](
            name="look", description="Looks.", handler=self.look, effect="pure"
        )
        template: PromptTemplate[Any] = PromptTemplate(
            ns="tests",
            key="bank",
            sections=[
                MarkdownSection(title="Main", template="Pay.", tools=[pay]),
                MarkdownSection(title="More", template="Look.", visibility=SUMMARY, tools=[look]),
            ],
        )
        return template.bind()


def pays(request: SeenRequest) -> AssistantMessage:
    """Pays 1, opens a section, looks twice, and pays 2 and 3 in one turn; repeats only calls that
    did not run.
    """
    done: set[str] = set()
    made: dict[str, str] = {}
    for message in request.messages:
        match message:
            case AssistantMessage(tool_calls=calls):
                made |= {made_call.call_id: _label(made_call) for made_call in calls}
            case ToolMessage(call_id, success=True):
                done.add(made[call_id])
            case ToolMessage(call_id, unknown=True) if made[call_id].startswith("pay"):
                done.add(made[call_id])
            case _:
                pass
    plan: list[list[tuple[str, dict[str, Any]]]] = [
        [("pay", {"n": 1})],
        [("read_section", {"section_key": "more"})] if "look" not in request.tool_names else [],
        [("look", {"n": 4}), ("look", {"n": 5})],
        [("pay", {"n": 2}), ("pay", {"n": 3})],
    ]
    for step in plan:
        if missing := [pair for pair in step if f"{pair[0]} {json.dumps(pair[1])}" not in done]:
            return call(*missing)
    return say("All paid.")


def _label(made: Any) -> str:
    return f"{made.name} {json.dumps(json.loads(made.arguments))}"


def banker(*, dynamic: bool, parallel: Any) -> MainLoop:
    config = RunConfig(parallel_tool_calls=parallel)
    return MainLoop(ScriptedAdapter([pays] * 30, dynamic_tools=dynamic, config=config))


def goes_on(bank: Bank, stopped: Conversation | None, *, message: str | None = None) -> None:
    """Checks that the stopped conversation is valid and continues, without paying twice."""
    assert stopped is not None
    check_answered(stopped.messages)
    assert Conversation.from_json(stopped.to_json()) == stopped
    if stopped.messages[-1] == say("All paid."):
        message = "And now?"
    execution = banker(dynamic=True, parallel="in_order").execute(
        bank.prompt(), session=Session(), conversation=stopped, message=message
    )
    assert execution.text == "All paid."
    assert execution.conversation is not None
    kept, last = stopped.messages, stopped.messages[-1]
    if message is None and isinstance(last, AssistantMessage) and last.finish == "error":
        kept = kept[:-1]  # the truncated answer is written again
    assert execution.conversation.messages[: len(kept)] == kept
    assert sorted(bank.begun) == [1, 2, 3]


WAYS = pytest.mark.parametrize(
    ("dynamic", "parallel"), [(True, "in_order"), (True, "isolated"), (False, "in_order")]
)


@WAYS
@pytest.mark.parametrize("message", [None, "Go on."])
def test_stream_closed_at_any_event_leaves_a_conversation_that_can_continue(
    dynamic: bool, parallel: str, message: str | None
) -> None:
    for count in range(1, 40):
        bank, saved = Bank(), list[Conversation]()
        loop = banker(dynamic=dynamic, parallel=parallel)
        events = loop.stream(bank.prompt(), session=Session(), message="Hi", save=saved.append)
        seen = [event for event, _ in zip(events, range(count), strict=False)]
        events.close()
        if isinstance(seen[-1], Completed):
            return
        goes_on(bank, saved[-1], message=message)
    pytest.fail("the stream did not end")


@pytest.mark.claim("N-03")
@WAYS
@pytest.mark.parametrize("streamed", [False, True])
def test_cancellation_at_any_await_leaves_a_conversation_that_can_continue(
    dynamic: bool, parallel: str, streamed: bool
) -> None:
    async def cancelled_after(count: int, bank: Bank, save: Callable[[Conversation], None]) -> bool:
        loop = banker(dynamic=dynamic, parallel=parallel)

        async def consume() -> None:
            options: Any = {"session": Session(), "message": "Hi", "save": save}
            if streamed:
                async for _ in loop.stream_async(bank.prompt(), **options):
                    pass
            else:
                await loop.execute_async(bank.prompt(), **options)

        task = asyncio.ensure_future(consume())
        for _ in range(count):
            await asyncio.sleep(0)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            return True
        return False

    stops = 0
    for count in range(1, 400):
        bank, saved = Bank(), list[Conversation]()
        if not asyncio.run(cancelled_after(count, bank, saved.append)):
            break
        if saved:
            goes_on(bank, saved[-1])
            stops += 1
    assert stops > 5


@WAYS
@pytest.mark.parametrize("number", [1, 2, 3])
def test_interrupted_call_is_not_repeated(dynamic: bool, parallel: str, number: int) -> None:
    bank, saved = Bank(), list[Conversation]()
    bank.interrupts.add(number)
    loop = banker(dynamic=dynamic, parallel=parallel)
    with pytest.raises(KeyboardInterrupt):
        loop.execute(bank.prompt(), session=Session(), message="Hi", save=saved.append)
    goes_on(bank, saved[-1], message="Go on.")


@WAYS
def test_limit_at_any_step_leaves_a_conversation_that_can_continue(
    dynamic: bool, parallel: str
) -> None:
    for budget in [
        *[Budget(max_calls=count) for count in range(4)],
        *[Budget(max_tool_calls=count) for count in range(6)],
    ]:
        bank = Bank()
        with pytest.raises(PromptEvaluationError) as caught:
            banker(dynamic=dynamic, parallel=parallel).execute(
                bank.prompt(), session=Session(), message="Hi", budget=budget
            )
        goes_on(bank, caught.value.conversation)


def test_conversation_can_continue_after_its_first_request_failed() -> None:
    bank, saved = Bank(), list[Conversation]()
    failing = ScriptedAdapter([PromptEvaluationError("down", phase="request", code="connection")])
    with pytest.raises(PromptEvaluationError) as caught:
        MainLoop(failing).execute(bank.prompt(), session=Session(), message="Hi", save=saved.append)
    assert caught.value.conversation == saved[-1]
    goes_on(bank, saved[-1])


def test_session_keeps_the_sections_opened_in_a_stopped_conversation() -> None:
    bank, session, saved = Bank(), Session(), list[Conversation]()
    bank.interrupts.add(2)
    with pytest.raises(KeyboardInterrupt):
        banker(dynamic=True, parallel="in_order").execute(
            bank.prompt(), session=session, message="Hi", save=saved.append
        )
    latest = session[VisibilityOverrides].latest()
    assert latest is not None
    decisions = saved[-1].decisions_for(bank.prompt())
    assert decisions is not None
    assert dict(decisions.opened) == dict(latest.overrides) == {("more",): FULL}
