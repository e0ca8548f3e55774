"""One door: what each package exports is written down here, and a door defines nothing.

Two doors are lazy (decision 011): type checkers read their imports, Python a list of names.
"""

import ast
import importlib
import pickle
import pydoc
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import get_type_hints

import pytest

import weakincentives

PACKAGE = Path(weakincentives.__file__).parent
DOORS = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("__init__.py"))

EXPORTS = {
    "weakincentives": [
        "Budget",
        "Deadline",
        "MarkdownSection",
        "Prompt",
        "PromptTemplate",
        "SectionVisibility",
        "TokenUsage",
        "Tool",
        "ToolContext",
        "ToolResult",
        "__version__",
    ],
    "weakincentives.prompt": [
        "Disclosure",
        "HostMount",
        "MarkdownSection",
        "OpenSectionsParams",
        "OutputParseError",
        "OverridesStoreError",
        "Prompt",
        "PromptError",
        "PromptRenderError",
        "PromptRenderer",
        "PromptTemplate",
        "PromptValidationError",
        "ReadSectionParams",
        "ReadSectionResult",
        "RegistrySnapshot",
        "RenderedPrompt",
        "Section",
        "SectionNode",
        "SectionPath",
        "SectionVisibility",
        "SetVisibilityOverride",
        "Span",
        "StructuredOutputConfig",
        "TaskExample",
        "TaskExamplesSection",
        "TaskStep",
        "Tool",
        "ToolContext",
        "ToolExample",
        "ToolHandler",
        "ToolOverride",
        "ToolRenderableResult",
        "ToolResult",
        "ToolValidationError",
        "VisibilityExpansionRequired",
        "VisibilityOverrides",
        "WorkspaceSection",
        "parse_structured_output",
    ],
    "weakincentives.prompt.overrides": [
        "OverridesTag",
        "PromptDescriptor",
        "PromptOverride",
        "PromptOverridesStore",
        "SectionOverride",
        "TaskExampleOverride",
        "TextId",
        "ToolExampleOverride",
        "ToolOverride",
    ],
    "weakincentives.runtime.session": [
        "Append",
        "Reducer",
        "Replace",
        "Session",
        "SessionSnapshot",
        "Slice",
        "SliceOp",
        "append_all",
        "reducer",
        "replace_latest",
        "replace_latest_by",
        "upsert_by",
    ],
    "weakincentives.runtime.session.protocols": [
        "SessionProtocol",
        "SliceAccessor",
        "SliceView",
        "StateView",
    ],
    "weakincentives.runtime.events": [
        "Event",
        "EventBus",
        "InProcessEventBus",
        "Operation",
        "OperationKind",
        "OverridesDropped",
        "ParamsMissing",
        "PromptExecuted",
        "PromptRendered",
        "ProviderCalled",
        "ToolInvoked",
        "ToolsInjected",
        "ToolsWithdrawn",
        "VisibilityExpanded",
    ],
    "weakincentives.adapters.core": [
        "Connection",
        "LoopAdapter",
        "PromptEvaluationError",
        "PromptResponse",
        "ProviderAdapter",
        "ThrottleError",
    ],
    "weakincentives.adapters.claude_agent_sdk": [
        "ClaudeAgentSDKAdapter",
    ],
    "weakincentives.adapters.litellm": [
        "LiteLLMAdapter",
    ],
    "weakincentives.adapters.openai": [
        "OpenAIAdapter",
    ],
    "weakincentives.cli": [
        "main",
    ],
    "weakincentives.contrib.durable": [
        "DurableAgent",
        "DurableRun",
        "DurableRuns",
        "RecordedSteps",
        "ReplayError",
        "SqliteConnection",
        "StepFailedError",
        "Steps",
        "WorkerFailover",
        "durable",
        "execute_run",
        "install",
        "to_input",
    ],
    "weakincentives.contrib.otel": [
        "instrument",
    ],
    "weakincentives.filesystem": [
        "FileStat",
        "Filesystem",
        "FilesystemLimitError",
        "FilesystemLimits",
        "GrepMatch",
        "HostFilesystem",
        "InMemoryFilesystem",
        "OverlayFilesystem",
        "PathError",
        "glob_matches",
    ],
    "weakincentives.testing": [
        "Events",
        "NetworkRefusedError",
        "PromptState",
        "PromptsWithOverrides",
        "RecordedEvents",
        "Reply",
        "ScriptExhaustedError",
        "ScriptedAdapter",
        "ScriptedAdapters",
        "SeenRequest",
        "ToolContractError",
        "assert_tool_contract",
        "call",
        "render_states",
        "say",
    ],
}
LAZY = ["weakincentives", "weakincentives.testing"]


