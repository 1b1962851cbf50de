"""What the example jobs' transformers are made of."""

from torch import nn
from torch.nn import functional


class Block(nn.Module):
    """Attention and a feed-forward network, each normalised before and added to what came in. `causal`: no place sees those
    after it."""

    def __init__(self, width, heads, causal):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1, self.attention, self.projection = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm2, self.wide, self.narrow = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, time, width = x.shape
        parts = self.attention(self.norm1(x)).view(batch, time, 3, self.heads, width // self.heads)
        queries, keys, values = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(queries, keys, values, is_causal=self.causal)
        x = x + self.projection(mixed.transpose(1, 2).reshape(batch, time, width))
        return x + self.narrow(functional.gelu(self.wide(self.norm2(x))))
