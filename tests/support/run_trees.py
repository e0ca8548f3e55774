"""Trees of runs for laws: a generator, a model that plays a tree, and the worlds that run it.

A `Tree` says what the model does after each message of a user: turns of tool calls, of which a
`delegate` runs another prompt. The model reads its place in the tree from the transcript only, so
it goes the same way in every process. `play` runs a tree and returns its `Outcome`. The oracle is
`play(tree, outside)`: synchronous, in one process, with an approver. A `Column` chooses another
entry point, and `Cuts` suspend the run or interrupt it.
"""

import asyncio
import json
import pickle
import re
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import repeat
from pathlib import Path
from random import Random
from shutil import copytree
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple

from hypothesis import strategies as st

from support.agents import Note
from weakincentives.adapters.core import LoopAdapter
from weakincentives.adapters.fallback import FallbackAdapter
from weakincentives.content import Image, MemoryContentStore, Part
from weakincentives.evaluation.approval import (
    Approve,
    Decision,
    Deny,
    Preview,
    ReplaceArguments,
)
from weakincentives.evaluation.chat import Chat
from weakincentives.evaluation.compaction import Compaction
from weakincentives.evaluation.conversation import Conversation
from weakincentives.evaluation.errors import PromptEvaluationError
from weakincentives.evaluation.inner_loop import InnerLoopConfig
from weakincentives.evaluation.main_loop import MainLoop
from weakincentives.evaluation.messages import (
    AssistantMessage,
    Message,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from weakincentives.evaluation.response import Completed, PromptResponse
from weakincentives.evaluation.suspension import RunSuspended, Suspension
from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.limits import Budget, TokenUsage
from weakincentives.prompt import (
    Disclosure,
    MarkdownSection,
    OutputRejected,
    Prompt,
    PromptTemplate,
    Tool,
    ToolContext,
    ToolResult,
)
from weakincentives.prompt.sections import AnySection
from weakincentives.runtime.session import Session
from weakincentives.testing import ScriptedAdapter
from weakincentives.testing.scripted import SeenRequest
from weakincentives.visibility import SectionVisibility

# ------------------------------------------------------------------------------------------- trees


@dataclass(frozen=True)
class Step:
    """One tool call; `inner` is the run that a `delegate` starts."""

    tool: str
    number: int
    inner: "Script | None" = None


@dataclass(frozen=True)
class Script:
    """The model's turns after one message, and its answers, of which all but the last are wrong.

    The request of turn `fails_at` fails at the first provider.
    """

    turns: tuple[tuple[Step, ...], ...]
    answers: tuple[Literal["wrong", "rejected", "right"], ...] = ("right",)
    fails_at: int | None = None


type Feature = Literal[
    "parallel",
    "coroutines",
    "restart",
    "repeats",
    "chat",
    "failure",
    "fallback",
    "repair",
    "accept",
    "compaction",
    "budget",
    "media",
    "mcp",
    "skill",
]


@dataclass(frozen=True)
class Tree:
    """What the model does after each message of the user, and how the runs are configured."""

    scripts: tuple[Script, ...]
    features: frozenset[Feature] = frozenset()
    max_tokens: int | None = None

    def script(self, address: str) -> Script:
        """Returns the script at an address such as `root#0/1.2`: call 2 of turn 1."""
        first, *places = address.removeprefix("root#").split("/")
        script = self.scripts[int(first)]
        for place in places:
            turn, index = map(int, place.split("."))
            inner = script.turns[turn][index].inner
            assert inner is not None
            script = inner
        return script


@dataclass(frozen=True)
class Shape:
    """What the generator may draw: `tools`, and each of the `features` with an even chance.

    `always` lists calls that each script of a level has, from the root's on. `certain` features are
    in each tree. `levels` bounds how deep runs nest.
    """

    tools: tuple[str, ...]
    features: tuple[Feature, ...] = ()
    always: tuple[tuple[str, ...], ...] = ((),)
    certain: tuple[Feature, ...] = ()
    levels: int = 3
    most_turns: int = 3


def draw(rng: Random, shape: Shape) -> Tree:
    """Draws a tree; `rng` may be one of Hypothesis."""
    features = {feature for feature in shape.features if rng.random() < 0.5} | {*shape.certain}
    payments = iter(range(100, 1000))

    def step(tool: str, level: int) -> Step:
        if tool == "delegate":
            return Step(tool, rng.randrange(12), script(level + 1))
        return Step(tool, next(payments) if tool in ("pay", "mcp_append") else rng.randrange(12))

    def script(level: int) -> Script:
        always = shape.always[level] if level < len(shape.always) else ()
        deepest = level + 1 >= shape.levels
        tools = [tool for tool in shape.tools if tool != "delegate" or not deepest]
        if level:
            tools = [tool for tool in tools if not tool.startswith("mcp_")]
        turns = [
            [step(rng.choice(tools), level) for _ in range(rng.randint(1, 4 - level))]
            for _ in range(rng.randint(1, max(shape.most_turns - level, 1)))
        ]
        for tool in always:
            turn = rng.choice(turns)
            turn.insert(rng.randint(0, len(turn)), step(tool, level))
        wrong: list[Literal["wrong", "rejected"]] = []
        if "repair" in features:
            wrong += ["wrong"] * rng.randint(0 if level else 1, 2)
        if "accept" in features:
            wrong += ["rejected"] * rng.randint(0 if level else 1, 2)
        if level:  # a nested run that ends in an error has no answer that tells what it did
            wrong = wrong[:2]
        fails = {"failure", "fallback"} & features and rng.random() < (0.3 if level else 0.7)
        fails_at = rng.randint(0, len(turns)) if fails else None
        return Script(tuple(map(tuple, turns)), (*wrong, "right"), fails_at)

    count = rng.randint(2, 3) if "chat" in features else 1
    scripts = tuple([script(0) for _ in range(count)])
    max_tokens = rng.randint(100, 2000) if "budget" in features else None
    return Tree(scripts, frozenset(features), max_tokens)


def seeded(shape: Shape, seed: int) -> Tree:
    """Draws the tree of this number, the same each time."""
    return draw(Random(seed), shape)  # noqa: S311 - chance that can be repeated


def trees(shape: Shape) -> st.SearchStrategy[Tree]:
    """Returns a strategy for trees of this shape."""
    return st.builds(draw, st.randoms(use_true_random=False), st.just(shape))


# ---------------------------------------------------------------------------- outside of a process


@dataclass
class Outside:
    """Everything that outlives a process: files, facts and what the provider was asked.

    The fact file in `folder` is never rolled back. `asked` are the places in the tree of the
    requests that were answered, `spent` the tokens before each of them, `used` those of all.
    `moments` are the beginnings and ends of requests and tool calls; the process is interrupted at
    number `interrupt_at` of them.
    """

    folder: Path
    content: MemoryContentStore = field(default_factory=MemoryContentStore)
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    asked: list[str] = field(default_factory=list[str])
    spent: list[int] = field(default_factory=list[int])
    used: TokenUsage = field(default_factory=TokenUsage)
    moments: list[str] = field(default_factory=list[str])
    interrupt_at: int = 0
    suspensions: int = 0

    def copied(self, folder: Path) -> "Outside":
        """Returns a copy with the same facts, whose fact file is in another folder."""
        copytree(self.folder, folder)
        return replace(
            self,
            folder=folder,
            files=dict(self.files),
            asked=[*self.asked],
            spent=[*self.spent],
            moments=[*self.moments],
        )

    @property
    def facts(self) -> list[str]:
        """The payments, in order, those of MCP tools included."""
        paths = [self.folder / "paid", self.folder / "calls"]
        return [line for path in paths if path.exists() for line in path.read_text().splitlines()]

    def pay(self, number: int) -> None:
        with (self.folder / "paid").open("a") as file:
            file.write(f"paid {number}\n")

    def pass_moment(self, name: str) -> None:
        """Raises `KeyboardInterrupt` if this is the moment for it."""
        self.moments.append(name)
        if len(self.moments) == self.interrupt_at:
            raise KeyboardInterrupt


@contextmanager
def outside() -> Generator[Outside]:
    with TemporaryDirectory() as folder:
        yield Outside(Path(folder))


# ------------------------------------------------------------------------------------------- model

_ID = re.compile(r"(\d+)\.\d+$")
_DONE = re.compile(r"\b(?:noted|wrote|paid|asked|showed|kept) \d+")
_OPEN = "The drawer is open."
PICTURE = Image.from_bytes(b"GIF89a")


def done_calls(messages: Sequence[Message]) -> list[str]:
    """Returns what calls with an answer have done, nested ones included, such as `noted 3`."""
    answers = [item for item in messages if isinstance(item, ToolMessage) and item.success]
    return [text for answer in answers for text in _DONE.findall(answer.content)]


def _place(messages: Sequence[Message]) -> tuple[str, list[Message]]:
    """Returns the address of the script that the model is playing, and what was said since."""
    for index in range(len(messages) - 1, -1, -1):
        message = messages[index]
        if isinstance(message, UserMessage) and not message.repair:
            return message.text.split()[0], list(messages[index + 1 :])
    raise AssertionError("no message of a user")


def _turn(tree: Tree, script: Script, first: str, later: Sequence[Message]) -> int:
    """Returns the turn that comes next; after a restart, that after the one which opened."""
    turns = [
        int(match[1])
        for message in later
        if isinstance(message, AssistantMessage)
        for call in message.tool_calls
        if (match := _ID.search(call.call_id))
    ]
    if not turns and _OPEN in first and "repeats" not in tree.features:
        turns = [
            number
            for number, turn in enumerate(script.turns)
            if any(step.tool == "open" for step in turn)
        ]
    return max(turns, default=-1) + 1


_ARGUMENTS: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "read": ("read_section", {"section_key": "page"}),
    "read_skill": ("read_section", {"section_key": "pdf"}),
    "open": ("open_sections", {"section_keys": ["drawer"], "reason": "needed"}),
    "inject": ("read_section", {"section_key": "drawer"}),
    "close": ("close_section", {"section_key": "drawer"}),
    "mcp_echo": ("plain_echo", {"text": "hello"}),
}


