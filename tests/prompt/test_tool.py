"""Tools: the sources of their types, errors at construction, tools as values."""

import copy
import functools
import pickle
import sys
from collections.abc import Awaitable, Callable
from dataclasses import FrozenInstanceError, dataclass, fields, replace
from types import MethodType
from typing import Annotated, Any, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weakincentives import serde
from weakincentives.evaluation.messages import ToolMessage
from weakincentives.prompt import (
    MarkdownSection,
    PromptTemplate,
    PromptValidationError,
    Tool,
    ToolContext,
    ToolExample,
    ToolResult,
)
from weakincentives.runtime.session import Session
from weakincentives.testing import ScriptedAdapter, call, say


@dataclass(frozen=True)
class Lookup:
    entity_id: str
    related: bool = False


@dataclass(frozen=True)
class Found:
    url: str
    note: str | None = None


@dataclass
class Unhashable:
    items: list[str]


def lookup(params: Lookup, *, context: ToolContext) -> ToolResult[Found]:
    """Looks one entity up.

    The rest is for programmers.
    """
    return ToolResult(message="found", value=Found(params.entity_id))


async def lookup_async(params: Lookup, *, context: ToolContext) -> ToolResult[Found]:
    """Looks up later."""
    return ToolResult(message="found", value=Found(params.entity_id))


def unannotated(params, *, context):  # type: ignore[no-untyped-def]
    return ToolResult(message="")


def takes_anything(params: object, *, context: ToolContext) -> ToolResult[Any]:
    return ToolResult(message="")


def says_only_params(params: Lookup, *, context: ToolContext):  # type: ignore[no-untyped-def]
    return ToolResult(message="")


def by_awaitable(params: Lookup, *, context: ToolContext) -> Awaitable[ToolResult[Found]]:
    return lookup_async(params, context=context)


class Lookups:
    """Not the tool's description."""

    def __call__(self, params: Lookup, *, context: ToolContext) -> ToolResult[Found]:
        return lookup(params, context=context)

    def method(self, params: Lookup, *, context: ToolContext) -> ToolResult[Found]:
        """A method of its own."""
        return lookup(params, context=context)

    @staticmethod
    def static(params: Lookup, *, context: ToolContext) -> ToolResult[Found]:
        return lookup(params, context=context)

    @classmethod
    def of_class(cls, params: Lookup, *, context: ToolContext) -> ToolResult[Found]:
        return lookup(params, context=context)


def with_prefix(prefix: str, params: Lookup, *, context: ToolContext) -> ToolResult[Found]:
    return ToolResult(message=prefix, value=Found(params.entity_id))


def types(tool: Tool[Any, Any]) -> tuple[type, type]:
    return tool.params_type, tool.result_type


# -------------------------------------------------------------------------------------------------
# types, description


@pytest.mark.claim("C-33")
@pytest.mark.parametrize(
    "handler",
    [lookup, lookup_async, Lookups(), Lookups().method, Lookups.static, Lookups.of_class],
    ids=["function", "coroutine function", "callable", "method", "static", "of class"],
)
def test_tool_types_come_from_handler_annotations(handler: Any) -> None:
    assert types(Tool(name="lookup", handler=handler)) == (Lookup, Found)


def test_tool_types_of_a_partial_come_from_its_remaining_params() -> None:
    # functools.partial has no signature that type checkers can match against a keyword-only
    # context
    handler: Any = functools.partial(with_prefix, "p")
    assert types(Tool(name="lookup", handler=handler)) == (Lookup, Found)


def test_tool_types_come_from_a_method_created_from_a_partial() -> None:
    """Since Python 3.14, a partial in a class is a method; `MethodType` works in any version."""
    of_partial: Any = MethodType(functools.partial(Lookups.method), Lookups())
    assert types(Tool(name="lookup", handler=of_partial)) == (Lookup, Found)


@pytest.mark.skipif(sys.version_info < (3, 14), reason="needs functools.Placeholder")
def test_tool_types_come_from_a_partial_with_a_placeholder() -> None:
    def with_suffix(params: Lookup, suffix: str, *, context: ToolContext) -> ToolResult[Found]:
        return ToolResult(message=suffix)

    # Any: as above
    placeholder: Any = vars(functools)["Placeholder"]
    handler: Any = functools.partial(with_suffix, placeholder, "s")
    assert types(Tool(name="lookup", handler=handler)) == (Lookup, Found)


