"""The example jobs: what is trained on what, and how its result is judged."""

from dataclasses import dataclass
from typing import Callable

from torch import nn
from torch.nn import functional

from gradweave.lab import fashion_mnist, lora, resnet, text, vit


@dataclass(frozen=True)
class Kind:
    """A job that anybody can train again. `load(split)` gives the data of "train" or "test", which the others take:
    `batches(data, batch_size, rank, world_size, seed)` is endless, `evaluate(model, data, rank, world_size)` gives
    (accuracy in percent, loss) and is collective."""

    name: str
    summary: str
    network: Callable[[], nn.Module]
    load: Callable
    batches: Callable
    loss: Callable
    evaluate: Callable
    batch_size: int = 64
    learning_rates: tuple = (("sgd", 0.05), ("adamw", 0.001), ("muon", 0.02))

    def learning_rate(self, optimizer):
        return dict(self.learning_rates)[optimizer]


def _pictures(name, summary, network, **more):
    return Kind(name, summary, network, fashion_mnist.load, fashion_mnist.batches, functional.cross_entropy,
                fashion_mnist.evaluate, **more)


def _texts(name, summary, network, load, **more):
    return Kind(name, summary, network, load, text.batches, text.loss, text.evaluate, batch_size=16, **more)


KINDS = {kind.name: kind for kind in (
    _pictures("wide", "a convolutional network of 13.2 MB on Fashion-MNIST", fashion_mnist.wide_network),
    _pictures("small", "a convolutional network of 0.4 MB on Fashion-MNIST", fashion_mnist.small_network),
    _texts("gpt", "a GPT of 3.3 MB on PyTorch's Python sources", text.GPT, text.load,
           learning_rates=(("sgd", 0.1), ("adamw", 0.001), ("muon", 0.02))),
    _pictures("resnet18", "ResNet-18 with batch norm, 2.8 MB, on Fashion-MNIST", resnet.ResNet18, batch_size=32),
    _pictures("vit", "a vision transformer of 0.8 MB on Fashion-MNIST", vit.VisionTransformer),
    _texts("lora", "low-rank adapters of 0.3 MB by which that GPT, trained on Python, learns C++", lora.network, lora.load,
           learning_rates=(("sgd", 0.5), ("adamw", 0.003), ("muon", 0.02))))}