def _call(step: Step, address: str, turn: int, index: int, *, injects: bool) -> ToolCall:
    tool = "inject" if step.tool == "open" and injects else step.tool
    name, arguments = _ARGUMENTS.get(tool, (tool, {"number": step.number}))
    if step.tool == "delegate":
        arguments = {"number": step.number, "to": f"{address}/{turn}.{index}"}
    elif step.tool == "mcp_append":
        name, arguments = "plain_append", {"text": str(step.number)}
    return ToolCall(f"{address}:{turn}.{index}", name, json.dumps(arguments))


def reply(tree: Tree, out: Outside, seen: SeenRequest, *, provider: str) -> Any:
    """Returns the model's answer to a request, or the provider's failure."""
    first = seen.messages[0].text
    usage = TokenUsage(40 * len(seen.messages), 5)
    address, later = _place(seen.messages)
    out.pass_moment(f"request of {address}")
    if first.endswith("Summarize."):
        answer, place = AssistantMessage(text=f"{len(first)} characters.", usage=usage), "summary"
    else:
        script = tree.script(address)
        turn = _turn(tree, script, first, later)
        place = f"{address}:{turn}"
        if turn == script.fails_at and provider == "first":
            return PromptEvaluationError("down", phase="request", code="server_error")
        if turn < len(script.turns):
            injects = "restart" not in tree.features
            calls = [
                _call(step, address, turn, index, injects=injects)
                for index, step in enumerate(script.turns[turn])
            ]
            answer = AssistantMessage(tool_calls=tuple(calls), finish="tool_calls", usage=usage)
        else:
            text, place = _final_text(tree, script, later, place)
            answer = AssistantMessage(text=text, usage=usage)
    out.pass_moment(f"request of {address}")
    out.asked.append(place)
    out.spent.append(out.used.total_tokens)
    out.used += usage
    return replace(answer, model=provider)


