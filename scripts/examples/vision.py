"""Image classifiers, written plainly; names of modules and tensors are torchvision's, which lacks Inception-v4."""

import torch
from torch import nn

VGG_CHANNELS = {
    16: [64, 64, "M", 128, 128, "M", 256, 256, 256, "M", 512, 512, 512, "M", 512, 512, 512, "M"],
    19: [64, 64, "M", 128, 128, "M", 256, 256, 256, 256, "M", 512, 512, 512, 512, "M", 512, 512, 512, 512, "M"],
}


class Vgg(nn.Module):
    """Simonyan and Zisserman, configurations D (16) and E (19), without batch normalisation."""

    def __init__(self, depth):
        super().__init__()
        layers, channels = [], 3
        for width in VGG_CHANNELS[depth]:
            if width == "M":
                layers.append(nn.MaxPool2d(2))
            else:
                layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
                channels = width
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Linear(512 * 7 * 7, 4096), nn.ReLU(), nn.Dropout(),
            nn.Linear(4096, 4096), nn.ReLU(), nn.Dropout(),
            nn.Linear(4096, 1000))

    def forward(self, x):
        return self.classifier(self.features(x).flatten(1))


class Bottleneck(nn.Module):
    def __init__(self, channels, width, stride):
        super().__init__()
        out = 4 * width
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out)
        self.downsample = None
        if stride != 1 or channels != out:
            self.downsample = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x):
        y = self.bn1(self.conv1(x)).relu()
        y = self.bn2(self.conv2(y)).relu()
        y = self.bn3(self.conv3(y))
        return (y + (x if self.downsample is None else self.downsample(x))).relu()


class ResNet(nn.Module):
    """He et al., bottleneck form; the stride sits on the 3x3 convolution (v1.5)."""

    def __init__(self, blocks, classes=1000):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, 2, padding=1)
        channels = 64
        for stage, count in enumerate(blocks):
            width, stage_blocks = 64 << stage, []
            for block in range(count):
                stride = 2 if stage > 0 and block == 0 else 1
                stage_blocks.append(Bottleneck(channels, width, stride))
                channels = 4 * width
            setattr(self, f"layer{stage + 1}", nn.Sequential(*stage_blocks))
        self.fc = nn.Linear(channels, classes)

    def forward(self, x):
        x = self.maxpool(self.bn1(self.conv1(x)).relu())
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))


class DenseLayer(nn.Module):
    def __init__(self, channels, growth):
        super().__init__()
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv1 = nn.Conv2d(channels, 4 * growth, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(4 * growth)
        self.conv2 = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, x):
        y = self.conv1(self.norm1(x).relu())
        return torch.cat([x, self.conv2(self.norm2(y).relu())], 1)


