"""transformers.Trainer trains, evaluates, saves and resumes a loaded bundle as it does the model that it was built from."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, GPT2Config, GPT2LMHeadModel, PreTrainedModel, Trainer
from transformers.trainer_utils import get_last_checkpoint

import aotpack
import aotpack_loader
from aotpack_loader import AotpackError
from aotpack_loader.errors import EditError, MissingCodeError
from aotpack_loader.integrations.transformers import ConfigWarning
from aotpack_loader.opening.own_class import LossWarning

from .conftest import Data, losses

pytest.importorskip("accelerate")
pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning"), pytest.mark.filterwarnings("ignore::FutureWarning")]


def gpt2() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=40, n_positions=16, n_embd=16, n_layer=1, n_head=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
        bos_token_id=1, eos_token_id=2, use_cache=False,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def _batch(data: Data) -> dict[str, Any]:
    return {name: torch.stack([row[name] for row in data[:4]]) for name in data[0]}


@pytest.fixture(scope="module")
def bundle(data: Data, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as Trainer calls the model: with the number of items that the loss is divided by."""
    out = tmp_path_factory.mktemp("trainer") / "gpt2.aotpack"
    kwargs = {**_batch(data), "num_items_in_batch": torch.tensor(28.0)}
    aotpack.build(gpt2(), (), kwargs, out=out, targets=("portable",))
    return out


def test_training_evaluation_and_checkpoints_are_those_of_eager(bundle: Path, trainer: Callable[..., Trainer]) -> None:
    expected, found = trainer(gpt2(), "eager"), trainer(aotpack_loader.load(bundle), "bundle")
    for each in (expected, found):
        each.train()
    assert len(losses(found)) == 4
    assert losses(found) == pytest.approx(losses(expected), rel=1e-5)
    assert found.evaluate()["eval_loss"] == pytest.approx(expected.evaluate()["eval_loss"], rel=1e-5)
    folders = [Path(get_last_checkpoint(each.args.output_dir)) for each in (expected, found)]
    names = [sorted(path.name for path in folder.iterdir()) for folder in folders]
    assert names[0] == names[1]
    saved = [load_file(folder / "model.safetensors") for folder in folders]
    assert "lm_head.weight" not in saved[1]
    torch.testing.assert_close(saved[1], saved[0], rtol=1e-4, atol=1e-5)
    again = GPT2LMHeadModel.from_pretrained(folders[1])
    torch.testing.assert_close(again.state_dict(), found.model.state_dict())
    resumed = trainer(aotpack_loader.load(bundle), "bundle")
    resumed.train(resume_from_checkpoint=str(folders[1].with_name("checkpoint-2")))
    torch.testing.assert_close(resumed.model.state_dict(), found.model.state_dict(), rtol=1e-4, atol=1e-5)


def test_the_class_of_a_load_is_that_of_the_original_to_tools(bundle: Path) -> None:
    model, original = aotpack_loader.load(bundle), gpt2()
    assert inspect.signature(model.forward) == inspect.signature(original.forward).replace(
        return_annotation=inspect.Signature.empty,
        parameters=[
            parameter.replace(annotation=inspect.Parameter.empty)
            for parameter in inspect.signature(original.forward).parameters.values()
        ],
    )
    assert isinstance(model, PreTrainedModel)
    assert isinstance(model, aotpack_loader.LoadedProgram)
    assert type(model).__name__ == "GPT2LMHeadModel"
    assert type(model) is not type(aotpack_loader.load(bundle))
    assert model.config.n_embd == 16
    assert model.config.architectures == ["GPT2LMHeadModel"]
    assert model.get_input_embeddings() is model.get_submodule("transformer.wte")
    assert model.num_parameters() == original.num_parameters()
    for name in ("gradient_checkpointing_enable", "resize_token_embeddings", "from_pretrained", "set_attn_implementation"):
        with pytest.raises(AotpackError, match=name):
            getattr(model, name)()


