"""The real networks: what is built, what its sums must be, and where its compute time comes from."""

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, partial

from . import published
from .language import Bert, BertForPreTraining, Gpt2, Llama
from .measure import trace
from .published import COVAP_TABLE1, DEFT_TABLE1
from .vision import DenseNet, InceptionV4, ResNet, Vgg

IMAGE = (1, 3, 224, 224)


@dataclass(frozen=True)
class Network:
    """An architecture with the published count of its elements and the counts of tensors and layers with tensors."""

    build: object
    input_shape: tuple  # of one sample: operations, and so times, grow in proportion to the batch
    elements: int
    tensors: int
    layers: int


# Counts of tensors and layers of ResNet-50, DenseNet-201, Inception-v4 and both BERTs: DeAR, Table I.
ARCHITECTURES = {
    "VGG-16": Network(partial(Vgg, 16), IMAGE, 138357544, 32, 16),
    "VGG-19": Network(partial(Vgg, 19), IMAGE, 143667240, 38, 19),
    "ResNet-50": Network(partial(ResNet, (3, 4, 6, 3)), IMAGE, 25557032, 161, 107),
    "ResNet-50, CIFAR-100": Network(partial(ResNet, (3, 4, 6, 3), 100), (1, 3, 32, 32), 23712932, 161, 107),
    "ResNet-101": Network(partial(ResNet, (3, 4, 23, 3)), IMAGE, 44549160, 314, 209),
    "ResNet-152": Network(partial(ResNet, (3, 8, 36, 3)), IMAGE, 60192808, 467, 311),
    "DenseNet-201": Network(partial(DenseNet, 32, (6, 12, 48, 32)), IMAGE, 20013928, 604, 402),
    "Inception-v4": Network(InceptionV4, IMAGE, 42679816, 449, 299),
    "BERT-Base": Network(partial(BertForPreTraining, 30522, 768, 12, 12), (1, 64), 110106428, 206, 105),
    "BERT-Large": Network(partial(BertForPreTraining, 30522, 1024, 24, 16), (1, 64), 336226108, 398, 201),
    "BERT-Base, Chinese": Network(partial(Bert, 21128, 768, 12, 12), (1, 64), 102267648, 199, 101),
    "GPT-2": Network(partial(Gpt2, 50257, 1024, 768, 12, 12), (1, 1024), 124439808, 148, 75),
    "GPT-2, Chinese": Network(partial(Gpt2, 13317, 1024, 768, 10, 12), (1, 1024), 81894144, 124, 63),
    "Llama 1.1B": Network(partial(Llama, 32000, 2048, 22, 32, 4, 5632), (1, 2048), 1100048384, 201, 201),
}


@lru_cache(maxsize=None)
def layers_of(architecture):
    """The traced layers; fails unless elements, tensors and layers come out as stated above."""
    network = ARCHITECTURES[architecture]
    layers = trace(network.build, network.input_shape)
    counted = (sum(numel for layer in layers for _, numel in layer.tensors),
               sum(len(layer.tensors) for layer in layers), sum(bool(layer.tensors) for layer in layers))
    assert counted == (network.elements, network.tensors, network.layers), (architecture, counted)
    return layers


def total_flops(architecture):
    layers = layers_of(architecture)
    return sum(layer.forward_flops for layer in layers), sum(layer.backward_flops for layer in layers)


def at_rate_of(architecture, reference, reference_compute):
    """Compute times (ns) at the operations per second and the batch of the reference network."""
    return tuple(round(Fraction(time * own, other)) for time, own, other in
                 zip(reference_compute, total_flops(architecture), total_flops(reference), strict=True))


def at_peak(architecture, samples, flops_per_s):
    """Compute times (ns) at that speed, with backward = 2 forward."""
    forward = round(Fraction(total_flops(architecture)[0] * samples * 10**9, flops_per_s))
    return forward, 2 * forward


DEFT_VGG19 = (sum(published.DEFT_TABLE2_FORWARD), sum(published.DEFT_TABLE2_BACKWARD))
DEFT_RESNET101 = DEFT_TABLE1["ResNet-101"][:2]
DEFT_GPT2 = DEFT_TABLE1["GPT-2"][:2]

DEAR_SOURCE = ("Compute: not printed; the figure that makes DeAR's Eq. 6 give Table II's S_max {smax} of 64 over 10 GbE with "
               "Table I's {millions} M parameters and backward = 2 forward, batch {batch} per GPU (RTX 2080 Ti), {sample}. ")
SPLIT = "Layers share it in proportion to their floating-point operations."


def dear_source(network, batch, sample):
    millions, smax, _ = published.DEAR_TABLES[network]
    text = DEAR_SOURCE.format(smax=f"{float(smax):g}", millions=float(millions), batch=batch, sample=sample)
    bound = "S_max = 64 gives a bound only; this is the smallest compute time that it allows. " if smax == 64 else ""
    return text + bound + SPLIT