@pytest.mark.claim("C-33", "TL-16")
def test_subscript_sets_the_types_and_takes_precedence_over_annotations() -> None:
    assert types(Tool[Lookup, Found](name="lookup")) == (Lookup, Found)
    assert types(Tool[Lookup, Found](name="lookup", handler=unannotated)) == (Lookup, Found)
    assert types(Tool[Lookup, Found](name="lookup", handler=takes_anything)) == (Lookup, Found)


class Finder(Tool[Lookup, Found]):
    """A subclass of `Tool`."""


class Getter[R](Tool[Lookup, R]):
    """A subclass of `Tool` with one fixed and one open type."""


def test_subclass_of_a_subscripted_tool_has_its_types() -> None:
    assert (
        types(Finder(name="lookup"))
        == types(Finder(name="lookup", handler=unannotated))
        == (Lookup, Found)
    )
    assert types(Getter[Unhashable](name="lookup")) == (Lookup, Unhashable)
    assert types(Finder(name="lookup", result_type=Found)) == types(
        replace(Finder(name="a"), name="b")
    )


@pytest.mark.claim("C-33", "TL-17")
def test_type_arguments_are_completed_by_annotations() -> None:
    assert types(Tool(name="lookup", params_type=Lookup)) == (Lookup, object)
    assert types(Tool(name="lookup", params_type=Lookup, result_type=Found)) == (Lookup, Found)
    assert types(Tool(name="lookup", params_type=Lookup, handler=lookup)) == (Lookup, Found)
    assert types(Tool(name="lookup", params_type=Lookup, handler=unannotated)) == (Lookup, object)
    assert types(Tool(name="lookup", handler=says_only_params)) == (Lookup, object)
    assert types(Tool(name="lookup", handler=by_awaitable)) == (Lookup, object)


@pytest.mark.claim("TL-16", "TL-17")
def test_schema_does_not_depend_on_how_the_types_are_declared() -> None:
    subscripted, inferred = Tool[Lookup, Found](name="a"), Tool(name="a", handler=lookup)
    assert serde.json_schema(subscripted.params_type) == serde.json_schema(inferred.params_type)


@pytest.mark.claim("C-33")
def test_missing_description_defaults_to_docstring_paragraph_or_name() -> None:
    assert Tool(name="t", handler=lookup).description == "Looks one entity up."
    assert Tool(name="t", handler=Lookups().method).description == "A method of its own."
    assert Tool(name="t", handler=Lookups()).description == "t"
    assert Tool(name="t", handler=by_awaitable).description == "t"
    assert Tool(name="t", params_type=Lookup).description == "t"
    assert Tool(name="t", description="Own.", handler=lookup).description == "Own."


LINES = st.lists(
    st.text("aé计 .", min_size=1, max_size=40).filter(str.strip), min_size=1, max_size=5
)


@given(paragraphs=st.lists(LINES, min_size=1, max_size=3))
def test_docstring_paragraph_becomes_one_line_whatever_its_indentation(
    paragraphs: list[list[str]],
) -> None:
    def handler(params: Lookup, *, context: ToolContext) -> ToolResult[Found]:
        raise NotImplementedError

    handler.__doc__ = "\n    \n".join(
        "\n".join(f"    {line}" for line in lines) for lines in paragraphs
    )
    wanted = " ".join(line.strip() for line in paragraphs[0])
    handler.__doc__ = handler.__doc__ if len(wanted) < 1024 else wanted
    assert Tool(name="t", handler=handler).description == wanted


# -------------------------------------------------------------------------------------------------
# rejections


@pytest.mark.claim("TL-12")
@given(st.from_regex(r"[a-z0-9_-]{1,64}", fullmatch=True))
def test_every_name_that_matches_the_pattern_is_accepted(name: str) -> None:
    assert Tool[Lookup, Found](name=name, description="x").name == name


