"""A release says the same everywhere, and its checks of what was built can fail."""

import io
import re
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from scripts import check_dist

from hessalign import __version__

ROOT = Path(__file__).parents[2]


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def test_one_version_everywhere():
    assert yaml.safe_load(read("CITATION.cff"))["version"] == __version__
    assert f"copyright: hessalign {__version__}\n" in read("mkdocs.yml")
    assert re.search(r"(?m)^## \[([\d.]+)\]", read("CHANGELOG.md"))[1] == __version__
    assert f"| {__version__.rpartition('.')[0]} |" in read("docs/stability.md")


def test_the_citation_has_what_the_schema_requires():
    citation = yaml.safe_load(read("CITATION.cff"))
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= citation.keys()
    for reference in citation["references"]:
        assert {"type", "title", "authors", "year"} <= reference.keys()


def test_the_lowest_versions_are_those_of_the_metadata():
    toml = pytest.importorskip("tomllib")  # from Python 3.11 on
    project = toml.loads(read("pyproject.toml"))["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *(one for extra in ("plot", "sklearn", "images")
                                          for one in extras[extra])]  # fmt: skip
    lines = [line for line in read("requirements-lowest.lock").splitlines() if line[:1] != "#"]
    pinned = {}
    for line in map(Requirement, lines):
        (each,) = line.specifier
        if line.marker is None or line.marker.evaluate({"python_version": "3.11"}):
            assert pinned.setdefault(line.name, each.version) == each.version
    for requirement in map(Requirement, wanted):
        if requirement.name != "torch":
            (lowest,) = requirement.specifier
            assert re.match(rf"{re.escape(lowest.version)}(\.0)*$", pinned.pop(requirement.name))
    assert pinned == {}


def test_hooks_run_the_tools_of_the_environment():
    (repository,) = yaml.safe_load(read(".pre-commit-config.yaml"))["repos"]
    assert repository["repo"] == "local"
    tools = [hook["entry"].split()[0].rpartition("/")[2] for hook in repository["hooks"]]
    assert tools == ["ruff", "ruff", "mypy", "lint-imports"]


METADATA = f"Metadata-Version: 2.4\nName: hessalign\nVersion: {__version__}\n"


def make_wheel(folder, *, without=(), extra=()):
    info = f"hessalign-{__version__}.dist-info"
    named = (
        "METADATA",
        "WHEEL",
        "RECORD",
        "entry_points.txt",
        "licenses/LICENSE",
        "licenses/NOTICE",
    )
    files = {*check_dist._package_files(), *(f"{info}/{name}" for name in named), *extra}
    with zipfile.ZipFile(folder / "hessalign.whl", "w") as archive:
        for name in files - set(without):
            archive.writestr(name, METADATA if name.endswith("METADATA") else "")
    return folder / "hessalign.whl"


def test_a_wheel_holds_the_package_and_nothing_else(tmp_path):
    assert str(check_dist._check_wheel(make_wheel(tmp_path)).version) == __version__
    for change in ({"extra": ["tests/test_a.py"]}, {"extra": ["results/a.json"]},
                   {"without": ["hessalign/py.typed"]},
                   {"without": ["hessalign/bench/data/mnist14.bin.xz"]}):  # fmt: skip
        ((_, (name,)),) = change.items()
        with pytest.raises(check_dist._CheckError, match=re.escape(name)):
            check_dist._check_wheel(make_wheel(tmp_path, **change))


def test_a_source_without_results(tmp_path):
    names = {f"src/{name}" for name in check_dist._package_files()}
    names |= {"tests/a.py", "docs/a.md", "examples/a.py", "benchmarks/a.py", "scripts/a.py"}
    names |= {path.name for path in ROOT.glob("*.*") if path.suffix in {".md", ".lock", ".toml"}}
    names |= {"CITATION.cff", "LICENSE", "NOTICE", "Makefile", "mkdocs.yml", "PKG-INFO"}

    def make(files):
        with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as archive:
            for name in files:
                archive.addfile(tarfile.TarInfo(f"hessalign-1/{name}"), io.BytesIO())
        return tmp_path / "a.tar.gz"

    check_dist._check_sdist(make(names))
    for wrong in (names | {"results/a.json"}, names - {"LICENSE"}, names | {"tests/a.pyc"}):
        with pytest.raises(check_dist._CheckError):
            check_dist._check_sdist(make(wrong))


def test_pythons_that_are_there_are_found():
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert check_dist._find_python(here) is not None
    assert check_dist._find_python("2.99") is None


def test_a_command_that_fails_is_told(tmp_path):
    with pytest.raises(check_dist._CheckError, match=r"ended with 3(.|\n)*reason"):
        check_dist._run(sys.executable, "-c", "print('reason'); exit(3)", at=tmp_path)
