"""Annotations in Python 3.14 may use names that are defined later, or only for type checkers."""

import sys
from functools import partial
from types import ModuleType
from typing import Any

import pytest

from weakincentives import (
    Chat,
    MarkdownSection,
    ModelSettings,
    Prompt,
    PromptTemplate,
    RunConfig,
)
from weakincentives.adapters.anthropic import AnthropicAdapter
from weakincentives.adapters.openai import OpenAIAdapter
from weakincentives.evaluation.main_loop import MainLoop
from weakincentives.resources import Binding, ResourceContext, ResourceRegistry
from weakincentives.runtime.session import Session
from weakincentives.signatures import did_you_mean, selector_form, signature_of
from weakincentives.testing import ScriptedAdapter, call, say

# A string, because older versions raise NameError for this code.
SOURCE = """
from dataclasses import dataclass
from typing import TypedDict

from weakincentives.adapters.core import ProviderAdapter
from weakincentives.prompt import MarkdownSection, PromptTemplate, Tool, ToolResult


@dataclass(frozen=True)
class Params:
    number: int


class Order(TypedDict):
    total: Price


def handler(params: Params, *, context: Missing) -> Missing:
    return ToolResult(message=f"number {params.number}")


def enabled(params: Order, *, session: Missing) -> bool:
    return True


def approval(params: Params, *, session: Missing) -> Missing:
    return None


def provider(resources: Missing) -> Missing:
    return "a resource"


class Adapter(ProviderAdapter):
    def __init__(self, inner):
        self.inner = inner

    def evaluate(self, prompt: Missing, /, *, session: Missing, **options: Missing) -> Missing:
        return self.inner.evaluate(prompt, session=session, **options)


tool = Tool[Params, str](name="tell", handler=handler, approval=approval)
section = MarkdownSection[Order](
    title="Order", key="order", template="It is ${total}.", enabled=enabled, tools=[tool]
)
template = PromptTemplate(ns="tests", key="later", sections=[section])


@dataclass(frozen=True)
class Price:
    euros: int
"""
needs_lazy_annotations = pytest.mark.skipif(
    sys.version_info < (3, 14), reason="annotations are evaluated where they are written"
)


# Any: the names in the source
@pytest.fixture
def later() -> Any:
    module = ModuleType("later")
    sys.modules["later"] = module
    exec(SOURCE, module.__dict__)  # noqa: S102 - our own source
    yield module
    del sys.modules["later"]


@needs_lazy_annotations
def test_prompt_with_unresolvable_annotations_runs(later: Any) -> None:
    adapter = ScriptedAdapter([call(("tell", {"number": 3})), say("done")])
    prompt = later.template.bind({"total": later.Price(5)})
    assert "euros" in prompt.render(session=Session()).text
    assert MainLoop(later.Adapter(adapter)).execute(prompt, session=Session()).text == "done"
    assert "number 3" in str(adapter.requests[1].messages)


@needs_lazy_annotations
def test_provider_with_unresolvable_annotations_works(later: Any) -> None:
    with ResourceContext(ResourceRegistry.of(Binding(str, later.provider))) as resources:
        assert resources.get(str) == "a resource"


