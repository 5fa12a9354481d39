"""Heart disease in four hospitals, which ships with the package.

The data are by Andras Janosi (Hungarian Institute of Cardiology, Budapest), William Steinbrunn
(University Hospital, Zurich), Matthias Pfisterer (University Hospital, Basel) and Robert Detrano
(V.A. Medical Center, Long Beach, and Cleveland Clinic Foundation): "Heart Disease", UCI Machine
Learning Repository, 1988, doi 10.24432/C52P4X; licence: Creative Commons Attribution 4.0 (CC BY
4.0). Changed: the four processed files are one table with names; a `?` is an empty place; stages 1
to 4 of the disease are "sick" and 0 is "healthy"; values and order are untouched
(`scripts/build_heart.py`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from importlib.resources import as_file, files
from typing import Final, cast

from hessalign.bench.data.columns import TableForm
from hessalign.bench.data.samples import DomainDataset
from hessalign.bench.data.tables import read_table

HEART: Final = "heart"

_ZEROS: Final = (
    "'chol' is 0 for 49 patients of VA Long Beach too, and 'trestbps' for one: not measured, "
    "though written as a number. These zeros are left as they are."
)


@lru_cache(maxsize=1)
def load_heart() -> DomainDataset:
    """Load heart disease in four hospitals: 920 patients, 13 attributes, who is sick; no download.

    The hospitals are Cleveland (303 patients, 46 % sick), Hungary (294, 36 %), Switzerland (123, 93
    %) and VA Long Beach (200, 75 %). The attributes, of which NaN are missing:

    - `age` in years; `sex`: 1 male, 0 female.
    - `cp`, chest pain: 1 typical angina, 2 atypical angina, 3 other pain, 4 none.
    - `trestbps`: blood pressure at rest, in mm Hg, on admission.
    - `chol`: serum cholesterol in mg/dl. It is 0, which cannot be, for all patients of Switzerland
      and 49 of VA Long Beach (and `trestbps` for one of these): not measured.
    - `fbs`: fasting blood sugar above 120 mg/dl, 1 if so.
    - `restecg`, electrocardiogram at rest: 0 normal, 1 abnormal ST-T wave, 2 enlarged left
      ventricle.
    - `thalach`: highest heart rate reached; `exang`: angina by exercise, 1 if so.
    - `oldpeak`: ST depression by exercise against rest; `slope` of the ST segment at the peak of
      exercise: 1 up, 2 flat, 3 down. Missing for 65 % in Hungary, 51 % in VA Long Beach.
    - `ca`: large vessels, 0 to 3, that fluoroscopy shows; `thal`, thallium scan: 3 normal, 6 fixed
      defect, 7 reversible defect. Hardly known outside Cleveland.

    Returns:
        The data set; every call returns the same tensors, so copy before writing to them.

    Example:
        >>> data = load_heart()
        >>> data.classes, [(hospital.name, len(hospital)) for hospital in data.domains][:2]
        (('healthy', 'sick'), [('Cleveland', 303), ('Hungary', 294)])
        >>> data.table.features[:5], data.domains[1].inputs[2, :5].tolist()
        (('age', 'sex', 'cp', 'trestbps', 'chol'), [29.0, 1.0, 2.0, 140.0, nan])
    """
    with as_file(files("hessalign.bench.data").joinpath(f"{HEART}.csv")) as path:
        data = read_table(path, label="disease", domain="hospital")
    form = cast(TableForm, data.table)
    return replace(data, table=replace(form, notes=(*form.notes, _ZEROS)))
