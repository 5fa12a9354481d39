"""The table of algorithms: one row each, from which listings and the command line follow.

Algorithms of others need no row: they are found as `package.module:Name`, or under the name by
which an installed package offers them (entry points, group "hessalign.algorithms").
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, final, get_args, get_type_hints

from hessalign._errors import InputError, InputTypeError, UnknownNameError
from hessalign._plugins import entry_point_names, find_plugin, told_as_theirs
from hessalign.alignment.penalties import HessianKind
from hessalign.bench.algorithms import (
    adversaries,
    augmentations,
    contexts,
    features,
    finetuning,
    gradients,
    head_transfer,
    hessian,
    pairs,
    risks,
)
from hessalign.bench.algorithms.hessian import Alignment, AlignmentConfig
from hessalign.bench.algorithms.kinds import NOT_SAID, AbstractAlgorithm, Setting
from hessalign.bench.algorithms.options import Hyper, SearchSpace, check_options

_GROUP: Final = "hessalign.algorithms"  # the entry points by which packages offer algorithms
_OF_CLASS: Final[Any] = None  # of a field: that of the class


@final
@dataclass(frozen=True)
class AlgorithmInfo:
    """One row of the table; what it leaves out is as the class says.

    Attributes:
        name: How it is called on the command line and in results.
        title: How it is shown in tables and figures.
        make: Its class, which builds it from a configuration and a setting.
        aligns: What it aligns, in the words of Table 1.
        reference: Who proposed it, and which equation of it this is.
        config: Its default configuration.
        search: Where DomainBed's sweeps draw options from.
        search_small: What differs from `search` on small images.
        search_features: What differs from `search` on frozen features.
        search_released: What the code published with the paper draws instead.
        by_dataset: What differs on some data sets, by their names, and there by DomainBed's names.
        released: Options by which it follows the released Colored MNIST scripts.
        record_name: What DomainBed's records call it, where that is not the title.
    """

    name: str
    title: str
    make: type[AbstractAlgorithm]
    aligns: str = _OF_CLASS
    reference: str = _OF_CLASS
    config: Any = _OF_CLASS
    search: SearchSpace = _OF_CLASS
    search_small: SearchSpace = _OF_CLASS
    search_features: SearchSpace = _OF_CLASS
    search_released: SearchSpace = _OF_CLASS
    by_dataset: Mapping[str, Mapping[str, Hyper]] = _OF_CLASS
    released: Mapping[str, object] = _OF_CLASS
    record_name: str = ""

    def __post_init__(self) -> None:
        if not (isinstance(self.make, type) and issubclass(self.make, AbstractAlgorithm)):
            raise InputTypeError(
                f"Expected the class of an algorithm to make {self.name!r}, got {self.make!r}. Use "
                "a subclass of AbstractObjective, AbstractGradientRule or AbstractStepOwner."
            )
        if inspect.isabstract(self.make):
            missing = ", ".join(sorted(self.make.__abstractmethods__))
            raise InputTypeError(
                f"Expected a complete class to make {self.name!r}, got {self.make.__name__}, which "
                f"lacks {missing}."
            )
        for each in dataclasses.fields(self):
            if getattr(self, each.name) is _OF_CLASS:
                object.__setattr__(self, each.name, getattr(self.make, each.name))
        frozen = getattr(getattr(self.config, "__dataclass_params__", None), "frozen", False)
        if isinstance(self.config, type) or not frozen:
            raise InputTypeError(
                f"Expected {self.make.__name__}.config as an instance of a frozen dataclass, with "
                f"the default options, got {self.config!r}."
            )

    @property
    def recorded(self) -> str:
        """The name in records and in the identity of jobs."""
        return self.record_name or self.title

    @property
    def compares_domains(self) -> bool:
        """Whether it aligns something, for which it needs two domains or more."""
        return not self.aligns.startswith(("nothing", NOT_SAID))

    @property
    def deviates(self) -> bool:
        """Whether DomainBed's implementation is another than the default, and can be asked for."""
        hint = get_type_hints(type(self.config)).get(FIDELITY)
        return DOMAINBED in get_args(hint) and getattr(self.config, FIDELITY) != DOMAINBED

    def configure(self, options: Mapping[str, object]) -> Any:  # noqa: ANN401
        """The default configuration but for some options, all settled; wrong ones are refused."""
        check_options(type(self.config), options, f"algorithm {self.name!r}")
        with told_as_theirs("algorithm", self.make, "configured"):
            config = dataclasses.replace(self.config, **options)
        return config.settled() if isinstance(config, AlignmentConfig) else config

    def is_already(self, option: str, value: object) -> bool:
        """Whether DomainBed's implementation is asked of an algorithm that has no other."""
        return (option, value) == (FIDELITY, DOMAINBED) and not self.deviates


