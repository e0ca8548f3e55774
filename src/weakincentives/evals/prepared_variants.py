"""`PreparedVariant` is a variant that is ready to run: its adapter, and the prompt of each case."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..model_settings import ModelSettings
from ..prompt.overrides.store import LocalPromptOverridesStore
from ..prompt.template import AnyPrompt, AnyTemplate, Prompt, PromptTemplate
from .cases import Case
from .explanations import store_parts
from .keys import digest, prompt_parts
from .options import Target
from .pacing import PacedAdapter

__all__ = ["PreparedVariant"]


@dataclass(slots=True)
class PreparedVariant:
    """A variant, ready to run."""

    name: str
    target: Target
    adapter: PacedAdapter
    settings: ModelSettings | None
    tag: str
    parts: Mapping[str, str]
    folder: Path
    prompts: dict[AnyTemplate, tuple[AnyPrompt, str]] = field(
        default_factory=dict[AnyTemplate, tuple[AnyPrompt, str]]
    )

    @property
    def digests(self) -> frozenset[str]:
        """The digests of the variant with each of the prompts that the cases need."""
        return frozenset([digest for _, digest in self.prompts.values()])

    @property
    def described(self) -> dict[str, str]:
        """The model, the tag and the settings, with secrets masked."""
        settings = repr(self.settings or ModelSettings())[len("ModelSettings(") : -1]
        return {"model": self.adapter.model, "tag": self.tag, "settings": settings}

    @property
    def binds(self) -> bool:
        """Whether the params of a case are bound to a template."""
        return isinstance(self.target, PromptTemplate)

    def prompt(self, case: Case) -> tuple[AnyPrompt, str]:
        """Returns a case's prompt and the digest of the variant with this prompt."""
        given = self.target if isinstance(self.target, PromptTemplate) else self.target(case)
        template = given if isinstance(given, PromptTemplate) else given.template
        known = self.prompts.get(template)
        if known is None:
            store = _store_with(self.tag, template) if self.tag else None
            base: AnyPrompt = Prompt(template, overrides_store=store, overrides_tag=self.tag)
            if not self.tag and not isinstance(given, PromptTemplate):
                base = given  # it can have overrides
            base = base.for_run()  # reads the overrides only once
            parts = {**prompt_parts(base), **self.parts}
            if not self.binds:
                parts["settings of the prompt"] = digest(repr(template.settings))
            variant = digest(parts)
            store_parts(self.folder, variant, parts)
            known = self.prompts[template] = base, variant
        base, variant = known
        if given is self.target:
            return base.for_run().bind(*case.params, resources={}), variant
        if isinstance(given, PromptTemplate):
            return base.for_run().bind(resources={}), variant
        prompt = base if self.tag else given
        params, resources = [*given.params.values()], given.resources.registry
        stored = given.overrides
        variant = digest(variant, params, sorted(stored.texts.items()) if stored else None)
        return prompt.for_run().bind(*params, resources=resources), variant


def _store_with(tag: str, template: AnyTemplate) -> LocalPromptOverridesStore:
    """Returns the store of overrides; raises `ValueError` if it has none for this tag."""
    store, name = LocalPromptOverridesStore(), (template.ns, template.key)
    tags = sorted([one.tag for one in store.list() if (one.ns, one.key) == name])
    if tag not in tags:
        known = ", ".join(tags) or "none"
        raise ValueError(f"no overrides are stored under the tag {tag!r}; there are {known}")
    return store