def catalogue():
    """Rows of (file, name, architecture, (forward ns, backward ns), dtype, description, source)."""
    words = "sentences of 64 words"
    images = "224 x 224 images"
    return [
        ("vgg16", "VGG-16", "VGG-16", at_rate_of("VGG-16", "VGG-19", DEFT_VGG19), "float32",
         "VGG-16, ImageNet head",
         "Compute: no published total; the operations per second of VGG-19 in DeFT's Table II, same batch. " + SPLIT),
        ("vgg19", "VGG-19", "VGG-19", DEFT_VGG19, "float32", "VGG-19, ImageNet head",
         "Compute: column sums of DeFT's Table II, 37166 and 93119 us (A100). " + SPLIT),
        ("vgg19-v100", "VGG-19 on V100", "VGG-19", COVAP_TABLE1["VGG-19"][:2], "float32", "VGG-19, ImageNet head",
         "Compute: COVAP's Table I, T_before 105 ms (with data loading) as forward, T_comp 210 ms as backward (V100). "
         + SPLIT),
        ("resnet50", "ResNet-50", "ResNet-50", published.dear_compute("ResNet-50"), "float32",
         "ResNet-50, ImageNet head", dear_source("ResNet-50", 64, images)),
        ("resnet101", "ResNet-101", "ResNet-101", DEFT_RESNET101, "float32", "ResNet-101, ImageNet head",
         "Compute: DeFT's Table I, 59 and 118 ms (A100). " + SPLIT),
        ("resnet101-v100", "ResNet-101 on V100", "ResNet-101", COVAP_TABLE1["ResNet-101"][:2], "float32",
         "ResNet-101, ImageNet head",
         "Compute: COVAP's Table I, T_before 55 ms (with data loading) as forward, T_comp 135 ms as backward (V100). "
         + SPLIT),
        ("resnet152", "ResNet-152", "ResNet-152", at_rate_of("ResNet-152", "ResNet-101", DEFT_RESNET101), "float32",
         "ResNet-152, ImageNet head",
         "Compute: no published total; the operations per second of ResNet-101 in DeFT's Table I, same batch. " + SPLIT),
        ("densenet201", "DenseNet-201", "DenseNet-201", published.dear_compute("DenseNet-201"), "float32",
         "DenseNet-201, ImageNet head", dear_source("DenseNet-201", 32, images)),
        ("inception-v4", "Inception-v4", "Inception-v4", published.dear_compute("Inception-v4"), "float32",
         "Inception-v4, ImageNet head", dear_source("Inception-v4", 64, images)),
        ("bert-base", "BERT-Base", "BERT-Base", published.dear_compute("BERT-Base"), "float32",
         "BERT-Base, vocabulary 30522, both pre-training heads", dear_source("BERT-Base", 64, words)),
        ("bert-large", "BERT-Large", "BERT-Large", published.dear_compute("BERT-Large"), "float32",
         "BERT-Large, vocabulary 30522, both pre-training heads", dear_source("BERT-Large", 32, words)),
        ("bert-base-chinese-v100", "BERT-Base (Chinese) on V100", "BERT-Base, Chinese", COVAP_TABLE1["Bert"][:2], "float32",
         "BERT-Base, vocabulary 21128, no head: the 102267648 elements of COVAP's Table VI",
         "Compute: COVAP's Table I, T_before 80 ms (with data loading) as forward, T_comp 170 ms as backward (V100); "
         "sequences of 64 tokens assumed. " + SPLIT),
        ("gpt2", "GPT-2", "GPT-2", at_rate_of("GPT-2", "GPT-2, Chinese", DEFT_GPT2), "float32",
         "GPT-2 small (124M), 1024 tokens",
         "Compute: no published total; the operations per second of GPT-2 in DeFT's Table I, same batch. " + SPLIT),
        ("gpt2-chinese", "GPT-2 (Chinese, 10 layers)", "GPT-2, Chinese", DEFT_GPT2, "float32",
         "GPT-2 with 10 layers and vocabulary 13317: the 81894144 elements of DeFT's Table VI and COVAP's Table VI",
         "Compute: DeFT's Table I, 169 and 381 ms (A100); sequences of 1024 tokens assumed. " + SPLIT),
        ("llama-1.1b", "Llama 1.1B", "Llama 1.1B", at_peak("Llama 1.1B", 4, 312 * 10**12 * 4 // 10), "bfloat16",
         "Llama-like, TinyLlama's sizes: 22 layers, 2048 channels, 32 heads, 4 key-value heads, hidden 5632, vocabulary 32000",
         "Compute: no published total; 4 sequences of 2048 tokens at 40 % of an A100's 312 TFLOP/s in bfloat16, "
         "backward = 2 forward. " + SPLIT),
    ]
