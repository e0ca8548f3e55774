"""The documents agree with the code: modules, options, fault codes, links, and the output of
examples.
"""

import ast
import builtins
import importlib
import inspect
import json
import re
import subprocess
import sys
from collections import Counter
from contextlib import redirect_stdout, suppress
from functools import cache
from importlib.util import find_spec
from io import StringIO
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from weakincentives.adapters import provider_errors
from weakincentives.adapters.anthropic import AnthropicAdapter
from weakincentives.adapters.claude_agent_sdk import ClaudeAgentSDKAdapter
from weakincentives.adapters.openai import OpenAIAdapter
from weakincentives.evaluation import inner_loop
from weakincentives.inspection import analysis
from weakincentives.runtime import events

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src/weakincentives"
PAGES = sorted(
    page for pattern in ("*.md", "docs/**/*.md", "specs/**/*.md") for page in ROOT.glob(pattern)
)
SPECS = sorted((ROOT / "specs").glob("*.md"))
MOVING = sorted((ROOT / "docs").glob("moving-to-*.md"))
CONCEPTS = sorted((ROOT / "docs/concepts").glob("*.md"))
CODE = re.compile(r"^\s*(>>>|```python)", re.MULTILINE)
WORD = re.compile(r"[A-Za-z_]\w*")
# Names on pages that are not ours, or no longer: from examples, other libraries, providers and
# OpenTelemetry.
FOREIGN = set(
    WORD.findall("""my_prompt load_capability DummyLM FunctionModel ScriptedModel TestModel
    all_messages socket_allow_hosts
    REASONING_START REASONING_MESSAGE_START REASONING_END
    connect_ex GEMINI_API_KEY CLAUDE_CODE_USE_BEDROCK encrypted_content web_search mcp__wink__name
    web_search_20250305
    ANTHROPIC_AUTH_TOKEN AWS_PROFILE visibility_now
    SetEnqueueOptions app_version cancel_workflow create_schedule delay_seconds delete_workflows
    engine_kwargs
    function_name global_concurrency list_workflow_steps partition_concurrency queue_partition_key
    eval_set LimitExceededError
    DeferredToolRequests HumanInTheLoopMiddleware ToolNode __interrupt__ handoff_description
    interrupt_on interruptions last_agent needs_approval requires_approval
    FallbackModel ModelFallbackMiddleware ModelRetry SummarizationMiddleware UsageLimits as_tool
    create_agent input_guardrails output_guardrails output_validator run_stream run_streamed
    run_sync stream_output stream_mode system_prompt RootModel thread_id request_limit output_type
    ACTIVITY_SNAPSHOT TEXT_MESSAGE_START TOOL_CALL_RESULT TOOL_CALL_START StreamingResponse
    BatchSpanProcessor OTLPSpanExporter OTEL_EXPORTER_OTLP_ENDPOINT""")
)


