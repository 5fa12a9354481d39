"""The catalog of benchmark data sets."""

from hessalign.bench.data import DATASETS
from hessalign.bench.data.catalog import COLORED_MNIST, DEFAULT_STEPS, catalog_entry


def evaluations(name):
    freq = DATASETS[name].checkpoint_freq
    return sum(step % freq == 0 or step == DEFAULT_STEPS - 1 for step in range(DEFAULT_STEPS))


def test_published_number_of_records_and_domains():
    assert [evaluations(name) for name in ("PACS", "DomainNet", "ColoredMNIST")] == [18, 6, 51]
    domains = {name: len(info.domains) for name, info in DATASETS.items()}
    assert domains.pop(COLORED_MNIST) == 3  # which DomainBed does not have
    assert domains.pop("WILDSiWildCam") == 12
    assert domains == {
        "Debug28": 3, "Debug224": 3, "ColoredMNIST": 3, "RotatedMNIST": 6, "VLCS": 4, "PACS": 4,
        "OfficeHome": 4, "TerraIncognita": 4, "DomainNet": 6, "SVIRO": 10, "WILDSCamelyon": 5,
        "WILDSFMoW": 6, **{name: 3 for name in domains if name.startswith("Spawrious")},
    }  # fmt: skip


def test_small_images_are_the_three_of_the_protocol():
    small = {name for name, info in DATASETS.items() if info.family == "small"}
    assert small - {COLORED_MNIST} == {"Debug28", "RotatedMNIST", "ColoredMNIST"}
    assert [name for name, info in DATASETS.items() if info.family == "DomainNet"] == ["DomainNet"]


def test_a_bank_of_features_has_the_row_of_its_data():
    assert catalog_entry("PACS@resnet18") is DATASETS["PACS"]
    assert catalog_entry("mine@resnet18") is None
    assert catalog_entry("WILDSFMoW:domain=year@resnet18") is DATASETS["WILDSFMoW"]
