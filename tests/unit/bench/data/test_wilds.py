"""WILDS' and Spawrious' layouts, read from small files made in them."""

import csv
from collections import Counter
from pathlib import Path

import pytest
from tests.benchmark_files import (
    SPECIES,
    make_camelyon,
    make_fmow,
    make_iwildcam,
    make_spawrious,
    write_table,
)

from hessalign.bench.data import find_dataset, read_dataset, split_dataset
from hessalign.bench.data.images import matching_preset
from hessalign.bench.data.spawrious import combinations


def names(data):
    """Domain by domain: its name, and the names of the files of both of its parts."""
    found = {}
    for domain, split in zip(data.domains, split_dataset(data, 0), strict=True):
        inner, outer = ([domain.paths[i].name for i in part] for part in (split.inner, split.outer))
        found[domain.name] = (sorted(inner), sorted(outer))
    return found


def table(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def change(path, row, **values):
    """Change a row of a table; 1 is the one below the header."""
    rows = table(path)
    rows[row - 1] |= values
    write_table(path, rows)


# --- Camelyon17 ----------------------------------------------------------------------------------


def test_camelyon_has_its_hospitals_as_domains_and_its_official_split(tmp_path):
    folder = make_camelyon(tmp_path, each=12)
    data = find_dataset("WILDSCamelyon", tmp_path)
    assert (data.name, data.classes, data.root) == ("WILDSCamelyon", ("normal", "tumor"), folder)
    assert data.domain_names == tuple(f"hospital_{number}" for number in range(5))
    assert data.official_tests == ("hospital_1", "hospital_2")
    found = names(data)
    for row in table(folder / "metadata.csv"):
        slide = f"patient_{row['patient']}_node_{row['node']}"
        name = f"patch_{slide}_x_{row['x_coord']}_y_{row['y_coord']}.png"
        domain = data.domains[int(row["center"])]
        path = folder / "patches" / slide / name
        assert domain.labels[domain.paths.index(path)] == int(row["tumor"])
        if row["center"] in {"0", "3", "4"}:
            assert name in found[domain.name][int(row["split"])]
    assert [domain.held_out is None for domain in data.domains] == [False, True, True, False, False]
    assert [len(outer) for _, outer in found.values()] == [4, 2, 2, 4, 4]


def test_parts_can_be_left_out_and_the_folder_tells_what_it_is(tmp_path):
    folder = make_camelyon(tmp_path)
    data = find_dataset("WILDSCamelyon:without=val", tmp_path)
    assert data.name == "WILDSCamelyon:without=val"
    assert data.domain_names == ("hospital_0", "hospital_2", "hospital_3", "hospital_4")
    assert data.official_tests == ("hospital_2",)
    assert matching_preset(folder) == matching_preset(tmp_path) == "WILDSCamelyon"
    assert read_dataset(folder).domain_names[1] == "hospital_1"
    assert matching_preset(make_iwildcam(tmp_path / "other")) == "WILDSiWildCam"


def test_a_table_that_changed_is_read_again(tmp_path):
    folder = make_camelyon(tmp_path)
    first = find_dataset("WILDSCamelyon", tmp_path)
    assert find_dataset("WILDSCamelyon", tmp_path) is first
    rows = table(folder / "metadata.csv")
    write_table(folder / "metadata.csv", rows[1:])
    assert len(find_dataset("WILDSCamelyon", tmp_path)) == len(first) - 1


def test_excluded_images_are_left_out(tmp_path):
    folder = make_iwildcam(tmp_path)
    (folder / "exclude.txt").write_text("train/4-0.jpg\niwildcam_v2.0/train/5-0.jpg\n")
    data = find_dataset("WILDSiWildCam:groups=2", tmp_path)
    listed = {path.name for domain in data.domains for path in domain.paths}
    assert "4-1.jpg" in listed
    assert not listed & {"4-0.jpg", "5-0.jpg"}


# --- FMoW ----------------------------------------------------------------------------------------


def fmow_part(row):
    """The official part of a row, from the definition in Appendix E.2 of the WILDS paper."""
    year, split = int(row["timestamp"][:4]), row["split"]
    if year <= 2012:
        return {"train": "train", "val": "id_val", "test": "id_test"}.get(split)
    if 2013 <= year <= 2015:
        return "val" if split == "val" else None
    return "test" if split == "test" else None


@pytest.mark.parametrize("held_out", ["id_val", "id_test"])
@pytest.mark.parametrize("domain", ["region", "year"])
def test_fmow_by_region_and_by_year(tmp_path, domain, held_out):
    folder = make_fmow(tmp_path)
    data = find_dataset(f"WILDSFMoW:domain={domain}:held_out={held_out}", tmp_path)
    assert len(data.classes) == 62
    regions = {"CHN": "Asia", "FRA": "Europe", "PER": "Americas"}
    expected = {}
    for number, row in enumerate(table(folder / "rgb_metadata.csv")):
        part, file = fmow_part(row), f"rgb_img_{number}.png"
        name = row["timestamp"][:4] if domain == "year" else part
        if domain == "region" and part in {"train", "id_val", "id_test"}:
            name = regions.get(row["country_code"], "Other")
        if part in {"train", held_out, "val", "test"}:
            expected.setdefault(name, {}).setdefault(part, []).append(file)
    order = sorted(expected) if domain == "year" else [*regions.values(), "Other", "val", "test"]
    assert list(data.domain_names) == order
    tests = ("2013", "2015", "2016", "2017") if domain == "year" else ("val", "test")
    assert data.official_tests == tests
    for name, (inner, outer) in names(data).items():
        if name in tests:
            assert sorted(inner + outer) == sorted(*expected[name].values())
        else:
            assert inner == sorted(expected[name]["train"])
            assert outer == sorted(expected[name][held_out])
    labels = {data.classes[label] for label in data.domains[0].labels}
    assert labels == {"airport", "zoo"}


# --- iWildCam ------------------------------------------------------------------------------------


def test_iwildcam_groups_the_cameras_of_training_evenly(tmp_path):
    folder = make_iwildcam(tmp_path)
    data = find_dataset("WILDSiWildCam:groups=3", tmp_path)
    assert data.classes == SPECIES
    assert data.domain_names == ("group_0", "group_1", "group_2", "val", "test")
    assert data.official_tests == ("val", "test")
    cameras = [{path.name.split("-")[0] for path in domain.paths} for domain in data.domains]
    assert cameras[3:] == [{"2"}, {"0", "1"}]
    assert sorted(camera for each in cameras for camera in each) == sorted(
        map(str, range(12))
    )  # each in one
    sizes = [len(domain) for domain in data.domains[:3]]
    assert max(sizes) - min(sizes) <= 6  # a camera
    part = {row["filename"]: row["split"] for row in table(folder / "metadata.csv")}
    for domain, (inner, outer) in list(names(data).items())[:3]:
        assert {part[name] for name in inner} == {"train"}, domain
        assert {part[name] for name in outer} == {"id_val"}, domain


def test_iwildcam_by_camera_pools_those_with_few_images(tmp_path):
    make_iwildcam(tmp_path)
    data = find_dataset("WILDSiWildCam:domain=location", tmp_path)
    alone = [f"location_{number}" for number in range(10)]
    assert list(data.domain_names) == [*alone, "few_train"]
    assert data.official_tests == ("location_0", "location_1", "location_2")
    assert {path.name.split("-")[0] for path in data.domains[-1].paths} == {"10", "11"}
    assert all(len(split.outer) for split in split_dataset(data, 0))


def test_species_without_names_have_numbers(tmp_path):
    folder = make_iwildcam(tmp_path)
    (folder / "categories.csv").unlink()
    assert find_dataset("WILDSiWildCam:groups=2", tmp_path).classes == ("0", "1", "2")
    write_table(folder / "categories.csv", [{"y": y, "name": "ape"} for y in range(3)])
    assert read_dataset(folder, "WILDSiWildCam:groups=2").classes == ("0", "1", "2")


# --- what is wrong with them ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "make", "row", "values", "message"),
    [
        ("WILDSCamelyon", make_camelyon, 3, {"tumor": "yes"},
         r"Unknown value in .*metadata.csv, row 3, column 'tumor': 'yes'. Expected one of: '0'"),
        ("WILDSCamelyon", make_camelyon, 4, {"center": "7"}, r"row 4, column 'center': '7'"),
        ("WILDSCamelyon", make_camelyon, 2, {"node": "../../x"}, r"row 2 of .* climbs ou"),
        ("WILDSCamelyon", make_camelyon, 2, {"node": "0", "x_coord": "0"},
         r"every image once in .*metadata.csv; rows 1 and 2 both name patches/patient_000_node_0/"),
        ("WILDSFMoW", make_fmow, 9, {"category": "zooo"},
         r"rgb_metadata.csv, row 9, column 'category': 'zooo'.*Did you mean 'zoo'"),
        ("WILDSFMoW", make_fmow, 2, {"timestamp": "soon"},
         r"Expected a date .* in .*rgb_metadata.csv, row 2, column 'timestamp'; found 'soon'"),
        ("WILDSiWildCam", make_iwildcam, 8, {"split": "dev"}, r"row 8, column 'split': 'dev'"),
        ("WILDSiWildCam", make_iwildcam, 8, {"y": "-1"},
         r"Expected a whole number from 0, .* in .*, row 8, column 'y'; found '-1'"),
        ("WILDSiWildCam", make_iwildcam, 8, {"y": "99999999999999"},  # classes up to it
         r"of at most 5 digits in .*, row 8, column 'y'; found '99999999999999'"),
        ("WILDSiWildCam", make_iwildcam, 8, {"filename": "../../secret.png"},
         r"row 8 of .*metadata.csv names train/../../secret.png, which climbs out"),
        ("WILDSiWildCam", make_iwildcam, 9, {"split": "train"},
         r"either trained on, .*; row 9 has location_1 in 'train', which is in 'test' before"),
        ("WILDSiWildCam", make_iwildcam, 8, {"filename": "gone.jpg"},
         r"names 1 images that are not in .*: train/gone.jpg \(row 8\)\. Unpack"),
    ],
)  # fmt: skip
def test_wrong_values_are_named_with_file_row_and_column(
    tmp_path, name, make, row, values, message
):
    folder = make(tmp_path)
    change(next(path for path in folder.glob("*metadata.csv")), row, **values)
    options = ":groups=2" if name == "WILDSiWildCam" else ""
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        find_dataset(name + options, tmp_path)