def _final_text(
    tree: Tree, script: Script, later: Sequence[Message], place: str
) -> tuple[str, str]:
    repairs = sum(isinstance(item, UserMessage) and item.repair for item in _after_calls(later))
    kind = script.answers[min(repairs, len(script.answers) - 1)]
    text = f"{kind}: {'; '.join(done_calls(later))}"
    if {"repair", "accept"} & tree.features and kind != "wrong":
        text = json.dumps({"text": text})
    return text, f"{place}~{repairs}"


def _after_calls(messages: Sequence[Message]) -> Sequence[Message]:
    ends = [number for number, item in enumerate(messages) if isinstance(item, ToolMessage)]
    return messages[ends[-1] + 1 if ends else 0 :]


# ------------------------------------------------------------------------------------------ prompt


@dataclass(frozen=True)
class Work:
    """Arguments of all tools: a number, and the address of the script for a nested run."""

    number: int = 0
    to: str = ""


@dataclass(frozen=True)
class Answer:
    text: str


def accept(output: Answer, /, *, context: ToolContext) -> None:
    """Rejects an answer that says so; what it did before is undone."""
    context.session.dispatch(Note("accepted"))
    if output.text.startswith("rejected"):
        raise OutputRejected("Not good enough.")


def decide(preview: Preview) -> Decision:
    """Decides by the call's number: most are approved, some denied, some get other arguments."""
    number = json.loads(preview.arguments).get("number", 0)
    if number % 4 == 3:
        return Deny("no")
    return ReplaceArguments({"number": number + 2}) if number % 4 == 2 else Approve()


