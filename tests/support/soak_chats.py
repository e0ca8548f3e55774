"""Random chats for the soak test: two SDKs in one process, each of which takes over if the other
fails; an MCP server; calls that need approval, including in nested runs; and conversations that are
compacted.
"""

import asyncio
import json
import random
import tempfile
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.mcp_prompts import lock_of
from support.scripted_server import Call, Drop, Fail, Request, Say, ScriptedServer, Step, Usage
from support.sdk_clients import APIS, AnyAdapter, sdk_adapter
from weakincentives.adapters.fallback import FallbackAdapter
from weakincentives.contrib.mcp import MCPSection
from weakincentives.evaluation.approval import Approve, Decision, Deny, Preview
from weakincentives.evaluation.chat import Chat
from weakincentives.evaluation.compaction import Compaction
from weakincentives.evaluation.main_loop import MainLoop
from weakincentives.evaluation.response import Completed, StreamEvent
from weakincentives.evaluation.suspension import RunSuspended, Suspension
from weakincentives.prompt import MarkdownSection, PromptTemplate, Tool, ToolContext, ToolResult
from weakincentives.runtime.events import Compacted
from weakincentives.runtime.session import Session
from weakincentives.visibility import SectionVisibility

__all__ = ["play"]

_MOST_TURNS = 8
_MANY = Usage(input=5_000)  # tokens, above the limit for compaction
_SUMMARIZE = "Say in short what was said."
_WAYS = ("send", "send_async", "stream", "stream_async")


@dataclass(frozen=True)
class Memo:
    text: str


def keep(params: Memo, *, context: ToolContext) -> ToolResult[Memo]:
    context.session.dispatch(params)
    return ToolResult(message="kept", value=params)


_KEEP = Tool[Memo, Memo](
    name="keep", description="Keeps a memo.", handler=keep, approval="effects", effect="repeatable"
)


def delegate(params: Memo, *, context: ToolContext) -> ToolResult[object]:
    return ToolResult(context.evaluate(_CLERK.bind(), message=params.text).text)


def _template(folder: Path) -> PromptTemplate[None]:
    tools: list[Tool[Any, Any]] = [
        _KEEP,
        Tool[Memo, Any](name="delegate", description="Asks a clerk.", handler=delegate),
    ]
    return PromptTemplate(
        ns="soak",
        key="chat",
        sections=[
            MarkdownSection(title="Task", template="Keep memos.", tools=tools, state=[Memo]),
            MCPSection("plain", lock=lock_of(folder), visibility=SectionVisibility.FULL),
        ],
    )


_SUMMARY = PromptTemplate[None](
    ns="soak", key="summary", sections=[MarkdownSection(title="Sum", template=_SUMMARIZE)]
)


_CLERK = PromptTemplate[None](
    ns="soak",
    key="clerk",
    sections=[MarkdownSection(title="Clerk", template="Keep what you read.", tools=[_KEEP])],
)


class _Model:
    """Plays the steps of one turn after another, and answers requests for a summary."""

    def __init__(self) -> None:
        self.steps: deque[Step] = deque()

    def __call__(self, request: Request) -> Step:
        if _SUMMARIZE.encode() in request.body:
            return Say("They kept memos.")
        return self.steps.popleft()


