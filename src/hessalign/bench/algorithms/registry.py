"""The table of algorithms: one row each, from which listings and the command line follow.

Algorithms of others need no row: they are found as `package.module:Name`, or under the name by
which an installed package offers them (entry points, group "hessalign.algorithms").
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, final, get_args, get_type_hints

from hessalign._errors import InputError, InputTypeError
from hessalign._names import UnknownNameError
from hessalign._plugins import entry_point_names, find_plugin
from hessalign.alignment.penalties import HessianKind
from hessalign.bench.algorithms import hessian
from hessalign.bench.algorithms.adversaries import Mdan, Urm
from hessalign.bench.algorithms.augmentations import Mixup, Rsc, SagNet
from hessalign.bench.algorithms.bottlenecks import Cad, CadConfig, IbErm, IbIrm
from hessalign.bench.algorithms.contexts import Arm, Mtl
from hessalign.bench.algorithms.feature_distributions import (
    Adversarial,
    AdversarialConfig,
    CausIrlCoral,
    CausIrlMmd,
    Coral,
    Ddc,
    Mmd,
)
from hessalign.bench.algorithms.finetuning import ErmPlusPlus, Miro, Sagm
from hessalign.bench.algorithms.gradients import AndMask, Iga, SandMask, Surgery, SurgeryConfig
from hessalign.bench.algorithms.head_transfer import Transfer, Trm
from hessalign.bench.algorithms.hessian import Alignment, AlignmentConfig, Fishr
from hessalign.bench.algorithms.inner_steps import Fish, Mldg
from hessalign.bench.algorithms.kinds import AbstractAlgorithm, Setting
from hessalign.bench.algorithms.options import Hyper, SearchSpace, check_options
from hessalign.bench.algorithms.pairs import Adrmx, SelfReg
from hessalign.bench.algorithms.risk_distributions import Eqrm, Rdm
from hessalign.bench.algorithms.risks import Erm, GroupDro, Irm, Sd, Vrex

_GROUP: Final = "hessalign.algorithms"  # the entry points by which packages offer algorithms
_NOT_SAID: Final = "–"


@final
@dataclass(frozen=True)
class AlgorithmInfo:
    """One row of the table.

    Attributes:
        name: How it is called on the command line and in results.
        title: How it is shown in tables and figures.
        make: Its class, which builds it from a configuration and a setting.
        aligns: What it aligns, in the words of Table 1.
        reference: Who proposed it, and which equation of it this is.
        config: Its default configuration; that of the class if None.
        search: Where DomainBed's sweeps draw options from; as the class says if None.
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
    aligns: str = _NOT_SAID
    reference: str = _NOT_SAID
    config: Any = None
    search: SearchSpace = None  # type: ignore[assignment] # settled below
    search_small: SearchSpace = field(default_factory=dict)
    search_features: SearchSpace = field(default_factory=dict)
    search_released: SearchSpace = field(default_factory=dict)
    by_dataset: Mapping[str, Mapping[str, Hyper]] = field(default_factory=dict)
    released: Mapping[str, object] = field(default_factory=dict)
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
        for attribute in ("config", "search"):
            if getattr(self, attribute) is None:
                object.__setattr__(self, attribute, getattr(self.make, attribute))
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
        return not self.aligns.startswith(("nothing", _NOT_SAID))

    @property
    def deviates(self) -> bool:
        """Whether DomainBed's implementation is another than the default, and can be asked for."""
        hint = get_type_hints(type(self.config)).get(FIDELITY)
        return DOMAINBED in get_args(hint) and getattr(self.config, FIDELITY) != DOMAINBED

    def configure(self, options: Mapping[str, object]) -> Any:  # noqa: ANN401
        """The default configuration but for some options, all settled; wrong ones are refused."""
        check_options(type(self.config), options, f"algorithm {self.name!r}")
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
_SCRIPTS: Final = {"fidelity": "released"}
_SCHEDULED: Final = {  # by the protocol of Colored MNIST alone
    "irm_weight": 1.0,
    "irm_anneal_steps": 0,
    "ib_weight": 1.0,
    "ib_anneal_steps": 0,
}
_SURGERY: Final = "Mansilla et al., 2021, arXiv 2108.01621"


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
        released={**_SCRIPTS, "alpha": 1.0, "beta": 1.0},
        record_name=record_name,
    )


