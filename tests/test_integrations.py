"""Ranks in other people's tools: the real packages where they are installed, and stand-ins with their signatures."""

from __future__ import annotations

import csv
import subprocess
import sys
import types
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from isthmus import BottleneckAutoencoder, IsthmusError, Monitor, diagnose, discover
from isthmus.integrations import huggingface_callback, lightning_callback, numbers_of, rank_pattern, writer

NOT_HERE = "an optional integration: the package is not installed"


def net():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def data(rows=32):
    X = torch.randn(rows, 4, generator=torch.Generator().manual_seed(1))
    return X, X[:, :2].clone()


def train(module, steps=5, **options):
    X, Y = data()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    with Monitor(module, X, every=2, Y=Y, **options) as monitor:
        for _ in range(steps):
            optimizer.zero_grad()
            (module(X) - Y).square().mean().backward()
            optimizer.step()
    return monitor


# ---- Snapshots as they are taken, and as numbers


def test_a_monitor_hands_over_every_snapshot():
    seen = []
    monitor = train(net(), on_snapshot=seen.append)
    assert [one.step for one in seen] == [0, 2, 4, 5]
    assert seen == list(monitor.history.snapshots)


def test_thinning_hands_over_each_snapshot_once():
    seen = []
    train(net(), steps=24, on_snapshot=seen.append, max_snapshots=4)
    steps = [one.step for one in seen]
    assert steps == sorted(set(steps)) and steps[-1] == 24


def test_what_a_receiver_raises_is_raised_and_leaves_no_hook():
    module = net()

    def broken(snapshot):
        if snapshot.step == 2:
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        train(module, on_snapshot=broken)
    assert not module._forward_pre_hooks


def test_a_receiver_must_be_callable():
    with pytest.raises(IsthmusError, match="`on_snapshot` must be callable"):
        Monitor(net(), data()[0], on_snapshot="print")


def test_numbers_are_flat_finite_and_those_of_the_snapshot():
    snapshot = train(net()).history.snapshots[-1]
    numbers = numbers_of(snapshot, "r/")
    assert all(isinstance(value, float) and np.isfinite(value) for value in numbers.values())
    assert numbers["r/cost"] == snapshot.cost and "r/sharpness" not in numbers
    assert numbers["r/0/stable_rank"] == snapshot["0"].weights[0].stable_rank
    assert numbers["r/2/rank"] == snapshot["2"].representation.rank == 2


def test_weights_that_are_not_finite_give_fewer_numbers():
    module = net()
    whole = numbers_of(Monitor(module, data()[0]).record())
    module[2].weight.data[0, 0] = float("nan")
    broken = numbers_of(Monitor(module, data()[0]).record())
    assert set(broken) < set(whole) and "isthmus/0/stable_rank" in broken


# ---- Loggers


class FakeSummaryWriter:
    """The signature of torch.utils.tensorboard."""

    def __init__(self):
        self.kept = {}

    def add_scalar(self, tag, scalar_value, global_step=None, walltime=None, new_style=False, double_precision=False):
        self.kept.setdefault(global_step, {})[tag] = scalar_value


class FakeMlflow:
    """That of the module mlflow."""

    def __init__(self):
        self.kept = {}

    def log_metrics(self, metrics, step=None, synchronous=None, run_id=None):
        self.kept[step] = metrics


class FakeRun:
    """That of a run of W&B."""

    def __init__(self):
        self.kept = {}

    def log(self, data, step=None, commit=None):
        self.kept[step] = data


@pytest.mark.parametrize("kind", [FakeSummaryWriter, FakeMlflow, FakeRun])
def test_a_logger_gets_every_snapshot(kind):
    target = kind()
    monitor = train(net(), on_snapshot=writer(target))
    assert target.kept == {one.step: numbers_of(one) for one in monitor.history.snapshots}


