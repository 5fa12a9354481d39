"""The table of algorithms: one row each, from which listings and the command line follow."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, final, get_args, get_type_hints

from hessalign._names import UnknownNameError
from hessalign.bench.algorithms import (
    adversarial,
    andmask,
    arm,
    coral,
    fish,
    fishr,
    groupdro,
    hessian,
    iga,
    irm,
    mixup,
    mldg,
    mmd,
    mtl,
    rsc,
    sagnet,
    sandmask,
    vrex,
)
from hessalign.bench.algorithms.erm import Erm, ErmConfig
from hessalign.bench.algorithms.hessian import Alignment, AlignmentConfig
from hessalign.bench.algorithms.kinds import AbstractAlgorithm, Setting
from hessalign.bench.algorithms.search import SearchSpace


@final
@dataclass(frozen=True)
class AlgorithmInfo:
    """One row of the table.

    Attributes:
        name: How it is called on the command line and in results.
        title: How it is shown in tables and figures.
        config: Its default configuration, a frozen dataclass.
        make: Builds it from a configuration and a setting.
        aligns: What it aligns, in the words of Table 1.
        reference: Who proposed it, and which equation of it this is.
        released: Options by which it follows the released Colored MNIST scripts.
        search: Where DomainBed's sweeps draw options from; they have their default elsewhere.
        search_small: What differs from `search` on small images.
        search_features: What differs from `search` on frozen features.
        search_released: What the code published with the paper draws instead.
        record_name: What DomainBed's records call it, where that is not the title.
    """

    name: str
    title: str
    config: Any
    make: Callable[[Any, Setting], AbstractAlgorithm]
    aligns: str
    reference: str
    released: Mapping[str, object] = field(default_factory=dict)
    search: SearchSpace = field(default_factory=dict)
    search_small: SearchSpace = field(default_factory=dict)
    search_features: SearchSpace = field(default_factory=dict)
    search_released: SearchSpace = field(default_factory=dict)
    record_name: str = ""

    @property
    def recorded(self) -> str:
        """The name in records and in the identity of jobs."""
        return self.record_name or self.title

    @property
    def compares_domains(self) -> bool:
        """Whether it aligns something, for which it needs two domains or more."""
        return not self.aligns.startswith("nothing")

    @property
    def deviates(self) -> bool:
        """Whether DomainBed's implementation is another than the default, and can be asked for."""
        hint = get_type_hints(type(self.config)).get(FIDELITY)
        return DOMAINBED in get_args(hint) and getattr(self.config, FIDELITY) != DOMAINBED


FIDELITY: Final = "fidelity"
"""The option that says which implementation an algorithm follows."""

DOMAINBED: Final = "domainbed"
"""Its value for DomainBed's."""

_HEMATI = "Hemati et al., 2023"
_CMA = "closed form: CMA, Chen et al., 2025"
_OURS = "this package"
_RELEASED = {"fidelity": "released"}
_RELEASED_WEIGHTS = {**_RELEASED, "alpha": 1.0, "beta": 1.0}
"""On Colored MNIST the schedule alone weighs the penalty; the defaults are those of DomainBed."""