@pytest.mark.claim("TL-12")
@pytest.mark.parametrize(
    "name", ["", "Upper", "a b", "é", "a\n", "a" * 65, "a.b", None, 5], ids=repr
)
def test_invalid_name_is_rejected_with_the_rule(name: Any) -> None:
    with pytest.raises(
        PromptValidationError, match="use 1 to 64 characters from a-z, 0-9, '_' and '-'"
    ) as caught:
        Tool[Lookup, Found](name=name)
    assert repr(name) in str(caught.value)


@pytest.mark.claim("TL-13")
@pytest.mark.parametrize(
    "description",
    ["x", "x" * 1024, "Sucht einen Zähler, 計数器 🔢"],
    ids=["one", "most", "Unicode"],
)
def test_description_can_have_1_to_1024_characters_of_any_script(description: str) -> None:
    assert Tool[Lookup, Found](name="t", description=description).description == description


@pytest.mark.claim("TL-13")
@pytest.mark.parametrize(
    ("description", "problem"),
    [
        ("", "characters, got 0"),
        ("x" * 1025, "characters, got 1025"),
        ("half \ud83d", "as UTF-8; remove surrogates"),
        (5, "must be a string, got 5"),
    ],
    ids=["empty", "long", "surrogate", "no text"],
)
def test_invalid_description_is_rejected_with_tool_problem_and_fix(
    description: Any, problem: str
) -> None:
    with pytest.raises(PromptValidationError, match="tool 'lookup'") as caught:
        Tool[Lookup, Found](name="lookup", description=description)
    assert problem in str(caught.value)


def test_docstring_that_is_too_long_is_rejected_as_description() -> None:
    def handler(params: Lookup, *, context: ToolContext) -> ToolResult[Found]:
        return lookup(params, context=context)

    handler.__doc__ = "x" * 1025
    with pytest.raises(PromptValidationError, match="characters, got 1025"):
        Tool(name="t", handler=handler)


class Misleading:
    """Methods with a handler's signature, but not once they are bound."""

    def handler(self, *, context: ToolContext) -> ToolResult[Found]:
        raise NotImplementedError


@pytest.mark.claim("C-33", "TL-14")
@pytest.mark.parametrize(
    "handler",
    [
        lambda params: None,
        lambda *, context: None,
        lambda one, two, *, context: None,
        lambda params, *, context, more: None,
        Misleading().handler,
        5,
    ],
    ids=["no context", "no params", "two params", "more", "bound", "no function"],
)
def test_handler_that_cannot_be_called_is_rejected_with_the_signature(
    handler: Any,
) -> None:
    with pytest.raises(
        PromptValidationError, match=r"tool 'lookup': handler .* cannot be called"
    ) as caught:
        Tool[Lookup, Found](name="lookup", handler=handler)
    assert getattr(handler, "__name__", type(handler).__name__) in str(caught.value)
    assert "(params: Params, *, context: ToolContext)" in str(caught.value)


# Any: handlers that work at run time, even if a type checker would reject them.
CALLABLE: list[Callable[..., Any]] = [
    lambda params, *, context: None,
    lambda params, /, *, context: None,
    lambda params, *, context, more=1: None,
    lambda params, context: None,
    lambda *args, **kwargs: None,
]


@pytest.mark.parametrize("handler", CALLABLE, ids=range(len(CALLABLE)))
def test_handler_with_any_compatible_signature_is_accepted(handler: Any) -> None:
    assert Tool[Lookup, Found](name="lookup", handler=handler).handler is handler


@pytest.mark.claim("TL-18")
@pytest.mark.parametrize(
    "kind", [int, str, dict, list[Lookup], Lookup("x"), Lookup | None], ids=repr
)
def test_params_type_without_fields_is_rejected(kind: Any) -> None:
    with pytest.raises(
        PromptValidationError, match=r"tool 't': params type must be a dataclass"
    ) as caught:
        Tool[kind, Found](name="t")
    assert repr(kind) in str(caught.value)
    with pytest.raises(PromptValidationError, match="must be a dataclass"):
        Tool(name="t", params_type=kind)


