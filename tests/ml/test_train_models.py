"""Models that are trained for speed, in small form on the host, and as the public classes have them (make test-ml)."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from forebay.train import forms

pytestmark = pytest.mark.ml

FOREBAY = [sys.executable, "-c", "import sys; from forebay.cli import main; sys.argv[0] = 'forebay'; main(sys.argv[1:])"]
# Of the published models: BERT-large with the heads of its pre-training, the UNet of Stable Diffusion v2, ResNet-50.
WEIGHTS = {"bert": 336_226_108, "diffusion": 865_910_724, "resnet": 25_557_032}


def forebay(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*FOREBAY, "train", *words], capture_output=True, text=True, timeout=280)


def small(model: str, seed: int = 0, count: int = 8) -> tuple[Any, Any]:
    """A model of the small form, and rows of its data set."""
    import torch
    from forebay.train import models, samples

    torch.set_num_threads(1)
    form = forms.form(model, forms.SMALL)
    return models.Model(form, seed, "cpu"), torch.from_numpy(samples.rows_of(form, 1, 0, count).copy())


@pytest.mark.promise("TRN-56")
@pytest.mark.parametrize("name", forms.NAMES)
def test_a_quality_is_the_weights_own_and_training_does_not_notice(name: str) -> None:
    if name in ("resnet", "ssd", "diffusion"):
        pytest.importorskip("sklearn")
    import torch
    from forebay.train import models, real, samples

    form = forms.form(name, forms.REAL)
    rows = torch.as_tensor(samples.rows_of(form, 0, 0, 16))
    kept = samples.rows_of(form, 0, 0, 24, real.EVALUATION)
    model = models.Model(form, 0, "cpu")
    model.step(rows)
    first = model.quality_of(kept)
    assert 0 <= first <= 1 and model.quality_of(kept) == first and model.problem() is None
    model.step(rows)
    asked = float(model.loss)
    model.reset()
    model.step(rows)
    model.step(rows)
    assert float(model.loss) == asked


@pytest.mark.promise("TRN-56")
def test_average_precision_of_boxes() -> None:
    import numpy as np
    from forebay.train import quality

    there = np.asarray([[0, 1, 1, 0, 0, 10, 10], [0, 1, 1, 20, 20, 30, 30], [1, 2, 1, 0, 0, 8, 8]], float)
    assert quality.average_precision(there, there) == 1.0
    # Of class 1: right, wrong, right; twice the same box is once right. Of class 2: none.
    found = np.asarray(
        [[0, 1, 0.9, 0, 0, 10, 10], [0, 1, 0.8, 0, 0, 10, 9], [0, 1, 0.7, 20, 20, 30, 31], [0, 2, 0.9, 0, 0, 8, 8]], float
    )
    assert quality.average_precision(found, there) == pytest.approx(((1 + 2 / 3) / 2 + 0) / 2)
    assert quality.average_precision(found[:0], there) == 0.0
    assert quality.overlap(there[0, 3:], np.asarray([[5.0, 0, 15, 10]]))[0] == pytest.approx(1 / 3)


@pytest.mark.promise("TRN-46")
@pytest.mark.parametrize("name", forms.NAMES)
def test_losses_are_finite_and_fall_and_a_seed_decides_them(name: str) -> None:
    model, rows = small(name)
    found: list[list[float]] = []
    for seed in (0, 0, 1):
        model.seed = seed
        model.reset()
        losses = []
        for _ in range(12 if seed == 0 else 1):
            model.step(rows)
            losses.append(float(model.loss))
        found.append(losses)
        assert model.problem() is None and all(loss == loss and abs(loss) < 1e3 for loss in losses)
    assert found[0] == found[1] and found[0][0] != found[2][0]
    assert sum(found[0][-3:]) / 3 < 0.99 * sum(found[0][:3]) / 3
    model.close()


@pytest.mark.promise("TRN-46", "TRN-8")
def test_it_names_what_it_cannot_read_and_a_loss_that_is_no_number() -> None:
    import torch
    from forebay.train import run

    for name, field, value, said in (
        ("bert", "input", 1 << 20, "input[0] is 1048576, which is not from 0 to 199"),
        ("lora", "tokens", -3, "tokens[0] is -3"),
        ("ssd", "labels", 77, "labels[0] is 77"),
        ("resnet", "label", 10, "label[0] is 10"),
    ):
        model, rows = small(name)
        rows[5, model.form.begins()[field] // 4] = value
        model.step(rows)
        assert f"sample 5: {said}" in (model.problem() or ""), name
    model, rows = small("resnet")
    rows[2, -1] = 7
    model.step(rows)
    assert model.problem()
    model, rows = small("diffusion")
    rows.view(torch.float32)[3, 100] = float("nan")
    model.step(rows)
    assert model.problem() == run.NO_NUMBER


@pytest.mark.promise("TRN-46")
def test_every_byte_of_a_row_reaches_the_loss() -> None:
    """A flipped bit of each field changes the loss, but for what a mask leaves out."""
    for name in forms.NAMES:
        model, rows = small(name)
        begins = model.form.begins()
        for each in model.form.fields:
            if (name, each.name) == ("resnet", "check"):
                continue
            losses = []
            for flip in (False, True):
                model.reset()
                words = rows.clone()
                if flip:
                    words[:, begins[each.name] // 4] ^= 1 if each.kind == "i4" else 1 << 23
                fields, _ = model._fields(words)
                losses.append(float(model._net(fields).detach()))
            assert losses[0] != losses[1], (name, each.name)


@pytest.mark.promise("TRN-46")
def test_full_sizes_are_the_published_ones() -> None:
    import torch
    from forebay.train import models

    with torch.device("meta"):
        found = {name: models._network(forms.form(name), torch.bfloat16) for name in forms.NAMES}
    counts = {name: sum(p.numel() for p in net.parameters()) for name, net in found.items()}
    assert {name: counts[name] for name in WEIGHTS} == WEIGHTS
    trained = sum(p.numel() for p in found["lora"].parameters() if p.requires_grad)
    assert trained == 16 * 4 * 2 * 16 * 4096
    # Half of a Llama of 7B: as many layers, and all of its words.
    assert counts["lora"] - trained == 16 * (4 * 4096**2 + 3 * 4096 * 11_008 + 2 * 4096) + 2 * 32_000 * 4096 + 4096


@pytest.mark.promise("TRN-46")
def test_bert_is_the_public_one() -> None:
    transformers = pytest.importorskip("transformers")
    import torch

    model, rows = small("bert")
    sizes = model.form.net
    config = transformers.BertConfig(
        vocab_size=sizes["vocabulary"], hidden_size=sizes["width"], num_hidden_layers=sizes["layers"],
        num_attention_heads=sizes["heads"], intermediate_size=4 * sizes["width"], max_position_embeddings=sizes["tokens"],
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    theirs = transformers.BertForPreTraining(config).eval()
    of = theirs.state_dict()
    pairs = {
        "words": "bert.embeddings.word_embeddings", "places": "bert.embeddings.position_embeddings",
        "segments": "bert.embeddings.token_type_embeddings", "norm": "bert.embeddings.LayerNorm", "pool": "bert.pooler.dense",
        "follows": "cls.seq_relationship", "head": "cls.predictions.transform.dense",
        "head_norm": "cls.predictions.transform.LayerNorm",
    }  # fmt: skip
    for n in range(sizes["layers"]):
        at = f"bert.encoder.layer.{n}"
        for kind in ("weight", "bias"):
            of[f"{at}.qkv.{kind}"] = torch.cat([of[f"{at}.attention.self.{one}.{kind}"] for one in ("query", "key", "value")])
        pairs |= {
            f"layers.{n}.qkv": f"{at}.qkv", f"layers.{n}.out": f"{at}.attention.output.dense",
            f"layers.{n}.norm": f"{at}.attention.output.LayerNorm", f"layers.{n}.up": f"{at}.intermediate.dense",
            f"layers.{n}.down": f"{at}.output.dense", f"layers.{n}.norm2": f"{at}.output.LayerNorm",
        }  # fmt: skip
    weights = {f"{ours}.{kind}": of[f"{name}.{kind}"] for ours, name in pairs.items() for kind in ("weight", "bias")
               if f"{name}.{kind}" in of}  # fmt: skip
    model._net.load_state_dict({**weights, "bias": of["cls.predictions.bias"]})
    fields, _ = model._fields(rows)
    mask = (torch.arange(sizes["tokens"]) < fields["length"]).long()
    with torch.no_grad():
        masked, follows = model._net.logits(fields)
        found = theirs(input_ids=fields["input"], attention_mask=mask, token_type_ids=fields["segment"])
    at = fields["position"].long()[:, :, None].expand(-1, -1, sizes["vocabulary"])
    assert torch.allclose(masked, found.prediction_logits.gather(1, at), atol=1e-5)
    assert torch.allclose(follows, found.seq_relationship_logits, atol=1e-5)


@pytest.mark.promise("TRN-46")
def test_the_llama_is_the_public_one_before_its_adapters_learn() -> None:
    transformers = pytest.importorskip("transformers")
    import torch

    model, rows = small("lora")
    sizes = model.form.net
    config = transformers.LlamaConfig(
        vocab_size=sizes["vocabulary"], hidden_size=sizes["width"], num_hidden_layers=sizes["layers"], rms_norm_eps=1e-5,
        num_attention_heads=sizes["heads"], intermediate_size=sizes["inner"],
    )  # fmt: skip
    theirs = transformers.LlamaForCausalLM(config).eval()
    of = theirs.state_dict()
    names = {"words": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"}
    for n in range(sizes["layers"]):
        at = f"model.layers.{n}"
        names |= {f"layers.{n}.{one}.base": f"{at}.self_attn.{one}_proj" for one in "qkvo"}
        names |= {f"layers.{n}.{one}": f"{at}.mlp.{one}_proj" for one in ("gate", "up", "down")}
        names |= {f"layers.{n}.norm": f"{at}.input_layernorm", f"layers.{n}.norm2": f"{at}.post_attention_layernorm"}
    found = model._net.load_state_dict({f"{a}.weight": of[f"{b}.weight"] for a, b in names.items()}, strict=False)
    assert all(".down." in key or ".up." in key for key in found.missing_keys)
    tokens = model._fields(rows)[0]["tokens"]
    with torch.no_grad():
        assert torch.allclose(model._net.logits(tokens), theirs(input_ids=tokens.long()).logits, atol=1e-5)
    before = {name: p.clone() for name, p in model._net.named_parameters()}
    model.step(rows)
    changed = {name for name, p in model._net.named_parameters() if not torch.equal(p, before[name])}
    assert changed and all(".down." in name or ".up." in name for name in changed)


@pytest.mark.promise("TRN-46")
def test_resnet_and_retinanet_are_the_public_ones() -> None:
    torchvision = pytest.importorskip("torchvision")
    import torch
    from forebay.train import images
    from torchvision.models.detection.image_list import ImageList

    torch.manual_seed(1)
    theirs = torchvision.models.resnet50(weights=None).eval()
    ours = images.ResNet(64, (3, 4, 6, 3), 1000).eval()
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        assert torch.allclose(ours.logits(x), theirs(x), atol=1e-4)
    theirs = torchvision.models.detection.retinanet_resnet50_fpn(weights=None, weights_backbone=None, num_classes=5).eval()
    ours = images.RetinaNet({**forms.form("ssd").net, "side": 128, "classes": 5}).eval()
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 3, 128, 128)
    boxes = torch.tensor([[[4.0, 8, 60, 90], [70, 20, 120, 60]], [[10, 10, 100, 110], [0, 0, 0, 0]]])
    labels = torch.tensor([[1, 4], [0, -1]])
    with torch.no_grad():
        logits, corners, anchors = ours.found(x)
        levels = list(theirs.backbone(x).values())
        head = theirs.head(levels)
        own = theirs.anchor_generator(ImageList(x, [(128, 128)] * 2), levels)
        targets = [{"boxes": b[of >= 0], "labels": of[of >= 0]} for b, of in zip(boxes, labels, strict=True)]
        wanted = sum(theirs.compute_loss(targets, head, own).values())
    assert torch.allclose(anchors, own[0]) and torch.allclose(logits, head["cls_logits"], atol=1e-4)
    assert torch.allclose(corners, head["bbox_regression"], atol=1e-4)
    assert float(images.losses(logits, corners, anchors, boxes, labels)) == pytest.approx(float(wanted), rel=1e-4)


@pytest.mark.promise("TRN-46")
def test_the_unet_is_the_public_one() -> None:
    diffusers = pytest.importorskip("diffusers")
    import torch

    model, _ = small("diffusion")
    sizes = model.form.net
    theirs = diffusers.UNet2DConditionModel(
        sample_size=8, block_out_channels=sizes["widths"], layers_per_block=sizes["blocks"], attention_head_dim=sizes["heads"],
        cross_attention_dim=sizes["text"], use_linear_projection=True,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    ).eval()  # fmt: skip
    model._net.load_state_dict(theirs.state_dict())
    x, text, times = torch.randn(2, 4, 8, 8), torch.randn(2, 4, sizes["text"]), torch.tensor([3, 700])
    with torch.no_grad():
        assert torch.allclose(model._net.velocity(x, times, text), theirs(x, times, text).sample, atol=1e-4)


@pytest.mark.promise("TRN-46", "TRN-5")
@pytest.mark.parametrize("name", forms.NAMES)
def test_all_supplies_and_batches_have_one_hash(name: str, tmp_path: Path) -> None:
    from forebay.train import command, models, samples, supply
    from forebay.units import GIB

    about = samples.generate(tmp_path / "d", forms.form(name, forms.SMALL), 3, 96)
    model = models.Model(about.form, 0, "cpu")
    found = []
    for batch, bytes_per_s in ((8, None), (16, 16 * about.row_bytes / 0.02)):
        of = supply.parse(None if bytes_per_s is None else f"{bytes_per_s / GIB:.9f}")
        request = command.Request(about, of, batch, samples=64, quality=False, peak_s=0.05, check_s=0.02)
        request.check("cpu")
        model.reset()
        ran = command.Run(request, model, True)
        assert ran.measure() is None
        record = ran.record()
        part = record["train"]
        found.append(part)
        nulls = {key for key, value in part.items() if value is None} - {"quality_target", "evaluate_every"}
        assert all(record["missing"].get(f"train.{key}") for key in nulls), nulls
        assert [each["area"] for each in part["advice"]] == ["storage", "gds", "balance"]
    assert found[0]["batch_hash"] == found[1]["batch_hash"] and found[1]["supply"]["kind"] == "simulated supply"


@pytest.mark.promise("TRN-46")
def test_the_command_trains_what_datagen_made(tmp_path: Path) -> None:
    folder = str(tmp_path / "d")
    assert forebay("datagen", "resnet", "--dir", folder, "--small", "--rows", "96").returncode == 0
    words = ("--dir", folder, "--device", "cpu", "--samples", "64", "--peak-seconds", "0.1", "--batch-size", "8", "--json")
    done = forebay("resnet", *words)
    assert done.returncode == 0, done.stderr
    part = json.loads(done.stdout)["train"]
    assert part["model"] == "resnet" and part["samples"] == 64 and part["weights"] > 1000 and part["compiled"] is False
    assert part["data"]["form"] == "small" and part["data"]["row_bytes"] == forms.form("resnet", forms.SMALL).row_bytes
    done = forebay("bert", *words)
    assert done.returncode == 2 and "for 'resnet'; bert reads" in done.stderr


@pytest.mark.promise("TRN-46")
def test_layers_are_the_llamas_alone(tmp_path: Path) -> None:
    from forebay.errors import RequestError
    from forebay.train import models

    form = forms.form("lora", forms.SMALL)
    one = models.Model(models.with_layers(form, 1), 0, "cpu")
    assert one.weights < models.Model(form, 0, "cpu").weights
    with pytest.raises(RequestError, match="bert has as many"):
        models.with_layers(forms.form("bert"), 3)
    with pytest.raises(Exception, match="weights take"):
        huge = replace(form, net={**form.net, "width": 1 << 17, "heads": 2, "inner": 1 << 20})
        models.Model(huge, 0, "cpu")
