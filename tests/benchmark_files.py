"""Small files in the layouts that WILDS and Spawrious publish."""

import csv

from tests.pictures import save

from hessalign._protocol import seed_hash
from hessalign.bench.data import PRESETS


def write_table(path, rows):
    """A CSV file of dictionaries."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def make_camelyon(root, each=6):
    """Five hospitals; of those that are trained on, two of six patches are held out."""
    folder, rows = root / "camelyon17_v1.0", []
    for number in range(5 * each):
        center, place = divmod(number, each)
        row = {
            "": number, "patient": f"{center:03d}", "node": place % 2, "x_coord": 32 * place,
            "y_coord": 7, "tumor": place % 2, "slide": center, "center": center,
            "split": int(place % 6 >= 4),
        }  # fmt: skip
        rows.append(row)
        slide = f"patient_{row['patient']}_node_{row['node']}"
        name = f"patch_{slide}_x_{row['x_coord']}_y_7.png"
        save(folder / "patches" / slide / name, number)
    write_table(folder / "metadata.csv", rows)
    return folder


COUNTRIES = {"CHN": "Asia", "FRA": "Europe", "PER": "Americas", "ATA": ""}


def make_fmow(root, each=2):
    """For each split, country and period, some images; those of split seq have no files."""
    folder, rows = root / "fmow_v1.1", []
    for split in ("train", "val", "test", "seq"):
        for country in ("CHN", "FRA", "PER", "ATA", "XKX"):
            for year in ("2002", "2012", "2013", "2015", "2016", "2017"):
                for number in range(each):
                    category = ("zoo", "airport")[number % 2]
                    rows.append({
                        "split": split, "category": category, "country_code": country,
                        "timestamp": f"{year}-12-31T23:59:59Z", "lat": "1.5",
                    })  # fmt: skip
                    if split != "seq":
                        save(folder / "images" / f"rgb_img_{len(rows) - 1}.png", len(rows))
    write_table(folder / "rgb_metadata.csv", rows)
    countries = [{"alpha-3": code, "region": region} for code, region in COUNTRIES.items()]
    write_table(folder / "country_code_mapping.csv", countries)
    return folder


def make_iwildcam(root, cameras=12, each=7):
    """Cameras 0 and 1 are tested on, 2 validated on; the last one has few images."""
    folder, rows = root / "iwildcam_v2.0", []
    for camera in range(cameras):
        part = {0: "test", 1: "test", 2: "val"}.get(camera)
        for number in range(2 if camera == cameras - 1 else each):
            split = part or {4: "id_val", 5: "id_test"}.get(number, "train")
            name = f"{camera}-{number}.jpg"
            rows.append({
                "split": split, "location_remapped": camera, "location": 900 + camera,
                "filename": name, "y": number % 3, "datetime": "2013-06-05 05:44:19.000",
            })  # fmt: skip
            save(folder / "train" / name, len(rows))
    write_table(folder / "metadata.csv", rows)
    names = [{"y": y, "category_id": y + 5, "name": name} for y, name in enumerate(SPECIES)]
    names.append({"y": 99999, "category_id": 1, "name": "other"})
    write_table(folder / "categories.csv", names)
    return folder


SPECIES = ("empty", "zebra", "ape")


def make_spawrious(root, each=2, copies=2):
    """All breeds in all locations, in both copies."""
    for copy in range(copies):
        for location in ("beach", "desert", "dirt", "jungle", "mountain", "snow"):
            for breed in PRESETS["SpawriousO2O_easy"].classes:
                for number in range(each):
                    name = f"{location}_{breed}_{number}.png"
                    seed = seed_hash(copy, location, breed, number) % 2**31
                    save(root / "spawrious224" / str(copy) / location / breed / name, seed)
    return root / "spawrious224"
