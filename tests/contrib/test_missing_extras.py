"""A feature whose package is missing names the extra to install."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from support.commands import environment

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
NEEDS = [
    ("yaml", "import weakincentives.contrib.skills", "skills"),
    ("yaml", "import weakincentives.contrib.skills.export", "skills"),
    ("ag_ui", "import weakincentives.contrib.ag_ui", "ag-ui"),
    ("genai_prices", "import weakincentives.contrib.prices", "prices"),
    ("inspect_ai", "import weakincentives.contrib.inspect", "inspect"),
    ("opentelemetry", "import weakincentives.contrib.otel", "otel"),
    ("dbos", "from weakincentives.contrib.durable import install; install({})", "durable"),
]


@pytest.mark.parametrize(("package", "code", "extra"), NEEDS, ids=[code for _, code, _ in NEEDS])
def test_missing_package_error_names_the_extra(package: str, code: str, extra: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.modules[{package!r}] = None; {code}"],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"; run pip install '.[{extra}]' in a checkout" in done.stderr.splitlines()[-1]
    assert extra in PROJECT["optional-dependencies"]
