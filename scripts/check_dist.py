"""Check what was built in dist/: what is inside, and that it works in empty environments.

    python scripts/check_dist.py dist --pythons 3.10 3.11 3.12 3.13 --versions lowest newest

For every Python the wheel is installed twice, with the lowest versions of its dependencies
(requirements-lowest.lock) and with the newest; then the demo, a diagnosis and an aligned classifier
run from a folder of their own. torch is that of requirements.lock both times. A Python that is not
here is skipped; one whose torch would bring CUDA, some gigabytes, is checked without torch.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from packaging.metadata import Metadata

_ROOT = Path(__file__).resolve().parents[1]
_EXTRAS = "[images,plot,sklearn]"

_USE = """
import numpy as np, torch
import hessalign as ha
from hessalign.bench.data import make_shifted_data

data = make_shifted_data("correlation", seed=0, domains=3)
x, y = (torch.cat([getattr(part, name) for part in data.source]).numpy() for name in "xy")
domain = np.repeat(["north", "south", "west"], 500)
np.savez("embeddings.npz", x=x, y=y, domain=domain)
plain, aligned = (
    ha.AlignedClassifier("full", alpha=alpha, beta=beta).fit(x, y, domain)
    for alpha, beta in ((0, 0), (1, 100))
)
gain = aligned.score(data.target.x, data.target.y) - plain.score(data.target.x, data.target.y)
assert gain > 0.1, gain
z, logits, ids = torch.tensor(x), torch.randn(1500, 2), torch.arange(3).repeat_interleave(500)
largest, frobenius = (ha.hessian_distance(z, logits, ids, norm=n) for n in ("spectral", "fro"))
assert (largest <= frobenius + 1e-9).all()
"""

_HERE = """
import sys, hessalign
assert hessalign.__version__ == {version!r}, hessalign.__version__
assert hessalign.__file__.startswith(sys.prefix), hessalign.__file__
"""

# Every import from the standard library: this Python may not have it yet, or no more.
_STANDARD = """
import ast, pathlib, sys, hessalign

wrong = []
for file in pathlib.Path(hessalign.__file__).parent.rglob("*.py"):
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.Import, ast.ImportFrom)) and not getattr(node, "level", 0):
            module = getattr(node, "module", None) or node.names[0].name
            if module.split(".")[0] in sys.stdlib_module_names - {"__future__"}:
                try:
                    exec(ast.unparse(node))
                except ImportError as error:
                    wrong.append(f"{file.name}: {error}")
