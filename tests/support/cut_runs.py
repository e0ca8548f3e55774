"""Runs trees to their end, in as many processes as that takes, and returns their outcome.

The oracle for a law is `play(tree, out)`: synchronous, in one process, with an approver. Other
arguments choose another entry point, or suspend or interrupt the run.
"""

import asyncio
import json
import os
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any, Literal, NamedTuple

from hypothesis import seed, settings

from support.agents import Note
from support.run_trees import (
    OPEN,
    PICTURE,
    Outside,
    Shape,
    Tree,
    outside,
    reply,
    uses_json,
)
from weakincentives.adapters.core import LoopAdapter
from weakincentives.adapters.fallback import FallbackAdapter
from weakincentives.content import Part
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
from weakincentives.evaluation.inner_loop import RunConfig
from weakincentives.evaluation.main_loop import MainLoop
from weakincentives.evaluation.messages import (
    AssistantMessage,
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
from weakincentives.visibility import SectionVisibility

# ------------------------------------------------------------------------------------------ prompt


@dataclass(frozen=True)
class Work:
    """The arguments of all tools: a number, and the address of the nested run's script."""

    number: int = 0
    to: str = ""


@dataclass(frozen=True)
class Answer:
    text: str


def accept(output: Answer, /, *, context: ToolContext) -> None:
    """Rejects an answer that asks for it; everything it did before that is undone."""
    context.session.dispatch(Note("accepted"))
    if output.text.startswith("rejected"):
        raise OutputRejected("Not good enough.")


def decide(preview: Preview) -> Decision:
    """Decides by the call's number: approves most, denies some, replaces arguments of others."""
    number = json.loads(preview.arguments).get("number", 0)
    if number % 4 == 3:
        return Deny("no")
    return ReplaceArguments({"number": number + 2}) if number % 4 == 2 else Approve()


class Worker:
    """One process's handlers; `asked_for` is the description of the tool `ask`."""

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
        if name == "failed" and params.number % 2:
            raise ValueError(done)
        return ToolResult(done, success=name != "failed")

    # Any: the options of a tool
    def _tool(self, name: str, does: str, **options: Any) -> Tool[Any, Any]:
        def handler(params: Work, *, context: ToolContext) -> ToolResult[object]:
            self.out.pass_moment(f"call of {name}")
            result = self.act(does, params, context)
            self.out.pass_moment(f"call of {name}")
            return result

        async def coroutine(params: Work, *, context: ToolContext) -> ToolResult[object]:
            await asyncio.sleep(0)
            return handler(params, context=context)

        return self._with_handler(name, handler, coroutine, **options)

    # Any: as above, and handlers of both types
    def _with_handler(
        self, name: str, handler: Any, coroutine: Any, **options: Any
    ) -> Tool[Any, Any]:
        if "coroutines" in self.tree.features:
            handler = coroutine
        given: dict[str, Any] = {
            "description": "For tests.",
            "params_type": Work,
            "result_type": object,
            "effect": "repeatable",
        }
        return Tool[Any, Any](name=name, handler=handler, **(given | options))

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

        return self._with_handler("delegate", handler, coroutine)

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
            template=OPEN,
            summary="A drawer.",
            visibility=summary,
            tools=[self._tool("keep", "kept")],
        )
        task = MarkdownSection(title="Task", template="Do it.", tools=tools, state=[Note])
        sections: list[AnySection] = [task, page, drawer, *self._other_sections()]
        return PromptTemplate[Any](
            ns="tests",
            key="tree",
            sections=sections,
            disclosure=Disclosure.SPLIT if "restart" in features else Disclosure.READ,
            closable=True,
            output_type=Answer if uses_json(self.tree) else None,
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
    conversation: Any  # JSON
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
        config = RunConfig(
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
        """Returns whether the chat's conversation ends with the model's answer."""
        said = self.chat.conversation
        last = said.messages[-1] if said else None
        return isinstance(last, AssistantMessage) and not last.tool_calls

    def has_message(self, number: int) -> bool:
        """Returns whether the chat's conversation contains the user's message with this number."""
        said = self.chat.conversation
        texts = (
            [item.text for item in said.messages if isinstance(item, UserMessage)] if said else []
        )
        return any(text.startswith(f"root#{number} ") for text in texts)

    def next(self, *, keeps_session: bool) -> "Process":
        """Ends this process and returns the next one."""
        self.end()
        state = self.session.snapshot().to_json() if keeps_session else None
        return Process(self.tree, self.out, state, self.asked_for)

    def end(self) -> None:
        """Saves the files, because the process has ended."""
        self.out.files = {
            entry.path: self.files.read_bytes(entry.path)
            for entry in self.files.walk()
            if entry.kind == "file"
        }


# Any: an entry point, and its result
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
    """Ignores a process that ends early."""


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
    """Runs a tree to its end, in as many processes as needed; each run uses the next of `faces`.

    With `suspends`, calls are not approved during the run: another process resumes it from JSON,
    with the decisions on all pending calls or on the first. A chat that is interrupted, at
    `out.interrupt_at`, also continues in another process; with `forks`, so does each message.
    `watch` gets each process that ends early, and the JSON of its suspension. `resumed` is such
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
            assert lives < 1000, (
                "the run does not end"
            )  # it has 100 turns, with suspensions in each
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
    """Runs a tree's first message until the run is suspended; returns the suspension's JSON."""
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
    if said is not None:  # a restart and a resumed run record the sections in different orders
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


CUTS = int(os.environ.get("CUTS", "0"))
CUTS_SEED = int(os.environ.get("CUTS_SEED", "0"))


TOOLS = ("note", "write", "look", "fail", "pay", "ask", "show", "read", "open", "close", "keep")
NESTING = (*TOOLS, "delegate")


SIBLINGS = Shape(  # parallel runs that do not read each other's writes
    ("note", "pay", "fail", "ask", "delegate"),
    ("coroutines", "chat", "failure"),
    always=(("delegate", "delegate"), ("ask",)),
    certain=("parallel",),
    most_turns=2,
)


# Any: a law with any arguments
def law(test: Callable[..., Any]) -> Any:
    """Runs `CUTS` examples, which depend on `CUTS_SEED`."""
    return seed(CUTS_SEED)(settings(max_examples=CUTS or 10)(test))


def uncut(tree: Tree) -> Outcome:
    with outside() as out:
        return play(tree, out)


def main(file: Path) -> None:
    """Resumes the run that another process has suspended and stored in `file`."""
    tree, out, suspension, face = pickle.loads(file.read_bytes())
    end = play(tree, out, faces=[face], suspends=True, resumed=suspension)
    file.write_bytes(pickle.dumps(tuple(end)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
