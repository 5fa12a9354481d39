"""Networks: a featurizer and a classifier head. Nothing here knows of data or of training."""

from hessalign.models.backbones import make_backbone as make_backbone
from hessalign.models.coloured import ColouredImages as ColouredImages
from hessalign.models.coloured import make_coloured_images as make_coloured_images
from hessalign.models.mlp import make_coloured_mlp as make_coloured_mlp
from hessalign.models.network import Network as Network
from hessalign.models.normalisation import FrozenBatchNorm as FrozenBatchNorm
from hessalign.models.normalisation import Renormalised as Renormalised
from hessalign.models.specification import NetworkSpec as NetworkSpec
from hessalign.models.specification import make_network as make_network
from hessalign.models.weights import WeightsError as WeightsError
from hessalign.models.weights import state_digest as state_digest
