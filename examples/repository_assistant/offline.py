"""Replaces the model with a fixed plan of calls that reads the tools' results. It is not an LLM."""

import json
import re
from functools import partial
from pathlib import Path

from examples.common.models import Offline
from examples.offline_model import Call, Plan, follow

__all__ = ["offline"]


def offline(repository: Path) -> Offline:
    """Returns the plan for one repository."""
    return Offline("an offline plan (no LLM: fixed calls)", follow(partial(_plan, str(repository))))


def _plan(path: str) -> Plan:
    yield _call("read_section", section_key="git")
    yield _call("read_section", section_key="git.history")
    log = yield _call("git_log", repo_path=path, max_count=20)
    changelog = yield _call("read_file", path="CHANGELOG.md")
    lines = [line.partition("\t")[2] for line in changelog.splitlines() if "\t" in line]
    subjects = re.findall(r"^Message: '?(.+?)'?$", log, re.MULTILINE)
    changes = [f"- {subject}" for subject in reversed(subjects) if not subject.startswith("docs")]
    entries = [change for change in changes if change not in lines]
    if not entries:
        return json.dumps({"entries": [], "commit": "nothing to do"})
    text = "\n".join([*lines, *entries, ""])
    yield _call("write_file", path="CHANGELOG.md", content=text)
    yield _call("read_section", section_key="git.commits")
    yield _call("git_add", repo_path=path, files=["CHANGELOG.md"])
    message = "Changelog brought up to date"
    answer = yield _call("git_commit", repo_path=path, message=message)
    if "docs:" in answer:  # the repository's hook asked for this prefix
        answer = yield _call("git_commit", repo_path=path, message=f"docs: {message}")
    return json.dumps({"entries": entries, "commit": answer})


def _call(name: str, **arguments: object) -> Call:
    return Call(name=name, arguments=arguments)