class DenseNet(nn.Module):
    """Huang et al., DenseNet-BC."""

    def __init__(self, growth, blocks):
        super().__init__()
        self.features = nn.Sequential()
        channels = 2 * growth
        self.features.add_module("conv0", nn.Conv2d(3, channels, 7, 2, padding=3, bias=False))
        self.features.add_module("norm0", nn.BatchNorm2d(channels))
        self.features.add_module("relu0", nn.ReLU())
        self.features.add_module("pool0", nn.MaxPool2d(3, 2, padding=1))
        for i, count in enumerate(blocks, 1):
            block = nn.Sequential()
            for j in range(1, count + 1):
                block.add_module(f"denselayer{j}", DenseLayer(channels, growth))
                channels += growth
            self.features.add_module(f"denseblock{i}", block)
            if i < len(blocks):
                transition = nn.Sequential()
                transition.add_module("norm", nn.BatchNorm2d(channels))
                transition.add_module("relu", nn.ReLU())
                transition.add_module("conv", nn.Conv2d(channels, channels // 2, 1, bias=False))
                transition.add_module("pool", nn.AvgPool2d(2))
                self.features.add_module(f"transition{i}", transition)
                channels //= 2
        self.features.add_module("norm5", nn.BatchNorm2d(channels))
        self.classifier = nn.Linear(channels, 1000)

    def forward(self, x):
        return self.classifier(self.features(x).relu().mean((2, 3)))


class BasicConv(nn.Module):
    def __init__(self, channels, out, kernel, stride=1, padding=0):
        super().__init__()
        self.conv = nn.Conv2d(channels, out, kernel, stride, padding, bias=False)
        self.bn = nn.BatchNorm2d(out, eps=0.001)

    def forward(self, x):
        return self.bn(self.conv(x)).relu()


class Branches(nn.Module):
    """Runs every branch on the same input, in order, and concatenates the channels."""

    def __init__(self, *branches):
        super().__init__()
        for i, branch in enumerate(branches):
            setattr(self, f"branch{i}", branch)

    def forward(self, x):
        return torch.cat([branch(x) for branch in self.children()], 1)


def conv_chain(channels, *steps):
    """Convolutions in sequence; a step is (out, kernel) or (out, kernel, stride), padded to keep the size unless it
    strides."""
    layers = []
    for out, kernel, *stride in steps:
        rows, columns = kernel if isinstance(kernel, tuple) else (kernel, kernel)
        padding = (0, 0) if stride else (rows // 2, columns // 2)
        layers.append(BasicConv(channels, out, (rows, columns), *(stride or [1]), padding))
        channels = out
    return nn.Sequential(*layers)


def pooled_conv(channels, out):
    return nn.Sequential(nn.AvgPool2d(3, 1, padding=1, count_include_pad=False), BasicConv(channels, out, 1))


def inception_a():
    return Branches(conv_chain(384, (96, 1)), conv_chain(384, (64, 1), (96, 3)),
                    conv_chain(384, (64, 1), (96, 3), (96, 3)), pooled_conv(384, 96))


def inception_b():
    return Branches(conv_chain(1024, (384, 1)), conv_chain(1024, (192, 1), (224, (1, 7)), (256, (7, 1))),
                    conv_chain(1024, (192, 1), (192, (7, 1)), (224, (1, 7)), (224, (7, 1)), (256, (1, 7))),
                    pooled_conv(1024, 128))


def inception_c():
    def split(channels):
        return Branches(conv_chain(channels, (256, (1, 3))), conv_chain(channels, (256, (3, 1))))
    return Branches(conv_chain(1536, (256, 1)), nn.Sequential(conv_chain(1536, (384, 1)), split(384)),
                    nn.Sequential(conv_chain(1536, (384, 1), (448, (3, 1)), (512, (1, 3))), split(512)),
                    pooled_conv(1536, 256))


class InceptionV4(nn.Module):
    """Szegedy et al., Inception-v4. Unpadded 3x3 convolutions are written as strided steps with stride 1."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            conv_chain(3, (32, 3, 2), (32, 3, 1), (64, 3)),
            Branches(nn.MaxPool2d(3, 2), conv_chain(64, (96, 3, 2))),
            Branches(conv_chain(160, (64, 1), (96, 3, 1)),
                     conv_chain(160, (64, 1), (64, (1, 7)), (64, (7, 1)), (96, 3, 1))),
            Branches(conv_chain(192, (192, 3, 2)), nn.MaxPool2d(3, 2)),
            *[inception_a() for _ in range(4)],
            Branches(conv_chain(384, (384, 3, 2)), conv_chain(384, (192, 1), (224, 3), (256, 3, 2)),
                     nn.MaxPool2d(3, 2)),
            *[inception_b() for _ in range(7)],
            Branches(conv_chain(1024, (192, 1), (192, 3, 2)),
                     conv_chain(1024, (256, 1), (256, (1, 7)), (320, (7, 1)), (320, 3, 2)), nn.MaxPool2d(3, 2)),
            *[inception_c() for _ in range(3)])
        self.last_linear = nn.Linear(1536, 1000)

    def forward(self, x):
        return self.last_linear(self.features(x).mean((2, 3)))
