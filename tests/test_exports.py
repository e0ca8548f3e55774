"""The exports of each package, listed by name; a package's `__init__` defines nothing itself."""

import ast
import importlib
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import weakincentives

PACKAGE = Path(weakincentives.__file__).parent
ENTRY_POINTS = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("__init__.py"))
# they import names on first use, and have their own tests below
LAZY = ["__init__.py", "prompt/__init__.py", "serde/__init__.py"]
OWN_TESTS = [*LAZY, "evaluation/__init__.py"]

EXPORTS = {
    "weakincentives": [
        "Approve",
        "Budget",
        "Chat",
        "Deadline",
        "Deny",
        "MainLoop",
        "MarkdownSection",
        "ModelSettings",
        "OutputRejected",
        "Preview",
        "Prompt",
        "PromptEvaluationError",
        "PromptTemplate",
        "ReplaceArguments",
        "Resource",
        "RunConfig",
        "RunSuspended",
        "SectionVisibility",
        "Session",
        "Suspension",
        "TokenUsage",
        "Tool",
        "ToolContext",
        "ToolError",
        "ToolResult",
        "__version__",
        "adapter_for",
        "tool",
    ],
    "weakincentives.prompt": [
        "Approval",
        "ApprovalMode",
        "Disclosure",
        "Document",
        "HostMount",
        "Image",
        "JsonParams",
        "MarkdownSection",
        "OutputParseError",
        "OutputRejected",
        "OverridesStoreError",
        "Prompt",
        "PromptError",
        "PromptRenderError",
        "PromptRenderer",
        "PromptTemplate",
        "PromptValidationError",
        "RegistrySnapshot",
        "RenderedPrompt",
        "Resource",
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
        "ToolError",
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
        "StateSlice",
        "StateView",
        "append_all",
        "reducer",
        "replace_latest",
        "replace_latest_by",
        "state",
        "upsert_by",
    ],
    "weakincentives.runtime.session.protocols": [
        "SessionProtocol",
        "SliceAccessor",
        "SliceView",
        "StateView",
    ],
    "weakincentives.runtime.events": [
        "AnswerRejected",
        "ApprovalDecided",
        "Compacted",
        "EvaluationStopped",
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
        "SectionTexts",
        "ToolInvoked",
        "ToolsInjected",
        "ToolsWithdrawn",
        "VisibilityExpanded",
    ],
    "weakincentives.resources": [
        "Bindable",
        "Binding",
        "CallResources",
        "ForkedResources",
        "NotIsolatedError",
        "ResourceContext",
        "ResourceError",
        "ResourceRegistry",
        "Scope",
        "release",
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
    "weakincentives.adapters.anthropic": ["AnthropicAdapter"],
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
        "MemoryLogTable",
        "SqliteConnection",
        "StoredRun",
        "WaitingRun",
        "WaitingRuns",
        "WaitingRunsError",
        "WorkerFailover",
        "create_tables",
        "durable",
        "execute_run",
        "execute_run_async",
        "install",
        "open_waiting_runs",
        "to_input",
        "to_resumed",
    ],
    "weakincentives.contrib.mcp": [
        "Accept",
        "Cancel",
        "Decline",
        "Elicitation",
        "MCPElicitationAnswered",
        "MCPLogMessage",
        "MCPProgress",
        "MCPSection",
        "MCPServerChanged",
    ],
    "weakincentives.contrib.otel": [
        "instrument",
    ],
    "weakincentives.contrib.skills": [
        "Skill",
        "SkillError",
        "SkillExport",
        "SkillFinding",
        "SkillSection",
        "SkillWarning",
        "export_skills",
        "read_skill",
        "skills",
    ],
    "weakincentives.evals": [
        "AskJudge",
        "Case",
        "CaseEvaluation",
        "CaseFileError",
        "CaseProblem",
        "CompareOptions",
        "Comparison",
        "ComparisonError",
        "Comparisons",
        "Dataset",
        "DurableTarget",
        "EvalCall",
        "EvalRule",
        "EvalRun",
        "EvaluateOptions",
        "Evaluator",
        "Experiment",
        "Progress",
        "RunResult",
        "Scale",
        "Score",
        "ScoreComparison",
        "ScoreSummary",
        "Variant",
        "VariantResults",
        "case_schema",
        "compare",
        "compare_all",
        "evaluate",
        "evaluate_async",
        "evaluator",
        "experiment_page",
        "load_experiment",
        "map_prompts",
        "map_prompts_async",
        "save_baseline",
    ],
    "weakincentives.evaluation.exports": [
        "AnswerRejected",
        "ApprovalRequested",
        "Approve",
        "Approver",
        "AssistantMessage",
        "BudgetExceededError",
        "Change",
        "ChangedRunError",
        "Chat",
        "Citation",
        "Compaction",
        "Completed",
        "ConcurrentRunError",
        "Connection",
        "Conversation",
        "DeadlineExceededError",
        "Decision",
        "Deny",
        "Execution",
        "ExpansionLimitError",
        "InnerLoop",
        "InnerLoopConfig",
        "Instructions",
        "LimitError",
        "LogSink",
        "LoopAdapter",
        "MainLoop",
        "Message",
        "OutputDelta",
        "OutputSpec",
        "Preview",
        "PromptEvaluationError",
        "PromptResponse",
        "ProviderAdapter",
        "ProviderRequest",
        "ReasoningDelta",
        "ReplaceArguments",
        "Restarted",
        "Run",
        "RunConfig",
        "RunLog",
        "RunSuspended",
        "StreamEvent",
        "Suspension",
        "TextDelta",
        "ThrottleError",
        "ToolCall",
        "ToolCallFinished",
        "ToolCallStarted",
        "ToolExecutor",
        "ToolMessage",
        "ToolSpec",
        "TurnLimitError",
        "TurnOptions",
        "UserMessage",
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
        "Cassette",
        "CassetteMiss",
        "Cassettes",
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


@pytest.mark.claim("TL-42", "PR-05")
@pytest.mark.parametrize("name", EXPORTS)
def test_package_exports_exactly_the_listed_names(name: str) -> None:
    entry_point = importlib.import_module(name)
    new, gone = (
        set(entry_point.__all__) - {*EXPORTS[name]},
        {*EXPORTS[name]} - set(entry_point.__all__),
    )
    assert (new, gone) == (set(), set()), f"change EXPORTS[{name!r}] in this file"
    assert sorted(entry_point.__all__) == EXPORTS[name]
    assert [export for export in EXPORTS[name] if not hasattr(entry_point, export)] == []


@pytest.mark.parametrize("path", [path for path in ENTRY_POINTS if path not in OWN_TESTS])
def test_package_init_defines_nothing_and_exports_all_of_its_imports(path: str) -> None:
    docstring, *statements = ast.parse((PACKAGE / path).read_text()).body
    assert isinstance(docstring, ast.Expr)
    imported, exported = imports_and_exports(path, statements)
    assert sorted(imported) == sorted(exported)


def imports_and_exports(path: str, statements: list[ast.stmt]) -> tuple[list[str], list[str]]:
    imported: list[str] = []
    exported: list[str] = []
    for statement in statements:
        match statement:
            case ast.ImportFrom(level=level, names=names) if level:
                imported += [alias.asname or alias.name for alias in names]
            case ast.Assign(targets=[ast.Name(id="__all__")], value=value):
                exported = ast.literal_eval(value)
            case _:
                pytest.fail(f"{path}:{statement.lineno} is neither a relative import nor __all__")
    return imported, exported


@pytest.mark.parametrize("path", LAZY)
def test_a_door_imports_later_what_type_checkers_read_there_as_an_import(path: str) -> None:
    _, typing, *imports, late = ast.parse((PACKAGE / path).read_text()).body
    assert ast.unparse(typing) == "from typing import TYPE_CHECKING"
    assert isinstance(late, ast.If)
    imported, exported = imports_and_exports(path, [*imports, *late.body])
    assert sorted(imported) == sorted([*exported, "lazy_exports"])
    (assignment,) = late.orelse
    assert isinstance(assignment, ast.Assign)
    assert isinstance(assignment.value, ast.Call)
    _, modules = assignment.value.args
    assert ast.literal_eval(modules) == {
        alias.name: f".{statement.module}"
        for statement in late.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }


@pytest.mark.parametrize("name", ["weakincentives.prompt", "weakincentives.serde"])
def test_a_package_with_lazy_exports_lists_and_imports_them_and_no_others(name: str) -> None:
    code = f"""
import sys, {name} as package
late = [name for name in package.__all__ if name not in vars(package)]
assert late
assert set(package.__all__) <= set(dir(package))
from {name} import *
assert set(package.__all__) <= vars(package).keys()
package.parse_jsn
"""
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert process.stderr.splitlines()[-1].startswith(
        f"AttributeError: module {name!r} has no attribute 'parse_jsn'"
    )


def test_root_package_imports_lazily_and_rejects_unknown_names() -> None:
    code = """
import sys, weakincentives
assert set(weakincentives.__all__) <= set(dir(weakincentives))
assert "weakincentives.evaluation" not in sys.modules
assert "weakincentives.limits" not in sys.modules
from weakincentives import Chat, MainLoop, Session
from weakincentives.evaluation import chat, main_loop
from weakincentives.runtime import session
assert (Chat, MainLoop, Session) == (chat.Chat, main_loop.MainLoop, session.Session)
assert vars(weakincentives)["Chat"] is Chat
weakincentives.MainLop
"""
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert process.stderr.splitlines()[-1].startswith(
        "AttributeError: module 'weakincentives' has no attribute 'MainLop'"
    )


def test_evaluation_package_imports_lazily_and_rejects_unknown_names() -> None:
    code = """
import sys
from weakincentives import evaluation
from weakincentives.evaluation import exports
assert set(exports.__all__) <= set(dir(evaluation))
from weakincentives.evaluation import Chat, Run, chat, run
assert (Chat, Run) == (chat.Chat, run.Run)
assert vars(evaluation)["Chat"] is Chat
assert "MainLoop" not in vars(evaluation)
before = set(globals())
from weakincentives.evaluation import *
assert set(exports.__all__) <= set(globals()), set(exports.__all__) - set(globals())
assert set(globals()) - before <= {"before", *exports.__all__}
evaluation.MainLop
"""
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert process.stderr.splitlines()[-1].startswith(
        "AttributeError: module 'weakincentives.evaluation' has no attribute 'MainLop'"
    )


def test_inner_loop_config_is_an_alias_of_run_config() -> None:
    from weakincentives.evaluation import InnerLoopConfig, RunConfig, inner_loop

    assert InnerLoopConfig is RunConfig is inner_loop.InnerLoopConfig


def test_evaluation_module_does_not_import_the_inner_loop() -> None:
    code = "import weakincentives.evaluation.errors, sys; print(*sys.modules)"
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert "weakincentives.evaluation.inner_loop" not in process.stdout.split()


def test_testing_package_imports_no_optional_packages() -> None:
    code = "import weakincentives.testing, sys; print(*sys.modules)"
    modules = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert {"hypothesis", "pydantic", "pytest", "syrupy"}.isdisjoint(modules)


def test_version_matches_the_installed_package() -> None:
    assert weakincentives.__version__ == version("weakincentives")
