"""Lists a prompt's overridable texts with hashes, for stores, staleness checks and rebases.

A hash is the SHA-256 of JSON with sorted keys, so it is the same in every process and on every
machine.
"""

import json
from functools import partial
from hashlib import sha256

from ...serde.json_schemas import resolved
from ...visibility import SectionPath
from ..registry import RegistrySnapshot, check_placeholders, example_text
from ..tool import AnyTool, check_description
from .model import OverridableText, PromptDescriptor, SectionDescriptor, TextId, ToolDescriptor

__all__ = ["describe", "param_texts"]


def describe(ns: str, key: str, registry: RegistrySnapshot) -> PromptDescriptor:
    """Returns the descriptor of a template's tree."""
    texts: dict[TextId, OverridableText] = {}
    sections: list[SectionDescriptor] = []
    tools: list[ToolDescriptor] = []
    for node in registry.sections:
        section, path = node.section, node.path
        body, summary, examples = section.body_text(), section.summary, section.example_texts()
        content = _hash(body, summary, examples)
        sections.append(SectionDescriptor(path, content))
        check = partial(check_placeholders, section=section, path=path)
        place = path, section.accepts_overrides
        texts[TextId("body", node.key)] = OverridableText(body, content, *place, check)
        texts[TextId("summary", node.key)] = OverridableText(summary or "", content, *place, check)
        for index, text in enumerate(examples):
            text_id = TextId("task-example", f"{node.key}#{index}")
            texts[text_id] = OverridableText(text, _hash(text), *place)
        for tool in node.tools:
            contract = _hash(tool.name, tool.description, tool.params_schema())
            tools.append(ToolDescriptor(path, tool.name, contract))
            texts |= _tool_texts(tool, path, contract)
    everything = [
        (*text_id, text.hash, text.text, text.accepts_overrides) for text_id, text in texts.items()
    ]
    return PromptDescriptor(ns, key, tuple(sections), tuple(tools), texts, _hash(everything))


def param_texts(tool: AnyTool) -> dict[str, str]:
    """Returns a tool's param descriptions by field name; `""` for a param without a description."""
    schema = tool.params_schema()
    properties = resolved(schema, schema).get("properties", {})  # a type can refer to itself
    return {name: param.get("description", "") for name, param in properties.items()}


def _tool_texts(tool: AnyTool, path: SectionPath, contract: str) -> dict[TextId, OverridableText]:
    name, place = tool.name, (path, tool.accepts_overrides)
    check = partial(check_description, name)
    texts = {TextId("tool", name): OverridableText(tool.description, contract, *place, check)}
    for param, text in param_texts(tool).items():
        texts[TextId("param", f"{name}.{param}")] = OverridableText(text, contract, *place)
    for index in range(len(tool.examples)):
        text = example_text(tool, index)
        texts[TextId("tool-example", f"{name}#{index}")] = OverridableText(
            text, _hash(text), *place
        )
    return texts


def _hash(*parts: object) -> str:
    return sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
