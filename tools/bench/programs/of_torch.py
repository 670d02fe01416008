"""The steps of others' programs with PyTorch: `python of_torch.py PROGRAM '{"batch": 4}'`.

Their weights have no values: nothing is trained, and nothing is fetched.
"""

# mypy: ignore-errors
import functools
import json
import sys

import torch
from torch import nn
from training_image_compile import take

QWEN = {"0.8B": (1024, 3584, 752393024), "2B": (2048, 6144, 1881825088)}
"""Hidden size, that of a layer's middle, and how many parameters its owners count."""


def empty(make):
    """Return a model to train, without values."""
    with torch.device("meta"):
        model = make()
    return model.to_empty(device="cpu").train()


class Softmax(torch.autograd.Function):
    """That of PyTorch before 1.11, which keeps its input too (pytorch/pull/66018)."""

    @staticmethod
    def forward(context, x, dim):
        y = torch.softmax(x, dim)
        context.save_for_backward(x, y)
        context.dim = dim
        return y

    @staticmethod
    def backward(context, gradient):
        x, y = context.saved_tensors
        return torch._softmax_backward_data(gradient, y, context.dim, x.dtype), None


def bert(batch, accumulate=1, checkpoints=False, half=False, adafactor=False):
    """Train as the Trainer of transformers did on 2022-01-11, with PyTorch 1.10: AdamW goes from
    tensor to tensor there, gradients stay, as zeros, and so does what goes into a softmax."""
    import transformers

    nn.functional.softmax = lambda x, dim: Softmax.apply(x.float(), dim)
    config = transformers.BertConfig(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096,
        vocab_size=30522, attn_implementation="eager",
    )  # fmt: skip
    model = empty(lambda: transformers.BertForSequenceClassification(config))
    if checkpoints:
        model.gradient_checkpointing_enable({"use_reentrant": True})
    if adafactor:
        optimizer = transformers.Adafactor(
            model.parameters(), lr=5e-5, scale_parameter=False, relative_step=False
        )
    else:
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)

    def train(tokens, labels):
        for _ in range(accumulate):
            with torch.autocast("cuda", torch.float16, enabled=half):
                loss = model(input_ids=tokens, labels=labels).loss / accumulate
            loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    take(train, [torch.zeros(batch, 512, dtype=torch.long), torch.zeros(batch, dtype=torch.long)])


def qwen(size, length, accumulate=1, checkpoints=False, lora=False):
    """Take one step as FakeGPU's qwen_sft_memory_worker.py does."""
    import transformers

    hidden, middle, count = QWEN[size]
    config = transformers.Qwen3_5TextConfig(
        vocab_size=248320, hidden_size=hidden, intermediate_size=middle, num_hidden_layers=24,
        num_attention_heads=8, num_key_value_heads=2, head_dim=256, linear_num_key_heads=16,
        linear_num_value_heads=16, tie_word_embeddings=True, use_cache=False,
        attn_implementation="sdpa",
    )  # fmt: skip
    model = empty(lambda: transformers.Qwen3_5ForCausalLM(config).to(torch.bfloat16))
    model.tie_weights()
    assert sum(each.numel() for each in model.parameters()) == count
    if lora:
        import peft

        options = {
            "r": 8,
            "lora_alpha": 16,
            "target_modules": "all-linear",
            "task_type": "CAUSAL_LM",
        }
        model = peft.get_peft_model(model, peft.LoraConfig(**options)).train()
    if checkpoints:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        if lora:
            model.enable_input_require_grads()
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trained, foreach=False)

    def train(tokens, places):
        for number in range(accumulate):
            found = model(input_ids=tokens, labels=tokens, position_ids=places, use_cache=False)
            loss = found.loss / accumulate
            loss.backward()
            if number + 1 < accumulate:
                del found, loss
        optimizer.step()
        optimizer.zero_grad()

    tokens = torch.zeros(1, length, dtype=torch.long)
    take(train, [tokens, torch.zeros(3, 1, length, dtype=torch.long)])


def classify(model, optimizer, batch, size):
    """Name the step of a network of pictures. Before PyTorch 2.0 gradients stay, as zeros."""

    def train(pictures, labels):
        optimizer.zero_grad(set_to_none=False)
        nn.functional.cross_entropy(model(pictures), labels).backward()
        optimizer.step()

    take(train, [torch.zeros(batch, 3, size, size), torch.zeros(batch, dtype=torch.long)])


def densenet121(batch):
    """Train torchvision's with pictures of 224."""
    import torchvision

    model = empty(torchvision.models.densenet121)
    classify(model, torch.optim.Adam(model.parameters()), batch, 224)


def densenet_bc(batch):
    """Train a DenseNet-BC for CIFAR: 100 layers, growth 12."""
    import torchvision

    def make():
        model = torchvision.models.DenseNet(12, (16, 16, 16), 24, num_classes=10)
        model.features.conv0 = nn.Conv2d(3, 24, 3, padding=1, bias=False)
        for name in ("norm0", "relu0", "pool0"):
            setattr(model.features, name, nn.Identity())
        return model

    model = empty(make)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, nesterov=True)
    classify(model, optimizer, batch, 32)


def simclr(batch):
    """Train a ResNet-50 for CIFAR with two views of each picture."""
    import torchvision

    def make():
        base = torchvision.models.resnet50()
        base.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
        base.maxpool, base.fc = nn.Identity(), nn.Sequential(
            nn.Linear(2048, 512, bias=False), nn.BatchNorm1d(512), nn.ReLU(True),
            nn.Linear(512, 128),
        )  # fmt: skip
        return base

    model = empty(make)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3, weight_decay=1e-6)

    def train(first, second):
        views = [nn.functional.normalize(model(each)) for each in (first, second)]
        both = torch.cat(views)
        alike = torch.exp(both @ both.t() / 0.5)
        others = alike.masked_fill(torch.eye(2 * batch, dtype=torch.bool), 0).sum(1)
        same = torch.exp((views[0] * views[1]).sum(1) / 0.5)
        loss = -torch.log(torch.cat([same, same]) / others).mean()
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()

    take(train, [torch.zeros(batch, 3, 32, 32), torch.zeros(batch, 3, 32, 32)])


functools.partial(globals()[sys.argv[1]], **json.loads(sys.argv[2]))()
