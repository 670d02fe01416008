"""A program of several processes, for test_compile.py: four products, SGD. It runs inside of an
image; the request is that of the hook, with how the program shares its work."""

import json
import os
import sys

import torch
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from builder.frameworks.torch.probes.compile import Work

request = json.loads(sys.argv[1])
work = Work(request)
work.processes.begin(torch)

distributed.init_process_group("nccl")
model: nn.Module = nn.Sequential(*(nn.Linear(2048, 2048, bias=False) for _ in range(4)))
if request["named"] == "fsdp":
    for layer in model.children():
        fully_shard(layer)
    fully_shard(model)
else:
    model = DistributedDataParallel(model, gradient_as_bucket_view=request["named"] == "views")
optimizer = torch.optim.SGD(model.parameters(), 1e-3)


def train(some: torch.Tensor) -> None:
    """Take a step."""
    optimizer.zero_grad()
    model(some).sum().backward()
    optimizer.step()


mine = request["batch"] // int(os.environ["WORLD_SIZE"])
work.take(train, (torch.zeros(mine, 2048),))
