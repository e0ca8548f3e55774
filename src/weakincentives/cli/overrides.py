"""`wink overrides`: texts of a prompt that are replaced without a change of code, from seeding them
to rebasing.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterable
from difflib import unified_diff
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, cast

from typer import Argument, Exit, Option, Typer

from ..prompt.overrides.model import OverridesTag, TextId, TextKind
from ..prompt.overrides.store import LocalPromptOverridesStore
from ..prompt.prompt import Prompt
from .output import shown
from .target import Target, UsageError, bound_prompt, tell_unknown_tag, text_in

__all__ = ["app"]

app = Typer(no_args_is_help=True, help="Replace texts of a prompt without a change of code.")
Tag = Annotated[str, Option(help="The set of overrides.")]
Text = Annotated[
    str, Argument(help="KIND:PLACE as `seed` and `diff` show it, such as body:context.history.")
]


@app.command("list")
def list_() -> None:
    """Print the prompts and tags for which overrides are stored."""
    _print(f"{one.ns}/{one.key} {one.tag}" for one in LocalPromptOverridesStore().list())


@app.command()
def seed(target: Target, *, tag: Tag = "latest") -> None:
    """Store the code's own texts where none are stored, and print what is there to edit."""
    prompt, store = bound_prompt(target), LocalPromptOverridesStore()
    held = store.seed(prompt, tag)
    _print(_name(one) for one in held.texts)
    _print([f"in {store.path(OverridesTag(prompt.ns, prompt.key, tag))}"])


@app.command("edit")
def edit_(
    target: Target,
    text: Text,
    *,
    tag: Tag = "latest",
    file: Annotated[
        Path | None, Option(help="Take the text from this file, - for standard input.")
    ] = None,
) -> None:
    """Replace one text, in your editor or from a file; for a stale one the editor shows what is
    stored.
    """
    descriptor, store, one = (
        bound_prompt(target).descriptor,
        LocalPromptOverridesStore(),
        _text_id(text),
    )
    now = descriptor.texts.get(one)
    if now is None or not now.accepts_overrides:
        open_ = ", ".join(
            _name(known) for known, of in descriptor.texts.items() if of.accepts_overrides
        )
        raise UsageError(f"{text!r} is no text that can be replaced; there are {open_ or 'none'}")
    held = store.resolve(descriptor, tag)
    before = {**{stale.id: stale.text for stale in held.stale}, **held.texts}.get(
        one, now.text
    ).rstrip("\n")
    written = (_edited(before) if file is None else text_in(file)).rstrip("\n")
    if file is not None or written != before:
        store.replace(descriptor, {one: written}, tag)


@app.command()
def diff(target: Target, *, tag: Tag = "latest") -> None:
    """Print how the stored texts differ from the code's; for a stale one, from what it was written
    against.
    """
    prompt, store = _stored(target, tag)
    descriptor = prompt.descriptor
    held = store.resolve(descriptor, tag)
    for one, text in held.texts.items():
        _print_diff(
            descriptor.texts[one].text, text, f"{_name(one)} (code)", f"{_name(one)} ({tag})"
        )
    for stale in held.stale:
        name = _name(stale.id)
        _print([f"{name} is stale: {stale.reason}"])
        _print_diff(stale.base, stale.text, f"{name} (code then)", f"{name} ({tag})")
        _print_diff(stale.base, stale.current or "", f"{name} (code then)", f"{name} (code now)")


@app.command()
def rebase(target: Target, *, tag: Tag = "latest") -> None:
    """Carry stale texts over to the code as it is now. Exits with 1 when some need a decision."""
    prompt, store = _stored(target, tag)
    done = store.rebase(prompt.descriptor, tag)
    _print(f"merged {_name(one)}" for one in done.merged)
    _print(f"conflict {_name(one.id)}: {one.reason}" for one in done.conflicts)
    if done.conflicts:
        _print([f"see {store.path(OverridesTag(prompt.ns, prompt.key, tag), '.conflicts.md')}"])
        raise Exit(1)


@app.command()
def prune(target: Target, *, tag: Tag = "latest") -> None:
    """Forget the stored texts that do not apply any more."""
    prompt, store = _stored(target, tag)
    for stale in store.resolve(prompt.descriptor, tag).stale:
        store.delete(OverridesTag(prompt.ns, prompt.key, tag), stale.id)
        _print([f"removed {_name(stale.id)}"])


@app.command()
def check(target: Target, *, tag: Tag = "latest") -> None:
    """Print the stored texts that do not apply any more. Exits with 1 when there are some."""
    prompt, store = _stored(target, tag)
    held = store.resolve(prompt.descriptor, tag)
    _print(f"stale {_name(one.id)}: {one.reason}" for one in held.stale)
    _print([f"texts that apply: {len(held.texts)}, stale: {len(held.stale)}"])
    if held.stale:
        raise Exit(1)


# Any: a prompt of any output
def _stored(target: str, tag: str) -> tuple[Prompt[Any], LocalPromptOverridesStore]:
    """The prompt and the store, after word of a tag that the prompt does not have."""
    prompt, store = bound_prompt(target), LocalPromptOverridesStore()
    tell_unknown_tag(store, prompt, tag)
    return prompt, store


def _edited(text: str) -> str:
    """The text as the user's editor leaves it."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    if not editor:
        raise UsageError("no editor is known; set EDITOR, or give the text with --file")
    with TemporaryDirectory() as folder:
        file = Path(folder, "text.md")
        file.write_text(f"{text}\n", encoding="utf-8")
        try:
            command = shlex.split(editor)
        except ValueError as error:
            raise UsageError(f"editor {editor!r}: {error}") from error
        done = subprocess.run([*command, str(file)], check=False)  # noqa: S603 - the user's own choice
        if done.returncode:
            raise UsageError(f"{editor!r} exited with {done.returncode}; nothing was changed")
        return text_in(file)


def _print(lines: Iterable[str]) -> None:
    sys.stdout.writelines(shown(line).replace("\n", "?") + "\n" for line in lines)


def _print_diff(old: str, new: str, old_name: str, new_name: str) -> None:
    _print(list(unified_diff(old.splitlines(), new.splitlines(), old_name, new_name, lineterm="")))


def _name(one: TextId) -> str:
    return f"{one.kind}:{one.at}"


def _text_id(text: str) -> TextId:
    kind, _, place = text.partition(":")
    # an unknown kind is in no descriptor, which is what is asked next
    return TextId(cast(TextKind, kind), place)