def test_columns_rows_and_splits_that_are_missing(tmp_path):
    path = make_iwildcam(tmp_path) / "metadata.csv"
    rows = table(path)
    write_table(path, [{key: row[key] for key in ("split", "filename")} for row in rows])
    with pytest.raises(ValueError, match=r"it lacks location_remapped, y, and has split, filename"):
        find_dataset("WILDSiWildCam", tmp_path)
    path.write_text("split,location_remapped,filename,y\n")
    with pytest.raises(ValueError, match=r"Expected rows in .*metadata.csv, found none below"):
        find_dataset("WILDSiWildCam", tmp_path)
    path.write_text("split,location_remapped,filename,y\ntrain,1\n")
    with pytest.raises(ValueError, match=r"Expected 4 values on line 2 of .*, found 2"):
        find_dataset("WILDSiWildCam", tmp_path)
    path.write_bytes(b"split,location_remapped,filename,y\ntrain,1,\xff.jpg,0\n")
    with pytest.raises(ValueError, match=r"Expected text in UTF-8 in .*metadata.csv"):
        find_dataset("WILDSiWildCam", tmp_path)
    write_table(path, [row for row in rows if row["split"] not in {"train", "id_test"}])
    with pytest.raises(ValueError, match=r"official split 'train' .* none, only of test, val"):
        find_dataset("WILDSiWildCam", tmp_path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("WILDSFMoW:domains=year", r"Unknown option of WILDSFMoW 'domains'.*Did you mean 'domain'"),
        ("WILDSFMoW:domain=yaer", r"Unknown domain of WILDSFMoW 'yaer'.*Did you mean 'year'"),
        ("WILDSFMoW:groups=3", r"Unknown option of WILDSFMoW 'groups'"),
        ("WILDSiWildCam:groups=20", r"Expected groups from 1 to 9, .* got '20'"),
        ("WILDSiWildCam:groups=many", r"Expected groups from 1 to 9, .* got 'many'"),
        ("SpawriousO2O_easy:domain=x", r"Expected no options of SpawriousO2O_easy, got domain"),
    ],
)
def test_options_that_are_not_there(tmp_path, name, message):
    make_fmow(tmp_path, each=1)
    make_iwildcam(tmp_path)
    make_spawrious(tmp_path, each=1)
    with pytest.raises(ValueError, match=message):
        find_dataset(name, tmp_path)