FIDELITY: Final = "fidelity"
"""The option that says which implementation an algorithm follows."""

DOMAINBED: Final = "domainbed"
"""Its value for DomainBed's."""

_ERROR: Final = "error, error×feature"
_DIAGONAL: Final = f"{_ERROR}; the Hessian's diagonal"
_CMA: Final = "closed form: CMA, Chen et al., 2025"


def _align(
    name: str,
    title: str,
    kind: HessianKind | None,
    aligns: str,
    reference: str,
    alpha: float = 1e-3,
    record_name: str = "",
) -> AlgorithmInfo:
    """A row of Hessian alignment; on Colored MNIST the schedule alone weighs the penalty."""
    return AlgorithmInfo(
        name,
        title,
        Alignment,
        aligns,
        f"Hemati et al., 2023, {reference}",
        AlignmentConfig(alpha, beta=5e-3, hessian=kind),
        search=hessian.SEARCH[kind],
        search_features=hessian.FEATURES_SEARCH[kind],
        search_released=hessian.RELEASED_SEARCH.get(kind, {}),
        released={"fidelity": "released", **Alignment.released},
        record_name=record_name,
    )


_Row = AlgorithmInfo
_ROWS = (
    _Row("erm", "ERM", risks.Erm),
    _Row("irm", "IRM", risks.Irm),
    _Row("vrex", "V-REx", risks.Vrex, record_name="VREx"),
    _Row("fishr", "Fishr", hessian.Fishr),
    _align("gradient", "Gradient only", None, _ERROR, "eq. 17 with α = 0", 1.0, "Gradient"),
    _align("hgp", "HGP", "product", f"{_ERROR}; the Hessian along the gradient", "eq. 17", 1e-4),
    _align("hutchinson", "Hutchinson", "sampled", f"{_DIAGONAL}, estimated", "eq. 20"),
    _align(
        "expected",
        "Hutchinson, expected",
        "expected",
        "as hutchinson, without sampling",
        "eq. 20; its expectation: this package",
        record_name="Expected",
    ),
    _align(
        "diagonal",
        "Exact diagonal",
        "diagonal",
        _DIAGONAL,
        f"eq. 20; {_CMA}; its diagonal alone: this package",
        record_name="Diagonal",
    ),
    _align(
        "full",
        "Full Hessian",
        "full",
        f"{_ERROR}, logit, logit×feature, logit×covariance",
        f"section 3.1; {_CMA}; never formed: this package",
        record_name="Full",
    ),
    _Row("groupdro", "GroupDRO", risks.GroupDro),
    _Row("mixup", "Mixup", augmentations.Mixup),
    _Row("mldg", "MLDG", gradients.Mldg),
    _Row("coral", "CORAL", features.Coral),
    _Row("mmd", "MMD", features.Mmd),
    _Row("dann", "DANN", adversaries.Adversarial),
    _Row(
        "cdann",
        "CDANN",
        adversaries.Adversarial,
        "the distribution of features given the class",
        "Li et al., 2018",
        adversaries.AdversarialConfig(conditional=True),
    ),
    _Row("mtl", "MTL", contexts.Mtl),
    _Row("sagnet", "SagNet", augmentations.SagNet),
    _Row("arm", "ARM", contexts.Arm),
    _Row("rsc", "RSC", augmentations.Rsc),
    _Row("andmask", "AND-mask", gradients.AndMask, record_name="ANDMask"),
    _Row("sandmask", "SAND-mask", gradients.SandMask, record_name="SANDMask"),
    _Row("fish", "Fish", gradients.Fish),
    _Row("iga", "IGA", gradients.Iga),
    _Row("sd", "SD", risks.Sd),
    _Row("eqrm", "EQRM", risks.Eqrm),
    _Row("rdm", "RDM", risks.Rdm),
    _Row("ib_erm", "IB-ERM", risks.IbErm, record_name="IB_ERM"),
    _Row("ib_irm", "IB-IRM", risks.IbIrm, record_name="IB_IRM"),
    _Row("cad", "CAD", features.Cad),
    _Row(
        "condcad",
        "CondCAD",
        features.Cad,
        "the distribution of features given the class",
        config=features.CadConfig(conditional=True),
    ),
    _Row("causirl_coral", "CausIRL, CORAL", features.CausIrlCoral, record_name="CausIRL_CORAL"),
    _Row("causirl_mmd", "CausIRL, MMD", features.CausIrlMmd, record_name="CausIRL_MMD"),
    _Row("ddc", "DDC", features.Ddc),
    _Row("mdan", "MDAN", adversaries.Mdan),
    _Row("urm", "URM", adversaries.Urm),
    _Row("selfreg", "SelfReg", pairs.SelfReg),
    _Row("trm", "TRM", head_transfer.Trm),
    _Row("transfer", "Transfer", head_transfer.Transfer),
    _Row("adrmx", "ADRMX", pairs.Adrmx),
    _Row("ermplusplus", "ERM++", finetuning.ErmPlusPlus, record_name="ERMPlusPlus"),
    _Row("agrsum", "Agr-Sum", gradients.Surgery, record_name="AgrSum"),
    _Row(
        "agrrand",
        "Agr-Rand",
        gradients.Surgery,
        config=gradients.SurgeryConfig(random=True),
        record_name="AgrRand",
    ),
    _Row(
        "cma",
        "CMA",
        Alignment,
        "error×feature, logit×covariance",
        "Chen et al., 2025, arXiv 2506.07378",
        AlignmentConfig(316.0, 316.0, "full", bias=False, over_outputs=True),
        search=hessian.CMA_SEARCH,
        search_features=hessian.CMA_FEATURES_SEARCH,
    ),
    _Row("miro", "MIRO", finetuning.Miro),
    _Row("sagm", "SAGM", finetuning.Sagm),
)