def test_what_is_no_logger_is_refused():
    with pytest.raises(IsthmusError, match="`target` must have"):
        writer(object())


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard", reason=NOT_HERE)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(tmp_path) as target:
        monitor = train(net(), on_snapshot=writer(target))
    read = EventAccumulator(str(tmp_path)).Reload()
    events = read.Scalars("isthmus/2/rank")
    assert [one.step for one in events] == list(monitor.history.steps)
    assert [one.value for one in events] == [2.0] * 4


def test_mlflow(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason=NOT_HERE)
    # It would rather have a data base, which mlflow-skinny cannot open.
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        client = mlflow.MlflowClient(tracking_uri=tmp_path.as_uri())
        mlflow.set_tracking_uri(tmp_path.as_uri())
        mlflow.set_experiment("ranks")
        with mlflow.start_run() as run:
            monitor = train(net(), on_snapshot=writer(mlflow))
        history = client.get_metric_history(run.info.run_id, "isthmus/2/rank")
    assert [(one.step, one.value) for one in history] == [(step, 2.0) for step in monitor.history.steps]


def test_wandb(tmp_path):
    wandb = pytest.importorskip("wandb", reason=NOT_HERE)
    run = wandb.init(mode="offline", dir=tmp_path, project="ranks", settings=wandb.Settings(silent=True))
    monitor = train(net(), on_snapshot=writer(run))
    run.log({"end": 1}, step=6)  # numbers of a step are kept when the next one comes, or by finish()
    last = numbers_of(monitor.history.snapshots[-1])
    assert {name: run.summary[name] for name in last} == pytest.approx(last)
    run.finish()


# ---- Callbacks


def a_module_named(monkeypatch, name, **content):
    """Stands in the place of a package that is not installed."""
    module = types.ModuleType(name)
    vars(module).update(content)
    monkeypatch.setitem(sys.modules, name, module)


def test_a_lightning_callback_by_its_hooks(monkeypatch):
    a_module_named(monkeypatch, "lightning")
    a_module_named(monkeypatch, "lightning.pytorch", Callback=type("Callback", (), {}))
    module, target = net(), FakeMlflow()
    callback = lightning_callback(data()[0], every=2)
    trainer = types.SimpleNamespace(is_global_zero=True, global_step=0, loggers=[target])
    callback.on_train_start(trainer, module)
    for trainer.global_step in (1, 2, 2, 3, 4, 5):  # 2 twice: gradients that are accumulated
        callback.on_train_batch_end(trainer, module, outputs=None, batch=None, batch_idx=0)
    callback.on_train_end(trainer, module)
    assert list(target.kept) == [0, 2, 4, 5] == list(callback.history.steps)
    assert "isthmus/2/rank" in target.kept[5]


def test_only_the_first_process_records(monkeypatch):
    a_module_named(monkeypatch, "transformers", TrainerCallback=type("TrainerCallback", (), {}))
    callback = huggingface_callback(data()[0])
    state = types.SimpleNamespace(is_world_process_zero=False, global_step=0, log_history=[])
    callback.on_train_begin(None, state, None, model=net())
    callback.on_train_end(None, state, None)
    assert not state.log_history and not callback.history.snapshots


def test_inputs_that_do_not_go_through_stop_a_training_at_its_start(monkeypatch):
    a_module_named(monkeypatch, "transformers", TrainerCallback=type("TrainerCallback", (), {}))
    callback = huggingface_callback(torch.ones(8, 3))
    state = types.SimpleNamespace(is_world_process_zero=True, global_step=0, log_history=[])
    with pytest.raises(IsthmusError, match="`X` must go through the module"):
        callback.on_train_begin(None, state, None, model=net())


