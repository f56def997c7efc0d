"""Models with adapters of peft: a bundle trains under Trainer, and saves and loads what peft saves and loads."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

import aotpack
import aotpack_loader
from aotpack_loader.errors import AotpackError, CorruptBundleError, EditError, StateError
from aotpack_loader.format import schema
from aotpack_loader.integrations.peft import ADAPTERS, adapters_of

from .conftest import Data, losses

peft = pytest.importorskip("peft")
pytest.importorskip("accelerate")
pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning"), pytest.mark.filterwarnings("ignore::FutureWarning")]

Options = dict[str, Any]


def gpt2() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=40, n_positions=16, n_embd=16, n_layer=1, n_head=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
        bos_token_id=1, eos_token_id=2, use_cache=False,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def lora(**options: Any) -> Any:
    options = {"r": 4, "target_modules": ["c_attn"], "fan_in_fan_out": True, "init_lora_weights": False, **options}
    return peft.LoraConfig(**options)


def adapted(**options: Any) -> Any:
    model = gpt2()
    torch.manual_seed(1)
    return peft.get_peft_model(model, lora(task_type="CAUSAL_LM", **options))


def injected() -> Any:
    """A model of transformers that holds its adapter itself."""
    model = gpt2()
    torch.manual_seed(1)
    model.add_adapter(lora())
    return model


def two() -> Any:
    model = adapted()
    model.add_adapter("other", lora(task_type="CAUSAL_LM", r=2, bias="all"))
    return model


def whole() -> Any:
    """With modules that are trained as a whole."""
    return adapted(modules_to_save=["ln_f"], use_dora=True)


class Plain(nn.Module):
    """No model of transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor, attention_mask: Any = None) -> torch.Tensor:
        hidden = self.layer(nn.functional.one_hot(input_ids % 4, 4).float()).relu()
        return nn.functional.cross_entropy(self.head(hidden).flatten(0, 1), labels.flatten() % 2)


def plain() -> Any:
    torch.manual_seed(0)
    return peft.get_peft_model(Plain(), peft.LoraConfig(r=2, target_modules=["layer"], init_lora_weights=False))