ALGORITHMS: Mapping[str, AlgorithmInfo] = {row.name: row for row in _ROWS}
if len(ALGORITHMS) != len(_ROWS):
    raise RuntimeError("Two algorithms have the same name.")


def find_algorithm(name: str) -> AlgorithmInfo:
    """The row of an algorithm.

    Args:
        name: Its name, what records call it, the name by which an installed package offers it, or
            `package.module:Name` for a class of one's own or an `AlgorithmInfo`. Under this name
            the last two are recorded, and have to be found wherever runs are trained or continued.

    Returns:
        The row.

    Raises:
        UnknownNameError: If there is no such algorithm. An InputError is raised if what is found
            under the name is none.

    Example:
        >>> find_algorithm("VREx").name
        'vrex'
        >>> find_algorithm("hessalign.bench.algorithms.risks:Vrex").config.penalty_weight
        10.0
    """
    known = {**{row.recorded: row for row in _ROWS}, **ALGORITHMS}
    if name in known:
        return known[name]
    found = find_plugin(_GROUP, name, "algorithm")
    if found is None:
        raise UnknownNameError("algorithm", name, algorithm_names())
    return make_row(name, found)


def algorithm_names() -> list[str]:
    """What `find_algorithm` takes: the package's names first, then others' that are installed."""
    return [*ALGORITHMS, *(name for name in entry_point_names(_GROUP) if name not in ALGORITHMS)]


def make_row(name: str, found: Any) -> AlgorithmInfo:  # noqa: ANN401
    """The row of what a user brought, the class of an algorithm or a row, under the user's name."""
    if isinstance(found, AlgorithmInfo):
        return dataclasses.replace(found, name=name, record_name=name)
    try:
        return AlgorithmInfo(name, getattr(found, "__name__", name), found, record_name=name)
    except InputTypeError as error:
        raise InputError(f"Expected an algorithm as {name!r}. {error}") from error


def make_config(name: str, options: Mapping[str, object]) -> Any:  # noqa: ANN401
    """The configuration of an algorithm by its name, but for options that differ from the default.

    Returns:
        What `AlgorithmInfo.configure` makes of them.

    Example:
        >>> make_config("hutchinson", {"fidelity": "domainbed"}).probes
        300
    """
    return find_algorithm(name).configure(options)


def make_algorithm(name: str, options: Mapping[str, object], setting: Setting) -> AbstractAlgorithm:
    """Build an algorithm by its name, with options that differ from the default."""
    return find_algorithm(name).make(make_config(name, options), setting)
