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
from hessalign.bench.algorithms.augmentations import Mixup, Rsc, SagNet
from hessalign.bench.algorithms.contexts import Arm, Mtl
from hessalign.bench.algorithms.feature_distributions import (
    Adversarial,
    AdversarialConfig,
    Coral,
    Mmd,
)
from hessalign.bench.algorithms.gradients import AndMask, Iga, SandMask
from hessalign.bench.algorithms.hessian import Alignment, AlignmentConfig, Fishr
from hessalign.bench.algorithms.inner_steps import Fish, Mldg
from hessalign.bench.algorithms.kinds import AbstractAlgorithm, Setting
from hessalign.bench.algorithms.options import SearchSpace, check_options
from hessalign.bench.algorithms.risks import Erm, GroupDro, Irm, Vrex

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
            An instance of the algorithm's own configuration class, in which all is settled. An
            InputError is raised for options that it does not have, or values they cannot have.
        """
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
