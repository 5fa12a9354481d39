"""Data sets: what ships with the package, what benchmarks use, and what users bring.

How images are checked, cached and augmented, and how domains are split. Nothing is downloaded but
what Hugging Face's package fetches under the name of a data set; every random choice comes from an
explicit seed or generator, and nothing here knows of models.
"""

from hessalign.bench.data.augmentation import Augmentation as Augmentation
from hessalign.bench.data.augmentation import augment as augment
from hessalign.bench.data.augmentation import normalise as normalise
from hessalign.bench.data.catalog import DATASETS as DATASETS
from hessalign.bench.data.catalog import PRESETS as PRESETS
from hessalign.bench.data.catalog import DatasetInfo as DatasetInfo
from hessalign.bench.data.catalog import Family as Family
from hessalign.bench.data.catalog import ImageFolderPreset as ImageFolderPreset
from hessalign.bench.data.colored_mnist import ColoredDomain as ColoredDomain
from hessalign.bench.data.colored_mnist import ColoredMnist as ColoredMnist
from hessalign.bench.data.colored_mnist import make_colored_mnist as make_colored_mnist
from hessalign.bench.data.columns import Column as Column
from hessalign.bench.data.columns import TableForm as TableForm
from hessalign.bench.data.files import read_arrays as read_arrays
from hessalign.bench.data.files import read_manifest as read_manifest
from hessalign.bench.data.heart import load_heart as load_heart
from hessalign.bench.data.hugging_face import read_hugging_face as read_hugging_face
from hessalign.bench.data.image_cache import ImageBatch as ImageBatch
from hessalign.bench.data.image_cache import ImageCacheError as ImageCacheError
from hessalign.bench.data.image_cache import ImageReader as ImageReader
from hessalign.bench.data.image_cache import cache_folder as cache_folder
from hessalign.bench.data.image_cache import open_images as open_images
from hessalign.bench.data.image_cache import prepare_images as prepare_images
from hessalign.bench.data.images import ImageError as ImageError
from hessalign.bench.data.images import ResizedImage as ResizedImage
from hessalign.bench.data.images import read_image as read_image
from hessalign.bench.data.images import read_image_folder as read_image_folder
from hessalign.bench.data.inspection import Finding as Finding
from hessalign.bench.data.inspection import inspect_dataset as inspect_dataset
from hessalign.bench.data.mnist import Mnist as Mnist
from hessalign.bench.data.mnist import load_mnist as load_mnist
from hessalign.bench.data.mnist import load_mnist14 as load_mnist14
from hessalign.bench.data.mnist import make_domainbed_colored_mnist as make_domainbed_colored_mnist
from hessalign.bench.data.mnist import make_rotated_mnist as make_rotated_mnist
from hessalign.bench.data.samples import DomainDataset as DomainDataset
from hessalign.bench.data.samples import DomainSamples as DomainSamples
from hessalign.bench.data.samples import Split as Split
from hessalign.bench.data.samples import split_dataset as split_dataset
from hessalign.bench.data.samples import split_domain as split_domain
from hessalign.bench.data.shifts import ShiftedData as ShiftedData
from hessalign.bench.data.shifts import SyntheticDomain as SyntheticDomain
from hessalign.bench.data.shifts import make_shifted_data as make_shifted_data
from hessalign.bench.data.source import find_dataset as find_dataset
from hessalign.bench.data.source import read_dataset as read_dataset
from hessalign.bench.data.spawrious import read_spawrious as read_spawrious
from hessalign.bench.data.tables import read_table as read_table
from hessalign.bench.data.wilds import read_wilds as read_wilds