assert not wrong, wrong
"""


class _CheckError(Exception):
    """Something is wrong with what was built."""


def _say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _expect(found: set[str], wanted: set[str], where: str) -> None:
    """Compare the files of an archive with what should be in it."""
    if found != wanted:
        raise _CheckError(
            f"{where}: missing {sorted(wanted - found)}, not expected {sorted(found - wanted)}"
        )


def _package_files() -> set[str]:
    """All files of the package, by their paths in src/."""
    files = (path for path in (_ROOT / "src").rglob("*") if path.is_file())
    return {
        path.relative_to(_ROOT / "src").as_posix()
        for path in files
        if "__pycache__" not in path.parts and ".egg-info" not in str(path)
    }


def _check_wheel(wheel: Path) -> Metadata:
    """The wheel holds the package, its licences and its command, and nothing else."""
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
        (info,) = {name.split("/")[0] for name in names if ".dist-info/" in name}
        of_info = ("METADATA", "WHEEL", "RECORD", "entry_points.txt")
        licences = {f"{info}/licenses/{name}" for name in ("LICENSE", "NOTICE")}
        _expect(names, _package_files() | {f"{info}/{n}" for n in of_info} | licences, wheel.name)
        _expect({"hessalign/py.typed"} - names, set(), wheel.name)
        return Metadata.from_email(archive.read(f"{info}/METADATA"), validate=True)


def _check_sdist(sdist: Path) -> None:
    """The source holds the package, its tests and documents, and no results or caches."""
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    _expect({name[4:] for name in names if name.startswith("src/")}, _package_files(), sdist.name)
    top = {name.split("/")[0] for name in names}
    wanted = "tests docs examples benchmarks scripts README.md CHANGELOG.md SECURITY.md LICENSE"
    wanted += " NOTICE CITATION.cff Makefile mkdocs.yml pyproject.toml requirements.lock"
    others = {"src", "PKG-INFO", ".gitignore", "CONTRIBUTING.md", "requirements-lowest.lock"}
    _expect(top - others, set(wanted.split()), sdist.name)
    caches = [name for name in names if "__pycache__" in name or name.endswith(".pyc")]
    if caches:
        raise _CheckError(f"{sdist.name}: caches {caches[:3]}")


def _run(*words: str | Path, at: Path) -> str:
    """Run a command in a folder, without what would lead it to this source."""
    hidden = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}
    environment = {key: value for key, value in os.environ.items() if key not in hidden}
    environment["OMP_NUM_THREADS"] = "1"
    done = subprocess.run(words, cwd=at, env=environment, capture_output=True, text=True)
    if done.returncode:
        shown = "\n".join((done.stdout + done.stderr).splitlines()[-30:])
        raise _CheckError(
            f"{' '.join(map(str, words))[:200]} ended with {done.returncode}:\n{shown}"
        )
    return done.stdout


def _find_python(version: str) -> Path | None:
    """An interpreter of a version, on the path or where pyenv keeps them."""
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for found in [Path(f"python{version}"), *sorted(kept.glob(f"{version}.*/bin/python"))]:
        tell = "import sys; print(sys.executable, '%d.%d' % sys.version_info[:2])"
        try:
            told = _run(found, "-c", tell, at=Path.cwd()).split()
        except (_CheckError, OSError):  # a shim of pyenv may stand for nothing
            continue
        if told[-1] == version:
            return Path(told[0])
    return None


def _torch_brings_cuda(python: Path, at: Path) -> bool:
    """Whether the torch of requirements.lock is, for this Python, a build with CUDA."""
    words = "-m pip install --quiet --no-deps --dry-run --report torch.json torch --constraint"
    _run(python, *words.split(), _ROOT / "requirements.lock", at=at)
    (found,) = json.loads((at / "torch.json").read_text())["install"]
    needed = found["metadata"].get("requires_dist", [])
    return any(name.startswith(("cuda", "nvidia")) for name in needed)


def _install(python: Path, wheel: Path, versions: str, metadata: Metadata, at: Path) -> bool:
    """Install the wheel with its dependencies."""
    lock = (_ROOT / "requirements.lock").read_text().splitlines()
    constraints = [line for line in lock if line.startswith("torch==")]
    if versions == "lowest":
        constraints += (_ROOT / "requirements-lowest.lock").read_text().splitlines()
    (at / "constraints.txt").write_text("\n".join(constraints) + "\n")
    pip = (python, "-m", "pip", "install", "--quiet", "--constraint", at / "constraints.txt")
    if not _torch_brings_cuda(python, at):
        _run(*pip, f"{wheel}{_EXTRAS}", at=at)
        _run(python, "-m", "pip", "check", at=at)
        return True
    wanted = [each for each in metadata.requires_dist or [] if each.name != "torch"]
    extras = _EXTRAS.strip("[]").split(",")
    needed = [
        f"{each.name}{each.specifier}"
        for each in wanted
        if not each.marker or any(each.marker.evaluate({"extra": e}) for e in extras)
    ]
    _run(*pip, *needed, at=at)
    _run(*pip, "--no-deps", wheel, at=at)
    return False


def _use(python: Path, with_torch: bool, at: Path) -> str:
    """Do what a user does, from another folder."""
    command = python.with_name("hessalign")
    if not with_torch:
        _run(python, "-c", _STANDARD, at=at)
        _run(command, "--help", at=at)
        return "without torch, which brings CUDA here: imports, syntax, command line"
    _run(python, "-c", _USE, at=at)
    _run(command, "diagnose", "embeddings.npz", "--html", "page.html", at=at)
    demo = f"{command} demo --train-images 1000 --steps 231 --jobs 1 --output demo"
    printed = _run(*demo.split(), at=at)
    for name in ("page.html", "demo/colored_mnist.png"):
        _expect({name} if (at / name).stat().st_size > 1000 else set(), {name}, "written files")
    return "demo, diagnosis, classifier: " + printed.splitlines()[-1].rpartition("(")[2].rstrip(")")


def _check_environment(wheel: Path, metadata: Metadata, version: str, versions: str) -> str:
    """Install the wheel into an empty environment and use it there."""
    found = _find_python(version)
    if found is None:
        return "skipped: no such Python here"
    with tempfile.TemporaryDirectory(prefix="hessalign-dist-") as name:
        at = Path(name)
        _run(found, "-m", "venv", "environment", at=at)
        python = at / "environment" / "bin" / "python"
        with_torch = _install(python, wheel, versions, metadata, at)
        _run(python, "-c", _HERE.format(version=str(metadata.version)), at=at)
        done = _use(python, with_torch, at)
        listed = json.loads(_run(python, "-m", "pip", "list", "--format", "json", at=at))
    wanted = {each.name.lower() for each in metadata.requires_dist or []}
    shown = [f"{e['name']} {e['version']}" for e in listed if e["name"].lower() in wanted]
    return f"{done} ({', '.join(shown)})"


def main(arguments: list[str]) -> int:
    """Check everything and say what was done."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pythons", nargs="*", default=["3.10", "3.11", "3.12", "3.13"])
    parser.add_argument("--versions", nargs="*", default=["lowest", "newest"])
    options = parser.parse_args(arguments)
    failed = False
    try:
        (wheel,), (sdist,) = (list(options.folder.resolve().glob(p)) for p in ("*.whl", "*.gz"))
        metadata = _check_wheel(wheel)
        _check_sdist(sdist)
    except _CheckError as error:
        _say(f"wrong: {error}")
        return 1
    _say(f"{wheel.name}, {sdist.name}: contents and metadata are right")
    for version in options.pythons:
        for versions in options.versions:
            try:
                told = _check_environment(wheel, metadata, version, versions)
            except _CheckError as error:
                failed, told = True, f"failed: {error}"
            _say(f"Python {version}, {versions}: {told}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
