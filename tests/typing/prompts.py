"""A prompt's output type follows it through template, binding, rendering and parsing."""

from dataclasses import dataclass
from typing import assert_type

from weakincentives import Prompt, PromptTemplate
from weakincentives.prompt import RenderedPrompt, StructuredOutputConfig, parse_structured_output
from weakincentives.prompt.overrides import PromptOverridesStore
from weakincentives.prompt.overrides.store import LocalPromptOverridesStore


@dataclass(frozen=True)
class Answer:
    text: str


@dataclass(frozen=True)
class Task:
    goal: str


template = PromptTemplate[Answer](ns="n", key="k")
many = PromptTemplate[list[Answer]](ns="n", key="k")
text = PromptTemplate(ns="n", key="k")

# Templates.
assert_type(template, PromptTemplate[Answer])
assert_type(many, PromptTemplate[list[Answer]])
assert_type(text, PromptTemplate[None])
assert_type(template.output_type, type[Answer] | None)
assert_type(many.output_type, type[list[Answer]] | None)
assert_type(
    PromptTemplate(ns="n", key="k", structured_output=StructuredOutputConfig(Answer)),
    PromptTemplate[Answer],
)

# Binding, from the template and by hand.
assert_type(Prompt(template), Prompt[Answer])
assert_type(Prompt(many), Prompt[list[Answer]])
assert_type(Prompt(text), Prompt[None])
assert_type(
    Prompt(template, overrides_store=LocalPromptOverridesStore(), overrides_tag="v2"),
    Prompt[Answer],
)
assert_type(template.bind(Task("g")), Prompt[Answer])
assert_type(many.bind().bind(Task("g")).bind(), Prompt[list[Answer]])
assert_type(Prompt[Answer](ns="n", key="k", sections=[]), Prompt[Answer])
assert_type(
    Prompt[Answer](ns="n", key="k", structured_output=StructuredOutputConfig(Answer)).template,
    PromptTemplate[Answer],
)
assert_type(Prompt(ns="n", key="k"), Prompt[None])

# The local store implements the protocol.
store: PromptOverridesStore = LocalPromptOverridesStore()

# Rendering, from the template and from the prompt.
assert_type(template.render(Task("g")), RenderedPrompt[Answer])
assert_type(many.bind(Task("g")).render(Task("h")), RenderedPrompt[list[Answer]])
assert_type(text.bind().render(), RenderedPrompt[None])

# Parsing.
assert_type(parse_structured_output("{}", template.render()), Answer)
assert_type(parse_structured_output("[]", many.render()), list[Answer])

# Errors that the types catch.
Prompt(template, ns="n")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
PromptTemplate[Answer](
    ns="n",
    key="k",
    structured_output=StructuredOutputConfig(Task),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
)
template.bind(Task("g")).output_type = Answer  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
template.name = "other"  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
