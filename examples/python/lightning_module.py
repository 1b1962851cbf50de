"""A LightningModule trained by DistributedDataParallel, or with --scheme by Gradweave.

    torchrun --nproc-per-node 2 examples/python/lightning_module.py --scheme auto
"""

import argparse

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from gradweave.integrations.lightning import Strategy


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 10))

    def training_step(self, batch, number):
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def validation_step(self, batch, number):
        x, y = batch
        self.log("accuracy", (self.net(x).argmax(1) == y).float().mean(), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scheme", help="(default: DistributedDataParallel)")
    parser.add_argument("--folder", default="out/lightning", help="where checkpoints are kept (default: out/lightning)")
    given = parser.parse_args()
    torch.manual_seed(0)
    inputs = torch.randn(640, 64)
    samples = TensorDataset(inputs, inputs[:, :10].argmax(1))
    strategy = Strategy(scheme=given.scheme) if given.scheme else "ddp"
    trainer = lightning.Trainer(accelerator="cpu", devices=2, strategy=strategy, max_epochs=2, gradient_clip_val=1.0,
                                default_root_dir=given.folder, logger=False, enable_progress_bar=False,
                                enable_model_summary=False)
    module = Classifier()
    trainer.fit(module, DataLoader(samples, 16, shuffle=True), DataLoader(samples, 16))
    total = sum(parameter.double().sum().item() for parameter in module.parameters())
    print(f"sum of parameters {total!r}\n", end="", flush=True)


if __name__ == "__main__":
    main()