class Worker:
    """The handlers of one process; `asked_for` is the description of the tool `ask`."""

    def __init__(self, tree: Tree, out: Outside, asked_for: str = "Asks.") -> None:
        self.tree, self.out = tree, out
        self.asked_for = asked_for
        self.template: PromptTemplate[Any] = self._template()

    def act(self, name: str, params: Work, context: ToolContext) -> ToolResult[object]:
        session, done = context.session, f"{name} {params.number}"
        if name == "looked":
            text = f"{len(session[Note])} notes"
            pictures = [PICTURE] if "media" in self.tree.features else []
            return ToolResult(text, media=pictures)
        if name == "paid":
            self.out.pay(params.number)
        if name in ("wrote", "showed"):
            context.resources.get(Filesystem).append_text("log.txt", f"{done}\n")
        else:
            session.dispatch(Note(done))
        if name == "failed":
            raise ValueError(f"failure {params.number}")
        return ToolResult(done)

    def _tool(self, name: str, does: str, **options: Any) -> Tool[Any, Any]:
        def handler(params: Work, *, context: ToolContext) -> ToolResult[object]:
            self.out.pass_moment(f"call of {name}")
            result = self.act(does, params, context)
            self.out.pass_moment(f"call of {name}")
            return result

        async def coroutine(params: Work, *, context: ToolContext) -> ToolResult[object]:
            await asyncio.sleep(0)
            return handler(params, context=context)

        chosen = coroutine if "coroutines" in self.tree.features else handler
        return _make_tool(name, chosen, **options)

    def _delegate(self) -> Tool[Any, Any]:
        def handler(params: Work, *, context: ToolContext) -> ToolResult[object]:
            try:
                text = context.evaluate(self.template.bind(), message=params.to).text
            except Exception as error:
                text = f"caught {type(error).__name__}"
            return ToolResult(f"{params.number} said {text}")

        async def coroutine(params: Work, *, context: ToolContext) -> ToolResult[object]:
            try:
                prompt = self.template.bind()
                text = (await context.evaluate_async(prompt, message=params.to)).text
            except Exception as error:
                text = f"caught {type(error).__name__}"
            return ToolResult(f"{params.number} said {text}")

        chosen = coroutine if "coroutines" in self.tree.features else handler
        return _make_tool("delegate", chosen)

    def _template(self) -> PromptTemplate[Any]:
        features, summary = self.tree.features, SectionVisibility.SUMMARY
        tools = [
            self._tool("note", "noted"),
            self._tool("write", "wrote"),
            self._tool("look", "looked", effect="pure"),
            self._tool("fail", "failed"),
            self._tool("pay", "paid", effect="at_most_once"),
            self._tool("ask", "asked", approval="arguments", description=self.asked_for),
            self._tool("show", "showed", approval="effects"),
            self._delegate(),
        ]
        page = MarkdownSection(
            title="Page", template="Read.", summary="A page.", visibility=summary
        )
        drawer = MarkdownSection(
            title="Drawer",
            template=_OPEN,
            summary="A drawer.",
            visibility=summary,
            tools=[self._tool("keep", "kept")],
        )
        task = MarkdownSection(title="Task", template="Do it.", tools=tools, state=[Note])
        sections: list[AnySection] = [task, page, drawer, *self._other_sections()]
        typed = bool({"repair", "accept"} & features)
        return PromptTemplate[Any](
            ns="tests",
            key="tree",
            sections=sections,
            disclosure=Disclosure.SPLIT if "restart" in features else Disclosure.READ,
            closable=True,
            output_type=Answer if typed else None,
            accept=accept if "accept" in features else None,
        )

    def _other_sections(self) -> Iterator[AnySection]:
        if "mcp" in self.tree.features:
            from support.mcp_prompts import section_of

            yield section_of(self.out.folder, include=["echo", "append"])
        if "skill" in self.tree.features:
            from support.skills import write_skill
            from weakincentives.contrib.skills import SkillSection

            folder = self.out.folder / "pdf"
            folder.mkdir(exist_ok=True)
            yield SkillSection(write_skill(folder))


