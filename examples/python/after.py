"""before.py with Gradweave: `wrap()` in place of DistributedDataParallel, clipping that every plan supports, and an end.

    torchrun --nproc-per-node 2 examples/python/after.py
"""

import torch
from torch import distributed, nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import gradweave


def main():
    distributed.init_process_group("gloo")
    torch.manual_seed(0)
    inputs = torch.randn(640, 64)
    samples = TensorDataset(inputs, inputs[:, :10].argmax(1))
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer = gradweave.wrap(model, optimizer)
    for x, y in DataLoader(samples, 16, sampler=DistributedSampler(samples)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        gradweave.clip_grad_norm_(model, 1.0)
        optimizer.step()
    gradweave.finish(model)
    total = sum(parameter.double().sum().item() for parameter in model.parameters())
    print(f"sum of parameters {total!r}\n", end="", flush=True)
    model.gradweave.close()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
