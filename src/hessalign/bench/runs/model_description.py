"""What a trained network is: the small file of JSON beside its weights."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, final, get_args

from hessalign._errors import InputError, UserError
from hessalign._files import write_atomically
from hessalign._names import check_name
from hessalign._protocol import IMAGENET_MEAN, IMAGENET_STD
from hessalign.bench.models import NetworkSpec
from hessalign.bench.runs.given_inputs import InputKind

_FORMAT: Final = 1
"""Of the description: it changes when an older version could not read it."""

_NORMALISATION: Final = {"mean": list(IMAGENET_MEAN), "std": list(IMAGENET_STD)}

Loss = Literal["cross_entropy", "binary"]
"""Losses whose logits say how likely each class is."""


@final
class TrainedModelError(UserError, RuntimeError):
    """A trained model that cannot be read or used."""


@final
@dataclass(frozen=True)
class ColouredMlp:
    """The network of Colored MNIST: two hidden ReLU layers and one logit.

    Attributes:
        input_shape: Channels, height and width of an image.
        width: Units of each layer.
    """

    input_shape: tuple[int, ...]
    width: int


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

    def __post_init__(self) -> None:
        check_name("kind of inputs", self.inputs, get_args(InputKind))
        check_name("loss of a model that predicts classes", self.loss, get_args(Loss))
        if isinstance(self.network, NetworkSpec) and not isinstance(
            self.network.backbone, str | None
        ):
            raise InputError(
                "Expected a backbone that can be made again from its name, got the module "
                f"{type(self.network.backbone).__name__}. Name it as 'package.module:function'."
            )
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
        return self.network.outputs if isinstance(self.network, NetworkSpec) else 1

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


def write_description(path: Path, description: ModelDescription) -> None:
    """Write a description, all at once."""
    text = json.dumps(description.to_json(), indent=2, ensure_ascii=False, allow_nan=False)
    write_atomically(path, f"{text}\n".encode())


def read_description(path: Path) -> ModelDescription:
    """Read a description; one that is damaged or of a newer version is refused."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        version = content["format"]
        if version > _FORMAT:
            raise TrainedModelError(
                f"Expected a model of format {_FORMAT} or older in {path}, found {version}. Update "
                "hessalign."
            )
        return _parsed(content)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error).rstrip(".")
        raise TrainedModelError(
            f"Expected the description of a trained model in {path}: {reason}. Copy the run's "
            "folder anew, or train it again."
        ) from error


def _parsed(content: Mapping[str, Any]) -> ModelDescription:
    if content["normalisation"] not in (None, _NORMALISATION):
        raise InputError("its normalisation is not ImageNet's")
    names = [each.name for each in dataclasses.fields(ModelDescription)]
    values = {name: _tuples(content[name]) for name in names}
    network = {name: _tuples(value) for name, value in content["network"].items()}
    made = _NETWORKS[network.pop("kind")]
    return ModelDescription(**values | {"network": made(**network)})


def _tuples(value: object) -> Any:  # noqa: ANN401
    return tuple(value) if isinstance(value, list) else value
