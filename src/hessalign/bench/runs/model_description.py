"""A trained network on disk: its weights, and the small file of JSON that says what it is.

    model.safetensors  the parameters and buffers of the network that predicts
    model.json         written after it: what the network is and what it takes

Nothing in these files is run as code. What they name is made by this package, or, for a backbone or
an algorithm of one's own (`package.module:Name`), by a module that Python finds.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, final, get_args

import torch

from hessalign._errors import InputError, UserError, check_name
from hessalign._files import parse_json, write_atomically
from hessalign._numbers import check_count
from hessalign._protocol import IMAGENET_MEAN, IMAGENET_STD
from hessalign.bench.algorithms import Setting, find_algorithm, make_config
from hessalign.bench.models import Network, NetworkSpec, make_coloured_mlp, make_network
from hessalign.bench.models.network import LARGEST_SIZE, check_sizes
from hessalign.bench.runs.given_inputs import InputKind, TableInputs, read_table_inputs

DESCRIPTION: Final = "model.json"
WEIGHTS: Final = "model.safetensors"

_FORMAT: Final = 1  # of the description: it changes when an older version could not read it
_NORMALISATION: Final = {"mean": list(IMAGENET_MEAN), "std": list(IMAGENET_STD)}

Loss = Literal["cross_entropy", "binary"]
"""Losses whose logits say how likely each class is."""


@final
class TrainedModelError(UserError, RuntimeError):
    """A trained model that cannot be read or used."""


@final
@dataclass(frozen=True)
class ColouredMlp:
    """The network of Colored MNIST: two hidden ReLU layers and one logit."""

    input_shape: tuple[int, ...]
    width: int
    outputs: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_sizes(self.input_shape, self.outputs)
        check_count(self.width, "width", most=LARGEST_SIZE)

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Channels and pixels: those of Colored MNIST are in one row."""
        return self.input_shape[0], math.prod(self.input_shape[1:])

    def make(
        self, weights: torch.Generator, *, extra_channels: int = 0, head_factor: int = 1
    ) -> Network:
        """An untrained network."""
        channels, pixels = self.row_shape
        return make_coloured_mlp(
            channels + extra_channels, pixels, self.width, weights, head_factor
        )


_NETWORKS: Final[Mapping[str, type]] = {"network": NetworkSpec, "coloured_mlp": ColouredMlp}


@final
@dataclass(frozen=True)
class ModelDescription:
    """All that is needed to use a trained network, and what to know about it.

    Attributes:
        network: What was trained. A backbone has a name here; its `weights` are not looked for
            again.
        classes: Names of the classes, in the order of the outputs; two for one logit.
        inputs: "images" that are read from files, resized and normalised, or "arrays" that are
            taken as they are.
        loss: "cross_entropy", or "binary" for a single logit of the second class.
        algorithm: Name of the algorithm.
        options: All its options.
        domains: Names of the domains.
        trained_on: Those of them that it was trained on.
        steps: Updates.
        batch_size: Samples of each domain in a training batch, where that is fixed.
        job: What identifies the run.
        software: What it was trained with.
        data_sha256: Fingerprint of the data.
        accuracies: The last record's, by the names of records; those that are numbers.
        adapted: Whether the algorithm put something of its own around the network, or made a larger
            one: then the algorithm makes it again. `write_model` finds out.
        weights_sha256: Checksum of the file of weights, which `write_model` fills in.
        table: If it was trained on a table, what it needs to know of that.

    Raises:
        InputError: If the parts do not fit together.
    """

    network: NetworkSpec | ColouredMlp
    classes: tuple[str, ...]
    inputs: InputKind = "arrays"
    loss: Loss = "cross_entropy"
    algorithm: str = "erm"
    options: Mapping[str, object] = field(default_factory=dict)
    domains: tuple[str, ...] = ()
    trained_on: tuple[str, ...] = ()
    steps: int = 1
    batch_size: int | None = None
    job: Mapping[str, object] = field(default_factory=dict)
    software: Mapping[str, str] = field(default_factory=dict)
    data_sha256: str | None = None
    accuracies: Mapping[str, float] = field(default_factory=dict)
    adapted: bool = False
    weights_sha256: str = ""
    table: TableInputs | None = None

    def __post_init__(self) -> None:
        check_name("kind of inputs", self.inputs, get_args(InputKind))
        check_name("loss of a model that predicts classes", self.loss, get_args(Loss))
        backbone = getattr(self.network, "backbone", None)
        if not isinstance(backbone, str | None):
            raise InputError(
                "Expected a backbone that can be made again from its name, got the module "
                f"{type(backbone).__name__}. Name it as 'package.module:function'."
            )
        head = getattr(self.network, "head", None)
        names = (*self.classes, *self.domains, *self.trained_on)
        texts = (*names, self.algorithm, self.weights_sha256, "" if head is None else head)
        if wrong := [each for each in texts if not isinstance(each, str)]:
            raise InputError(f"Expected names and a checksum as text, got {wrong[0]!r}.")
        if not isinstance(self.options, Mapping):
            raise InputError(f"Expected options by their names, got {self.options!r}.")
        expected = 2 if self.loss == "binary" else self.outputs
        if len(self.classes) != expected:
            raise InputError(
                f"Expected {expected} classes for {self.outputs} outputs of a network with the "
                f"loss {self.loss}, got {len(self.classes)}."
            )

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return self.network.input_shape

    @property
    def outputs(self) -> int:
        """Outputs of the network."""
        return self.network.outputs

    def to_json(self) -> dict[str, Any]:
        """The description as plain values."""
        values = dataclasses.asdict(self)
        kind = next(kind for kind, made in _NETWORKS.items() if isinstance(self.network, made))
        return {
            "format": _FORMAT,
            **values,
            "network": {"kind": kind, **values["network"]},
            "normalisation": _NORMALISATION if self.inputs == "images" else None,
            "accuracies": {k: v for k, v in self.accuracies.items() if math.isfinite(v)},
        }