@pytest.mark.claim("TL-42", "PR-05")
@pytest.mark.parametrize("name", EXPORTS)
def test_a_door_exports_exactly_what_is_written_here(name: str) -> None:
    door = importlib.import_module(name)
    assert sorted(door.__all__) == EXPORTS[name]
    assert [export for export in EXPORTS[name] if not hasattr(door, export)] == []


def names_of(module: str, statements: list[ast.stmt]) -> list[str]:
    """The names that relative imports of a door bring in; anything else there fails the test."""
    found: list[str] = []
    for statement in statements:
        match statement:
            case ast.ImportFrom(module="lazy") | ast.Assign(targets=[ast.Name(id="__all__")]):
                pass
            case ast.ImportFrom(module="typing", names=[ast.alias(name="TYPE_CHECKING")]):
                pass
            case ast.ImportFrom(level=level, names=names) if level:
                found += [alias.asname or alias.name for alias in names]
            case ast.If(
                test=ast.Name(id="TYPE_CHECKING"),
                body=body,
                orelse=[ast.Assign(value=ast.Call() as call)],
            ):
                found += names_of(module, body)
                homes: dict[str, str] = ast.literal_eval(call.args[1])
                imported = {
                    f"{'.' * one.level}{one.module}": {alias.name for alias in one.names}
                    for one in body
                    if isinstance(one, ast.ImportFrom)
                }
                assert {home: set(names.split()) for home, names in homes.items()} == imported
            case _:
                pytest.fail(f"{module}:{statement.lineno} is neither a relative import nor __all__")
    return found


@pytest.mark.parametrize("path", DOORS)
def test_a_door_defines_nothing_and_exports_all_that_it_imports(path: str) -> None:
    body = ast.parse((PACKAGE / path).read_text()).body
    assert ast.get_docstring(ast.Module(body, []))
    exported = [
        name for one in body if isinstance(one, ast.Assign) for name in ast.literal_eval(one.value)
    ]
    assert sorted(names_of(path, body[1:])) == sorted(exported)


@pytest.mark.parametrize("name", LAZY)
def test_a_lazy_door_opens_nothing_by_itself(name: str) -> None:
    code = f"import {name}, sys; print(*(one for one in sys.modules if one.startswith('weakincentives')))"
    opened = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert sorted(opened) == sorted({"weakincentives", "weakincentives.lazy", name})


@pytest.mark.parametrize("name", LAZY)
def test_a_lazy_door_looks_like_any_other(name: str) -> None:
    door = importlib.import_module(name)
    assert {"__name__", "__path__", *EXPORTS[name]} <= set(dir(door))
    everything: dict[str, object] = {}
    exec(f"from {name} import *", everything)  # noqa: S102 - what a user may write
    assert {one: everything[one] for one in EXPORTS[name]} == {
        one: getattr(door, one) for one in EXPORTS[name]
    }
    with pytest.raises(AttributeError, match=f"module '{name}' has no attribute 'Nothing'"):
        door.Nothing  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'Nothing'"):
        exec(f"from {name} import Nothing")  # noqa: S102 - as above
    assert EXPORTS[name][0] in pydoc.plain(pydoc.render_doc(door))


def test_what_a_lazy_door_gives_is_pickled_and_annotated_by_its_own_module() -> None:
    def annotated(budget: weakincentives.Budget, /) -> "weakincentives.Prompt[None]":
        raise NotImplementedError

    assert get_type_hints(annotated)["budget"] is weakincentives.Budget
    budget = weakincentives.Budget(max_calls=3)
    assert pickle.loads(pickle.dumps(budget)) == budget
    assert weakincentives.Budget.__module__ == "weakincentives.limits"


def test_the_version_is_that_of_the_installed_package() -> None:
    assert weakincentives.__version__ == version("weakincentives")


def test_what_is_loaded_later_is_the_thing_itself_and_other_names_are_refused() -> None:
    from weakincentives import prompt
    from weakincentives.prompt.overrides.model import ToolOverride

    assert prompt.ToolOverride is ToolOverride
    with pytest.raises(
        AttributeError, match=r"module 'weakincentives.prompt' has no attribute 'ToolOverrides'"
    ):
        prompt.ToolOverrides  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]  # noqa: B018