def test_a_package_that_is_not_there(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(IsthmusError, match="transformers must be installed.*pip install transformers"):
        huggingface_callback(data()[0])


def test_importing_imports_none_of_them():
    names = ("lightning", "pytorch_lightning", "transformers", "tensorboard", "wandb", "mlflow", "peft")
    script = f"import isthmus.integrations, sys; assert not set({names!r}) & set(sys.modules), 'imported'"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_training_with_lightning(tmp_path):
    L = pytest.importorskip("lightning.pytorch", reason=NOT_HERE)
    from lightning.pytorch.loggers import CSVLogger

    class Model(L.LightningModule):
        """Without a forward: the inner network is named."""

        def __init__(self):
            super().__init__()
            self.inner = net()

        def training_step(self, batch, index):
            x, y = batch
            return (self.inner(x) - y).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    X, Y = data()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), batch_size=8)

    def weights(*callbacks):
        logger = CSVLogger(tmp_path, flush_logs_every_n_steps=1)
        quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the number of workers
            torch.manual_seed(0)
            model, options = Model(), {"accumulate_grad_batches": 2, "log_every_n_steps": 1, "max_epochs": 3}
            trainer = L.Trainer(accelerator="cpu", logger=logger, callbacks=list(callbacks), **options, **quiet)
            trainer.fit(model, loader)
        return model.inner.state_dict(), logger

    callback = lightning_callback(X, every=2, submodule="inner", Y=Y)
    after, logger = weights(callback)
    assert callback.history.steps == (0, 2, 4, 6)  # three epochs of four batches, two a step
    with (Path(logger.log_dir) / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row.get("isthmus/2/rank")]
    assert [int(row["step"]) for row in rows] == [0, 2, 4, 6]
    assert {float(row["isthmus/2/rank"]) for row in rows} == {2.0}
    before, _ = weights()
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_a_training_with_huggingface(tmp_path):
    transformers = pytest.importorskip("transformers", reason=NOT_HERE)
    pytest.importorskip("accelerate", reason=NOT_HERE)
    size = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.BertConfig(vocab_size=50, max_position_embeddings=16, num_labels=2, **size)
    tokens = torch.randint(0, 50, (32, 8), generator=torch.Generator().manual_seed(0))
    rows = [{"input_ids": one, "labels": one[0] % 2} for one in tokens]
    X = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}

    def trained(options=None):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = transformers.BertForSequenceClassification(config)
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path),
            max_steps=6,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            report_to=[],
            use_cpu=True,
            save_strategy="no",
            disable_tqdm=True,
        )
        trainer = transformers.Trainer(model=model, args=arguments, train_dataset=rows)
        if options:
            trainer.add_callback(huggingface_callback(X, every=2, **options(trainer)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of PyTorch and transformers about each other
            trainer.train()
        return trainer

    trainer = trained(lambda _: {"layers": "bert.encoder.*"})
    logged = [one for one in trainer.state.log_history if "isthmus/norm_squared" in one]
    assert [one["step"] for one in logged] == [0, 2, 4, 6]
    assert any(name.endswith("/weight_rank") for name in logged[0])
    assert any(name.endswith("participation_ratio") for name in logged[0])
    plain = trained().model.state_dict()
    assert all(torch.equal(value, plain[name]) for name, value in trainer.model.state_dict().items())
    # Through the trainer's own log, which report_to and its other callbacks see.
    through = trained(lambda trainer: {"on_snapshot": lambda snapshot: trainer.log(numbers_of(snapshot))})
    assert sum("isthmus/norm_squared" in one for one in through.state.log_history) == 4


# ---- Ranks for peft


def low_rank_update(before, rank):
    """The same network after an update of this rank of its first layer."""
    after = net()
    after.load_state_dict(before.state_dict())
    rng = torch.Generator().manual_seed(3)
    U, V = (torch.linalg.qr(torch.randn(n, rank, generator=rng))[0] for n in (8, 4))
    after[0].weight.data += U @ V.T
    return after


def test_ranks_of_weights_of_updates_and_of_outputs():
    before = net()
    assert rank_pattern(before, share=1.0) == {"0": 4, "2": 2}
    # The second layer did not change: it is left out.
    assert rank_pattern(low_rank_update(before, 3), base=before, share=0.99) == {"0": 3}
    # Equal singular values: the share says how many.
    assert rank_pattern(low_rank_update(before, 3), base=before, share=0.5) == {"0": 2}
    found = diagnose(nn.Sequential(nn.Linear(4, 1), nn.Linear(1, 6)), data(64)[0])
    assert rank_pattern(found) == {"0": 1, "1": 1}


def test_ranks_that_cannot_be_had():
    with pytest.raises(IsthmusError, match="`base` must have the layers"):
        rank_pattern(net(), base=nn.Sequential(nn.Linear(4, 8)))
    with pytest.raises(IsthmusError, match="`share` must be"):
        rank_pattern(net(), share=0.0)
    with pytest.raises(IsthmusError, match="`base` goes with a module"):
        rank_pattern(diagnose(net(), data()[0]), base=net())


def test_peft_takes_the_pattern():
    peft = pytest.importorskip("peft", reason=NOT_HERE)
    before = net()
    after = low_rank_update(before, 3)
    pattern = rank_pattern(after, base=before)
    model = peft.get_peft_model(before, peft.LoraConfig(r=1, target_modules=["0", "2"], rank_pattern=pattern))
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters() if "lora_A" in name}
    assert shapes == {
        "base_model.model.0.lora_A.default.weight": (3, 4),
        "base_model.model.2.lora_A.default.weight": (1, 8),
    }


# ---- A discovery in other programs


@pytest.fixture(scope="module")
def found():
    X = torch.randn(120, 3, generator=torch.Generator().manual_seed(4), dtype=torch.float64).numpy()
    Y = np.stack([np.sin(X[:, 0]) + X[:, 1], X[:, 0] * X[:, 1]], axis=1)
    return discover(X, Y, rank=2, steps=5, width=8, depth=4, replicas=0), X


def parts(found, X):
    """Encoder and decoder, each with an input of its own."""
    return {"encoder": (found.encoder, X), "decoder": (found.decoder, found.transform(X))}


@pytest.mark.parametrize("part", ["encoder", "decoder"])
def test_the_maps_of_a_discovery_can_be_exported(found, part):
    module, Z = parts(*found)[part]
    Z = torch.as_tensor(Z)
    program = torch.export.export(module, (Z[:2],), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    assert torch.equal(program.module()(Z), module(Z))


@pytest.mark.parametrize("part", ["encoder", "decoder"])
def test_the_maps_of_a_discovery_run_as_onnx(found, part, tmp_path):
    pytest.importorskip("onnxscript", reason=NOT_HERE)
    runtime = pytest.importorskip("onnxruntime", reason=NOT_HERE)
    module, Z = parts(*found)[part]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter about itself
        shapes = ({0: torch.export.Dim.DYNAMIC},)
        program = torch.onnx.export(module, (torch.as_tensor(Z[:2]),), dynamic_shapes=shapes, dynamo=True)
    program.save(tmp_path / "map.onnx")
    session = runtime.InferenceSession(tmp_path / "map.onnx")
    (outputs,) = session.run(None, {session.get_inputs()[0].name: Z})
    np.testing.assert_allclose(outputs, module(torch.as_tensor(Z)).detach().numpy(), rtol=1e-12, atol=1e-12)


def test_coordinates_come_as_polars():
    polars = pytest.importorskip("polars", reason=NOT_HERE)
    rng = np.random.default_rng(0)
    frame = polars.DataFrame(rng.normal(size=(60, 3)), schema=["a", "b", "c"])
    map_ = BottleneckAutoencoder(rank=1, steps=5, width=8, depth=4).set_output(transform="polars")
    coordinates = map_.fit(frame).transform(frame)
    assert isinstance(coordinates, polars.DataFrame) and coordinates.columns == ["bottleneckautoencoder0"]
    assert list(map_.feature_names_in_) == ["a", "b", "c"]
    map_.set_output(transform="default")
    np.testing.assert_array_equal(coordinates.to_numpy(), map_.transform(frame))
