"""Models and prompts for tests of evals: a model is a function of the request."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated

from pydantic import Field

from weakincentives.adapters.core import Connection, LoopAdapter
from weakincentives.evals import Case, EvalRun
from weakincentives.evaluation.config import RunConfig
from weakincentives.evaluation.errors import PromptEvaluationError, ThrottleError
from weakincentives.evaluation.inner_loop import ProviderRequest
from weakincentives.evaluation.messages import AssistantMessage, ToolCall
from weakincentives.filesystem import Filesystem
from weakincentives.limits import TokenUsage
from weakincentives.model_settings import ModelSettings
from weakincentives.prompt import (
    MarkdownSection,
    PromptTemplate,
    Tool,
    ToolContext,
    WorkspaceSection,
)
from weakincentives.prompt.renderer import AnyRenderedPrompt
from weakincentives.visibility import SectionVisibility

type Reply = AssistantMessage | PromptEvaluationError
type Model = Callable[[ProviderRequest, str], Reply | Awaitable[Reply]]


class FunctionAdapter(LoopAdapter):
    """Asks a function, which receives the request and the prompt's text; counts the requests."""

    name = "function"

    def __init__(
        self, answer: Model, *, model: str = "m", config: RunConfig | None = None, origin: str = ""
    ) -> None:
        super().__init__(config=config)
        self.answer, self.model, self.origin = answer, model, origin
        self.asked = 0
        self.prompts: list[str] = []

    def check_settings(self, settings: ModelSettings) -> None:
        return

    def connect(self, rendered: AnyRenderedPrompt, /) -> Connection:
        return _FunctionConnection(self, rendered.text)


class _FunctionConnection(Connection):
    def __init__(self, adapter: FunctionAdapter, text: str) -> None:
        self._adapter, self._text = adapter, text

    def ask(self, request: ProviderRequest, /) -> AssistantMessage:
        return asyncio.run(self.ask_async(request))

    async def ask_async(self, request: ProviderRequest, /) -> AssistantMessage:
        self._adapter.asked += 1
        self._adapter.prompts.append(self._text)
        reply = self._adapter.answer(request, self._text)
        if isinstance(reply, Awaitable):
            reply = await reply
        if isinstance(reply, PromptEvaluationError):
            raise reply
        return reply


def say(text: str, usage: TokenUsage | None = None) -> AssistantMessage:
    """Returns an answer of ten tokens in and five out."""
    return AssistantMessage(text=text, usage=usage or TokenUsage(10, 5))


def calls(*named: tuple[str, str]) -> AssistantMessage:
    """Returns an answer with tool calls, as (name, arguments)."""
    made = tuple(
        ToolCall(f"call-{number}", name, arguments)
        for number, (name, arguments) in enumerate(named)
    )
    return AssistantMessage(tool_calls=made, finish="tool_calls", usage=TokenUsage(10, 5))


def turn_of(request: ProviderRequest) -> int:
    """Returns the number of answers before this request."""
    return sum(isinstance(message, AssistantMessage) for message in request.transcript)


def throttled(seconds: float | None = None) -> ThrottleError:
    """Returns the error for too many requests."""
    error = ThrottleError("too many requests", phase="request", code="throttled", status=429)
    error.retry_after = None if seconds is None else timedelta(seconds=seconds)
    return error


def failed(code: str = "server_error") -> PromptEvaluationError:
    """Returns the error for a provider's failure."""
    return PromptEvaluationError("it failed", phase="request", code=code, status=500)


@dataclass(frozen=True)
class Question:
    text: str


@dataclass(frozen=True)
class Note:
    text: str


@dataclass(frozen=True)
class Answer:
    text: Annotated[str, Field(min_length=1)]
    notes: int


@dataclass(frozen=True)
class Topic:
    topic: str


def note(text: str, context: ToolContext) -> str:
    """Write a note, and append it to notes.txt."""
    context.session[Note].append(Note(text))
    files = context.resources.get(Filesystem)
    files.append_text("notes.txt", f"{text}\n")
    return f"noted {text}"


def questions(*, text: str = "Answer: $text") -> PromptTemplate[None]:
    """Returns a prompt without tools, whose answer is text."""
    return PromptTemplate(
        ns="evals",
        key="questions",
        sections=[
            MarkdownSection[Question](title="Question", template=text, key="question"),
            MarkdownSection(title="Rules", template="Be brief.", key="rules"),
        ],
    )


def question_cases(count: int) -> list[Case]:
    """Returns cases whose expected text is that of the question."""
    return [
        Case(id=str(number), params=(Question(f"q{number}"),), expected=f"q{number}")
        for number in range(count)
    ]


def is_right(case: Case, run: EvalRun) -> bool:
    """Returns whether the answer contains the expected text."""
    return case.expected in run.text


def echo(request: ProviderRequest, text: str) -> AssistantMessage:
    """Answers with the prompt's question."""
    return say(text.partition("Answer: ")[2].partition("\n")[0])


def notebook() -> PromptTemplate[Answer]:
    """Returns a prompt with state, files, a nested run and a section to open."""
    research = PromptTemplate(
        ns="evals",
        key="research",
        sections=[MarkdownSection[Topic](title="Topic", template="Research: $topic", key="topic")],
    )
    return PromptTemplate[Answer](
        ns="evals",
        key="notebook",
        sections=[
            MarkdownSection[Question](
                title="Question",
                template="Note what you find about $text.",
                key="question",
                tools=[note, Tool.from_prompt(research, name="research")],
                state=[Note],
            ),
            WorkspaceSection(key="workspace"),
            MarkdownSection(
                title="Style",
                template="Write plainly.",
                summary="How to write.",
                visibility=SectionVisibility.SUMMARY,
                key="style",
            ),
        ],
    )


def write_notes(request: ProviderRequest, text: str) -> AssistantMessage:
    """Writes notes, opens a section, starts a nested run, and answers."""
    if "Research:" in text:
        return say("It is blue.")
    match turn_of(request):
        case 0:
            return calls(
                ("note", '{"text": "first"}'), ("read_section", '{"section_key": "style"}')
            )
        case 1:
            return calls(("research", '{"topic": "the sky"}'))
        case 2:
            return calls(("note", '{"text": "second"}'))
        case _:
            return say('{"text": "done", "notes": 2}')
