"""`wink render`, `tree` and `check`: inspect a prompt without a model."""

import hashlib
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Annotated, Literal
from warnings import catch_warnings, showwarning, simplefilter

from rich.table import Table
from typer import Exit, Option

from ..displays import count_of
from ..evaluation.conversation import rendered_tools
from ..evaluation.schemas import output_to_spec
from ..inspection.analysis import Finding, analyze
from ..prompt.sizes import measure
from ..prompt.template import AnyPrompt
from ..runtime.session.session import Session
from ..visibility import SectionPath
from .printing import printable, wide_console, write_json
from .target import (
    Open,
    Params,
    Set,
    Summary,
    Tag,
    Target,
    how_to_set,
    load_prompt,
    visibility_overrides,
)

__all__ = ["check", "render", "token_counter", "tree"]

_Json = Annotated[bool, Option("--json", help="Print text, tools, output and spans as JSON.")]
_Format = Annotated[
    Literal["text", "github", "json"], Option("--format", help="The format of findings.")
]
_Ignore = Annotated[
    list[str] | None, Option(help="A code, or code:section, to ignore. Repeatable.")
]

_ENCODING_URL = "https://openaipublic.blob.core.windows.net/encodings/o200k_base.tiktoken"


def render(
    target: Target,
    *,
    params: Params = None,
    set_: Set = None,
    tag: Tag = None,
    open_: Open = None,
    summary: Summary = None,
    as_json: _Json = False,
) -> None:
    """Print the exact text that the model receives.

    On a terminal, control characters are printed as `?`.
    """
    prompt = load_prompt(target, params, set_, tag)
    overrides = visibility_overrides(prompt, open_, summary)
    rendered = prompt.render(session=Session(), visibility_overrides=overrides)
    if not as_json:
        text = printable(rendered.text) if sys.stdout.isatty() else rendered.text
        sys.stdout.write(text + "\n")
        return
    declared = rendered.structured_output
    parts = {
        "text": rendered.text,
        "tools": rendered_tools(rendered),
        "output": output_to_spec(declared) if declared else None,
        "spans": [span._asdict() for span in rendered.spans],
    }
    write_json(parts)


def tree(
    target: Target,
    *,
    params: Params = None,
    set_: Set = None,
    tag: Tag = None,
    open_: Open = None,
    summary: Summary = None,
) -> None:
    """Print the sections with their visibility, tools, and sizes now and when open."""
    prompt = load_prompt(target, params, set_, tag)
    overrides = visibility_overrides(prompt, open_, summary)
    rendered = prompt.render(session=Session(), visibility_overrides=overrides)
    texts = {section.path: section for section in measure(rendered.view)}
    tokens, method = token_counter()

    def sizes(text: str) -> tuple[str, str]:
        return (f"{len(text):,}", f"{tokens(text):,}") if text else ("", "")

    table = Table("", "section", "shown", "tools", box=None, pad_edge=False, header_style="bold")
    for title in ("characters", "tokens", "open"):
        table.add_column(title, justify="right", no_wrap=True)
    for node in rendered.registry.sections:
        section = texts.get(node.path)
        tools = ", ".join(tool.name for tool in node.tools)
        if section is None:
            table.add_row(f"{node.number}.", node.key, "disabled", tools)
            continue
        visibility = section.visibility.value if section.visibility else "hidden"
        row = f"{node.number}.", node.key, visibility, tools
        table.add_row(*row, *sizes(section.shown), f"{section.expanded_size:,}")
    table.add_row("", "whole prompt", "", "", *sizes(rendered.text), "")
    console = wide_console()
    console.print(table)
    note = "open: characters after opening the section, with its tools and the sections below it."
    console.print(f"Tokens: {method}. {note}", soft_wrap=True)


def check(
    target: Target,
    *,
    params: Params = None,
    set_: Set = None,
    tag: Tag = None,
    form: _Format = "text",
    ignore: _Ignore = None,
) -> None:
    """Look for text that is likely to mislead the model or to waste tokens.

    Exits with 1 if it finds something.
    """
    from ..contrib.skills import SkillWarning

    with catch_warnings(record=True) as caught:
        simplefilter("always", SkillWarning)
        prompt = load_prompt(target, params, set_, tag)
    report = analyze(prompt, session=Session())
    ignored = {*(ignore or ())}
    left_out: list[Finding] = []
    for warning in caught:
        if isinstance(warning.message, SkillWarning):
            path, _, message, remedy = warning.message.finding
            left_out.append(Finding("source", (path,), "warning", message, remedy))
        else:
            showwarning(warning.message, warning.category, warning.filename, warning.lineno)
    findings = [
        _for_command_line(finding, prompt)
        for finding in (*left_out, *report.findings)
        if not {finding.code, f"{finding.code}:{_key(finding.section_path)}"} & ignored
    ]
    if form == "json":
        write_json({"prompt": report.prompt, "states": report.states, "findings": findings})
    elif form == "github":
        sys.stdout.writelines(_annotation(finding, report.prompt) for finding in findings)
    else:
        sys.stdout.writelines(_line(finding) for finding in findings)
        summary, states = count_of(len(findings), "finding"), count_of(report.states, "state")
        sys.stdout.write(f"{report.prompt}: {summary} in {states} of disclosure.\n")
    if findings:
        raise Exit(1)


def _for_command_line(finding: Finding, prompt: AnyPrompt) -> Finding:
    """Returns the finding with a remedy that applies to the command line."""
    section = prompt.template.registry.get_section(finding.section_path)
    if finding.code != "cannot-check" or section is None or section.params_type is None:
        return finding
    return replace(finding, remedy=how_to_set(section.params_type))


@lru_cache(maxsize=1)
def token_counter() -> tuple[Callable[[str], int], str]:
    """Returns a function that counts a text's tokens, and the name of its method.

    It uses tiktoken if the package and its data are installed; otherwise it estimates.
    """
    cache = os.environ.get("TIKTOKEN_CACHE_DIR") or os.environ.get("DATA_GYM_CACHE_DIR")
    folder = Path(cache) if cache else Path(tempfile.gettempdir(), "data-gym-cache")
    name = hashlib.sha1(_ENCODING_URL.encode(), usedforsecurity=False).hexdigest()
    with suppress(Exception):  # estimates if the package or its data is missing
        if (folder / name).is_file():  # otherwise tiktoken would download it
            encoding = import_module("tiktoken").get_encoding("o200k_base")
            return (
                lambda text: len(encoding.encode(text, disallowed_special=())),
                "o200k_base of tiktoken",
            )
    return lambda text: -(-len(text) // 4), "estimated at four characters each"


def _key(path: SectionPath) -> str:
    return ".".join(path)


def _line(finding: Finding) -> str:
    text = f"{_key(finding.section_path)}: {finding.message}; {finding.remedy}"
    return printable(f"{finding.severity}: {text} [{finding.code}]\n")


def _annotation(finding: Finding, prompt: str) -> str:
    """Formats a finding as a GitHub Actions workflow command."""
    text = f"{prompt} {_key(finding.section_path)}: {finding.message}; {finding.remedy}"
    for char in "%\r\n":
        text = text.replace(char, f"%{ord(char):02X}")
    return printable(f"::{finding.severity} title={finding.code}::{text}\n")
