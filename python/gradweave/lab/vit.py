"""A vision transformer for small pictures."""

import torch
from torch import nn

from gradweave.lab.transformer import Block


class VisionTransformer(nn.Module):
    """Pictures of 28 x 28 as 16 patches (A. Dosovitskiy et al., An Image is Worth 16x16 Words, 2021). The class is told
    from the mean of all patches, not from a token of its own (L. Beyer et al., Better plain ViT baselines for ImageNet-1k,
    2022)."""

    def __init__(self, width=64, depth=4, heads=4, classes=10):
        super().__init__()
        self.patches, self.places = nn.Conv2d(1, width, 7, stride=7), nn.Embedding(16, width)
        nn.init.normal_(self.places.weight, std=0.02)
        self.blocks = nn.Sequential(*(Block(width, heads, causal=False) for _ in range(depth)))
        self.norm, self.classes = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, pictures):
        x = self.patches(pictures).flatten(2).transpose(1, 2) + self.places(torch.arange(16))
        return self.classes(self.norm(self.blocks(x)).mean(1))