# Any: handlers of both kinds
def _make_tool(
    name: str, handler: Any, *, effect: Any = "repeatable", description: str = "x", **options: Any
) -> Tool[Any, Any]:
    return Tool[Any, Any](
        name=name,
        description=description,
        handler=handler,
        params_type=Work,
        result_type=object,
        effect=effect,
        **options,
    )


_SUMMARY = PromptTemplate[None](
    ns="tests", key="sum", sections=[MarkdownSection(title="T", template="Summarize.")]
)


# ----------------------------------------------------------------------------------------- playing

type Face = Literal["evaluate", "evaluate_async", "stream", "stream_async"]
type Way = Literal["adapter", "MainLoop", "Chat"]

FACES: tuple[Face, ...] = ("evaluate", "evaluate_async", "stream", "stream_async")
WAYS: tuple[Way, ...] = ("adapter", "MainLoop", "Chat")
_NAMES = {"adapter": "evaluate", "MainLoop": "execute", "Chat": "send"}


class Outcome(NamedTuple):
    """How a tree ended, as plain data."""

    answers: Sequence[str]
    conversation: object
    state: Sequence[str]
    files: Mapping[str, bytes]
    usage: Mapping[str, int]
    facts: Sequence[str]
    asked: Sequence[str]


class Process:
    """One process: a session, a prompt, its files and an adapter."""

    def __init__(
        self, tree: Tree, out: Outside, state: str | None = None, asked_for: str = "Asks."
    ) -> None:
        self.tree, self.out, self.asked_for = tree, out, asked_for
        self.files = InMemoryFilesystem(out.files)
        self.session = Session(content=out.content)
        template = Worker(tree, out, asked_for).template
        self.prompt: Prompt[Any] = template.bind(resources={Filesystem: self.files})
        self.prompt.declare_state(self.session)
        if state is not None:
            self.session.restore(self.session.parse_snapshot(state))
        self.adapter = self._adapter()
        compaction = Compaction(at_tokens=400, keep_turns=1, summary=_SUMMARY)
        shortens = "compaction" in tree.features
        self.loop = MainLoop(self.adapter, compaction=compaction if shortens else None)
        self.chat = Chat(self.loop, self.prompt, session=self.session)

    def _adapter(self) -> LoopAdapter:
        features, tree = self.tree.features, self.tree
        config = InnerLoopConfig(
            parallel_tool_calls="isolated" if "parallel" in features else "in_order",
            budget=None if tree.max_tokens is None else Budget(max_tokens=tree.max_tokens),
        )
        first, second = [
            ScriptedAdapter(
                repeat(partial(reply, tree, self.out, provider=provider)),
                dynamic_tools="restart" not in features,
                config=config,
            )
            for provider in ("first", "second")
        ]
        return FallbackAdapter(first, second) if "fallback" in features else first

    # Any: the options of all entry points
    def run(self, way: Way, face: Face, options: Mapping[str, Any]) -> PromptResponse[Any]:
        """Runs the prompt once by one of the entry points."""
        options, arguments = dict(options), list[Any]()
        if way == "adapter" and "suspension" in options:
            way = "MainLoop"  # an adapter cannot resume
        subject: Any = {"adapter": self.adapter, "MainLoop": self.loop, "Chat": self.chat}[way]
        if way == "Chat":
            options.pop("conversation", None)
            arguments = [options.pop("message", None)]
        else:
            arguments = [self.prompt]
            options["session"] = self.session
        method = getattr(subject, face.replace("evaluate", _NAMES[way]))
        result = _result(face, method, arguments, options)
        whole: PromptResponse[Any] = getattr(result, "whole_response", result)
        return whole

    @property
    def is_answered(self) -> bool:
        """Whether the chat's conversation ends with the model's answer."""
        said = self.chat.conversation
        last = said.messages[-1] if said else None
        return isinstance(last, AssistantMessage) and not last.tool_calls

    def has_message(self, number: int) -> bool:
        """Whether the chat's conversation has the user's message of this number."""
        said = self.chat.conversation
        texts = (
            [item.text for item in said.messages if isinstance(item, UserMessage)] if said else []
        )
        return any(text.startswith(f"root#{number} ") for text in texts)

    def next(self, *, keeps_session: bool) -> "Process":
        """Ends this process; returns the one that comes after it."""
        self.end()
        state = self.session.snapshot().to_json() if keeps_session else None
        return Process(self.tree, self.out, state, self.asked_for)

    def end(self) -> None:
        """Saves the files; the process has ended."""
        self.out.files = {
            entry.path: self.files.read_bytes(entry.path)
            for entry in self.files.walk()
            if entry.kind == "file"
        }