def test_wrapped_handler_is_checked_by_its_own_signature() -> None:
    def inner(params: Lookup, limit: int) -> ToolResult[Found]:
        """Look things up."""
        raise NotImplementedError

    @functools.wraps(inner)
    def handler(params: Lookup, *, context: ToolContext) -> ToolResult[Found]:
        return inner(params, 1)

    made = Tool(name="t", handler=handler)
    assert (made.description, made.params_type, made.result_type) == (
        "Look things up.",
        Lookup,
        Found,
    )

    @functools.wraps(lambda: None)
    def bare(params, *, context):  # type: ignore[no-untyped-def]
        raise NotImplementedError

    with pytest.raises(
        PromptValidationError, match="handler <lambda> has no type annotation for 'params'"
    ):
        Tool(name="t", handler=bare)
    assert types(Tool[Lookup, Found](name="t", handler=bare)) == (Lookup, Found)

    def text(params: Lookup) -> str:
        raise NotImplementedError

    @functools.wraps(text)
    def answering(params, *, context):  # type: ignore[no-untyped-def]
        return ToolResult[Found](message=text(params))

    assert types(Tool(name="t", handler=answering)) == (Lookup, object)


def test_tool_without_types_is_rejected_with_a_fix() -> None:
    with pytest.raises(
        PromptValidationError,
        match=r"declare the types: Tool\[Params, Result\]\(…\) or params_type=Params",
    ):
        Tool(name="t")
    with pytest.raises(
        PromptValidationError, match="handler unannotated has no type annotation for 'params'"
    ):
        Tool(name="t", handler=unannotated)


def test_unreadable_annotations_are_an_error_only_if_needed() -> None:
    def handler(params: "Missing", *, context: ToolContext) -> "ToolResult[Missing]":  # type: ignore[name-defined]  # noqa: F821  # pyright: ignore[reportUndefinedVariable]
        raise NotImplementedError

    with pytest.raises(
        PromptValidationError, match=r"handler handler cannot be read .*Missing.*or params_type="
    ):
        Tool(name="t", handler=handler)
    assert types(Tool(name="t", params_type=Lookup, handler=handler)) == (Lookup, object)


def test_handler_annotated_with_another_return_type_is_rejected() -> None:
    def said(params: Lookup, *, context: ToolContext) -> str:
        raise NotImplementedError

    async def nothing(params: Lookup, *, context: ToolContext) -> None:
        raise NotImplementedError

    for handler, returned in ((said, "str"), (nothing, "None")):
        with pytest.raises(
            PromptValidationError,
            match=rf"^tool 't': handler {handler.__name__} must be annotated to return ToolResult"
            rf"\[…\], got {returned}; return ToolResult",
        ):
            Tool(name="t", handler=handler)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    "returned", [Any, object, ToolResult, Awaitable, "Awaitable[ToolResult[Found]]", None]
)
def test_handler_whose_annotation_allows_tool_result_is_accepted(returned: object) -> None:
    # Any: the annotations are drawn below
    def handler(params: Lookup, *, context: ToolContext) -> Any:
        raise NotImplementedError

    if returned is None:
        del handler.__annotations__["return"]
    else:
        handler.__annotations__["return"] = returned
    assert Tool(name="t", handler=handler).params_type is Lookup


def test_generator_handler_is_rejected() -> None:
    # Any: a type checker would report the generator
    def parts(params: Lookup, *, context: ToolContext) -> Any:
        yield ToolResult(message="One.")

    async def asynchronous_parts(params: Lookup, *, context: ToolContext) -> Any:  # Any: as above
        yield ToolResult(message="One.")

    class Parts:
        def __call__(self, params: Lookup, *, context: ToolContext) -> Any:  # Any: as above
            yield ToolResult(message="One.")

    for handler, name in (
        (parts, "parts"),
        (asynchronous_parts, "asynchronous_parts"),
        (Parts(), "Parts"),
    ):
        with pytest.raises(
            PromptValidationError, match=rf"handler {name} must return its result, not yield it"
        ):
            Tool(name="t", params_type=Lookup, handler=handler)


def test_examples_must_fit_the_params() -> None:
    good = ToolExample[Lookup, Found](description="One", input=Lookup("1"), output=Found("u"))
    assert Tool[Lookup, Found](name="t", examples=[good]).examples == (good,)
    for bad in (ToolExample("Wrong", Found("u"), Found("u")), "text"):
        with pytest.raises(
            PromptValidationError,
            match=r"tool 't'.*must be ToolExample objects with an input of Lookup",
        ):
            Tool[Lookup, Found](name="t", examples=[bad])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]