_ROWS = (
    AlgorithmInfo("erm", "ERM", ErmConfig(), Erm, "nothing", "Vapnik, 1999"),
    AlgorithmInfo(
        "irm",
        "IRM",
        irm.IrmConfig(),
        irm.Irm,
        "the optimal scale of the logits",
        "Arjovsky et al., 2019",
        search=irm.SEARCH,
    ),
    AlgorithmInfo(
        "vrex",
        "V-REx",
        vrex.VrexConfig(),
        vrex.Vrex,
        "loss",
        "Krueger et al., 2021",
        released=_RELEASED,
        search=vrex.SEARCH,
        record_name="VREx",
    ),
    AlgorithmInfo(
        "fishr",
        "Fishr",
        fishr.FishrConfig(),
        fishr.Fishr,
        "error×feature, squared",
        "Ramé et al., 2022",
        released={**_RELEASED, "ema": 0.0},
        search=fishr.SEARCH,
    ),
    AlgorithmInfo(
        "gradient",
        "Gradient only",
        AlignmentConfig(beta=5e-3, hessian=None),
        Alignment,
        "error, error×feature",
        f"{_HEMATI}, eq. 17 with α = 0",
        released=_RELEASED_WEIGHTS,
        search=hessian.GRADIENT_SEARCH,
        search_features=hessian.FEATURES_GRADIENT_SEARCH,
        record_name="Gradient",
    ),
    AlgorithmInfo(
        "hgp",
        "HGP",
        AlignmentConfig(alpha=1e-4, beta=5e-3, hessian="product"),
        Alignment,
        "error, error×feature; the Hessian along the gradient",
        f"{_HEMATI}, eq. 17",
        released=_RELEASED_WEIGHTS,
        search=hessian.PRODUCT_SEARCH,
        search_features=hessian.FEATURES_SEARCH["product"],
    ),
    AlgorithmInfo(
        "hutchinson",
        "Hutchinson",
        AlignmentConfig(alpha=1e-3, beta=5e-3, hessian="sampled"),
        Alignment,
        "error, error×feature; the Hessian's diagonal, estimated",
        f"{_HEMATI}, eq. 20",
        released=_RELEASED_WEIGHTS,
        search=hessian.DIAGONAL_SEARCH,
        search_features=hessian.FEATURES_SEARCH["sampled"],
        search_released=hessian.RELEASED_SEARCH,
    ),
    AlgorithmInfo(
        "expected",
        "Hutchinson, expected",
        AlignmentConfig(alpha=1e-3, beta=5e-3, hessian="expected"),
        Alignment,
        "as hutchinson, without sampling",
        f"{_HEMATI}, eq. 20; its expectation: {_OURS}",
        released=_RELEASED_WEIGHTS,
        search=hessian.DIAGONAL_SEARCH,
        search_features=hessian.FEATURES_SEARCH["expected"],
        record_name="Expected",
    ),
    AlgorithmInfo(
        "diagonal",
        "Exact diagonal",
        AlignmentConfig(alpha=1e-3, beta=5e-3, hessian="diagonal"),
        Alignment,
        "error, error×feature; the Hessian's diagonal",
        f"{_HEMATI}, eq. 20; {_CMA}; its diagonal alone: {_OURS}",
        released=_RELEASED_WEIGHTS,
        search=hessian.DIAGONAL_SEARCH,
        search_features=hessian.FEATURES_SEARCH["diagonal"],
        record_name="Diagonal",
    ),
    AlgorithmInfo(
        "full",
        "Full Hessian",
        AlignmentConfig(alpha=1e-3, beta=5e-3, hessian="full"),
        Alignment,
        "error, error×feature, logit, logit×feature, logit×covariance",
        f"{_HEMATI}, section 3.1; {_CMA}; never formed: {_OURS}",
        released=_RELEASED_WEIGHTS,
        search=hessian.DIAGONAL_SEARCH,
        search_features=hessian.FEATURES_SEARCH["full"],
        record_name="Full",
    ),
    AlgorithmInfo(
        "groupdro",
        "GroupDRO",
        groupdro.GroupDroConfig(),
        groupdro.GroupDro,
        "nothing; the worst mixture of domains",
        "Sagawa et al., 2020",
        search=groupdro.SEARCH,
    ),
    AlgorithmInfo(
        "mixup",
        "Mixup",
        mixup.MixupConfig(),
        mixup.Mixup,
        "nothing; mixtures of two domains",
        "Zhang et al., 2018; Yan et al., 2020",
        search=mixup.SEARCH,
        search_released=mixup.RELEASED_SEARCH,
    ),
    AlgorithmInfo(
        "mldg",
        "MLDG",
        mldg.MldgConfig(),
        mldg.Mldg,
        "gradients of all parameters, implicitly",
        "Li et al., 2018",
        search=mldg.SEARCH,
    ),
    AlgorithmInfo(
        "coral",
        "CORAL",
        coral.CoralConfig(),
        coral.Coral,
        "covariance",
        "Sun & Saenko, 2016",
        search=coral.SEARCH,
    ),
    AlgorithmInfo(
        "mmd",
        "MMD",
        mmd.MmdConfig(),
        mmd.Mmd,
        "the distribution of features",
        "Li et al., 2018",
        search=mmd.SEARCH,
    ),
    AlgorithmInfo(
        "dann",
        "DANN",
        adversarial.AdversarialConfig(fidelity=DOMAINBED),
        adversarial.Adversarial,
        "the distribution of features",
        "Ganin et al., 2016",
        search=adversarial.SEARCH,
        search_small=adversarial.SEARCH_SMALL,
        search_features=adversarial.SEARCH_FEATURES,
    ),
    AlgorithmInfo(
        "cdann",
        "CDANN",
        adversarial.AdversarialConfig(conditional=True),
        adversarial.Adversarial,
        "the distribution of features given the class",
        "Li et al., 2018",
        search=adversarial.SEARCH,
        search_small=adversarial.SEARCH_SMALL,
        search_features=adversarial.SEARCH_FEATURES,
    ),
    AlgorithmInfo(
        "mtl",
        "MTL",
        mtl.MtlConfig(),
        mtl.Mtl,
        "nothing; the head sees the mean feature",
        "Blanchard et al., 2021",
        search=mtl.SEARCH,
    ),
    AlgorithmInfo(
        "sagnet",
        "SagNet",
        sagnet.SagNetConfig(),
        sagnet.SagNet,
        "nothing; the style of features is randomised",
        "Nam et al., 2021",
        search=sagnet.SEARCH,
    ),
    AlgorithmInfo(
        "arm",
        "ARM",
        arm.ArmConfig(),
        arm.Arm,
        "nothing; the network sees the batch",
        "Zhang et al., 2021",
    ),
    AlgorithmInfo(
        "rsc",
        "RSC",
        rsc.RscConfig(),
        rsc.Rsc,
        "nothing; telling features are muted",
        "Huang et al., 2020",
        search=rsc.SEARCH,
    ),
    AlgorithmInfo(
        "andmask",
        "AND-mask",
        andmask.AndMaskConfig(),
        andmask.AndMask,
        "signs of the gradients of all parameters",
        "Parascandolo et al., 2021",
        search=andmask.SEARCH,
        record_name="ANDMask",
    ),
    AlgorithmInfo(
        "sandmask",
        "SAND-mask",
        sandmask.SandMaskConfig(),
        sandmask.SandMask,
        "signs and sizes of the gradients of all parameters",
        "Shahtalebi et al., 2021",
        search=sandmask.SEARCH,
        record_name="SANDMask",
    ),
    AlgorithmInfo(
        "fish",
        "Fish",
        fish.FishConfig(),
        fish.Fish,
        "gradients of all parameters, implicitly",
        "Shi et al., 2021",
        search=fish.SEARCH,
    ),
    AlgorithmInfo(
        "iga",
        "IGA",
        iga.IgaConfig(),
        iga.Iga,
        "gradients of all parameters",
        "Koyama & Yamaguchi, 2020",
        search=iga.SEARCH,
        search_features=iga.FEATURES_SEARCH,
    ),
)

