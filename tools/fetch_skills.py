"""Fetches the skills in packages from PyPI and npm into a folder, grouped by package.

No package is installed or run: only the files of its skills are extracted from the archive.
"""

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from urllib.request import urlopen
from zipfile import ZipFile

PACKAGES = {  # pinned, so that a test counts the same skills each time
    "pypi": ["pydantic-ai-slim==2.68.0", "pydantic-ai-harness==0.62.0"],
    "npm": ["chrome-devtools-mcp@1.11.0", "playwright-core@1.65.1"],
}


def fetch(index: str, package: str, folder: Path) -> Path:
    """Downloads one archive into `folder` and returns its path."""
    if index == "pypi":
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-qq", "download"]
        subprocess.run(
            [*pip, "--no-deps", "--only-binary=:all:", "-d", str(folder), package], check=True
        )
    elif npm := shutil.which("npm"):
        command = [npm, "pack", "--silent", "--ignore-scripts", "--pack-destination", str(folder)]
        subprocess.run([*command, package], check=True, stdout=subprocess.DEVNULL)
    else:
        name, _, version = package.rpartition("@")
        registry = os.environ.get("NPM_CONFIG_REGISTRY", "https://registry.npmjs.org").rstrip("/")
        with urlopen(f"{registry}/{name}/-/{name}-{version}.tgz", timeout=60) as reply:  # noqa: S310 - https, or what the user has set
            (folder / f"{name}.tgz").write_bytes(reply.read())
    [archive] = folder.iterdir()
    return archive


def files(archive: Path) -> Iterator[tuple[PurePosixPath, bytes]]:
    """Yields the regular files of an archive."""
    if archive.suffix == ".whl":
        with ZipFile(archive) as wheel:
            for name in wheel.namelist():
                if not name.endswith("/"):
                    yield PurePosixPath(name), wheel.read(name)
        return
    with tarfile.open(archive) as tarball:
        for member in tarball:
            content = tarball.extractfile(member) if member.isfile() else None
            if content is not None:
                yield PurePosixPath(member.name), content.read()


def main(folder: Path) -> None:
    """Fills `folder`, unless an earlier call has filled it with the same versions."""
    wanted = "\n".join(package for packages in PACKAGES.values() for package in packages)
    if (folder / "packages").is_file() and (folder / "packages").read_text() == wanted:
        return
    shutil.rmtree(folder, ignore_errors=True)
    for index, packages in PACKAGES.items():
        for package in packages:
            with TemporaryDirectory() as place:
                contents = dict(files(fetch(index, package, Path(place))))
            name = package.partition("==")[0].partition("@")[0]
            roots = {path.parent for path in contents if path.name == "SKILL.md"}
            for path, data in contents.items():
                for root in roots & {*path.parents}:
                    place_of = folder / name / root.name / path.relative_to(root)
                    if not place_of.resolve().is_relative_to(folder.resolve()):
                        sys.exit(f"{package} holds the path {path}")
                    place_of.parent.mkdir(parents=True, exist_ok=True)
                    place_of.write_bytes(data)
            print(f"{package}: {len(roots)} skills")
    (folder / "packages").write_text(wanted)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
