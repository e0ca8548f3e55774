"""`wink render`, `tree` and `check`: what a prompt is, without a model."""

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from importlib import import_module
from typing import Annotated, Any, Literal

from rich.table import Table
from typer import Exit, Option

from ..evaluation.schemas import output_to_spec, tool_to_spec
from ..inspection.analysis import Finding, analyze
from ..prompt.prompt import Prompt
from ..prompt.sizes import measure
from ..runtime.session.session import Session
from ..visibility import SectionPath
from .output import counted, shown, wide_console, write_json
from .target import Open, Params, Set, Summary, Tag, Target, bound_prompt, how_to_set, opened

__all__ = ["check", "render", "token_counter", "tree"]


def render(
    target: Target,
    *,
    params: Params = None,
    set_: Set = None,
    tag: Tag = None,
    open_: Open = None,
    summary: Summary = None,
    as_json: Annotated[
        bool, Option("--json", help="Text, tools, output and spans as JSON.")
    ] = False,
) -> None:
    """Print exactly the text that the model is sent; on a terminal with `?` for what would steer
    it.
    """
    prompt = bound_prompt(target, params, set_, tag)
    rendered = prompt.render(session=Session(), visibility_overrides=opened(prompt, open_, summary))
    if not as_json:
        sys.stdout.write((shown(rendered.text) if sys.stdout.isatty() else rendered.text) + "\n")
        return
    whole = {
        "text": rendered.text,
        "tools": [
            tool_to_spec(tool, rendered.tool_param_descriptions.get(tool.name))
            for tool in rendered.tools
        ],
        "output": rendered.structured_output and output_to_spec(rendered.structured_output),
        "spans": [one._asdict() for one in rendered.spans],
    }
    write_json(whole)


def tree(
    target: Target,
    *,
    params: Params = None,
    set_: Set = None,
    tag: Tag = None,
    open_: Open = None,
    summary: Summary = None,
) -> None:
    """Print the sections: how each is shown, its tools, its size now, and its size with all below
    it once open.
    """
    prompt = bound_prompt(target, params, set_, tag)
    rendered = prompt.render(session=Session(), visibility_overrides=opened(prompt, open_, summary))
    texts = {one.path: one for one in measure(rendered.view)}
    tokens, how = token_counter()
    table = Table("", "section", "shown", "tools", box=None, pad_edge=False, header_style="bold")
    for title in ("characters", "tokens", "open"):
        table.add_column(title, justify="right", no_wrap=True)
    for node in rendered.registry.sections:
        one = texts.get(node.path)
        shown = "disabled" if one is None else one.visibility.value if one.visibility else "hidden"
        sizes = (
            (
                one.shown and f"{len(one.shown):,}",
                one.shown and f"{tokens(one.shown):,}",
                f"{one.expanded_size:,}",
            )
            if one
            else ()
        )
        table.add_row(
            f"{node.number}.", node.key, shown, ", ".join(tool.name for tool in node.tools), *sizes
        )
    table.add_row(
        "", "whole prompt", "", "", f"{len(rendered.text):,}", f"{tokens(rendered.text):,}", ""
    )
    console = wide_console()
    console.print(table)
    console.print(
        f"Tokens: {how}. open: characters once open, with tools and all below that is then shown.",
        soft_wrap=True,
    )


def check(
    target: Target,
    *,
    params: Params = None,
    set_: Set = None,
    tag: Tag = None,
    form: Annotated[
        Literal["text", "github", "json"], Option("--format", help="How to write findings.")
    ] = "text",
    ignore: Annotated[
        list[str] | None, Option(help="A code to leave out, or code:section. Repeatable.")
    ] = None,
) -> None:
    """Look for what is likely to mislead the model or to cost for nothing.

    Exits with 1 when something was found.
    """
    prompt = bound_prompt(target, params, set_, tag)
    report = analyze(prompt, session=Session())
    ignored = {*(ignore or ())}
    found = [
        _for_command_line(finding, prompt)
        for finding in report.findings
        if not {finding.code, f"{finding.code}:{_key(finding.section_path)}"} & ignored
    ]
    if form == "json":
        write_json({"prompt": report.prompt, "states": report.states, "findings": found})
    elif form == "github":
        sys.stdout.writelines(f"{shown(_annotation(one, report.prompt))}\n" for one in found)
    else:
        sys.stdout.writelines(
            shown(
                f"{one.severity}: {_key(one.section_path)}: {one.message}; {one.remedy} [{one.code}]\n"
            )
            for one in found
        )
        sys.stdout.write(
            f"{report.prompt}: {counted(len(found), 'finding')} in {counted(report.states, 'state')} of disclosure.\n"
        )
    if found:
        raise Exit(1)


def _for_command_line(finding: Finding, prompt: Prompt[Any]) -> Finding:
    """The finding with a remedy that can be typed."""
    section = prompt.template.registry.get_section(finding.section_path)
    if finding.code != "cannot-check" or section is None or section.params_type is None:
        return finding
    return replace(finding, remedy=how_to_set(section.params_type))


@lru_cache(maxsize=1)
def token_counter() -> tuple[Callable[[str], int], str]:
    """Counts a text's tokens, and says how: by tiktoken where it and its data are here, else four
    characters each.
    """
    import hashlib
    import os
    import tempfile
    from pathlib import Path

    url = "https://openaipublic.blob.core.windows.net/encodings/o200k_base.tiktoken"
    cache = os.environ.get("TIKTOKEN_CACHE_DIR") or os.environ.get("DATA_GYM_CACHE_DIR")
    folder = Path(cache) if cache else Path(tempfile.gettempdir(), "data-gym-cache")
    try:
        # else it would download
        if (folder / hashlib.sha1(url.encode(), usedforsecurity=False).hexdigest()).is_file():
            encoding = import_module("tiktoken").get_encoding("o200k_base")
            return lambda text: len(
                encoding.encode(text, disallowed_special=())
            ), "o200k_base of tiktoken"
    except Exception:  # noqa: S110 - not installed, or data that it cannot read: an estimate does
        pass
    return lambda text: -(-len(text) // 4), "estimated at four characters each"


def _key(path: SectionPath) -> str:
    return ".".join(path)


def _annotation(finding: Finding, prompt: str) -> str:
    """A workflow command of GitHub Actions."""
    text = f"{prompt} {_key(finding.section_path)}: {finding.message}; {finding.remedy}"
    for char in "%\r\n":
        text = text.replace(char, f"%{ord(char):02X}")
    return f"::{finding.severity} title={finding.code}::{text}"