def where(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def tokens(page: Path) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(page.read_text())


def first_cells(page: Path, heading: str) -> list[str]:
    """Returns the names in backticks in the first column of tables under `heading`, in order."""
    text = page.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


@pytest.mark.claim("TL-43")
@pytest.mark.parametrize("page", PAGES, ids=where)
def test_every_relative_link_has_a_target(page: Path) -> None:
    links = [
        str(child.attrs["href"])
        for token in tokens(page)
        for child in token.children or ()
        if child.type == "link_open"
    ]
    relative = [link.partition("#")[0] for link in links if not re.match(r"[a-z]+:", link)]
    assert [link for link in relative if not (page.parent / link).exists()] == []


@pytest.mark.parametrize(
    "page",
    [
        page
        for page in (ROOT / "docs/start.md", *sorted((ROOT / "docs/how-to").glob("*.md")))
        if re.search(r"(`|^\$ |^)wink [a-z]", page.read_text(), re.MULTILINE)
    ],
    ids=where,
)
def test_page_that_uses_wink_names_the_cli_extra(page: Path) -> None:
    named = r"extra `cli`|`cli`\s+extra|`cli` for the command|[\[,]cli\]"
    linked = r"\((command-line|check-prompts-in-ci)\.md"
    assert re.search(f"{named}|{linked}", page.read_text())


def test_no_page_installs_the_package_from_an_index() -> None:
    texts = {path: path.read_text() for path in [*PAGES, *PACKAGE.rglob("*.py")]}
    by_name = re.compile(r"\b(install|add)( -[-\w]+)* ['\"]?weakincentives\b(?![-./])")
    assert [where(path) for path, text in texts.items() if by_name.search(text)] == []


def prints(page: Path) -> list[tuple[str, str]]:
    """Returns each Python block's output if a `text` block follows it, and that block's text."""
    module = ModuleType(f"printed_{page.stem.replace('-', '_')}")
    sys.modules[module.__name__] = module
    outputs: list[tuple[str, str]] = []
    for token, after in pairwise([*tokens(page), Token("end", "", 0)]):
        if token.type == "fence" and token.info == "python":
            out = StringIO()
            with redirect_stdout(out):
                exec(compile(token.content, str(page), "exec"), module.__dict__)  # noqa: S102 - our own pages
            if after.type == "fence" and after.info == "text":
                outputs.append((out.getvalue(), after.content))
    return outputs


@pytest.mark.parametrize(
    "page", [page for page in PAGES if "```\n\n```text\n" in page.read_text()], ids=where
)
def test_text_block_after_python_code_is_its_output(page: Path) -> None:
    for printed, shown in prints(page):
        assert printed == shown


@pytest.mark.claim("C-18", "PD-38")
def test_every_page_and_docstring_with_code_is_collected() -> None:
    modules = [path for path in PACKAGE.rglob("*.py") if CODE.search(path.read_text())]
    pages = [path for path in PAGES if CODE.search(path.read_text())]
    wanted = {where(path) for path in (*pages, *modules)}
    if find_spec("dbos") is None:  # then conftest.py leaves these to `make test-durable`
        wanted -= {"docs/how-to/durable-runs.md", "docs/how-to/many-workers.md"}
    listing = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "--collect-only",
            "-q",
            "-p",
            "no:cacheprovider",
            *sorted(wanted),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    assert wanted == {line.partition("::")[0] for line in listing.splitlines() if "::" in line}


def test_errors_table_lists_every_code() -> None:
    codes = set(provider_errors._REMEDIES)
    codes |= {code for _, code, _ in inner_loop._UNFINISHED.values()}
    modules = [
        path for name in ("adapters", "evaluation") for path in (PACKAGE / name).rglob("*.py")
    ]
    for module in modules:
        for node in ast.walk(ast.parse(module.read_text())):
            match node:
                case ast.Call(
                    func=ast.Name("error_from_request" | "_limit_error"),
                    args=[_, ast.Constant(str(code)), *_],
                ):
                    codes.add(code)
                case ast.Call(func=ast.Name(kind), keywords=keywords) if kind.endswith("Error"):
                    codes.update(
                        repr(keyword.value.value).strip("'")
                        for keyword in keywords
                        if keyword.arg == "code" and isinstance(keyword.value, ast.Constant)
                    )
                case _:
                    pass
    assert sorted(first_cells(ROOT / "docs/how-to/running.md", "Errors")) == sorted(codes)


@pytest.mark.parametrize(
    ("adapter", "heading"),
    [
        (OpenAIAdapter, "Options of OpenAIAdapter"),
        (AnthropicAdapter, "AnthropicAdapter"),
        (ClaudeAgentSDKAdapter, "ClaudeAgentSDKAdapter"),
    ],
)
def test_options_table_lists_every_argument_with_its_default(adapter: type, heading: str) -> None:
    page, arguments = ROOT / "docs/how-to/adapters.md", inspect.signature(adapter).parameters
    assert first_cells(page, heading) == list(arguments)
    section = page.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    defaults = re.findall(r"^\| `(\w+)` \| `(True|False|[\d.]+|\"\w+\")` \|", section, re.MULTILINE)
    shown = {name: ast.literal_eval(default) for name, default in defaults if name in arguments}
    assert shown
    assert shown == {name: arguments[name].default for name in shown}


def test_events_table_lists_every_event_with_existing_fields() -> None:
    page = ROOT / "docs/how-to/state.md"
    kinds = [getattr(events, name) for name in events.__all__]
    published = {
        kind.__name__ for kind in kinds if inspect.isclass(kind) and issubclass(kind, events.Event)
    }
    rows = re.findall(r"^\| `(\w+)` \| .* \| (.*) \|$", page.read_text(), re.MULTILINE)
    assert {name for name, _ in rows} == published - {"Event"}
    fields = [(name, field) for name, cell in rows for field in re.findall(r"`(\w+)`", cell)]
    assert [pair for pair in fields if not hasattr(getattr(events, pair[0]), pair[1])] == []


def test_findings_table_lists_every_code_with_its_severity() -> None:
    page = (ROOT / "docs/how-to/check-prompts-in-ci.md").read_text()
    rows = re.findall(r"^\| `([a-z-]+)` \| (error|warning) \|", page, re.MULTILINE)
    assert dict(rows) == analysis.SEVERITIES


@pytest.mark.parametrize("page", ["docs/how-to/telemetry.md", "specs/EVENTS.md"])
def test_every_attribute_and_metric_that_a_page_names_is_sent(page: str) -> None:
    names = re.findall(r"`((?:gen_ai|wink)\.[\w.]+)`", (ROOT / page).read_text())
    source = (PACKAGE / "contrib/otel.py").read_text()
    assert names
    assert [name for name in names if f'"{name}"' not in source] == []


@cache
def names_in_code() -> set[str]:
    """Returns every word in the source and in the files next to it, including file names."""
    files = [
        *PACKAGE.rglob("*.py"),
        *(ROOT / "examples").rglob("*.py"),
        *ROOT.glob("*.toml"),
        ROOT / "Makefile",
    ]
    texts = (f"{where(file)} {file.read_text()}" for file in files)
    return {*dir(builtins), *dir(object), *(word for text in texts for word in WORD.findall(text))}


@pytest.mark.parametrize("page", [page for page in PAGES if page not in MOVING], ids=where)
def test_page_names_only_code_that_exists(page: Path) -> None:
    """Checks words that must be names, because they contain an underscore or an inner capital.
    Names of tests have their own test.
    """
    page_tokens = tokens(page)
    known = (
        FOREIGN
        | names_in_code()
        | {
            word
            for token in page_tokens
            if token.type == "fence"
            for word in WORD.findall(token.content)
        }
    )
    inline = [
        child.content
        for token in page_tokens
        for child in token.children or ()
        if child.type == "code_inline"
    ]
    words = {word for text in inline if "::" not in text for word in WORD.findall(text)}
    unknown = {word for word in words - known if re.search(r"\w_\w|[a-z][A-Z]", word)}
    assert unknown == set(), "no such names here; words of other projects go into FOREIGN"


@pytest.mark.parametrize("page", SPECS, ids=where)
def test_claims_of_a_spec_are_numbered_consecutively(page: Path) -> None:
    numbers = [int(number) for number in re.findall(r"^(\d+)\. ", page.read_text(), re.MULTILINE)]
    assert numbers
    assert numbers == list(range(1, len(numbers) + 1))


@pytest.mark.claim("C-18", "PD-38", "TL-43")
@pytest.mark.parametrize(
    ("page", "links", "code"),
    [
        ("specs/PROMPTS.md", ["PROGRESSIVE_DISCLOSURE.md", "TOOLS.md"], []),
        ("llms.md", [], ["summary=", "read_section"]),
        ("docs/how-to/disclosure.md", [], ["summary=", "open_sections"]),
        ("docs/concepts/tools.md", ["../../specs/TOOLS.md"], ["Tool("]),
        ("docs/how-to/adapters.md", ["../../specs/ADAPTERS.md"], []),
    ],
)
def test_disclosure_and_tools_are_documented_with_links_and_code(
    page: str, links: list[str], code: list[str]
) -> None:
    text = (ROOT / page).read_text()
    blocks = "".join(re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    assert [link for link in links if f"]({link})" not in text] == []
    assert [word for word in code if word not in blocks] == []


def test_demo_questions_refer_to_existing_pages() -> None:
    asked = json.loads((ROOT / "tests/data/demo_questions.json").read_text())
    assert len({entry["question"] for entry in asked}) == len(asked) >= 20
    sources = {source for entry in asked for source in entry["sources"]}
    assert sources <= {where(page) for page in PAGES}


def test_site_has_every_page_once() -> None:
    named = re.findall(
        r"^ *- (?:[^#:\n]+: )?([\w./-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE
    )
    pages = Counter([*map(where, PAGES), "benchmarks/RESULTS.md"])
    assert pages - Counter(named) == Counter(), "add these pages to nav in mkdocs.yml"
    assert Counter(named) - pages == Counter(), (
        "nav in mkdocs.yml has these twice, or they are gone"
    )


def test_the_index_links_every_how_to_page() -> None:
    index = (ROOT / "docs/index.md").read_text()
    pages = [page.name for page in (ROOT / "docs/how-to").glob("*.md")]
    missing = [name for name in pages if f"(how-to/{name}" not in index]
    assert missing == [], "link these pages from docs/index.md"


@pytest.mark.parametrize(
    ("page", "most"), [("README.md", 150), ("llms.md", 300), *((where(it), 150) for it in CONCEPTS)]
)
def test_introductory_pages_are_short(page: str, most: int) -> None:
    assert len((ROOT / page).read_text().splitlines()) < most


@pytest.mark.parametrize("page", [*CONCEPTS, ROOT / "docs/architecture.md"], ids=where)
def test_each_diagram_is_between_its_markers(page: Path) -> None:
    diagram = (
        r"^<!-- diagram: [a-z-]+ -->\n\n(?:!\[.+\]\(.+\.svg\)\n|(?:\|.*\|\n)+)\n<!-- /diagram -->$"
    )
    marks = page.read_text().count("<!-- diagram:"), page.read_text().count("<!-- /diagram -->")
    assert marks == (len(re.findall(diagram, page.read_text(), re.MULTILINE)),) * 2 != (0, 0)


def test_reference_has_every_module_that_a_page_imports_from() -> None:
    entries = (page.read_text() for page in (ROOT / "docs/reference").glob("*.md"))
    listed = {
        module for text in entries for module in re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE)
    }
    blocks = (token.content for page in PAGES for token in tokens(page) if token.info == "python")
    imported = {
        module
        for text in blocks
        for module in re.findall(r"^ *from (weakincentives[\w.]*) import", text, re.MULTILINE)
    }
    assert imported
    assert imported - listed == set(), "import from a listed package, or add `::: module` there"


MOVES = re.findall(
    r"^\| `(weakincentives[\w.]+)` \| (.*) \|$",
    "".join(page.read_text() for page in MOVING),
    re.MULTILINE,
)


def resolve(name: str) -> object:
    """Imports the modules in a dotted name, and reads the rest as attributes."""
    value: object = importlib.import_module(name.partition(".")[0])
    path = ""
    for part in name.split("."):
        path = f"{path}.{part}".removeprefix(".")
        if isinstance(value, ModuleType):
            with suppress(ModuleNotFoundError):
                importlib.import_module(path)
        fields = getattr(value, "__dataclass_fields__", {}) | getattr(value, "__annotations__", {})
        if path != name.partition(".")[0]:
            value = fields[part] if part in fields else getattr(value, part)
    return value


@pytest.mark.parametrize(("old", "cell"), MOVES, ids=[old for old, _ in MOVES])
def test_migration_page_names_removed_and_existing_names(old: str, cell: str) -> None:
    if ".durable" in old:
        pytest.importorskip("dbos")
    with pytest.raises(AttributeError):
        resolve(old)
    for new in re.findall(r"`(weakincentives[\w.]+)`", cell):
        resolve(new)