class _Talk:
    """A chat, and its expected results: the memos, and the lines that the MCP server writes."""

    def __init__(self, chance: random.Random, url: str, model: _Model, folder: Path) -> None:
        self.chance, self.model, self.folder = chance, model, folder
        apis = chance.sample(APIS, 2)
        self.adapters: list[AnyAdapter] = [
            sdk_adapter(api, url, api_key="test", max_retries=0) for api in apis
        ]
        compaction = Compaction(at_tokens=4_000, keep_turns=1, summary=_SUMMARY)
        self.loop = MainLoop(FallbackAdapter(*self.adapters), compaction=compaction)
        self.template = _template(folder)
        self.chat = Chat(self.loop, self.template.bind(), session=Session())
        self.happened: Counter[str] = Counter()
        self.denied: set[str] = set()
        self.memos: list[str] = []
        self.lines: list[str] = []

    def decide(self, preview: Preview) -> Decision:
        self.happened["approval"] += 1
        text = json.loads(preview.arguments)["text"]
        return Deny("Not now.") if text in self.denied else Approve()

    def plan_turn(self, turn: int) -> str:
        """Adds the model's steps of a turn and returns its last text."""
        chance, steps = self.chance, list[Step]()
        for index in range(chance.randint(0, 3)):
            text, drawn = f"{turn}.{index}", chance.random()
            if drawn < 0.4:
                call = Call("plain_append", {"text": text}, f"call_{text}")
                steps.append(Say(calls=(call,)))
                self.lines.append(text)
                self.happened["mcp"] += 1
            elif drawn < 0.7:
                steps.append(self.plan_memo(text))
            else:
                call = Call("delegate", {"text": text}, f"call_{text}")
                kept = [self.plan_memo(f"{text}.{part}") for part in range(chance.randint(0, 2))]
                steps += [Say(calls=(call,)), *kept, Say("Kept.")]
                self.happened["nested"] += 1
        usage = _MANY if chance.random() < 0.3 else Usage()
        steps.append(Say(f"Answer {turn}.", usage=usage))
        if chance.random() < 0.3:
            fault: Step = chance.choice((Fail(500), Fail(429), Drop()))
            steps.insert(chance.randrange(len(steps)), fault)
            self.happened["fallback"] += 1
        self.model.steps.extend(steps)
        return f"Answer {turn}."

    def plan_memo(self, text: str) -> Step:
        """Returns the step that calls `keep`, which needs a decision."""
        if self.chance.random() < 0.3:
            self.denied.add(text)
        else:
            self.memos.append(text)
        return Say(calls=(Call("keep", {"text": text}, f"call_{text}"),))

    def run_turn(self, turn: int) -> None:
        wanted, way = self.plan_turn(turn), self.chance.choice(_WAYS)
        options: dict[str, Any] = {}
        if at_once := self.chance.random() < 0.5:
            options["approver"] = self.decide
        try:
            text = self.ask(way, f"Message {turn}.", options)
        except RunSuspended as waiting:
            assert not at_once
            text = self.decide_later(waiting.suspension, way)
        assert text == wanted, (text, wanted)
        if self.model.steps:  # a fault with no other adapter left to try
            raise AssertionError(f"not asked for: {self.model.steps}")

    def decide_later(self, suspension: Suspension, way: str) -> str:
        """Decides on pending calls until none are left."""
        while True:
            self.happened["suspension"] += 1
            stored = Suspension.from_json(suspension.to_json())
            decisions = {each.call_id: self.decide(each) for each in stored.pending}
            given: Mapping[str, Any] = {"suspension": stored, "decisions": decisions}
            try:
                return self.ask(way, None, given)
            except RunSuspended as waiting:
                suspension = waiting.suspension

    def ask(self, way: str, message: str | None, options: Mapping[str, Any]) -> str:
        chat = self.chat
        match way:
            case "send":
                return chat.send(message, **options).text
            case "send_async":
                return asyncio.run(chat.send_async(message, **options)).text
            case "stream":
                events = list(chat.stream(message, **options))
            case _:
                events = asyncio.run(self._events(message, options))
        last = events[-1]
        assert isinstance(last, Completed)
        return last.response.text

    async def _events(
        self, message: str | None, options: Mapping[str, Any]
    ) -> list[StreamEvent[None]]:
        return [event async for event in self.chat.stream_async(message, **options)]

    def move(self) -> None:
        """Continues in another session, as another process would."""
        stored = self.chat.session.snapshot().to_json()
        self.count_compactions()
        session = Session()
        self.chat = Chat(self.loop, self.template.bind(), session=session)
        session.restore(session.parse_snapshot(stored))
        self.happened["restored"] += 1

    def count_compactions(self) -> None:
        self.happened["compaction"] += len(self.chat.session[Compacted].all())

    def judge(self) -> None:
        self.count_compactions()
        kept = [memo.text for memo in self.chat.session[Memo].all()]
        assert kept == self.memos, (kept, self.memos)
        path = self.folder / "data/lines"
        lines = path.read_text().splitlines() if path.exists() else []
        assert lines == self.lines, (lines, self.lines)


def play(chance: random.Random) -> Iterable[str]:
    """Plays one chat and returns its facts; raises `AssertionError` if a result is wrong."""
    model = _Model()
    with (
        tempfile.TemporaryDirectory() as folder,
        ScriptedServer(*[model] * 200, strict=False) as server,
    ):
        talk = _Talk(chance, server.url, model, Path(folder))
        try:
            for turn in range(chance.randint(1, _MOST_TURNS)):
                talk.run_turn(turn)
                if chance.random() < 0.3:
                    talk.move()
            talk.judge()
        finally:
            for adapter in talk.adapters:
                adapter.client().close()
    return ["chat", *talk.happened.elements()]
