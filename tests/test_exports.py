"""One door: what each package exports is written down here, and a door defines nothing."""

import ast
import importlib
from pathlib import Path

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
        "SlicePolicy",
        "append_all",
        "reducer",
        "replace_latest",
        "replace_latest_by",
        "upsert_by",
    ],
    "weakincentives.runtime.session.protocols": ["SessionProtocol", "SliceAccessor", "SliceView", "StateView"],
    "weakincentives.runtime.events": [
        "Event",
        "EventBus",
        "InProcessEventBus",
        "OverridesDropped",
        "PromptExecuted",
        "PromptRendered",
        "ProviderCalled",
        "ToolInvoked",
        "ToolsInjected",
        "ToolsWithdrawn",
        "VisibilityExpanded",
        "Work",
        "WorkKind",
    ],
    "weakincentives.adapters.core": [
        "Conversation",
        "LoopAdapter",
        "PromptEvaluationError",
        "PromptResponse",
        "ProviderAdapter",
        "ThrottleError",
    ],
    "weakincentives.adapters.claude_agent_sdk": ["ClaudeAgentSDKAdapter"],
    "weakincentives.adapters.litellm": ["LiteLLMAdapter"],
    "weakincentives.adapters.openai": ["OpenAIAdapter"],
    "weakincentives.cli": ["main"],
    "weakincentives.contrib.durable": [
        "DurableAgent",
        "DurableRun",
        "DurableRuns",
        "RecordedSteps",
        "ReplayError",
        "SqliteConnection",
        "StepFailedError",
        "Steps",
        "Takeover",
        "durable",
        "install",
        "perform",
        "to_input",
    ],
    "weakincentives.contrib.otel": ["instrument"],
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
    "weakincentives.testing": ["Reply", "ScriptExhaustedError", "ScriptedAdapter", "call", "say"],
}


@pytest.mark.parametrize("name", EXPORTS)
def test_a_door_exports_exactly_what_is_written_here(name: str) -> None:
    door = importlib.import_module(name)
    assert sorted(door.__all__) == EXPORTS[name]
    assert [export for export in EXPORTS[name] if not hasattr(door, export)] == []


def imports(body: list[ast.stmt]) -> list[tuple[str, str]]:
    """Module and name of what the statements import from beside them."""
    found = [one for one in body if isinstance(one, ast.ImportFrom) and one.level]
    return [
        (f"{'.' * one.level}{one.module or ''}", alias.asname or alias.name) for one in found for alias in one.names
    ]


@pytest.mark.parametrize("path", DOORS)
def test_a_door_defines_nothing_and_exports_all_that_it_imports(path: str) -> None:
    body = ast.parse((PACKAGE / path).read_text()).body
    assert ast.get_docstring(ast.Module(body, []))
    imported, exported, later, listed = imports(body), list[str](), list[tuple[str, str]](), list[tuple[str, str]]()
    for statement in body[1:]:
        match statement:
            case ast.ImportFrom(level=level, module=module) if level or module in {"typing", "importlib"}:
                pass
            case ast.If(
                test=ast.Name(id="TYPE_CHECKING"),
                body=inner,
                orelse=[ast.Assign(targets=[ast.Name(id="_LATER")], value=modules), ast.FunctionDef("__getattr__")],
            ):
                later = imports(inner)
                assert len({module for module, _ in later}) == len(inner)
                listed = [(module, name) for module, names in ast.literal_eval(modules).items() for name in names]
            case ast.Assign(targets=[ast.Name(id="__all__")], value=names):
                exported = ast.literal_eval(names)
            case _:
                pytest.fail(f"{path}:{statement.lineno} is neither an import nor __all__")
    assert later == listed
    assert sorted(name for _, name in imported + later) == sorted(exported)


def test_what_is_loaded_later_is_the_thing_itself_and_other_names_are_refused() -> None:
    from weakincentives import prompt
    from weakincentives.prompt.overrides.model import ToolOverride

    assert prompt.ToolOverride is ToolOverride
    with pytest.raises(AttributeError, match=r"module 'weakincentives.prompt' has no attribute 'ToolOverrides'"):
        prompt.ToolOverrides  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]  # noqa: B018
