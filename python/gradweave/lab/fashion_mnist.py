"""Fashion-MNIST from Debian's package, and two convolutional networks for it."""

import gzip
import os
from collections import OrderedDict
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from gradweave.lab import judging
from gradweave.usage import UsageError

DATA_DIRECTORY = Path(os.environ.get("GRADWEAVE_FASHION_MNIST", "/usr/share/datasets/fashion-mnist"))
_MEAN, _DEVIATION = 0.2860, 0.3530  # of the training pixels, scaled to [0, 1]


class DatasetMissing(UsageError):
    """The images are not on this machine; the message says how to get them."""


def load(split, directory=None):
    """Images (n, 28, 28) and labels (n,) of `split`, "train" (60000) or "test" (10000), as uint8 tensors.

    Errors: DatasetMissing when a file is absent or is not what its name says.
    """
    directory = Path(directory or DATA_DIRECTORY)
    prefix = {"train": "train", "test": "t10k"}[split]
    images = _read_idx(directory / f"{prefix}-images-idx3-ubyte.gz", dimensions=3)
    labels = _read_idx(directory / f"{prefix}-labels-idx1-ubyte.gz", dimensions=1)
    if len(images) != len(labels):
        raise DatasetMissing(f"{directory}: {len(images)} images but {len(labels)} labels in '{split}'; reinstall "
                             "with: apt-get install --reinstall dataset-fashion-mnist")
    return images, labels


def normalised(images):
    """uint8 images (n, 28, 28) as float32 (n, 1, 28, 28) of mean 0 and deviation 1 over the training set."""
    return images.unsqueeze(1).to(torch.float32).div_(255).sub_(_MEAN).div_(_DEVIATION)


class Shards:
    """The batches of one rank. Global batch i of an epoch is the same set of images for every number of ranks
    whose batches add up to the same size, and depends only on (seed, epoch, i)."""

    def __init__(self, images, labels, batch_size, rank=0, world_size=1, seed=0):
        self.images, self.labels = images, labels
        self.batch_size, self.rank, self.world_size, self.seed = batch_size, rank, world_size, seed

    def __len__(self):
        """Batches per epoch; the incomplete last one is left out."""
        return len(self.images) // (self.batch_size * self.world_size)

    def epoch(self, number):
        """Yield the (images, labels) batches of this rank in epoch `number`, normalised."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + number)
        order = torch.randperm(len(self.images), generator=generator)
        for batch in range(len(self)):
            first = (batch * self.world_size + self.rank) * self.batch_size
            chosen = order[first:first + self.batch_size]
            yield normalised(self.images[chosen]), self.labels[chosen].long()

    def forever(self):
        """The epochs one after another."""
        number = 0
        while True:
            yield from self.epoch(number)
            number += 1


def batches(data, batch_size, rank, world_size, seed):
    """Endless batches of this rank's share of `data`, as load() gives it."""
    return Shards(*data, batch_size, rank, world_size, seed).forever()


def evaluate(model, data, rank=0, world_size=1, batch_size=250):
    """(share of the images that `model` classifies right, in percent; mean loss), as judging.summed(). Collective."""
    images, labels = data

    def judge(chosen):
        outputs, expected = model(normalised(images[chosen])), labels[chosen].long()
        return (outputs.argmax(1) == expected).sum(), functional.cross_entropy(outputs, expected, reduction="sum")

    right, loss = judging.summed(model, judge, len(images), rank, world_size, batch_size)
    return 100 * right / len(images), loss / len(images)


def _read_idx(path, dimensions):
    try:
        data = gzip.decompress(path.read_bytes())
    except (OSError, EOFError) as error:
        raise DatasetMissing(f"Fashion-MNIST: {error}; install it with: apt-get install dataset-fashion-mnist "
                             "(or set GRADWEAVE_FASHION_MNIST to the folder of its four .gz files)") from None
    header = 4 + 4 * dimensions
    shape = [int.from_bytes(data[at:at + 4], "big") for at in range(4, header, 4)]
    expected = header
    for index, extent in enumerate(shape):
        expected = header + extent if index == 0 else header + (expected - header) * extent
    if data[:4] != bytes([0, 0, 8, dimensions]) or len(data) != expected:
        raise DatasetMissing(f"{path} is not an idx file of {dimensions} dimensions of bytes; reinstall with: "
                             "apt-get install --reinstall dataset-fashion-mnist")
    return torch.frombuffer(bytearray(data[header:]), dtype=torch.uint8).reshape(shape)


def wide_network():
    """The network of the demo: 13.2 MB of parameters in 10 layers, of which one linear layer holds 6 MB."""
    channels = [1, 32, 96, 192, 384, 256]
    layers = OrderedDict()
    for depth, (inputs, outputs) in enumerate(zip(channels, channels[1:]), start=1):
        layers[f"conv{depth}"] = nn.Conv2d(inputs, outputs, 3, padding=1)
        layers[f"norm{depth}"] = nn.BatchNorm2d(outputs)
        layers[f"relu{depth}"] = nn.ReLU()
        if depth <= 3:
            layers[f"pool{depth}"] = nn.MaxPool2d(2)
    layers |= {"flatten": nn.Flatten(), "wide": nn.Linear(256 * 3 * 3, 672), "relu6": nn.ReLU(), "classes": nn.Linear(672, 10)}
    return nn.Sequential(layers)


def small_network():
    """A network of 0.4 MB that reaches 89% after three epochs: for measuring accuracy in little time."""
    return nn.Sequential(OrderedDict(
        conv1=nn.Conv2d(1, 16, 3, padding=1), relu1=nn.ReLU(), pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(16, 32, 3, padding=1), relu2=nn.ReLU(), pool2=nn.MaxPool2d(2), flatten=nn.Flatten(),
        hidden=nn.Linear(32 * 7 * 7, 64), relu3=nn.ReLU(),
        classes=nn.Linear(64, 10)))
