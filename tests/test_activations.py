"""Activations of models, recorded: by PyTorch where it is installed, and by a stand-in with its ways everywhere."""

import numpy as np
import pytest
import zarr

import rgcss_dask as rg
from rgcss_dask.sources.registry import open_source

WEIGHTS = [np.random.default_rng(i).normal(size=shape) for i, shape in enumerate([(4, 12), (12, 5)])]


class Tensor:
    """What is asked of a tensor."""

    def __init__(self, values):
        self.values, self.shape, self.ndim = np.asarray(values), np.shape(values), np.ndim(values)

    def detach(self):
        return self

    def cpu(self):
        return self

    def float(self):
        return Tensor(self.values.astype("f4"))

    def double(self):
        return Tensor(self.values.astype("f8"))

    def numpy(self):
        return self.values


class Module:
    """What is asked of a module: a list of others that run one after another, or a function."""

    def __init__(self, does=None, **children):
        self.does, self.children, self.hooks, self.training = does, children, [], True
        self.called_in_training = []

    def named_modules(self, prefix=""):
        yield prefix, self
        for name, child in self.children.items():
            yield from child.named_modules(f"{prefix}.{name}".strip("."))

    def train(self, mode):
        self.training = mode
        for child in self.children.values():
            child.train(mode)

    def register_forward_hook(self, hook):
        self.hooks.append(hook)
        return type("Handle", (), {"remove": lambda handle: self.hooks.remove(hook)})()

    def __call__(self, x, attention_mask=None):
        self.called_in_training.append(self.training)
        out = x
        for child in self.children.values():
            out = child(out)
        out = out if self.does is None else Tensor(self.does(out.values))
        for hook in self.hooks:
            hook(self, (x,), out)
        return out


class StandIn:
    """Makes models as PyTorch does."""

    tensor = staticmethod(lambda values: Tensor(np.asarray(values)))

    @staticmethod
    def two_layers():
        return Module(
            first=Module(lambda x: x @ WEIGHTS[0]), bend=Module(np.tanh), second=Module(lambda x: x @ WEIGHTS[1])
        )

    @staticmethod
    def of(does):
        return Module(layer=Module(does))

    @staticmethod
    def hooks(model):
        return sum(len(module.hooks) for _, module in model.named_modules())


class Torch:
    """The same models in PyTorch."""

    def __init__(self):
        self.torch = pytest.importorskip("torch", reason="torch is not installed: gigabytes on Linux")

    def tensor(self, values):
        return self.torch.tensor(np.asarray(values))

    def two_layers(self):
        torch = self.torch

        class TwoLayers(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.bend = torch.nn.Linear(4, 12, bias=False).double(), torch.nn.Tanh()
                self.second = torch.nn.Linear(12, 5, bias=False).double()
                for layer, weights in zip((self.first, self.second), WEIGHTS, strict=True):
                    layer.weight.data = torch.tensor(weights.T)

            def forward(self, x, attention_mask=None):
                return self.second(self.bend(self.first(x)))

        return TwoLayers()

    def of(self, does):
        torch = self.torch

        class Layer(torch.nn.Module):
            def forward(self, x):
                return torch.tensor(does(x.numpy()))

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = Layer()

            def forward(self, x):
                return self.layer(x)

        return Model()

    @staticmethod
    def hooks(model):
        return sum(len(module._forward_hooks) for module in model.modules())


@pytest.fixture(params=[StandIn, Torch], ids=["stand-in", "torch"])
def made(request):
    return request.param()


def rows(count, seed=0):
    return np.random.default_rng(seed).normal(size=(count, 4))


def test_what_is_written_is_what_the_layers_gave(made, tmp_path):
    data, told = rows(70), []
    batches = (made.tensor(data[start : start + 16]) for start in range(0, 70, 16))  # the last one is smaller
    model = made.two_layers()
    written = rg.record_activations(model, batches, tmp_path / "a.zarr", layers=["second", "bend"], told=told.append)
    hidden = np.tanh(data @ WEIGHTS[0])
    expected = np.hstack([hidden, hidden @ WEIGHTS[1]])  # in the order of the model
    stored = zarr.open_array(tmp_path / "a.zarr", mode="r")
    assert written == 70
    assert sum(told) == 70
    assert stored.dtype == np.float16
    assert np.array_equal(stored[:], expected.astype("f4").astype("f2"))
    names = open_source(tmp_path / "a.zarr").names
    assert names[:2] == ("bend.0", "bend.1")
    assert names[-1] == "second.4"
    assert made.hooks(model) == 0


def test_neurons_are_selected_from_what_is_written(made, tmp_path):
    batches = [made.tensor(rows(50, seed)) for seed in range(4)]
    rg.record_activations(made.two_layers(), batches, tmp_path / "a.zarr", layers="*", dtype="float32")
    picked = rg.select(str(tmp_path / "a.zarr"), 16, lam=0.0)
    # The first layer has rank 4, the second is all but surely of full rank 12, and the last is a mix of it.
    assert picked.explained[-1] > 1 - 1e-6
    assert {name.split(".")[0] for name in picked.names} <= {"first", "bend", "second"}


def test_rows_that_do_not_count_are_left_out(made, tmp_path):
    data = rows(24).reshape(4, 6, 4)
    mask = np.arange(6)[None, :] < np.array([6, 3, 1, 4])[:, None]
    batches = [{"x": made.tensor(data), "attention_mask": made.tensor(mask.astype("i8"))}]
    for name, keep in (("a", "attention_mask"), ("b", lambda batch: mask)):
        assert rg.record_activations(made.two_layers(), batches, tmp_path / name, layers="first", keep=keep) == 14
        stored = zarr.open_array(tmp_path / name, mode="r")[:]
        assert np.allclose(stored, data[mask] @ WEIGHTS[0], atol=1e-2)


def test_channels_of_images(made, tmp_path):
    images = np.random.default_rng(0).normal(size=(2, 3, 5, 4))
    path = tmp_path / "a.zarr"
    assert rg.record_activations(made.of(lambda x: 2 * x), [(made.tensor(images),)], path, layers="layer", axis=1) == 40
    stored = zarr.open_array(path, mode="r")[:]
    assert np.allclose(stored, 2 * np.moveaxis(images, 1, -1).reshape(40, 3), atol=1e-2)


def test_the_model_is_as_before_afterwards_and_in_evaluation_meanwhile(tmp_path):
    model = StandIn.two_layers()
    model.children["bend"].training = False
    rg.record_activations(model, [Tensor(rows(5))], tmp_path / "a.zarr", layers="bend")
    assert model.called_in_training == [False]
    assert [module.training for _, module in model.named_modules()] == [True, True, False, True]


def test_dropout_and_gradients_are_off(tmp_path):
    torch = Torch().torch
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Dropout(0.9))
    x = torch.ones(8, 4)
    rg.record_activations(model, [x], tmp_path / "a.zarr", layers=["0", "1"], dtype="float32")
    stored = zarr.open_array(tmp_path / "a.zarr", mode="r")[:]
    assert np.array_equal(stored[:, :6], stored[:, 6:])
    assert model[1].training
    assert model[0].weight.grad is None