ALGORITHMS: Mapping[str, AlgorithmInfo] = {row.name: row for row in _ROWS}
if len(ALGORITHMS) != len(_ROWS):
    raise RuntimeError("Two algorithms have the same name.")


def find_algorithm(name: str) -> AlgorithmInfo:
    """The row of an algorithm.

    Args:
        name: Its name, or what records call it.

    Returns:
        The row.

    Raises:
        UnknownNameError: If there is no such algorithm.

    Example:
        >>> find_algorithm("VREx").name
        'vrex'
    """
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    for row in _ROWS:
        if row.recorded == name:
            return row
    raise UnknownNameError("algorithm", name, ALGORITHMS)


def make_config(name: str, options: Mapping[str, object]) -> Any:  # noqa: ANN401
    """The configuration of an algorithm.

    Args:
        name: A name in `ALGORITHMS`.
        options: Fields that differ from the default.

    Returns:
        An instance of the algorithm's own configuration class, in which every option is settled.

    Raises:
        UnknownNameError: If the algorithm has no such option.

    Example:
        >>> make_config("hutchinson", {"fidelity": "domainbed"}).probes
        300
    """
    info = find_algorithm(name)
    known = [field.name for field in dataclasses.fields(info.config)]
    for option in options:
        if option not in known:
            raise UnknownNameError(f"option of algorithm {name!r}", option, known)
    config = dataclasses.replace(info.config, **options)
    return config.settled() if isinstance(config, AlignmentConfig) else config


def make_algorithm(name: str, options: Mapping[str, object], setting: Setting) -> AbstractAlgorithm:
    """Build an algorithm by name.

    Args:
        name: A name in `ALGORITHMS`.
        options: Fields of its configuration that differ from the default.
        setting: What to train on.

    Returns:
        The algorithm, a module with the network to be trained.
    """
    return find_algorithm(name).make(make_config(name, options), setting)
