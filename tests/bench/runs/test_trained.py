"""Trained models by themselves: what comes back from disk predicts what was trained, to the bit."""

import dataclasses
import json
import shutil
import subprocess
import sys
import warnings
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image
from tests.colored import colored_job
from torch import nn

import hessalign as ha
from hessalign._errors import InputError, InputTypeError, UnknownNameError
from hessalign.bench.algorithms import ALGORITHMS, Setting, make_algorithm
from hessalign.bench.data import load_mnist14
from hessalign.bench.models import NetworkSpec, make_coloured_mlp, make_network
from hessalign.bench.runs import Job, train_job
from hessalign.bench.runs.model_description import (
    ColouredMlp,
    ModelDescription,
    TrainedModelError,
    write_model,
)
from hessalign.bench.runs.trained import load

WIDTH, CLASSES = 6, ("cat", "dog, small", "owl")
DOMAINBED = [name for name in ("arm", "mtl") if ALGORITHMS[name].deviates]


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """A bank of features, and a folder of images of different sizes and kinds."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.RandomState(0)
    domain, y = np.repeat(np.arange(3), (80, 75, 70)), rng.randint(3, size=225)
    x = rng.randn(225, WIDTH).astype(np.float32)
    x[np.arange(225), y] += 1
    np.savez(folder / "bank.npz", x=x, y=y, domain=domain, classes=CLASSES, domains=["a", "b", "c"])
    for place in ("photo", "sketch", "art, old"):
        for number, label in enumerate(CLASSES):
            home = folder / "pets" / place / label
            home.mkdir(parents=True)
            for each in range(24):
                shape = (rng.randint(9, 30), rng.randint(9, 30), 3)
                pixels = rng.randint(0, 160, size=shape) + 40 * number
                kind = ("png", "jpg")[each % 2]
                Image.fromarray(pixels.astype(np.uint8)).save(home / f"{each:02d}.{kind}")
    return folder


def tiny_backbone():
    """Batch normalisation, so that there are buffers, and few enough parameters."""
    layers = nn.Conv2d(3, 5, 3, stride=2), nn.BatchNorm2d(5), nn.ReLU()
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


@pytest.fixture
def backbone(tmp_path, monkeypatch):
    """The name of a backbone of one's own, in a module that Python finds."""
    name = "backbone_of_" + tmp_path.name.replace("-", "_")
    (tmp_path / f"{name}.py").write_text(
        "from torch import nn\n\n\ndef small():\n"
        "    layers = nn.Conv2d(3, 5, 3, stride=2), nn.BatchNorm2d(5), nn.ReLU()\n"
        "    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return f"{name}:small"


def job_of(data_dir, dataset, algorithm, steps=4, **options):
    hparams = json.dumps({"batch_size": 8, "lr": 0.05, **options}, sort_keys=True)
    recorded = ALGORITHMS[algorithm].recorded
    return Job(dataset, recorded, (1,), 0, 0, str(data_dir), steps=steps, hparams=hparams)


def description_of(algorithm="erm", network=None, classes=("no", "yes", "perhaps"), **rest):
    network = network or NetworkSpec((WIDTH,), len(classes), hidden=4)
    return ModelDescription(network, classes, algorithm=algorithm, **rest)


def shaken(module):
    """The module with other values in all parameters and buffers."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for value in module.state_dict().values():
            if value.is_floating_point():
                value.add_(torch.rand(value.shape, generator=generator))
    return module.eval()


def same_bits(first, second):
    return first.dtype == second.dtype and first.tobytes() == second.tobytes()


# --- round trips --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        *((name, {}) for name in ALGORITHMS),
        *((name, {"fidelity": "domainbed"}) for name in DOMAINBED),
    ],
)
def test_every_algorithm_comes_back_from_features(data_dir, tmp_path, algorithm, options):
    job = job_of(data_dir, "bank", algorithm, hidden=5, **options)
    run = train_job(job, tmp_path, evaluate="all", keep_model=True)
    model = load(tmp_path)
    network = run.algorithm.network.eval()
    x = torch.randn(64, WIDTH, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        z, logits = network.features(x), network(x)
    assert same_bits(model.features(x), z.numpy())
    assert same_bits(model.predict_proba(x.numpy()), logits.softmax(1).numpy())
    assert model.predict(x).tolist() == [CLASSES[i] for i in logits.argmax(1)]
    assert model.description.algorithm == algorithm
    assert model.description.adapted == (algorithm in {"arm", "mtl", "urm"})


@pytest.mark.parametrize("spec", ["images", "coloured"])
@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        *((name, {}) for name in ALGORITHMS),
        *((name, {"fidelity": "domainbed"}) for name in DOMAINBED),
    ],
)
def test_every_algorithm_comes_back_from_images(tmp_path, algorithm, options, spec):
    shape = (2, 14, 14)
    if spec == "images":
        network, loss, classes = NetworkSpec(shape, 3, backbone="mnist_cnn"), "cross_entropy", "abc"
        make, told = partial(make_network, network), shape
    else:
        network, loss, classes = ColouredMlp(shape, 7), "binary", "ab"
        generator, told = torch.Generator().manual_seed(0), (2, 196)

        def make(extra_channels=0, head_factor=1):
            return make_coloured_mlp(2 + extra_channels, 196, 7, generator, head_factor)

    outputs = 3 if spec == "images" else 1
    generator = torch.Generator().manual_seed(5)
    setting = Setting(make, outputs, 2, loss, 10, generator, input_shape=told, batch_size=4)
    made = shaken(make_algorithm(algorithm, options, setting).network)
    about = description_of(
        algorithm, network, tuple(classes), loss=loss, options=options, trained_on=("a", "b"),
        steps=10, batch_size=4,
    )  # fmt: skip
    write_model(tmp_path, about, made)
    x = torch.rand(12, *shape, generator=generator)
    with torch.no_grad():
        logits = made(x)
    expected = (
        logits.softmax(1)
        if spec == "images"
        else torch.cat([(-logits).sigmoid(), logits.sigmoid()], dim=1)
    )
    model = load(tmp_path)
    assert same_bits(model.predict_proba(x), expected.numpy())
    assert np.allclose(model.predict_proba(x).sum(1), 1)
    assert model.network(x).detach().numpy().tobytes() == logits.numpy().tobytes()


def test_one_logit_has_two_classes_and_rounding_does_not_choose(tmp_path):
    network = make_coloured_mlp(2, 196, 5, torch.Generator().manual_seed(0))
    with torch.no_grad():
        network.head.weight.zero_()
        network.head.bias.fill_(1e-10)  # its sigmoid is 0.5 in float32
    about = ModelDescription(ColouredMlp((2, 14, 14), 5), ("even", "odd"), loss="binary")
    write_model(tmp_path, about, network)
    images = load_mnist14().images[:3]
    coloured = torch.stack([images, torch.zeros_like(images)], dim=1).float()
    model = load(tmp_path)
    assert model.predict_proba(coloured).shape == (3, 2)
    assert model.predict(coloured).tolist() == ["odd"] * 3


@pytest.mark.parametrize("algorithm", ["hgp", "arm", "mtl"])
def test_a_run_of_colored_mnist_comes_back(tmp_path, algorithm):
    job = colored_job(algorithm, test_images=64, steps=3, width=6)
    run = train_job(job, tmp_path, keep_model=True)
    x = run.plan.data.domains[2].inputs
    model = load(tmp_path)
    with torch.no_grad():
        expected = torch.cat([run.network(part) for part in x.split(64)])
    assert same_bits(model.predict_proba(x)[:, 1], expected.sigmoid().squeeze(1).numpy())
    below = (expected.squeeze(1) > 0).tolist()
    assert (model.predict(x) == "digit below 5").tolist() == below
    # This protocol evaluates before the update: the record is that of the network before it.
    assert model.description.accuracies["test_accuracy"] == run.final["test_accuracy"]


@pytest.mark.parametrize("algorithm", ["erm", "arm", "mtl"])
def test_the_records_of_a_run_on_images_are_met_exactly(
    data_dir, tmp_path, algorithm, backbone, monkeypatch
):
    monkeypatch.setenv("HESSALIGN_BATCH_WORKERS", "0")
    job = job_of(data_dir, "pets", algorithm, backbone=backbone, image_size=16, steps=6)
    run = train_job(job, tmp_path / "run", evaluate="all", keep_model=True)
    moved, elsewhere = tmp_path / "moved", tmp_path / "elsewhere"
    shutil.move(tmp_path / "run", moved)
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    model = ha.load(moved)
    last, plan = run.records[-1].metrics, run.plan
    assert len(last) == 6
    for number, domain in enumerate(plan.data.domains):
        for part, rows in (("in", plan.inner[number]), ("out", plan.outer[number])):
            predicted = model.predict([domain.paths[row] for row in rows])
            labels = np.array(plan.data.classes)[domain.labels[torch.from_numpy(rows)]]
            assert float((predicted == labels).mean()) == last[f"env{number}_{part}_acc"]
        assert model.description.accuracies[f"env{number}_in_acc"] == last[f"env{number}_in_acc"]
    first = next(iter(plan.protocol.inputs(plan, print).chunks(0, plan.inner[0])))
    paths = [plan.data.domains[0].paths[row] for row in plan.inner[0]][: len(first)]
    with torch.no_grad():
        expected = run.algorithm.network.eval().features(first)
    assert same_bits(model.features(paths), expected.numpy())


def test_a_model_loads_where_neither_data_nor_job_are(data_dir, tmp_path):
    source = tmp_path / "data"
    source.mkdir()
    shutil.copy(data_dir / "bank.npz", source)
    train_job(job_of(source, "bank", "hgp"), tmp_path / "runs" / "one", keep_model=True)
    shutil.rmtree(source)
    for name in ("config.json", "results.jsonl", "done", "lock"):
        (tmp_path / "runs" / "one" / name).unlink(missing_ok=True)
    code = (
        "import numpy as np, hessalign as ha; "
        f"print(ha.load('runs').predict_proba(np.zeros((2, {WIDTH}))).shape)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "(2, 3)"


def test_the_description_says_what_the_run_was(data_dir, tmp_path):
    job = job_of(data_dir, "bank", "coral", hidden=5)
    run = train_job(job, tmp_path, evaluate="all", keep_model=True)
    about = json.loads((tmp_path / "model.json").read_text())
    assert about["classes"] == list(CLASSES)
    assert (about["domains"], about["trained_on"]) == (["a", "b", "c"], ["a", "c"])
    assert about["job"] == run.plan.job.args
    assert about["network"]["hidden"] == 5
    assert about["normalisation"] is None
    assert about["software"]["torch"] == torch.__version__
    assert about["accuracies"] == run.records[-1].metrics
    assert len(about["weights_sha256"]) == 64
    assert (tmp_path / "model.json").stat().st_size < 5000


def test_double_precision_comes_back(tmp_path):
    network = make_network(NetworkSpec((WIDTH,), 3, hidden=4)).double()
    write_model(tmp_path, description_of(), network)
    x = torch.randn(5, WIDTH, dtype=torch.float64)
    with torch.no_grad():
        expected = network(x.float().double())
    assert same_bits(load(tmp_path).network(x.float().double()).detach().numpy(), expected.numpy())
    assert load(tmp_path).predict_proba(x).dtype == np.float64


def test_global_randomness_is_left_alone(tmp_path):
    write_model(tmp_path, description_of("arm"), make_network(NetworkSpec((WIDTH,), 3, hidden=4)))
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    load(tmp_path)
    assert torch.equal(torch.rand(2), expected)


# --- what can be given --------------------------------------------------------------------------


@pytest.fixture
def on_vectors(tmp_path):
    network = shaken(make_network(NetworkSpec((WIDTH,), 3, hidden=4)))
    write_model(tmp_path, description_of(), network)
    return load(tmp_path)


@pytest.fixture
def on_images(tmp_path, backbone):
    spec = NetworkSpec((3, 16, 16), 3, backbone=backbone)
    write_model(tmp_path, description_of(network=spec, inputs="images"), shaken(make_network(spec)))
    return load(tmp_path)


def test_batches_do_not_change_predictions(on_vectors):
    x = np.random.RandomState(0).randn(50, WIDTH)
    expected = on_vectors.predict_proba(x)
    for size in (1, 7, 50, 1000):
        assert np.allclose(on_vectors.predict_proba(x, batch_size=size), expected, atol=1e-6)
    with pytest.raises(InputError, match="Expected a batch_size of 1 or more, got 0"):
        on_vectors.predict(x, batch_size=0)


@pytest.mark.parametrize("kind", [">f4", "f8", "f2", "i2", "u2", "?"])
def test_arrays_of_any_kind_of_number(on_vectors, kind):
    x = np.arange(4 * WIDTH).reshape(4, WIDTH) % 2
    assert same_bits(on_vectors.predict_proba(x.astype(kind)), on_vectors.predict_proba(x))


def test_arrays_that_are_read_only_are_taken_without_a_warning(on_vectors):
    rows = np.full((2, WIDTH), 0.5, dtype=np.float32)
    rows.setflags(write=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert on_vectors.predict(rows).shape == (2,)


def test_files_of_arrays(on_vectors, tmp_path):
    from safetensors.numpy import save_file

    x = np.random.RandomState(0).randn(5, WIDTH).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "x.npz", x=x, y=np.zeros(5))
    np.savez(tmp_path / "one.npz", rows=x)
    save_file({"x": x, "y": np.zeros(5)}, tmp_path / "x.safetensors")
    expected = on_vectors.predict_proba(x)
    for name in ("x.npy", "x.npz", "one.npz", "x.safetensors"):
        assert same_bits(on_vectors.predict_proba(tmp_path / name), expected)
    np.savez(tmp_path / "two.npz", a=x, b=x)
    with pytest.raises(InputError, match=r"Expected an array called x in .*two.npz.* found: a, b"):
        on_vectors.predict(tmp_path / "two.npz")
    (tmp_path / "torn.npz").write_bytes((tmp_path / "x.npz").read_bytes()[:100])
    with pytest.raises(InputError, match=r"Cannot read .*torn\.npz"):
        on_vectors.predict(tmp_path / "torn.npz")


def test_image_files_folders_and_grey_values_agree(on_images, tmp_path):
    home = tmp_path / "photos"
    (home / "b" / ".hidden").mkdir(parents=True)
    pixels = np.random.RandomState(0).randint(0, 256, size=(3, 16, 16, 3)).astype(np.uint8)
    paths = [home / "a.png", home / "b" / "x, y\n.PNG", home / "c.bmp"]
    for image, path in zip(pixels, paths, strict=True):
        Image.fromarray(image).save(path)
    Image.fromarray(pixels[0]).save(home / "b" / ".hidden" / "d.png")
    (home / "notes.txt").write_text("no image")
    expected = on_images.predict_proba(paths)
    grey = pixels.transpose(0, 3, 1, 2)
    assert len(expected) == 3
    assert same_bits(on_images.predict_proba(home), expected)
    assert same_bits(on_images.predict_proba([str(home)]), expected)
    assert np.allclose(on_images.predict_proba(str(paths[1])), expected[1:2], atol=1e-6)
    assert same_bits(on_images.predict_proba(grey), expected)
    assert np.allclose(on_images.predict_proba(torch.from_numpy(grey) / 255), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("x", "error", "text"),
    [
        (np.zeros((2, 5)), InputError, r"shape \[n, 6\], got \[2, 5\]. Give the 6 features"),
        (np.zeros(WIDTH), InputError, r"got \[6\]. For a single sample, give x\[None\]"),
        (np.zeros((0, WIDTH)), InputError, "Expected one or more samples in x, got none"),
        (np.full((2, WIDTH), np.nan), InputError, "Expected finite real numbers"),
        (np.full((2, WIDTH), 1e300), InputError, "that float32 can hold"),
        (np.zeros((2, WIDTH), complex), InputError, "Expected numbers in x, got complex128"),
        (np.array([["a"] * WIDTH]), InputError, "Expected numbers in x, got <U1"),
        ([[0.0] * WIDTH], InputTypeError, "Numbers are to be given as one array or tensor"),
        (3, InputTypeError, "Expected arrays, tensors, or paths, got int"),
        ([], InputError, "Expected one or more samples, got an empty list"),
        ("photo.jpg", InputError, "Expected arrays .n, 6., on which this model was trained"),
        ("missing.npy", FileNotFoundError, "missing.npy"),
    ],
)
def test_what_a_model_of_vectors_refuses(on_vectors, x, error, text):
    with pytest.raises(error, match=text):
        on_vectors.predict(x)


@pytest.mark.parametrize(
    ("x", "text"),
    [
        (np.zeros((2, 16, 16, 3), np.uint8), "The channels come first"),
        (np.zeros((2, 3, 20, 20), np.uint8), "Resize the images to 16×16 pixels"),
        (np.zeros((2, 1, 16, 16), np.uint8), "Give images of 3 channels"),
        (np.zeros((3, 16, 16), np.uint8), r"For a single sample, give x\[None\]"),
        (np.full((2, 3, 16, 16), 2.0), "floats from 0 to 1, got torch.float64 from 2 to 2. Images"),
        (np.zeros((2, 3, 16, 16), int), "as uint8 from 0 to 255 or floats from 0 to 1"),
        ("missing.jpg", "The image missing.jpg is unreadable: No such file"),
    ],
)
def test_what_a_model_of_images_refuses(on_images, x, text):
    with pytest.raises(InputError, match=text):
        on_images.predict(x)


def test_damaged_images_are_named(on_images, tmp_path):
    good, torn, text = (tmp_path / name for name in ("good.png", "torn.png", "text.png"))
    Image.effect_noise((40, 40), 90).save(good)
    torn.write_bytes(good.read_bytes()[:400])
    text.write_text("hello")
    with pytest.raises(InputError, match=r"torn.png is truncated.*leave it out"):
        on_images.predict([good, torn])
    with pytest.raises(InputError, match=r"text.png is unreadable: not an image of any known kind"):
        on_images.predict(text)
    found = []
    outputs = list(on_images.outputs([torn, good, text], 2, found.append))
    assert [each.names for each in outputs] == [(str(good),)]
    assert len(found) == 2
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"Expected images .* in the folder .*empty, found none"):
        on_images.predict(tmp_path / "empty")


# --- what is wrong with a folder ----------------------------------------------------------------


def test_folders_without_a_model(tmp_path, data_dir):
    with pytest.raises(TrainedModelError, match="found no folder"):
        load(tmp_path / "none")
    train_job(job_of(data_dir, "bank", "erm"), tmp_path / "run")
    with pytest.raises(TrainedModelError, match="keep_models: true"):
        load(tmp_path / "run")
    for name in ("a", "b", "c", "d"):
        (tmp_path / "sweep" / name).mkdir(parents=True)
        write_model(
            tmp_path / "sweep" / name,
            description_of(),
            make_network(NetworkSpec((WIDTH,), 3, hidden=4)),
        )
    with pytest.raises(TrainedModelError, match=r"found 4: a, b, c, …. Name one.*--select"):
        load(tmp_path / "sweep")
    assert load(tmp_path / "sweep" / "b").classes_.tolist() == ["no", "yes", "perhaps"]


def edited(folder, change):
    about = json.loads((folder / "model.json").read_text())
    change(about)
    (folder / "model.json").write_text(json.dumps(about))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda about: about.update(format=99), "format 1 or older in .*, found 99. Update"),
        (lambda about: about.pop("format"), "'format' is missing"),
        (lambda about: about.pop("classes"), "'classes' is missing. Copy"),
        (lambda about: about.update(classes=["a"]), "Expected 3 classes"),
        (lambda about: about["network"].update(depth=3), "depth"),
        (lambda about: about["network"].update(kind="cloud"), "cloud"),
        (lambda about: about.update(normalisation={"mean": [0], "std": [1]}), "not ImageNet's"),
        (lambda about: about.update(loss="squared"), "Unknown loss"),
        (lambda about: about["network"].update(hidden=9), "do not fit the network"),
        (lambda about: about.update(weights_sha256="0" * 64), "the file is damaged"),
    ],
)
def test_descriptions_that_are_not_right(tmp_path, change, text):
    write_model(tmp_path, description_of(), make_network(NetworkSpec((WIDTH,), 3, hidden=4)))
    edited(tmp_path, change)
    with pytest.raises(TrainedModelError, match=text):
        load(tmp_path)


@pytest.mark.parametrize("content", [b"", b"[]", b"3", b"\xff\xfe", b'{"format": "1"}', b"null"])
def test_files_that_are_no_description(tmp_path, content):
    write_model(tmp_path, description_of(), make_network(NetworkSpec((WIDTH,), 3, hidden=4)))
    (tmp_path / "model.json").write_bytes(content)
    with pytest.raises(TrainedModelError, match="Expected the description of a trained model"):
        load(tmp_path)


def test_weights_that_are_damaged_or_gone(tmp_path):
    write_model(tmp_path, description_of(), make_network(NetworkSpec((WIDTH,), 3, hidden=4)))
    path = tmp_path / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(TrainedModelError, match="the file is damaged, or of another model"):
        load(tmp_path)
    path.unlink()
    with pytest.raises(TrainedModelError, match=r"Expected the weights .* found none"):
        load(tmp_path)


def test_a_pickle_in_the_place_of_weights_is_not_run(tmp_path):
    import hashlib
    import pickle

    write_model(tmp_path, description_of(), make_network(NetworkSpec((WIDTH,), 3, hidden=4)))

    class Trap:
        def __reduce__(self):
            return (tmp_path / "sprung").touch, ()

    content = pickle.dumps(Trap())
    (tmp_path / "model.safetensors").write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    edited(tmp_path, lambda about: about.update(weights_sha256=digest))
    with pytest.raises(TrainedModelError, match="Expected weights in"):
        load(tmp_path)
    assert not (tmp_path / "sprung").exists()


def test_a_crash_leaves_no_half_model(tmp_path, monkeypatch):
    network = make_network(NetworkSpec((WIDTH,), 3, hidden=4))

    def full(path, content):
        if path.name == "model.json":
            raise OSError(28, "No space left on device")
        path.write_bytes(content)

    monkeypatch.setattr("hessalign.bench.runs.model_description.write_atomically", full)
    with pytest.raises(OSError, match="No space"):
        write_model(tmp_path, description_of(), network)
    with pytest.raises(TrainedModelError, match="found none"):
        load(tmp_path)
    assert not list(tmp_path.glob("*.partial"))


def test_what_a_description_refuses():
    with pytest.raises(InputError, match="Expected 2 classes for 1 outputs"):
        ModelDescription(ColouredMlp((2, 14, 14), 5), ("a", "b", "c"), loss="binary")
    with pytest.raises(UnknownNameError, match="Did you mean 'images'"):
        description_of(inputs="image")
    with pytest.raises(InputError, match=r"Name it as 'package.module:function'"):
        description_of(network=NetworkSpec((3, 8, 8), 3, backbone=tiny_backbone()))


def test_accuracies_that_are_no_numbers_are_left_out(tmp_path):
    about = description_of(accuracies={"env0_in_acc": 0.5, "env1_out_acc": float("nan")})
    write_model(tmp_path, about, make_network(NetworkSpec((WIDTH,), 3, hidden=4)))
    assert load(tmp_path).description.accuracies == {"env0_in_acc": 0.5}
    assert dataclasses.replace(about) == about
