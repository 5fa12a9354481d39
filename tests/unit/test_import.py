"""`import hessalign` needs nothing, its names torch and numpy alone; each is imported on demand."""

import ast
from importlib import import_module
from pathlib import Path

import pytest

import hessalign

BLOCK = """
import sys
import importlib.metadata
from importlib.machinery import PathFinder

def needed(root):
    found, queue = set(), [root]
    while queue:
        name = queue.pop().lower().replace("_", "-")
        if name in found:
            continue
        try:
            requirements = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        found.add(name)
        for requirement in requirements:
            if "extra ==" not in requirement:
                end = next(
                    (i for i, c in enumerate(requirement) if not (c.isalnum() or c in "-_.")),
                    len(requirement),
                )
                queue.append(requirement[:end])
    return found

allowed = needed("torch") | needed("numpy")
blocked = set()
for module, names in importlib.metadata.packages_distributions().items():
    if not allowed & {name.lower().replace("_", "-") for name in names}:
        blocked.add(module)
blocked -= {"hessalign"}

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return None if name.split(".")[0] in blocked else PathFinder.find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Finder
assert {"scipy", "jaxtyping", "beartype", "matplotlib", "pytest"} <= blocked, blocked
"""

USE = """
import torch
import hessalign as ha

z = torch.randn(8, 5, requires_grad=True)
logits = torch.nn.Linear(5, 3)(z)
y, domain = torch.randint(3, (8,)), torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
for kind in ("full", "diagonal", "sampled", "expected", "product", None):
    for fidelity in ("paper", "domainbed", "released"):
        terms = ha.HessianAlignment(alpha=1e-2, beta=1e-3, hessian=kind, fidelity=fidelity)(
            z, logits, y, domain
        )
        (torch.nn.functional.cross_entropy(logits, y) + terms.penalty).backward(retain_graph=True)
ha.hessian_distance(z, logits, domain)
ha.attribute_distances(z, logits, y, domain)
ha.autograd_head(torch.nn.Linear(5, 3), z, y, domain).hessian
ha.hutchinson_diagonal(ha.linear_head(z, logits, y, domain), 3)
"""

SPECTRAL = """
try:
    wide = torch.randn(8, 40)  # smaller heads need no Lanczos iterations
    ha.hessian_distance(wide, logits, domain, norm="spectral")
except ImportError as error:
    print(error)
"""

IMPORTED = """
import sys
before = set(sys.modules)
import hessalign
assert "torch" not in set(sys.modules) - before
for name in hessalign.__all__:
    getattr(hessalign, name)
new = {name.split(".")[0] for name in set(sys.modules) - before}
heavy = {"scipy", "matplotlib", "pandas", "timm", "ray", "sklearn", "curvlinops", "backpack"}
print(sorted(new & heavy))
"""

PUBLIC = (
    "AlignedClassifier",
    "AlignedClassifierCV",
    "AlignmentTerms",
    "Binary",
    "CrossEntropy",
    "Diagnosis",
    "HessianAlignment",
    "MicroBatches",
    "OwnLoss",
    "Squared",
    "communication",
    "attribute_distances",
    "autograd_head",
    "diagnose",
    "domain_layout",
    "hessian_distance",
    "hutchinson_diagonal",
    "linear_head",
    "load_heart",
    "load",
    "transfer_bound",
    "transfer_measure",
    "worst_case_gap",
    "__version__",
)


def test_works_with_torch_and_numpy_alone_and_the_spectral_norm_says_what_it_misses(python):
    printed = python(BLOCK + USE + 'print("works")' + SPECTRAL)
    works, missing = printed.split("\n", 1)
    assert works == "works"
    assert "scipy" in missing


def test_heavy_packages_are_not_imported(python):
    assert python(IMPORTED) == "[]\n"


def test_the_public_names():
    assert [name for name in PUBLIC if not hasattr(hessalign, name)] == []


def test_nothing_heavy_is_imported_before_a_name_is_asked_for(python):
    script = """
import sys
import hessalign
print(sorted({"torch", "numpy"} & set(sys.modules)), hessalign.__version__)
hessalign.HessianAlignment
print("torch" in sys.modules)
"""
    assert python(script) == f"[] {hessalign.__version__}\nTrue\n"


@pytest.mark.parametrize(
    "attribute",
    [
        "heads.PublishedAttack",
        "curvature.gram",
        "alignment.TABLE_1",
        "report",
        "bench",
        "diagnosis.Verdict",
        "estimator.AlignedClassifier",
    ],
)
def test_parts_of_the_package_are_attributes_of_it(attribute, python):
    assert python(f"import hessalign as ha\nha.{attribute}\nprint('found')") == "found\n"


def test_checkers_and_interpreter_know_the_same_names():
    """The imports for type checkers, editors and the documentation are those made on demand."""
    tree = ast.parse(Path(hessalign.__file__).read_text(encoding="utf-8"))
    (branch,) = (node for node in tree.body if isinstance(node, ast.If))
    declared = {
        alias.name: node.module
        for node in branch.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname == alias.name
    }
    assert declared == {name: f"hessalign.{home}" for name, home in hessalign._HOMES.items()}
    assert {*declared, "__version__"} == set(PUBLIC)
    for name, home in declared.items():
        assert getattr(hessalign, name) is getattr(import_module(home), name)


def test_a_star_and_help_need_torch_and_numpy_alone(python):
    script = (
        BLOCK
        + """
import pydoc
import hessalign
from hessalign import *
assert HessianAlignment is hessalign.HessianAlignment
print("AlignedClassifier" in globals(), "HessianAlignment" in pydoc.render_doc(hessalign))
"""
    )
    assert python(script) == "False True\n"
