"""An evaluation returns the type that the prompt declares, with any adapter; a session knows the
types of its slices.
"""

from dataclasses import dataclass
from typing import Any, Literal, assert_type

from weakincentives import (
    Prompt,
    PromptTemplate,
    RunConfig,
    Tool,
    ToolContext,
    ToolResult,
    adapter_for,
)
from weakincentives.adapters.core import PromptResponse, ProviderAdapter
from weakincentives.adapters.fallback import FallbackAdapter
from weakincentives.adapters.openai import OpenAIAdapter
from weakincentives.evaluation.chat import Chat
from weakincentives.evaluation.main_loop import Execution, MainLoop
from weakincentives.evaluation.response import OutputDelta, StreamEvent
from weakincentives.limits import Budget, Deadline
from weakincentives.prompt import RenderedPrompt
from weakincentives.protocols import EventBus, Response, SessionProtocol
from weakincentives.runtime.session import Session
from weakincentives.serde import Json
from weakincentives.testing import ScriptedAdapter, say


@dataclass(frozen=True)
class Answer:
    text: str


@dataclass(frozen=True)
class Question:
    text: str


template = PromptTemplate[Answer](ns="n", key="one")
many = PromptTemplate[list[Answer]](ns="n", key="many")
text = PromptTemplate(ns="n", key="text")
session = Session()


# The OpenAI adapter, with both forms of the prompt.
openai = OpenAIAdapter(model="gpt-5.2")
assert_type(openai.evaluate(template.bind(), session=session), PromptResponse[Answer])
assert_type(openai.evaluate(template.bind(), session=session).output, Answer)
assert_type(openai.evaluate(many.render(), session=session).output, list[Answer])
assert_type(openai.evaluate(text.bind(), session=session).output, None)
assert_type(openai.evaluate(text.bind(), session=session).text, str)

# An adapter by its model's name can be one of a fallback's.
fallback = FallbackAdapter(adapter_for("openai:gpt-5.2"), "anthropic:claude-opus-5-5")
assert_type(MainLoop(fallback).execute(template).model, str)

# Outputs of any type.
integer = PromptTemplate[int](ns="n", key="k")
letter = PromptTemplate[Literal["a", "b"]](ns="n", key="k")
either = PromptTemplate[int | Answer](ns="n", key="k")
assert_type(openai.evaluate(integer.bind(), session=session).output, int)
assert_type(openai.evaluate(letter.bind(), session=session).output, Literal["a", "b"])
assert_type(openai.evaluate(either.bind(), session=session).output, int | Answer)


# A handler evaluates another prompt as part of its call.
async def delegate(params: Question, *, context: ToolContext) -> ToolResult[Answer]:
    assert_type(context.evaluate(text.bind(), message="Hi"), Response[None])
    assert_type(context.evaluate(template.bind()).output, Answer)
    assert_type(await context.evaluate_async(many.render()), Response[list[Answer]])
    return ToolResult(message="done")


assert_type(Tool.from_prompt(template, name="ask"), Tool[Any, Answer])
assert_type(Tool.from_prompt(text, name="ask"), Tool[Any, None])

# The double for tests.
assert_type(
    ScriptedAdapter([say("done")]).evaluate(template.bind(), session=session).output, Answer
)


# A user-defined adapter.
class Echo(ProviderAdapter):
    def evaluate[Out](
        self,
        prompt: Prompt[Out] | RenderedPrompt[Out],
        /,
        *,
        session: SessionProtocol,
        bus: EventBus | None = None,
        deadline: Deadline | None = None,
        budget: Budget | None = None,
    ) -> PromptResponse[Out]:
        return openai.evaluate(prompt, session=session, bus=bus, deadline=deadline, budget=budget)


assert_type(Echo().evaluate(template.bind(), session=session).output, Answer)
assert_type(Echo().evaluate(text.bind(), session=session).output, None)


async def evaluate_async() -> None:
    assert_type((await openai.evaluate_async(template.bind(), session=session)).output, Answer)
    assert_type((await Echo().evaluate_async(many.bind(), session=session)).output, list[Answer])


# A chat answers with the type that its prompt declares.
chat = Chat(MainLoop(openai), template.bind(), session=session)
assert_type(chat, Chat[Answer])
assert_type(chat.send("Hi"), Execution[Answer])
assert_type(chat.send("Hi").output, Answer)
assert_type(next(chat.stream("Hi")), StreamEvent[Answer])
with chat.stream("Hi") as events, MainLoop(openai).stream(template) as of_loop:
    assert_type(next(events), StreamEvent[Answer])
    assert_type(next(of_loop), StreamEvent[Answer])
match next(chat.stream("Hi")):
    case OutputDelta(partial) as delta:
        assert_type(partial, Json)
        assert_type(delta.patch(), list[dict[str, Any]])
    case _:
        pass


async def chat_async() -> None:
    assert_type((await chat.send_async("Hi")).output, Answer)
    assert_type(await anext(chat.stream_async("Hi")), StreamEvent[Answer])
    async with openai.stream_async(template, session=session) as events:
        async for event in events:
            assert_type(event, StreamEvent[Answer])


# A handler evaluates another prompt with its context.
def ask(params: Question, *, context: ToolContext) -> ToolResult[Answer]:
    response = context.adapter.evaluate(
        template.bind(), session=context.session, bus=context.event_bus
    )
    assert_type(response.output, Answer)
    assert_type(context.adapter.evaluate(text.bind(), session=context.session).output, None)
    assert_type(context.evaluate(template.bind(), adapter=openai).output, Answer)
    assert_type(MainLoop(context.adapter).execute(template.bind(), session=session).output, Answer)
    return ToolResult(message=response.text, value=response.output)


async def ask_async(params: Question, *, context: ToolContext) -> ToolResult[Answer]:
    response = await context.adapter.evaluate_async(
        template.bind(), session=context.session, bus=context.event_bus
    )
    assert_type(response.output, Answer)
    return ToolResult(message=response.text, value=response.output)


assert_type(Tool(name="ask", handler=ask), Tool[Question, Answer])
assert_type(Tool(name="ask", handler=ask_async), Tool[Question, Answer])

# Slices.
assert_type(session[Answer].latest(), Answer | None)
assert_type(session[Answer].all(), tuple[Answer, ...])
assert_type(session[Answer].where(lambda answer: bool(answer.text)), tuple[Answer, ...])


def read(context: ToolContext) -> None:
    assert_type(context.session[Answer].latest(), Answer | None)


# A template without required params, a message by position, and a model by name.
assert_type(MainLoop("openai:m").execute(template, "Hi").output, Answer)
assert_type(Chat("openai:m", template).send("Hi").output, Answer)
assert_type(openai.evaluate(template).output, Answer)
assert_type(openai.evaluate(template).session, SessionProtocol)

# Errors that the types catch.
openai.evaluate("Hi")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
MainLoop(3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
RunConfig(turns=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
chat.send("Hi", session=session)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
session[Answer].append(Question("q"))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