_Row = AlgorithmInfo
_ROWS = (
    _Row("erm", "ERM", Erm, "nothing", "Vapnik, 1999"),
    _Row("irm", "IRM", Irm, "the optimal scale of the logits", "Arjovsky et al., 2019"),
    _Row(
        "vrex", "V-REx", Vrex, "loss", "Krueger et al., 2021", released=_SCRIPTS, record_name="VREx"
    ),
    _Row(
        "fishr",
        "Fishr",
        Fishr,
        "error×feature, squared",
        "Ramé et al., 2022",
        released={**_SCRIPTS, "ema": 0.0},
    ),
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
    _Row(
        "groupdro",
        "GroupDRO",
        GroupDro,
        "nothing; the worst mixture of domains",
        "Sagawa et al., 2020",
    ),
    _Row(
        "mixup",
        "Mixup",
        Mixup,
        "nothing; mixtures of two domains",
        "Zhang et al., 2018; Yan et al., 2020",
        search_released=Mixup.search_released,
    ),
    _Row("mldg", "MLDG", Mldg, "gradients of all parameters, implicitly", "Li et al., 2018"),
    _Row("coral", "CORAL", Coral, "covariance", "Sun & Saenko, 2016"),
    _Row("mmd", "MMD", Mmd, "the distribution of features", "Li et al., 2018"),
    _Row(
        "dann",
        "DANN",
        Adversarial,
        "the distribution of features",
        "Ganin et al., 2016",
        AdversarialConfig(fidelity=DOMAINBED),
        search_small=Adversarial.search_small,
        search_features=Adversarial.search_features,
    ),
    _Row(
        "cdann",
        "CDANN",
        Adversarial,
        "the distribution of features given the class",
        "Li et al., 2018",
        AdversarialConfig(conditional=True),
        search_small=Adversarial.search_small,
        search_features=Adversarial.search_features,
    ),
    _Row("mtl", "MTL", Mtl, "nothing; the head sees the mean feature", "Blanchard et al., 2021"),
    _Row(
        "sagnet",
        "SagNet",
        SagNet,
        "nothing; the style of features is randomised",
        "Nam et al., 2021",
    ),
    _Row("arm", "ARM", Arm, "nothing; the network sees the batch", "Zhang et al., 2021"),
    _Row("rsc", "RSC", Rsc, "nothing; telling features are muted", "Huang et al., 2020"),
    _Row(
        "andmask",
        "AND-mask",
        AndMask,
        "signs of the gradients of all parameters",
        "Parascandolo et al., 2021",
        record_name="ANDMask",
    ),
    _Row(
        "sandmask",
        "SAND-mask",
        SandMask,
        "signs and sizes of the gradients of all parameters",
        "Shahtalebi et al., 2021",
        record_name="SANDMask",
    ),
    _Row("fish", "Fish", Fish, "gradients of all parameters, implicitly", "Shi et al., 2021"),
    _Row(
        "iga",
        "IGA",
        Iga,
        "gradients of all parameters",
        "Koyama & Yamaguchi, 2020",
        search_features=Iga.search_features,
    ),
    _Row(
        "sd", "SD", Sd, "nothing; logits are kept small", "Pezeshki et al., 2021, arXiv 2011.09468"
    ),
    _Row(
        "eqrm",
        "EQRM",
        Eqrm,
        "nothing; a high quantile of the risks",
        "Eastwood et al., 2022, arXiv 2207.09944",
        released={"burn_in_steps": 190, "late_lr": None},
    ),
    _Row(
        "rdm",
        "RDM",
        Rdm,
        "the distribution of losses",
        "Nguyen et al., 2024, arXiv 2310.18598",
        by_dataset=Rdm.by_dataset,
        released={"matching_weight": 1.0, "late_lr": None},
    ),
    _Row(
        "ib_erm",
        "IB-ERM",
        IbErm,
        "nothing; features are kept small",
        "Ahuja et al., 2021, arXiv 2106.06607",
        record_name="IB_ERM",
    ),
    _Row(
        "ib_irm",
        "IB-IRM",
        IbIrm,
        "the optimal scale of the logits",
        "Ahuja et al., 2021, arXiv 2106.06607",
        released=_SCHEDULED,
        record_name="IB_IRM",
    ),
    _Row("cad", "CAD", Cad, "the distribution of features", "Ruan et al., 2022, arXiv 2201.00057"),
    _Row(
        "condcad",
        "CondCAD",
        Cad,
        "the distribution of features given the class",
        "Ruan et al., 2022, arXiv 2201.00057",
        CadConfig(conditional=True),
    ),
    _Row(
        "causirl_coral",
        "CausIRL, CORAL",
        CausIrlCoral,
        "covariance, of mixtures of domains",
        "Chevalley et al., 2022, arXiv 2206.11646",
        record_name="CausIRL_CORAL",
    ),
    _Row(
        "causirl_mmd",
        "CausIRL, MMD",
        CausIrlMmd,
        "the distribution of features, of mixtures of domains",
        "Chevalley et al., 2022, arXiv 2206.11646",
        record_name="CausIRL_MMD",
    ),
    _Row("ddc", "DDC", Ddc, "feature", "Tzeng et al., 2014, arXiv 1412.3474"),
    _Row(
        "mdan",
        "MDAN",
        Mdan,
        "the distribution of features, of the worst domain",
        "Zhao et al., 2018, arXiv 1705.09684",
    ),
    _Row(
        "urm",
        "URM",
        Urm,
        "nothing; features are made uniform",
        "Krishnamachari et al., 2024, TMLR",
        search_small=Urm.search_small,
        search_features=Urm.search_features,
    ),
    _Row(
        "selfreg",
        "SelfReg",
        SelfReg,
        "logits and features given the class",
        "Kim et al., 2021, arXiv 2104.09841",
    ),
    _Row(
        "trm",
        "TRM",
        Trm,
        "best heads, by their risks",
        "Xu & Jaakkola, 2021, arXiv 2110.09940",
        released={"transfer_start": 20},  # the same share of 501 steps, as for ERM++ below
    ),
    _Row(
        "transfer",
        "Transfer",
        Transfer,
        "loss, under the worst head nearby",
        "Zhang et al., 2021, arXiv 2106.03632",
    ),
    _Row(
        "adrmx",
        "ADRMX",
        Adrmx,
        "the distribution of features less those of the domain",
        "Demirel et al., 2023, arXiv 2308.06624",
    ),
    _Row(
        "ermplusplus",
        "ERM++",
        ErmPlusPlus,
        "nothing; the head first, and averaged parameters",
        "Teterwak et al., 2023, arXiv 2304.01973",
        search_features=ErmPlusPlus.search_features,
        released={"probe_steps": 50, "sma_start": 60},
        record_name="ERMPlusPlus",
    ),
    _Row(
        "agrsum",
        "Agr-Sum",
        Surgery,
        "signs of the gradients of all parameters",
        _SURGERY,
        record_name="AgrSum",
    ),
    _Row(
        "agrrand",
        "Agr-Rand",
        Surgery,
        "signs of the gradients of all parameters",
        _SURGERY,
        SurgeryConfig(random=True),
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
        released={"alpha": 1.0, "beta": 1.0},
    ),
    _Row(
        "miro",
        "MIRO",
        Miro,
        "nothing; features stay near the pre-trained ones",
        "Cha et al., 2022, arXiv 2203.10789",
    ),
    _Row(
        "sagm",
        "SAGM",
        Sagm,
        "nothing; gradients here and at a perturbed point",
        "Wang et al., 2023, arXiv 2303.10353",
    ),
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
