"""A program that names its step, for test_compile.py: nine convolutions, AdamW. It runs inside of
an image; its request is that of the hook."""

import json
import sys

import torch
from torch import nn

from builder.frameworks.torch.probes.compile import Work

layers: list[nn.Module] = []
for channels in (3, *[64] * 8):
    layers += [nn.Conv2d(channels, 64, 3, padding=1), nn.ReLU()]
model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
optimizer = torch.optim.AdamW(model.parameters())


def train(pictures: torch.Tensor, labels: torch.Tensor) -> float:
    """Take a step."""
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(pictures), labels)
    loss.backward()
    optimizer.step()
    return loss.item()


examples = torch.zeros(48, 3, 224, 224), torch.zeros(48, dtype=torch.long)
Work(json.loads(sys.argv[1])).take(train, examples)