def test_bfloat16(tmp_path):
    torch = Torch().torch
    model = torch.nn.Sequential(torch.nn.Linear(4, 6)).to(torch.bfloat16)
    x = torch.ones(3, 4, dtype=torch.bfloat16)
    assert rg.record_activations(model, [x], tmp_path / "a.zarr", layers="0") == 3
    assert np.array_equal(zarr.open_array(tmp_path / "a.zarr", mode="r")[0], model(x)[0].detach().float().numpy())


def test_mistakes_are_told(made, tmp_path):
    def run(model=None, batches=None, **options):
        model = made.two_layers() if model is None else model
        batches = [made.tensor(rows(3))] if batches is None else batches
        rg.record_activations(model, batches, tmp_path / "a.zarr", **{"layers": "bend", **options})

    for options, kind, words in (
        (
            {"layers": "bent"},
            ValueError,
            "each layer must be a module of the model; 'bent' matches none. Near it: bend",
        ),
        ({"layers": []}, ValueError, "layers must name modules of the model; none was given"),
        ({"batches": []}, ValueError, "there must be batches to run the model on"),
        ({"dtype": "int8"}, TypeError, "dtype must be a float such as 'float16'; got 'int8'"),
        ({"model": 3}, TypeError, r"model must be a torch.nn.Module; got builtins.int"),
        ({"keep": lambda batch: [True]}, ValueError, r"layer bend has \(3,\), what says which rows to keep \(1,\)"),
        (
            {"batches": [made.tensor(1e6 * rows(3))], "layers": "first"},
            ValueError,
            "layer first: values must fit into float16; they go up to",
        ),
        ({"model": made.of(lambda x: x.sum(axis=1)), "layers": "layer"}, TypeError, r"layer gives \w+ of shape \(3,\)"),
    ):
        with pytest.raises(kind, match=words):
            run(**options)
        assert not (tmp_path / "a.zarr").exists()
    (tmp_path / "a.zarr").mkdir()
    with pytest.raises(FileExistsError, match="exists already"):
        run()


def test_a_layer_that_runs_twice_is_refused(tmp_path):
    shared = Module(np.tanh)
    with pytest.raises(ValueError, match="each layer must run once in a batch; a ran 2 times in batch 0"):
        rg.record_activations(Module(a=shared, b=shared), [Tensor(rows(3))], tmp_path / "a.zarr", layers="a")
    assert not shared.hooks


def test_layers_of_other_rows_are_refused(tmp_path):
    model = Module(a=Module(np.tanh), b=Module(lambda x: x[:2]))
    with pytest.raises(ValueError, match=r"in batch 0 layer b has \(2,\), the other layers \(3,\)"):
        rg.record_activations(model, [Tensor(rows(3))], tmp_path / "a.zarr", layers="*")


def test_an_error_of_the_model_leaves_no_hooks_and_no_array(made, tmp_path):
    def failing(x):
        if len(x) == 2:
            raise RuntimeError("out of cards")
        return x

    model = made.of(failing)
    with pytest.raises(RuntimeError, match="out of cards"):
        rg.record_activations(model, [made.tensor(rows(3)), made.tensor(rows(2))], tmp_path / "a.zarr", layers="layer")
    assert made.hooks(model) == 0
    assert not (tmp_path / "a.zarr").exists()
    assert rg.record_activations(model, [made.tensor(rows(3))], tmp_path / "a.zarr", layers="layer") == 3