@pytest.fixture(scope="module")
def build(data: Data, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Load a bundle of a model, once built for a factory."""
    built: dict[Any, Path] = {}

    def load(make: Callable[[], Any], *, scaled: bool = True) -> Any:
        if (make, scaled) not in built:
            out = built[make, scaled] = tmp_path_factory.mktemp("peft") / "m.aotpack"
            kwargs = {name: torch.stack([row[name] for row in data[:4]]) for name in data[0]}
            extra = {"num_items_in_batch": torch.tensor(28.0)} if scaled else {}
            methods = ("train", "infer") if make is adapted and scaled else ("train",)
            aotpack.build(make(), (), {**kwargs, **extra}, out=out, targets=("portable",), methods=methods)
        return aotpack_loader.load(built[make, scaled])

    return load


def _same_files(first: Path, second: Path) -> None:
    torch.testing.assert_close(load_file(second / "adapter_model.safetensors"), load_file(first / "adapter_model.safetensors"))
    configs = [json.loads((folder / "adapter_config.json").read_text()) for folder in (first, second)]
    assert configs[1] == {**configs[0], "auto_mapping": None, "base_model_name_or_path": None}


def test_training_evaluation_and_checkpoints_are_those_of_eager(build: Callable[..., Any], trainer: Any) -> None:
    expected, found = trainer(adapted(), "eager"), trainer(build(adapted), "bundle")
    for name in ("label_names", "can_return_loss", "model_accepts_loss_kwargs"):
        assert getattr(found, name) == getattr(expected, name), name
    for each in (expected, found):
        each.train()
    assert set(found._signature_columns) == set(expected._signature_columns)
    assert len(losses(found)) == 4
    assert losses(found) == pytest.approx(losses(expected), rel=1e-5)
    assert found.evaluate()["eval_loss"] == pytest.approx(expected.evaluate()["eval_loss"], rel=1e-5)
    folders = [Path(each.args.output_dir, "checkpoint-4") for each in (expected, found)]
    _same_files(*folders)
    again = peft.PeftModel.from_pretrained(gpt2(), folders[1])
    torch.testing.assert_close(dict(again.named_parameters()), dict(found.model.named_parameters()))
    resumed = trainer(build(adapted), "bundle")
    resumed.train(resume_from_checkpoint=str(folders[1].with_name("checkpoint-2")))
    torch.testing.assert_close(resumed.model.state_dict(), found.model.state_dict())


def test_the_best_checkpoint_is_loaded_at_the_end(build: Callable[..., Any], trainer: Any) -> None:
    options = {"eval_strategy": "steps", "eval_steps": 2, "load_best_model_at_end": True, "weight_decay": 50.0}
    states = []
    for model in (adapted(), build(adapted)):
        made = trainer(model, type(model).__module__, **options)
        made.train()
        states.append(made.model.state_dict())
    torch.testing.assert_close(states[1], states[0])


@pytest.mark.parametrize("make", [adapted, two, plain, injected, whole])
def test_what_is_saved_is_what_peft_saves(build: Callable[..., Any], tmp_path: Path, make: Callable[[], Any]) -> None:
    eager, loaded = make(), build(make, scaled=make is not plain)
    eager.save_pretrained(tmp_path / "eager")
    loaded.save_pretrained(tmp_path / "bundle")
    folders = sorted(path.parent for path in (tmp_path / "eager").rglob("adapter_config.json"))
    assert folders
    for folder in folders:
        _same_files(folder, tmp_path / "bundle" / folder.relative_to(tmp_path / "eager"))
    for name in loaded.peft_config:
        states = [peft.get_peft_model_state_dict(model, adapter_name=name) for model in (eager, loaded)]
        assert states[1].keys() == states[0].keys()
        torch.testing.assert_close(states[1], states[0])
        changed = {key: value + 1 for key, value in states[0].items()}
        peft.set_peft_model_state_dict(loaded, changed, adapter_name=name)
        torch.testing.assert_close(peft.get_peft_model_state_dict(loaded, adapter_name=name), changed)
    name = next(iter(loaded.peft_config))
    assert type(loaded.peft_config[name]) is peft.LoraConfig
    loaded.load_adapter(tmp_path / "eager", name)
    torch.testing.assert_close(peft.get_peft_model_state_dict(loaded), peft.get_peft_model_state_dict(eager))


def test_what_tools_ask_a_model_of_peft(build: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    model, original = build(adapted), adapted()
    assert isinstance(model, peft.PeftModel)
    assert not isinstance(model, PreTrainedModel)
    assert isinstance(model.get_base_model(), GPT2LMHeadModel)
    assert model.get_base_model() is model.base_model.model
    parameters = [inspect.signature(one.get_base_model().forward).parameters for one in (model, original)]
    assert list(parameters[0]) == list(parameters[1])
    assert model.active_adapters == original.active_adapters == ["default"]
    assert model.get_nb_trainable_parameters() == original.get_nb_trainable_parameters()
    for one in (model, original):
        one.print_trainable_parameters()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == lines[1]
    model.set_adapter("default")
    for name in ("merge_and_unload", "add_adapter", "disable_adapter", "generate"):
        with pytest.raises(EditError, match=name):
            getattr(model, name)()
    with pytest.raises(EditError, match="its build"):
        model.load_adapter("nowhere", "second")
    with pytest.raises(EditError, match="compiled in"):
        build(two).set_adapter("other")


def test_a_loss_that_a_trainer_cannot_scale_is_told(build: Callable[..., Any], trainer: Any) -> None:
    with pytest.warns(aotpack_loader.opening.own_class.LossWarning, match="num_items_in_batch"):
        made = trainer(build(adapted, scaled=False), "bundle")
    assert made.model_accepts_loss_kwargs is False
    made.train()
    assert len(losses(made)) == 4


ALONE = """
import json, sys
import aotpack_loader
model = aotpack_loader.load(sys.argv[1])
aotpack_loader.save_adapter(model, sys.argv[2])
print(json.dumps([name in sys.modules for name in ("peft", "transformers")] + [model.peft_config["default"].r]))
"""


def test_an_adapter_is_saved_without_peft(build: Callable[..., Any], tmp_path: Path, fresh_process: Callable[..., Any]) -> None:
    assert fresh_process(ALONE, build(adapted).aotpack.path, tmp_path / "bundle") == [False, False, 4]
    adapted().save_pretrained(tmp_path / "eager")
    _same_files(tmp_path / "eager", tmp_path / "bundle")
    with pytest.raises(AotpackError, match="no bundle of a model with adapters"):
        aotpack_loader.save_adapter(nn.Linear(2, 2), tmp_path / "none")


@pytest.mark.parametrize(
    "make",
    [
        lambda: lora(task_type="CAUSAL_LM"),
        lambda: peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2),
        lambda: peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2),
    ],
    ids=["lora", "prompt", "prefix"],
)
def test_adapters_for_a_loaded_bundle_are_refused_with_what_to_do(build: Callable[..., Any], make: Callable[[], Any]) -> None:
    model = build(gpt2)
    with pytest.raises(EditError, match="build the bundle from what that returns") as caught:
        peft.get_peft_model(model, make())
    assert caught.value.__context__ is None
    assert not hasattr(model, "prepare_inputs_for_generation")


def test_an_adapter_that_does_not_fit_changes_nothing(build: Callable[..., Any], tmp_path: Path) -> None:
    adapted(target_modules=["c_proj"]).save_pretrained(tmp_path)
    model = build(adapted)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(StateError) as caught:
        model.load_adapter(tmp_path)
    assert len(caught.value.problems) == 6
    with pytest.raises(AotpackError, match="no file"):
        model.load_adapter(tmp_path / "nowhere")
    torch.testing.assert_close(model.state_dict(), before)


@pytest.mark.parametrize(
    "change",
    [
        {"configs": {"../x": {}}},
        {"active": ["other"]},
        {"entries": 3},
        {"more": 1},
        {"base": 4},
        {"signature": [["x"]]},
        {"entries": {"other": {}}},
        {"configs": {"default": {"megatron_core": "evil.core"}}},
        {"active": [], "base": "base_model.model"},
    ],
)
def test_recorded_adapters_that_are_none_are_refused(change: Options) -> None:
    from aotpack.model.interface import _data

    sound: Options = {"configs": {"default": {}}, "entries": {}, "active": ["default"], "base": None, "signature": []}
    assert adapters_of(schema.Pretrained(attributes={ADAPTERS: _data(sound)})) is not None
    with pytest.raises(CorruptBundleError, match="adapters"):
        adapters_of(schema.Pretrained(attributes={ADAPTERS: _data({**sound, **change})}))


def test_no_bundle_says_where_code_or_a_base_model_comes_from(build: Callable[..., Any], data: Data, tmp_path: Path) -> None:
    model = adapted()
    model.peft_config["default"].base_model_name_or_path = "someone/model"
    kwargs = {name: torch.stack([row[name] for row in data[:4]]) for name in data[0]}
    aotpack.build(model, (), kwargs, out=tmp_path / "m.aotpack", targets=("portable",), methods=("train",))
    assert model.peft_config["default"].base_model_name_or_path == "someone/model"
    loaded = aotpack_loader.load(tmp_path / "m.aotpack")
    loaded.save_pretrained(tmp_path / "saved")
    assert json.loads((tmp_path / "saved" / "adapter_config.json").read_text())["base_model_name_or_path"] is None
    assert loaded.peft_config["default"].base_model_name_or_path is None
