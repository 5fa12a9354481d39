"""hessalign: exact Hessian and gradient alignment for domain generalization.

Three lines in a training loop of your own:

    align = hessalign.HessianAlignment(alpha=1e-2, beta=1e-3, hessian="full")
    terms = align(z, logits, y, domain)
    loss = cross_entropy(logits, y) + terms.penalty
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from hessalign._version import __version__ as __version__
from hessalign.alignment import AlignmentTerms as AlignmentTerms
from hessalign.alignment import HessianAlignment as HessianAlignment
from hessalign.alignment import attribute_distances as attribute_distances
from hessalign.alignment import hessian_distance as hessian_distance
from hessalign.curvature import autograd_head as autograd_head
from hessalign.curvature import hutchinson_diagonal as hutchinson_diagonal
from hessalign.curvature import linear_head as linear_head
from hessalign.diagnosis import Diagnosis as Diagnosis
from hessalign.diagnosis import diagnose as diagnose
from hessalign.heads import transfer_bound as transfer_bound
from hessalign.heads import transfer_measure as transfer_measure
from hessalign.heads import worst_case_gap as worst_case_gap

if _TYPE_CHECKING:
    from hessalign.bench.runs.trained import load as load
    from hessalign.estimator import AlignedClassifier as AlignedClassifier


def __getattr__(name: str) -> object:
    # scikit-learn, and what it imports, only for those who ask for it.
    if name == "AlignedClassifier":
        from hessalign.estimator import AlignedClassifier

        return AlignedClassifier
    if name == "load":
        from hessalign.bench.runs.trained import load

        return load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
