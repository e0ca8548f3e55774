"""`wink overrides`: replace a prompt's texts without changing code."""

import os
import shlex
import subprocess
from difflib import unified_diff
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

from typer import Argument, Exit, Option, Typer

from ..prompt.overrides.model import OverridesTag, TextId
from ..prompt.overrides.store import LocalPromptOverridesStore
from ..prompt.template import AnyPrompt
from .printing import print_lines
from .target import Target, UsageError, load_prompt, read_text, warn_of_unknown_tag

__all__ = ["app"]

app = Typer(no_args_is_help=True, help="Replace a prompt's texts without changing code.")
Tag = Annotated[str, Option(help="The set of overrides.")]
Text = Annotated[
    str, Argument(help="KIND:PLACE from `seed` and `diff`, such as body:context.history.")
]
File = Annotated[Path | None, Option(help="Read the text from this file, or - for standard input.")]


@app.command("list")
def list_() -> None:
    """Print the prompts and tags that have stored overrides."""
    stored = LocalPromptOverridesStore().list()
    print_lines(f"{overrides.ns}/{overrides.key} {overrides.tag}" for overrides in stored)


@app.command()
def seed(target: Target, *, tag: Tag = "latest") -> None:
    """Store the code's texts as overrides if none are stored, and print the names of all."""
    prompt, store = load_prompt(target), LocalPromptOverridesStore()
    print_lines(map(_name, store.seed(prompt, tag).texts))
    print_lines([f"in {store.path(OverridesTag(prompt.ns, prompt.key, tag))}"])


@app.command("edit")
def edit_(target: Target, text: Text, *, tag: Tag = "latest", file: File = None) -> None:
    """Replace one text, in your editor or from a file.

    For a stale text, the editor shows the stored version.
    """
    descriptor, store = load_prompt(target).descriptor, LocalPromptOverridesStore()
    ids = {_name(each): each for each, own in descriptor.texts.items() if own.accepts_overrides}
    if (text_id := ids.get(text)) is None:
        known = ", ".join(ids) or "none"
        raise UsageError(f"{text!r} is not a text that can be replaced; use one of {known}")
    stored = store.resolve(descriptor, tag)
    texts = {**{stale.id: stale.text for stale in stored.stale}, **stored.texts}
    before = texts.get(text_id, descriptor.texts[text_id].text).rstrip("\n")
    after = (_edit(before) if file is None else read_text(file)).rstrip("\n")
    if file is not None or after != before:
        store.replace(descriptor, {text_id: after}, tag)


@app.command()
def diff(target: Target, *, tag: Tag = "latest") -> None:
    """Print the differences between the stored texts and the code's.

    A stale text is compared with the version of the code's text that it replaced.
    """
    prompt, store = _load(target, tag)
    descriptor = prompt.descriptor
    stored = store.resolve(descriptor, tag)
    for text_id, text in stored.texts.items():
        name = _name(text_id)
        _print_diff(descriptor.texts[text_id].text, text, f"{name} (code)", f"{name} ({tag})")
    for stale in stored.stale:
        name = _name(stale.id)
        print_lines([f"{name} is stale: {stale.reason}"])
        _print_diff(stale.base, stale.text, f"{name} (code then)", f"{name} ({tag})")
        _print_diff(stale.base, stale.current or "", f"{name} (code then)", f"{name} (code now)")


@app.command()
def rebase(target: Target, *, tag: Tag = "latest") -> None:
    """Merge stale texts with the current code. Exits with 1 if some need a decision."""
    prompt, store = _load(target, tag)
    result = store.rebase(prompt.descriptor, tag)
    print_lines(f"merged {_name(text_id)}" for text_id in result.merged)
    print_lines(
        f"conflict {_name(conflict.id)}: {conflict.reason}" for conflict in result.conflicts
    )
    if result.conflicts:
        print_lines(
            [f"see {store.path(OverridesTag(prompt.ns, prompt.key, tag), '.conflicts.md')}"]
        )
        raise Exit(1)


@app.command()
def prune(target: Target, *, tag: Tag = "latest") -> None:
    """Delete the stale stored texts."""
    prompt, store = _load(target, tag)
    for stale in store.resolve(prompt.descriptor, tag).stale:
        store.delete(OverridesTag(prompt.ns, prompt.key, tag), stale.id)
        print_lines([f"removed {_name(stale.id)}"])


@app.command()
def check(target: Target, *, tag: Tag = "latest") -> None:
    """Print the stale stored texts. Exits with 1 if there are any."""
    prompt, store = _load(target, tag)
    stored = store.resolve(prompt.descriptor, tag)
    print_lines(f"stale {_name(stale.id)}: {stale.reason}" for stale in stored.stale)
    print_lines([f"texts that apply: {len(stored.texts)}, stale: {len(stored.stale)}"])
    if stored.stale:
        raise Exit(1)


def _load(target: str, tag: str) -> tuple[AnyPrompt, LocalPromptOverridesStore]:
    prompt, store = load_prompt(target), LocalPromptOverridesStore()
    warn_of_unknown_tag(store, prompt, tag)
    return prompt, store


def _edit(text: str) -> str:
    """Opens a text in the user's editor and returns the edited text."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    if not editor:
        raise UsageError("cannot find an editor; set EDITOR, or pass the text with --file")
    with TemporaryDirectory() as folder:
        file = Path(folder, "text.md")
        file.write_text(f"{text}\n", encoding="utf-8")
        try:
            command = shlex.split(editor)
        except ValueError as error:
            raise UsageError(f"editor {editor!r}: {error}") from error
        process = subprocess.run([*command, str(file)], check=False)  # noqa: S603 - the user's own choice
        if process.returncode:
            raise UsageError(f"{editor!r} exited with {process.returncode}; nothing was changed")
        return read_text(file)


def _print_diff(old: str, new: str, old_name: str, new_name: str) -> None:
    print_lines(unified_diff(old.splitlines(), new.splitlines(), old_name, new_name, lineterm=""))


def _name(text_id: TextId) -> str:
    return f"{text_id.kind}:{text_id.at}"