# -------------------------------------------------------------------------------------------------
# tools as values


def tools() -> st.SearchStrategy[Tool[Any, Any]]:
    def build(
        name: str, description: str | None, handler: Any, typed: bool, overrides: bool
    ) -> Tool[Any, Any]:
        examples = [ToolExample("One", Lookup("1"), Unhashable(["a"]))] if typed else []
        return Tool[Lookup, Unhashable](
            name=name,
            description=description,
            handler=handler,
            examples=examples,
            accepts_overrides=overrides,
        )

    return st.builds(
        build,
        st.sampled_from(["a", "b"]),
        st.sampled_from([None, "Same."]),
        st.sampled_from([None, says_only_params, unannotated]),
        st.booleans(),
        st.booleans(),
    )


@given(tools(), tools())
def test_equal_tools_hash_alike_and_survive_pickling(
    first: Tool[Any, Any], second: Tool[Any, Any]
) -> None:
    names = [field.name for field in fields(Tool)]
    assert (first == second) is all(getattr(first, name) == getattr(second, name) for name in names)
    if first == second:
        assert hash(first) == hash(second)
    for twin in (pickle.loads(pickle.dumps(first)), copy.copy(first), copy.deepcopy(first)):
        assert twin == first
        assert hash(twin) == hash(first)
        assert type(twin) is Tool


@given(tools())
def test_replace_returns_a_validated_tool(tool: Tool[Any, Any]) -> None:
    assert replace(tool) == tool
    renamed = replace(tool, name="c", accepts_overrides=False)
    assert (renamed.name, renamed.accepts_overrides, renamed.params_type) == (
        "c",
        False,
        tool.params_type,
    )
    with pytest.raises(PromptValidationError):
        replace(tool, name="No")
    with pytest.raises(PromptValidationError):
        replace(tool, params_type=int)


def test_subscripted_tool_equals_a_plain_tool() -> None:
    subscripted, plain = (
        Tool[Lookup, Found](name="t", handler=lookup),
        Tool(name="t", handler=lookup),
    )
    assert subscripted == plain
    assert type(subscripted) is type(plain) is Tool
    assert Tool[Lookup, Found] == Tool[Lookup, Found]


def test_tool_is_frozen_and_copies_its_examples() -> None:
    examples = [ToolExample("One", Lookup("1"), Found("u"))]
    tool = Tool[Lookup, Found](name="t", examples=examples)
    examples.clear()
    assert len(tool.examples) == 1
    for field in fields(Tool):
        with pytest.raises(FrozenInstanceError):
            setattr(tool, field.name, None)
    with pytest.raises((AttributeError, TypeError)):
        tool.extra = 1  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.claim("TL-15")
def test_tools_accept_overrides_by_default() -> None:
    assert Tool[Lookup, Found](name="t").accepts_overrides
    assert not Tool[Lookup, Found](name="t", accepts_overrides=False).accepts_overrides


@pytest.mark.claim("TL-14")
def test_tool_handler_is_optional() -> None:
    assert Tool[Lookup, Found](name="t").handler is None


# -------------------------------------------------------------------------------------------------
# annotations that contradict the declared types


@dataclass(frozen=True)
class Wider(Lookup):
    """A subclass, which a handler of `Lookup` also accepts."""


type Looked = Lookup


class Keyed(TypedDict):
    entity_id: str


def takes_wider(params: Wider, *, context: ToolContext) -> ToolResult[Found]:
    return lookup(params, context=context)


def takes_alias(params: Annotated[Looked, "…"], *, context: ToolContext) -> ToolResult[Found]:
    return lookup(params, context=context)


def takes_union(params: Lookup | Found, *, context: ToolContext) -> ToolResult[Found | None]:
    return ToolResult(message="")


def takes_dict(params: dict[str, str], *, context: ToolContext) -> ToolResult[Found]:
    return ToolResult(message="")


def returns_lookup(params: Lookup, *, context: ToolContext) -> ToolResult[Lookup]:
    return ToolResult(message="", value=params)


