"""The one list of a prompt's overridable texts, each with its hash; staleness, seeds and rebases
all read it.

Hashes are SHA-256 over JSON with sorted keys, so they are the same in every process and on every
machine.
"""

import json
from hashlib import sha256

from ... import serde
from ..registry import RegistrySnapshot, check_placeholders, example_text
from ..tool import AnyTool, check_description
from .model import OverridableText, PromptDescriptor, SectionDescriptor, TextId, ToolDescriptor

__all__ = ["check_text", "describe", "param_texts"]


def describe(ns: str, key: str, registry: RegistrySnapshot) -> PromptDescriptor:
    """The descriptor of a tree."""
    texts: dict[TextId, OverridableText] = {}
    sections: list[SectionDescriptor] = []
    tools: list[ToolDescriptor] = []
    for node in registry.sections:
        section, path = node.section, node.path
        accepts = section.accepts_overrides
        body, summary, examples = section.body_text(), section.summary, section.example_texts()
        content = _hash(body, summary, examples)
        sections.append(SectionDescriptor(path, content))
        texts[TextId("body", node.key)] = OverridableText(body, content, path, accepts, section)
        texts[TextId("summary", node.key)] = OverridableText(
            summary or "", content, path, accepts, section
        )
        for index, text in enumerate(examples):
            texts[TextId("task-example", f"{node.key}#{index}")] = OverridableText(
                text, _hash(text), path, accepts
            )
        for tool in node.tools:
            name, accepts = tool.name, tool.accepts_overrides
            contract = _hash(name, tool.description, serde.json_schema(tool.params_type))
            tools.append(ToolDescriptor(path, name, contract))
            texts[TextId("tool", name)] = OverridableText(tool.description, contract, path, accepts)
            for param, text in param_texts(tool).items():
                texts[TextId("param", f"{name}.{param}")] = OverridableText(
                    text, contract, path, accepts
                )
            for index in range(len(tool.examples)):
                text = example_text(tool, index)
                texts[TextId("tool-example", f"{name}#{index}")] = OverridableText(
                    text, _hash(text), path, accepts
                )
    whole = _hash([(*one, of.hash, of.text, of.accepts_overrides) for one, of in texts.items()])
    return PromptDescriptor(ns, key, tuple(sections), tuple(tools), texts, whole)


def param_texts(tool: AnyTool) -> dict[str, str]:
    """The descriptions of a tool's params by field name, empty where it has none."""
    schema = serde.json_schema(tool.params_type)
    if "$ref" in schema:  # a type that holds itself
        schema = schema["$defs"][schema["$ref"].rpartition("/")[2]]
    return {name: one.get("description", "") for name, one in schema.get("properties", {}).items()}


def check_text(descriptor: PromptDescriptor, one: TextId, text: str) -> None:
    """Raises `PromptValidationError` for a text that the prompt could not be rendered with."""
    if one.kind == "tool":
        check_description(one.at, text)
    of = descriptor.texts.get(one)
    if of is not None and of.section is not None:
        check_placeholders(text, of.section, of.path)


def _hash(*parts: object) -> str:
    return sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