def test_files_that_are_not_there(tmp_path):
    (tmp_path / "fmow_v1.1" / "images").mkdir(parents=True)
    with pytest.raises(
        FileNotFoundError,
        match=r"missing: rgb_metadata.csv, country_code_mapping.csv\. .* from https://wilds",
    ):
        find_dataset("WILDSFMoW", tmp_path)


# --- Spawrious -----------------------------------------------------------------------------------


def test_spawrious_settings_are_the_published_ones():
    """The tables of the authors' code, breed by breed; counts add up to its 3,168 of each breed."""
    hard = set(combinations("SpawriousO2O_hard"))
    assert ("SC_group_1", "bulldog", "jungle", 0, 3072) in hard
    assert ("SC_group_1", "labrador", "beach", 0, 96) in hard
    assert ("SC_group_2", "dachshund", "mountain", 1, 2756) in hard
    assert ("Test", "corgi", "jungle", 0, None) in hard
    assert ("Test", "corgi", "jungle", 1, None) in hard
    many = set(combinations("SpawriousM2M_easy"))
    assert many == {
        ("SC_group_1", "bulldog", "desert", 0, 3168),
        ("SC_group_2", "bulldog", "mountain", 0, 3168),
        ("SC_group_1", "dachshund", "mountain", 0, 3168),
        ("SC_group_2", "dachshund", "desert", 0, 3168),
        ("SC_group_1", "labrador", "dirt", 0, 3168), ("SC_group_2", "labrador", "jungle", 0, 3168),
        ("SC_group_1", "corgi", "jungle", 0, 3168), ("SC_group_2", "corgi", "dirt", 0, 3168),
        ("Test", "bulldog", "dirt", 0, None), ("Test", "bulldog", "jungle", 0, None),
        ("Test", "dachshund", "jungle", 0, None), ("Test", "dachshund", "dirt", 0, None),
        ("Test", "labrador", "mountain", 0, None), ("Test", "labrador", "desert", 0, None),
        ("Test", "corgi", "desert", 0, None), ("Test", "corgi", "mountain", 0, None),
    }  # fmt: skip
    for kind in ("O2O", "M2M"):
        for level in ("easy", "medium", "hard"):
            counts = Counter()
            for domain, breed, _, _, limit in combinations(f"Spawrious{kind}_{level}"):
                counts[domain, breed] += limit or 3168
            assert set(counts.values()) == {3168, 2 * 3168}
            assert len(counts) == 12


