"""Prompts with overrides equal their source except for their texts."""

from dataclasses import dataclass
from pathlib import Path

from weakincentives import MarkdownSection, Prompt
from weakincentives.prompt.overrides import SectionOverride
from weakincentives.prompt.overrides.store import LocalPromptOverridesStore
from weakincentives.testing import PromptsWithOverrides


@dataclass(frozen=True)
class Customer:
    name: str


class Shelf:
    pass


def test_prompts_with_overrides_keep_bound_params_and_resources(tmp_path: Path) -> None:
    section = MarkdownSection[Customer](title="Task", key="task", template="Help $name.")
    shelf = Shelf()
    prompt = Prompt[None](ns="n", key="k", sections=[section]).bind(
        Customer("Ada"), resources={Shelf: shelf}
    )
    override = SectionOverride(path=("task",), body="Greet $name.")
    LocalPromptOverridesStore(tmp_path).upsert(prompt.descriptor, override, tag="warm")
    overridden = PromptsWithOverrides(tmp_path, "warm")(prompt)
    assert "Greet Ada." in overridden.render().text
    assert "Help Ada." in prompt.render().text, "the given prompt is unchanged"
    with overridden.resources:
        assert overridden.resources.get(Shelf) is shelf