LATE = """
import json, sys
import aotpack_loader
model = aotpack_loader.load(sys.argv[1])
assert "transformers" not in sys.modules
from transformers import GPT2LMHeadModel, PreTrainedModel
copied = __import__("copy").deepcopy(model)
assert isinstance(model, GPT2LMHeadModel) and isinstance(copied, PreTrainedModel)
for one in (model, copied):
    assert isinstance(one, PreTrainedModel) and isinstance(one, aotpack_loader.LoadedProgram)
    assert PreTrainedModel in type(one).__mro__ and GPT2LMHeadModel not in type(one).__mro__
    one.save_pretrained(sys.argv[2])
    assert isinstance(one.transformer.h[0], type(GPT2LMHeadModel.from_pretrained(sys.argv[2]).transformer.h[0]))
print(json.dumps([type(model).__name__, model.num_parameters()]))
"""


def test_the_library_may_be_imported_after_the_load(bundle: Path, tmp_path: Path, fresh_process: Callable[..., Any]) -> None:
    assert fresh_process(LATE, bundle, tmp_path) == ["GPT2LMHeadModel", gpt2().num_parameters()]


def test_a_loss_that_a_trainer_cannot_scale_is_told(data: Data, tmp_path: Path) -> None:
    aotpack.build(gpt2(), (), _batch(data), out=tmp_path / "m.aotpack", targets=("portable",), methods=("train",))
    model = aotpack_loader.load(tmp_path / "m.aotpack")
    with pytest.warns(LossWarning, match="num_items_in_batch") as told:
        assert [model.accepts_loss_kwargs for _ in range(3)] == [False] * 3
    assert len(told) == 1


def test_generate_says_what_to_do(bundle: Path) -> None:
    model = aotpack_loader.load(bundle)
    with pytest.raises(EditError, match="one token after another"):
        model.generate(torch.tensor([[3, 4]]))


def test_a_configuration_tells_what_it_lacks_and_what_does_not_act(bundle: Path) -> None:
    model, original = aotpack_loader.load(bundle), gpt2()
    assert model.config.num_labels == original.config.num_labels
    assert model.config.use_return_dict == original.config.use_return_dict
    assert not hasattr(model.config, "hidden_size")
    with pytest.raises(MissingCodeError, match="AutoConfig"):
        _ = model.config.hidden_size
    assert AutoConfig.for_model(**model.config.to_dict()).hidden_size == original.config.hidden_size
    model.config.use_cache = False  # as it was
    with pytest.warns(ConfigWarning, match=r"config\.n_layer was 1 at the build"):
        model.config.n_layer = 3
    model.config.num_labels = original.config.num_labels = 4
    assert model.config.id2label == original.config.id2label


def test_weights_are_saved_in_several_files(bundle: Path, tmp_path: Path) -> None:
    model, original = aotpack_loader.load(bundle), gpt2()
    names = []
    for each in (original, model):
        folder = tmp_path / type(each).__module__
        each.save_pretrained(folder, max_shard_size="2KB")
        names.append(sorted(path.name for path in folder.glob("*.safetensors*")))
        read = GPT2LMHeadModel.from_pretrained(folder)
        torch.testing.assert_close(read.state_dict(), each.state_dict())
    assert names[0] == names[1]
    assert len(names[0]) > 2


def test_signatures_of_models_of_others(tmp_path: Path) -> None:
    class Keywords(torch.nn.Linear):
        def forward(self, x: torch.Tensor, *, scale: float = 2.0, mask: Any = torch.float32, deep: Any = object) -> torch.Tensor:
            return super().forward(x) * scale

    aotpack.build(Keywords(2, 2), (torch.ones(3, 2),), out=tmp_path / "m.aotpack", targets=("portable",), methods=("train",))
    model = aotpack_loader.load(tmp_path / "m.aotpack")
    parameters = inspect.signature(model.forward).parameters
    assert [(name, parameter.kind.name, parameter.default) for name, parameter in parameters.items()] == [
        ("x", "POSITIONAL_OR_KEYWORD", inspect.Parameter.empty),
        ("scale", "KEYWORD_ONLY", 2.0),
        ("mask", "KEYWORD_ONLY", torch.float32),
        ("deep", "KEYWORD_ONLY", ...),
    ]
    assert list(inspect.signature(type(model).forward).parameters) == ["self", *parameters]
    assert not hasattr(model, "config")
    assert not isinstance(model, PreTrainedModel)