def test_spawrious_is_read_from_its_folders(tmp_path):
    root = make_spawrious(tmp_path)
    data = find_dataset("SpawriousO2O_easy", tmp_path)
    assert data.domain_names == ("Test", "SC_group_1", "SC_group_2")
    assert data.official_tests == ("Test",)
    assert data.classes == ("bulldog", "corgi", "dachshund", "labrador")
    second = {path.relative_to(root).parent for path in data.domains[2].paths}
    assert Path("1/desert/bulldog") in second
    assert Path("1/beach/corgi") in second
    assert {path.parts[0] for path in second} == {"1"}
    for domain in data.domains:
        for path, label in zip(domain.paths, domain.labels, strict=True):
            assert path.parent.name == data.classes[label]
    (root / "1" / "beach" / "corgi").rename(tmp_path / "moved")
    with pytest.raises(FileNotFoundError, match=r"found no such folder\. SpawriousO2O_hard can be"):
        find_dataset("SpawriousO2O_hard", tmp_path)
    (root / "1" / "beach" / "corgi").mkdir()
    with pytest.raises(ValueError, match=r"Expected images of SpawriousO2O_hard in .*, found none"):
        read_dataset(root, "SpawriousO2O_hard")
    assert len(find_dataset("SpawriousM2M_hard", tmp_path)) == 32
