"""Stands in for a model when there is none: a fixed plan of calls. It is no LLM and judges nothing.

It opens the topics one by one, and reports what their checks find in the checks' own words.
"""

import json

from examples.common.models import Offline
from examples.offline_model import Call, Plan, embedded_json, follow

__all__ = ["OFFLINE"]

_SEVERITY = {"security": "blocker", "correctness": "major", "tests": "minor", "style": "minor"}
_MOST = 5  # findings of a topic


def review() -> Plan:
    """Opens a topic, runs its check, reports; then the next one."""
    count = 0
    for topic, severity in _SEVERITY.items():
        yield Call(name="read_section", arguments={"section_key": f"guidelines.{topic}"})
        _, hints = embedded_json((yield Call(name=f"check_{topic}", arguments={"limit": _MOST})))
        for hint in hints if isinstance(hints, list) else []:
            finding = {
                "path": hint["path"],
                "line": hint["line"],
                "severity": severity,
                "title": hint["odd"],
            }
            finding |= {
                "explanation": f"The check of {topic} found it.",
                "suggestion": hint["instead"],
            }
            yield Call(name="report_finding", arguments=finding)
            count += 1
    verdict = "request changes" if count else "approve"
    return json.dumps(
        {"verdict": verdict, "summary": f"The checks of four topics gave {count} findings."}
    )


OFFLINE = Offline(
    "an offline plan (no LLM: it reports what the checks find, and judges nothing)", follow(review)
)