def name_some(folders: Sequence[Path]) -> str:
    """Names of the first three folders, for an error."""
    return ", ".join(path.name for path in folders[:3]) + ", …" * (len(folders) > 3)


def write_model(folder: Path, description: ModelDescription, network: Network) -> None:
    """Keep a trained network, so that `load` needs nothing else; its description comes last."""
    from safetensors.torch import save

    state = {
        name: value.detach().cpu().contiguous().clone()
        for name, value in network.state_dict().items()
    }
    content = save(state)
    write_atomically(folder / WEIGHTS, content)
    digest = hashlib.sha256(content).hexdigest()
    adapted = repr(rebuild(dataclasses.replace(description, adapted=False))) != repr(network)
    stored = dataclasses.replace(description, adapted=adapted, weights_sha256=digest)
    text = json.dumps(stored.to_json(), indent=2, ensure_ascii=False, allow_nan=False)
    write_atomically(folder / DESCRIPTION, f"{text}\n".encode())


def read_description(folder: Path) -> ModelDescription:
    """Read the description in a folder; one that is damaged or of a newer version is refused."""
    path = folder / DESCRIPTION
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
        version = content["format"]
        if version > _FORMAT:
            raise TrainedModelError(
                f"Expected a model of format {_FORMAT} or older in {path}, found {version}. Update "
                "hessalign."
            )
        if content["normalisation"] not in (None, _NORMALISATION):
            raise InputError("its normalisation is not ImageNet's")
        for name in ("classes", "domains", "trained_on"):
            if not isinstance(content[name], list):
                raise InputError(f"its {name} are no list")
        names = [each.name for each in dataclasses.fields(ModelDescription)]
        values = {name: _tuples(content[name]) for name in names if name != "table"}
        if content.get("table") is not None:
            values["table"] = read_table_inputs(content["table"])
        network = {name: _tuples(value) for name, value in content["network"].items()}
        made = _NETWORKS[network.pop("kind")]
        return ModelDescription(**values | {"network": made(**network)})
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error).rstrip(".")
        raise TrainedModelError(
            f"Expected the description of a trained model in {path}: {reason}. Copy the run's "
            "folder anew, or train it again."
        ) from error


def _tuples(value: object) -> Any:  # noqa: ANN401
    return tuple(value) if isinstance(value, list) else value


def rebuild(description: ModelDescription) -> Network:
    """The network that predicts, with new parameters; no weights are looked for."""
    spec = description.network
    make: Callable[..., Network]
    if isinstance(spec, ColouredMlp):
        make = partial(spec.make, torch.Generator().manual_seed(0))
    else:
        make = partial(make_network, dataclasses.replace(spec, weights=None))
    with torch.random.fork_rng(devices=[]):
        if not description.adapted:
            return make()
        setting = Setting(
            make,
            outputs=description.outputs,
            domains=max(1, len(description.trained_on)),
            loss=description.loss,
            steps=description.steps,
            generator=torch.Generator().manual_seed(0),
            input_shape=spec.row_shape if isinstance(spec, ColouredMlp) else spec.input_shape,
            batch_size=description.batch_size,
        )
        config = make_config(description.algorithm, description.options)
        return find_algorithm(description.algorithm).make(config, setting).network


def load_weights(
    network: Network,
    folder: Path,
    what: str = f"the network that {DESCRIPTION} describes",
    remedy: str = "If a backbone of your own has changed, restore it as it was in training.",
) -> None:
    """Give a network, in place, the parameters of the model in a folder, if they fit."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    path, digest = folder / WEIGHTS, read_description(folder).weights_sha256
    anew = "Copy the run's folder anew, or train it again."
    if not path.is_file():
        raise TrainedModelError(f"Expected the weights of the model in {path}, found none. {anew}")
    content = path.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != digest:
        raise TrainedModelError(
            f"Expected the SHA-256 sum {digest[:12]}… of {path}, found {found[:12]}…: the file is "
            f"damaged, or of another model than {DESCRIPTION}. {anew}"
        )
    try:
        network.load_state_dict(load(content), assign=True)
    except SafetensorError as error:
        raise TrainedModelError(f"Expected weights in {path}: {error}. {anew}") from error
    except RuntimeError as error:
        reason = " ".join((str(error).splitlines() or [""])[-1].split()).rstrip(".")
        told = f"The weights {path} do not fit {what}: {reason}. {remedy}"
        raise TrainedModelError(told) from error