def returns_text(params: Lookup, *, context: ToolContext) -> str:
    return ""


class OfKeyed:
    def __call__(self, params: Keyed, *, context: ToolContext) -> ToolResult[Found]:
        return ToolResult(message="")

    def method(self, params: Keyed, *, context: ToolContext) -> ToolResult[Found]:
        return ToolResult(message="")


def with_wider(prefix: str, params: Wider, *, context: ToolContext) -> ToolResult[Found]:
    return ToolResult(message=prefix)


@pytest.mark.parametrize(
    ("handler", "problem"),
    [
        (takes_wider, "takes Wider, but the tool is declared with Lookup"),
        (OfKeyed(), "takes Keyed, but the tool is declared with Lookup"),
        (OfKeyed().method, "takes Keyed, but the tool is declared with Lookup"),
        (functools.partial(with_wider, "p"), "takes Wider, but the tool is declared with Lookup"),
        (takes_dict, r"takes dict\[str, str\], but the tool is declared with Lookup"),
        (returns_lookup, "returns ToolResult of Lookup, but the tool is declared with Found"),
        (returns_text, "must be annotated to return .*, got str"),
    ],
    ids=["function", "callable", "method", "partial", "dict", "result", "no result"],
)
def test_handler_annotated_for_other_types_is_rejected(handler: Any, problem: str) -> None:
    with pytest.raises(PromptValidationError, match=problem):
        Tool[Lookup, Found](name="lookup", handler=handler)
    with pytest.raises(PromptValidationError, match=problem):
        Tool(name="lookup", handler=handler, params_type=Lookup, result_type=Found)


WITHOUT_ANNOTATIONS: Any = lambda params, *, context: ToolResult(message="")  # noqa: E731


@pytest.mark.parametrize(
    "handler",
    [
        *(lookup, takes_alias, takes_union, takes_anything, unannotated, says_only_params),
        WITHOUT_ANNOTATIONS,
    ],
)
def test_handler_annotated_for_wider_types_is_accepted(handler: Any) -> None:
    for params_type in (Lookup, Wider):
        tool = Tool(name="t", handler=handler, params_type=params_type, result_type=Found)
        assert types(tool) == (params_type, Found)


def test_handler_annotated_with_dict_accepts_typed_dict_params() -> None:
    takes: Any = takes_dict
    assert Tool[Keyed, Found](name="t", handler=takes).params_type is Keyed
    assert Tool[Keyed, Found](name="t", handler=OfKeyed()).params_type is Keyed


# -------------------------------------------------------------------------------------------------
# arguments


def answers(tool: Tool[Any, Any], *arguments: str) -> list[str]:
    section = MarkdownSection(title="S", template="Do it.", tools=[tool])
    template = PromptTemplate(ns="tests", key="arguments", sections=[section])
    script = [call(*((tool.name, text) for text in arguments)), say("done")]
    response = ScriptedAdapter(script).evaluate(template.bind(), session=Session())
    return [answer.content for answer in response.transcript if isinstance(answer, ToolMessage)]


@dataclass(frozen=True)
class Defaults:
    word: str = "none"


def tell(params: Defaults, *, context: ToolContext) -> ToolResult[None]:
    return ToolResult(message=params.word)


def test_null_and_empty_arguments_are_parsed_as_an_empty_object() -> None:
    tool = Tool(name="tell", handler=tell)
    assert answers(tool, "", " ", "null", " null\n", "{}") == ["none"] * 5
    (answer,) = answers(Tool(name="lookup", handler=lookup), "null")
    assert "entity_id" in answer
    assert "object" not in answer


@pytest.mark.parametrize("schema", [False, True])
def test_duplicate_key_in_arguments_is_named_in_the_reply(*, schema: bool) -> None:
    tool: Tool[Any, Any] = Tool(name="tell", handler=tell)
    if schema:
        tool = Tool.from_schema(name="tell", description="d", parameters=None, handler=unannotated)
    (answer,) = answers(tool, '{"word": "a", "word": "b"}')
    problem = "the key 'word' stands twice in one object; remove one of them"
    assert answer == f"Invalid arguments for 'tell': {problem}"