# Any: an entry point, and what it returns
def _result(face: Face, method: Any, arguments: list[Any], options: dict[str, Any]) -> Any:
    async def last() -> Any:
        return [event async for event in method(*arguments, **options)][-1]

    async def awaited() -> Any:
        return await method(*arguments, **options)

    match face:
        case "evaluate":
            return method(*arguments, **options)
        case "evaluate_async":
            return asyncio.run(awaited())
        case "stream":
            event = list(method(*arguments, **options))[-1]
        case _:
            event = asyncio.run(last())
    assert isinstance(event, Completed)
    return event.response


def message_of(tree: Tree, number: int) -> str | Sequence[Part]:
    text = f"root#{number} please"
    return [text, PICTURE] if "media" in tree.features else text


def ignore(process: Process, suspension: str) -> None:
    """Looks at a process that ends early, and does nothing."""


def play(
    tree: Tree,
    out: Outside,
    *,
    way: Way = "MainLoop",
    faces: Sequence[Face] = ("evaluate",),
    suspends: bool = False,
    decides_all: bool = True,
    forks: bool = False,
    approver: Callable[[Preview], Decision] = decide,
    watch: Callable[[Process, str], object] = ignore,
    resumed: str = "",
) -> Outcome:
    """Runs a tree to its end, in as many processes as it takes; each run uses the next of `faces`.

    With `suspends` nobody approves calls while the run lasts: another process resumes it from JSON,
    with the decisions on all pending calls or on the first. A chat that is interrupted, at
    `out.interrupt_at`, continues in another process, too; with `forks` so does each message.
    `watch` sees each process that ends early, and the JSON of its suspension. `resumed` is such
    JSON, with which the first script continues.
    """
    process, conversation = Process(tree, out), None
    answers, usage, lives = list[str](), TokenUsage(), 0
    for number in range(len(tree.scripts)):
        if number and forks:
            process = process.next(keeps_session=True)
        message = message_of(tree, number)
        options: dict[str, Any] = {"message": message, "conversation": conversation}
        if resumed and number == 0:
            options = resumption(resumed, approver, decides_all=decides_all)
        while True:
            if not suspends:
                options["approver"] = approver
            face, lives = faces[lives % len(faces)], lives + 1
            try:
                response = process.run(way, face, options)
            except RunSuspended as suspended:
                out.suspensions += 1
                text = suspended.suspension.to_json()
                watch(process, text)
                process = process.next(keeps_session=way == "Chat")
                options = resumption(text, approver, decides_all=decides_all)
            except KeyboardInterrupt:
                watch(process, "")
                process = process.next(keeps_session=True)
                options = {} if process.has_message(number) else {"message": message}
            except PromptEvaluationError as error:
                answers.append(f"{type(error).__name__}: {error}")
                usage += error.usage
                conversation = error.conversation
                break
            else:
                answers.append(response.text)
                usage += response.usage
                conversation = response.conversation
                break
    if way == "Chat":
        conversation = process.chat.conversation
    process.end()
    return outcome(process, answers, conversation, usage)


