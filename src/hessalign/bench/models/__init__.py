"""Networks: a featurizer and a classifier head. Nothing here knows of data or of training."""

from hessalign.bench.models.backbones import Renormalised as Renormalised
from hessalign.bench.models.backbones import make_backbone as make_backbone
from hessalign.bench.models.coloured import make_coloured_mlp as make_coloured_mlp
from hessalign.bench.models.network import FrozenBatchNorm as FrozenBatchNorm
from hessalign.bench.models.network import Network as Network
from hessalign.bench.models.network import NetworkSpec as NetworkSpec
from hessalign.bench.models.network import make_network as make_network
from hessalign.bench.models.weights import WeightsError as WeightsError
from hessalign.bench.models.weights import state_digest as state_digest
