"""Checks the wheel where nothing else is installed: light imports, and use without extras."""

import subprocess
import sys
from dataclasses import dataclass
from importlib import resources
from importlib.metadata import distribution, metadata, version
from pathlib import Path

import weakincentives
from weakincentives import MarkdownSection, PromptTemplate
from weakincentives.runtime.session import Session
from weakincentives.testing import ScriptedAdapter, say


@dataclass(frozen=True)
class Answer:
    text: str


template = PromptTemplate[Answer](
    ns="wheel", key="hello", sections=[MarkdownSection(title="Task", template="Greet.")]
)
response = ScriptedAdapter([say(Answer("hello"))]).evaluate(template.bind(), session=Session())
if response.output != Answer("hello"):
    sys.exit(f"the wheel answered {response.output!r}")

files = {str(file) for file in distribution("weakincentives").files or ()}
page = ("report.html", "report.css", "elements.js", "report.js", "report_views.js")
pages = (*(f"inspection/{it}" for it in page), "evals/page.css", "evals/page.js")
needed = {f"weakincentives/{name}" for name in ("py.typed", "llms.md", *pages)}
if missing := needed - files:
    sys.exit(f"the wheel lacks {sorted(missing)}")
ours = {name for name in files if name.startswith("weakincentives/")}
if stray := {name for name in ours - needed if Path(name).suffix not in {".py", ".pyc"}}:
    sys.exit(f"the wheel has {sorted(stray)}, which nothing needs")
guide = resources.files("weakincentives") / "llms.md"
if "## Rules of thumb" not in guide.read_text("utf-8"):
    sys.exit("the wheel's llms.md is not the guide")
if addresses := metadata("weakincentives").get_all("Project-URL"):  # decision 034
    sys.exit(f"the wheel names {addresses}: check that they are this project's")
if "site-packages" not in Path(weakincentives.__file__).parts:
    sys.exit(f"this is not the wheel: {weakincentives.__file__}")

loaded = (
    "import sys; import weakincentives.prompt;"
    "print(*sorted({'pydantic', 'asyncio', 'openai'} & set(sys.modules)))"
)
heavy = subprocess.run(
    [sys.executable, "-c", loaded], capture_output=True, text=True, check=True
).stdout.split()
if heavy:
    sys.exit(f"importing the wheel loads {heavy}")
print(f"weakincentives {version('weakincentives')}: {len(files)} files, evaluated without an extra")