def suspend(tree: Tree, out: Outside) -> str:
    """Runs the first message of a tree until it is suspended; returns the suspension's JSON."""
    process = Process(tree, out)
    try:
        process.run("MainLoop", "evaluate", {"message": message_of(tree, 0)})
    except RunSuspended as suspended:
        process.end()
        return suspended.suspension.to_json()
    raise AssertionError("the run was not suspended")


def resumption(
    text: str, approver: Callable[[Preview], Decision] = decide, *, decides_all: bool = True
) -> dict[str, Any]:
    """Returns the options that resume a suspension from its JSON."""
    suspension = Suspension.from_json(text)
    pending = suspension.pending if decides_all else suspension.pending[:1]
    decisions = {preview.call_id: approver(preview) for preview in pending}
    return {"suspension": suspension, "decisions": decisions}


def outcome(
    process: Process, answers: Sequence[str], conversation: Conversation | None, usage: TokenUsage
) -> Outcome:
    out = process.out
    said = json.loads("null" if conversation is None else conversation.to_json())
    if said is not None:  # a restart records the sections in another order than a resumed run
        said["sections"].sort(key=lambda record: record["path"])
    return Outcome(
        answers=answers,
        conversation=said,
        state=[note.text for note in process.session[Note].all()],
        files=out.files,
        usage=asdict(usage),
        facts=sorted(out.facts),
        asked=sorted(out.asked),
    )


def main(file: Path) -> None:
    """Resumes the run that another process has suspended and left in `file`."""
    tree, out, suspension, face = pickle.loads(file.read_bytes())
    end = play(tree, out, faces=[face], suspends=True, resumed=suspension)
    file.write_bytes(pickle.dumps(tuple(end)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
