"""Data sets: what ships with the package, what benchmarks use, and what users bring.

MNIST at 14×14 pixels with Colored MNIST made from it, synthetic shifts, folders of images,
manifests, arrays; how images are checked, cached and augmented; the catalog of the benchmark data
sets of domain generalization, and how domains are split.

Nothing is downloaded, every random choice comes from an explicit seed or generator, and nothing
here knows of models or of the layers above.
"""

from hessalign.data.arrays import read_arrays as read_arrays
from hessalign.data.augmentation import Augmentation as Augmentation
from hessalign.data.augmentation import augment as augment
from hessalign.data.augmentation import normalise as normalise
from hessalign.data.catalog import DATASETS as DATASETS
from hessalign.data.catalog import PRESETS as PRESETS
from hessalign.data.catalog import DatasetInfo as DatasetInfo
from hessalign.data.catalog import Family as Family
from hessalign.data.catalog import ImageFolderPreset as ImageFolderPreset
from hessalign.data.colored_mnist import ColoredDomain as ColoredDomain
from hessalign.data.colored_mnist import ColoredMnist as ColoredMnist
from hessalign.data.colored_mnist import make_colored_mnist as make_colored_mnist
from hessalign.data.image_cache import ImageBatch as ImageBatch
from hessalign.data.image_cache import ImageCacheError as ImageCacheError
from hessalign.data.image_cache import ImageReader as ImageReader
from hessalign.data.image_cache import cache_folder as cache_folder
from hessalign.data.image_cache import open_images as open_images
from hessalign.data.image_cache import prepare_images as prepare_images
from hessalign.data.image_folder import read_image_folder as read_image_folder
from hessalign.data.images import ImageError as ImageError
from hessalign.data.images import ResizedImage as ResizedImage
from hessalign.data.images import read_image as read_image
from hessalign.data.inspection import Finding as Finding
from hessalign.data.inspection import inspect_dataset as inspect_dataset
from hessalign.data.manifest import read_manifest as read_manifest
from hessalign.data.mnist import Mnist as Mnist
from hessalign.data.mnist import load_mnist as load_mnist
from hessalign.data.mnist14 import Mnist14 as Mnist14
from hessalign.data.mnist14 import load_mnist14 as load_mnist14
from hessalign.data.mnist_domains import (
    make_domainbed_colored_mnist as make_domainbed_colored_mnist,
)
from hessalign.data.mnist_domains import make_rotated_mnist as make_rotated_mnist
from hessalign.data.number_table import read_number_table as read_number_table
from hessalign.data.samples import DomainDataset as DomainDataset
from hessalign.data.samples import DomainSamples as DomainSamples
from hessalign.data.shifts import ShiftedData as ShiftedData
from hessalign.data.shifts import SyntheticDomain as SyntheticDomain
from hessalign.data.shifts import make_shifted_data as make_shifted_data
from hessalign.data.source import find_dataset as find_dataset
from hessalign.data.source import read_dataset as read_dataset
from hessalign.data.splits import Split as Split
from hessalign.data.splits import split_domain as split_domain
