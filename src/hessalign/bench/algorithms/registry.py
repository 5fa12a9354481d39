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
from hessalign.bench.algorithms import (
    adversarial,
    arm,
    coral,
    fish,
    fishr,
    groupdro,
    hessian,
    iga,
    irm,
    masks,
    mixup,
    mldg,
    mmd,
    mtl,
    rsc,
    sagnet,
    vrex,
)
from hessalign.bench.algorithms.erm import Erm
from hessalign.bench.algorithms.hessian import Alignment, AlignmentConfig
from hessalign.bench.algorithms.kinds import AbstractAlgorithm, Setting
from hessalign.bench.algorithms.options import check_options
from hessalign.bench.algorithms.search import SearchSpace

_GROUP: Final = "hessalign.algorithms"
"""The entry points by which packages offer algorithms."""

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
        """A configuration of the algorithm.

        Args:
            options: Fields that differ from the default.

        Returns:
            An instance of the algorithm's own configuration class, in which all is settled.

        Raises:
            UnknownNameError: If the algorithm has no such option. An InputError is raised for a
                value that the option cannot have.
        """
        known = [each.name for each in dataclasses.fields(self.config)]
        for option in options:
            if option not in known:
                raise UnknownNameError(f"option of algorithm {self.name!r}", option, known)
        check_options(type(self.config), options)
        config = dataclasses.replace(self.config, **options)
        return config.settled() if isinstance(config, AlignmentConfig) else config

    def is_already(self, option: str, value: object) -> bool:
        """Whether DomainBed's implementation is asked of an algorithm that has no other."""
        return (option, value) == (FIDELITY, DOMAINBED) and not self.deviates


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
    AlgorithmInfo("erm", "ERM", Erm, "nothing", "Vapnik, 1999"),
    AlgorithmInfo(
        "irm", "IRM", irm.Irm, "the optimal scale of the logits", "Arjovsky et al., 2019"
    ),
    AlgorithmInfo(
        "vrex",
        "V-REx",
        vrex.Vrex,
        "loss",
        "Krueger et al., 2021",
        released=_RELEASED,
        record_name="VREx",
    ),
    AlgorithmInfo(
        "fishr",
        "Fishr",
        fishr.Fishr,
        "error×feature, squared",
        "Ramé et al., 2022",
        released={**_RELEASED, "ema": 0.0},
    ),
    AlgorithmInfo(
        "gradient",
        "Gradient only",
        Alignment,
        "error, error×feature",
        f"{_HEMATI}, eq. 17 with α = 0",
        config=AlignmentConfig(beta=5e-3, hessian=None),
        released=_RELEASED_WEIGHTS,
        search=hessian.GRADIENT_SEARCH,
        search_features=hessian.FEATURES_GRADIENT_SEARCH,
        record_name="Gradient",
    ),
    AlgorithmInfo(
        "hgp",
        "HGP",
        Alignment,
        "error, error×feature; the Hessian along the gradient",
        f"{_HEMATI}, eq. 17",
        config=AlignmentConfig(alpha=1e-4, beta=5e-3, hessian="product"),
        released=_RELEASED_WEIGHTS,
        search=hessian.PRODUCT_SEARCH,
        search_features=hessian.FEATURES_SEARCH["product"],
    ),
    AlgorithmInfo(
        "hutchinson",
        "Hutchinson",
        Alignment,
        "error, error×feature; the Hessian's diagonal, estimated",
        f"{_HEMATI}, eq. 20",
        config=AlignmentConfig(alpha=1e-3, beta=5e-3, hessian="sampled"),
        released=_RELEASED_WEIGHTS,
        search=hessian.DIAGONAL_SEARCH,
        search_features=hessian.FEATURES_SEARCH["sampled"],
        search_released=hessian.RELEASED_SEARCH,
    ),
    AlgorithmInfo(
        "expected",
        "Hutchinson, expected",
        Alignment,
        "as hutchinson, without sampling",
        f"{_HEMATI}, eq. 20; its expectation: {_OURS}",
        config=AlignmentConfig(alpha=1e-3, beta=5e-3, hessian="expected"),
        released=_RELEASED_WEIGHTS,
        search=hessian.DIAGONAL_SEARCH,
        search_features=hessian.FEATURES_SEARCH["expected"],
        record_name="Expected",
    ),
    AlgorithmInfo(
        "diagonal",
        "Exact diagonal",
        Alignment,
        "error, error×feature; the Hessian's diagonal",
        f"{_HEMATI}, eq. 20; {_CMA}; its diagonal alone: {_OURS}",
        config=AlignmentConfig(alpha=1e-3, beta=5e-3, hessian="diagonal"),
        released=_RELEASED_WEIGHTS,
        search=hessian.DIAGONAL_SEARCH,
        search_features=hessian.FEATURES_SEARCH["diagonal"],
        record_name="Diagonal",
    ),
    AlgorithmInfo(
        "full",
        "Full Hessian",
        Alignment,
        "error, error×feature, logit, logit×feature, logit×covariance",
        f"{_HEMATI}, section 3.1; {_CMA}; never formed: {_OURS}",
        config=AlignmentConfig(alpha=1e-3, beta=5e-3, hessian="full"),
        released=_RELEASED_WEIGHTS,
        search=hessian.DIAGONAL_SEARCH,
        search_features=hessian.FEATURES_SEARCH["full"],
        record_name="Full",
    ),
    AlgorithmInfo(
        "groupdro",
        "GroupDRO",
        groupdro.GroupDro,
        "nothing; the worst mixture of domains",
        "Sagawa et al., 2020",
    ),
    AlgorithmInfo(
        "mixup",
        "Mixup",
        mixup.Mixup,
        "nothing; mixtures of two domains",
        "Zhang et al., 2018; Yan et al., 2020",
        search_released=mixup.RELEASED_SEARCH,
    ),
    AlgorithmInfo(
        "mldg", "MLDG", mldg.Mldg, "gradients of all parameters, implicitly", "Li et al., 2018"
    ),
    AlgorithmInfo("coral", "CORAL", coral.Coral, "covariance", "Sun & Saenko, 2016"),
    AlgorithmInfo("mmd", "MMD", mmd.Mmd, "the distribution of features", "Li et al., 2018"),
    AlgorithmInfo(
        "dann",
        "DANN",
        adversarial.Adversarial,
        "the distribution of features",
        "Ganin et al., 2016",
        config=adversarial.AdversarialConfig(fidelity=DOMAINBED),
        search_small=adversarial.SEARCH_SMALL,
        search_features=adversarial.SEARCH_FEATURES,
    ),
    AlgorithmInfo(
        "cdann",
        "CDANN",
        adversarial.Adversarial,
        "the distribution of features given the class",
        "Li et al., 2018",
        config=adversarial.AdversarialConfig(conditional=True),
        search_small=adversarial.SEARCH_SMALL,
        search_features=adversarial.SEARCH_FEATURES,
    ),
    AlgorithmInfo(
        "mtl", "MTL", mtl.Mtl, "nothing; the head sees the mean feature", "Blanchard et al., 2021"
    ),
    AlgorithmInfo(
        "sagnet",
        "SagNet",
        sagnet.SagNet,
        "nothing; the style of features is randomised",
        "Nam et al., 2021",
    ),
    AlgorithmInfo(
        "arm", "ARM", arm.Arm, "nothing; the network sees the batch", "Zhang et al., 2021"
    ),
    AlgorithmInfo(
        "rsc", "RSC", rsc.Rsc, "nothing; telling features are muted", "Huang et al., 2020"
    ),
    AlgorithmInfo(
        "andmask",
        "AND-mask",
        masks.AndMask,
        "signs of the gradients of all parameters",
        "Parascandolo et al., 2021",
        record_name="ANDMask",
    ),
    AlgorithmInfo(
        "sandmask",
        "SAND-mask",
        masks.SandMask,
        "signs and sizes of the gradients of all parameters",
        "Shahtalebi et al., 2021",
        record_name="SANDMask",
    ),
    AlgorithmInfo(
        "fish", "Fish", fish.Fish, "gradients of all parameters, implicitly", "Shi et al., 2021"
    ),
    AlgorithmInfo(
        "iga",
        "IGA",
        iga.Iga,
        "gradients of all parameters",
        "Koyama & Yamaguchi, 2020",
        search_features=iga.FEATURES_SEARCH,
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
        >>> find_algorithm("hessalign.bench.algorithms.vrex:Vrex").config.penalty_weight
        10.0
    """
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    for row in _ROWS:
        if row.recorded == name:
            return row
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
    """The configuration of an algorithm.

    Args:
        name: What `find_algorithm` takes.
        options: Fields that differ from the default.

    Returns:
        What `AlgorithmInfo.configure` makes of them.

    Example:
        >>> make_config("hutchinson", {"fidelity": "domainbed"}).probes
        300
    """
    return find_algorithm(name).configure(options)


def make_algorithm(name: str, options: Mapping[str, object], setting: Setting) -> AbstractAlgorithm:
    """Build an algorithm by name.

    Args:
        name: What `find_algorithm` takes.
        options: Fields of its configuration that differ from the default.
        setting: What to train on.

    Returns:
        The algorithm, a module with the network to be trained.
    """
    return find_algorithm(name).make(make_config(name, options), setting)