def test_signature_of_matches_inspect() -> None:
    def function(first: int, *, second: str = "") -> None: ...

    assert str(signature_of(function)) == "(first: int, *, second: str = '') -> None"
    assert str(signature_of(partial(function, 1))) == "(*, second: str = '') -> None"
    with pytest.raises(TypeError, match="not a callable"):
        signature_of(3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("selector", "form", "keyword_only_form"),
    [
        (lambda: None, (False, set()), (False, set())),
        (lambda params: None, (True, set()), (True, set())),
        (lambda session: None, (False, {"session"}), (True, set())),
        (lambda *, session: None, (False, {"session"}), (False, {"session"})),
        (lambda params, session: None, (True, {"session"}), None),
        (lambda params, other: None, None, None),
        (lambda *, other: None, None, None),
        (lambda *args: None, None, None),
        (lambda **session: None, None, None),
    ],
    ids=[
        "()",
        "params",
        "session",
        "*, session",
        "params, session",
        "params, other",
        "*, other",
        "*args",
        "**session",
    ],
)
def test_selector_form_says_whether_params_and_session_are_taken(
    selector: Any, form: Any, keyword_only_form: Any
) -> None:
    for keyword_only, expected in ((False, form), (True, keyword_only_form)):
        if expected is None:
            with pytest.raises(TypeError, match=r"^takes "):
                selector_form(selector, {"session"}, keyword_only=keyword_only)
        else:
            assert selector_form(selector, {"session"}, keyword_only=keyword_only) == expected


@pytest.mark.parametrize(
    ("name", "known", "remedy"),
    [
        ("message_history", ["message", "conversation"], "did you mean 'conversation'?"),
        ("model", ["session", "adapter"], "did you mean 'adapter'?"),
        ("model", ["session"], "use one of session"),
        ("sesion", ["session", "adapter"], "did you mean 'session'?"),
    ],
)
def test_unknown_name_is_answered_with_its_synonym_or_the_nearest_one(
    name: str, known: list[str], remedy: str
) -> None:
    assert did_you_mean(name, known) == remedy


TO_A_SECTION = "pass them to a section, such as MarkdownSection(title=…, template=…, tools=[…])"
TO_ITS_TEXT = "write them in a section, such as MarkdownSection(title=…, template=…)"
TO_AN_ADAPTER = "pass it to the adapter, such as adapter_for(model, base_url=…)"
# Any: arguments that type checkers reject
TEMPLATE: Any = PromptTemplate
LOOP: Any = MainLoop(ScriptedAdapter([]))
TASK = PromptTemplate(ns="n", key="k")


@pytest.mark.parametrize(
    ("create", "given", "remedy"),
    [
        (partial(TEMPLATE, ns="n", key="k"), "tools", TO_A_SECTION),
        (partial(TEMPLATE[int], ns="n", key="k"), "instructions", TO_ITS_TEXT),
        (partial(Prompt[int], ns="n", key="k"), "tools", TO_A_SECTION),
        (partial(TEMPLATE, ns="n", key="k"), "section", "did you mean 'sections'?"),
        (partial(TEMPLATE, ns="n", key="k"), "temperature", "ModelSettings(temperature=…)"),
        (partial(MainLoop, ScriptedAdapter([])), "base_url", TO_AN_ADAPTER),
        (partial(MainLoop, ScriptedAdapter([])), "model", "did you mean 'adapter'?"),
        (partial(Chat, LOOP, TASK), "tools", TO_A_SECTION),
        (partial(LOOP.execute, TASK), "tools", TO_A_SECTION),
        (RunConfig, "base_url", TO_AN_ADAPTER),
        (partial(MarkdownSection, title="T", template="T"), "tool", "did you mean 'tools'?"),
        (partial(OpenAIAdapter, "m"), "temperature", "ModelSettings(temperature=…)"),
        (partial(AnthropicAdapter, "m"), "baseurl", "did you mean 'base_url'?"),
        (ModelSettings, "temprature", "did you mean 'temperature'?"),
    ],
)
def test_unknown_argument_is_answered_with_the_place_where_it_belongs(
    create: Any, given: str, remedy: str
) -> None:
    with pytest.raises(TypeError, match=f"argument {given!r}") as caught:
        create(**{given: "x"})
    assert str(caught.value).endswith(remedy)


def test_subclass_is_named_by_the_error_for_an_unknown_argument() -> None:
    class Support(MainLoop):
        pass

    create: Any = Support
    with pytest.raises(
        TypeError, match=r"^Support\(\) got an unexpected keyword argument 'budget'"
    ):
        create(ScriptedAdapter([]), budget=None)
