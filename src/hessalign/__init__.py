"""hessalign: exact Hessian and gradient alignment for domain generalization.

Three lines in a training loop of your own:

    align = hessalign.HessianAlignment(alpha=1e-2, beta=1e-3, hessian="full")
    terms = align(z, logits, y, domain)
    loss = cross_entropy(logits, y) + terms.penalty

`import hessalign` alone imports next to nothing: torch comes with the first name that is asked for,
scikit-learn with `AlignedClassifier` and `AlignedClassifierCV`. A new name has a line in both
branches below.
"""

import typing as _typing

from hessalign._version import __version__ as __version__

if _typing.TYPE_CHECKING:
    from hessalign.alignment import AlignmentTerms as AlignmentTerms
    from hessalign.alignment import HessianAlignment as HessianAlignment
    from hessalign.alignment import MicroBatches as MicroBatches
    from hessalign.alignment import attribute_distances as attribute_distances
    from hessalign.alignment import communication as communication
    from hessalign.alignment import hessian_distance as hessian_distance
    from hessalign.bench.data.heart import load_heart as load_heart
    from hessalign.bench.runs.trained import load as load
    from hessalign.curvature import Binary as Binary
    from hessalign.curvature import CrossEntropy as CrossEntropy
    from hessalign.curvature import OwnLoss as OwnLoss
    from hessalign.curvature import Squared as Squared
    from hessalign.curvature import autograd_head as autograd_head
    from hessalign.curvature import domain_layout as domain_layout
    from hessalign.curvature import hutchinson_diagonal as hutchinson_diagonal
    from hessalign.curvature import linear_head as linear_head
    from hessalign.diagnosis import Diagnosis as Diagnosis
    from hessalign.diagnosis import diagnose as diagnose
    from hessalign.estimator import AlignedClassifier as AlignedClassifier
    from hessalign.estimator_cv import AlignedClassifierCV as AlignedClassifierCV
    from hessalign.heads import transfer_bound as transfer_bound
    from hessalign.heads import transfer_measure as transfer_measure
    from hessalign.heads import worst_case_gap as worst_case_gap
else:
    _NAMES = {
        "alignment": "AlignmentTerms HessianAlignment MicroBatches attribute_distances "
        "communication hessian_distance",
        "curvature": "Binary CrossEntropy OwnLoss Squared autograd_head domain_layout "
        "hutchinson_diagonal linear_head",
        "diagnosis": "Diagnosis diagnose",
        "estimator": "AlignedClassifier",
        "bench.data.heart": "load_heart",
        "estimator_cv": "AlignedClassifierCV",
        "bench.runs.trained": "load",
        "heads": "transfer_bound transfer_measure worst_case_gap",
    }
    _HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}
    _MODULES = {"bench", "paper", "report", *_NAMES}
    # What needs torch and numpy alone: a star takes it, and help() looks at it.
    __all__ = [name for name, home in _HOMES.items() if "estimator" not in home]

    def __getattr__(name: str) -> object:
        """A public name or a part of the package, imported when it is first asked for."""
        from importlib import import_module

        if name in _HOMES:
            found = getattr(import_module(f"hessalign.{_HOMES[name]}"), name)
        elif name in _MODULES:
            found = import_module(f"hessalign.{name}")
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = found
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
