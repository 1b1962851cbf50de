"""Transformers, written plainly; names of tensors are those of the transformers library.

Shapes: B = batch, T = tokens of a sequence, C = channels, H = heads, D = C / H.
"""

import torch
from torch import nn


class AttentionCore(nn.Module):
    """softmax(q k^T) v. No parameters, yet a layer of its own: its time grows with T * T."""

    def forward(self, q, k, v):  # each (B, H, T, D)
        return torch.softmax(q @ k.transpose(-2, -1), -1) @ v


def split_heads(x, heads):  # (B, T, C) -> (B, H, T, D)
    batch, tokens, channels = x.shape
    return x.view(batch, tokens, heads, channels // heads).transpose(1, 2)


def join_heads(x):  # (B, H, T, D) -> (B, T, C)
    batch, heads, tokens, width = x.shape
    return x.transpose(1, 2).reshape(batch, tokens, heads * width)


class BertEmbeddings(nn.Module):
    def __init__(self, vocabulary, channels):
        super().__init__()
        self.word_embeddings = nn.Embedding(vocabulary, channels)
        self.position_embeddings = nn.Embedding(512, channels)
        self.token_type_embeddings = nn.Embedding(2, channels)
        self.LayerNorm = nn.LayerNorm(channels)

    def forward(self, tokens):
        positions = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        return self.LayerNorm(self.word_embeddings(tokens) + self.position_embeddings(positions)
                              + self.token_type_embeddings(torch.zeros_like(tokens)))


class BertLayer(nn.Module):
    def __init__(self, channels, heads):
        super().__init__()
        self.heads = heads
        self.attention = nn.ModuleDict({
            "self": nn.ModuleDict({name: nn.Linear(channels, channels) for name in ("query", "key", "value")}),
            "core": AttentionCore(),
            "output": nn.ModuleDict({"dense": nn.Linear(channels, channels), "LayerNorm": nn.LayerNorm(channels)})})
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(channels, 4 * channels)})
        self.output = nn.ModuleDict({"dense": nn.Linear(4 * channels, channels), "LayerNorm": nn.LayerNorm(channels)})

    def forward(self, x):
        q, k, v = (split_heads(self.attention["self"][name](x), self.heads) for name in ("query", "key", "value"))
        y = self.attention["output"]["dense"](join_heads(self.attention["core"](q, k, v)))
        x = self.attention["output"]["LayerNorm"](x + y)
        y = self.output["dense"](self.intermediate["dense"](x).relu())
        return self.output["LayerNorm"](x + y)


class Bert(nn.Module):
    """Devlin et al.: embeddings, encoder and pooler."""

    def __init__(self, vocabulary, channels, layers, heads):
        super().__init__()
        self.embeddings = BertEmbeddings(vocabulary, channels)
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(BertLayer(channels, heads) for _ in range(layers))})
        self.pooler = nn.ModuleDict({"dense": nn.Linear(channels, channels)})

    def forward(self, tokens):
        x = self.embeddings(tokens)
        for layer in self.encoder["layer"]:
            x = layer(x)
        return x, self.pooler["dense"](x[:, 0]).tanh()


class BertForPreTraining(nn.Module):
    """Bert with both heads of its pre-training; the decoder shares the word embeddings' weight."""

    def __init__(self, vocabulary, channels, layers, heads):
        super().__init__()
        self.bert = Bert(vocabulary, channels, layers, heads)
        self.cls = nn.ModuleDict({
            "predictions": nn.ModuleDict({
                "transform": nn.ModuleDict({"dense": nn.Linear(channels, channels),
                                            "LayerNorm": nn.LayerNorm(channels)}),
                "decoder": nn.Linear(channels, vocabulary)}),
            "seq_relationship": nn.Linear(channels, 2)})
        self.cls["predictions"]["decoder"].weight = self.bert.embeddings.word_embeddings.weight

    def forward(self, tokens):
        x, pooled = self.bert(tokens)
        predictions = self.cls["predictions"]
        y = predictions["transform"]["LayerNorm"](predictions["transform"]["dense"](x).relu())
        return predictions["decoder"](y), self.cls["seq_relationship"](pooled)


class Gpt2Block(nn.Module):
    def __init__(self, channels, heads):
        super().__init__()
        self.heads = heads
        self.ln_1 = nn.LayerNorm(channels)
        self.attn = nn.ModuleDict({"c_attn": nn.Linear(channels, 3 * channels), "core": AttentionCore(),
                                   "c_proj": nn.Linear(channels, channels)})
        self.ln_2 = nn.LayerNorm(channels)
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(channels, 4 * channels), "c_proj": nn.Linear(4 * channels, channels)})

    def forward(self, x):
        q, k, v = (split_heads(part, self.heads) for part in self.attn["c_attn"](self.ln_1(x)).chunk(3, -1))
        x = x + self.attn["c_proj"](join_heads(self.attn["core"](q, k, v)))
        return x + self.mlp["c_proj"](self.mlp["c_fc"](self.ln_2(x)).relu())


class Gpt2(nn.Module):
    """Radford et al.: lm_head shares the token embeddings' weight."""

    def __init__(self, vocabulary, positions, channels, layers, heads):
        super().__init__()
        self.transformer = nn.ModuleDict({
            "wte": nn.Embedding(vocabulary, channels), "wpe": nn.Embedding(positions, channels),
            "h": nn.ModuleList(Gpt2Block(channels, heads) for _ in range(layers)), "ln_f": nn.LayerNorm(channels)})
        self.lm_head = nn.Linear(channels, vocabulary, bias=False)
        self.lm_head.weight = self.transformer["wte"].weight

    def forward(self, tokens):
        x = self.transformer["wte"](tokens)
        x = x + self.transformer["wpe"](torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.transformer["h"]:
            x = block(x)
        return self.lm_head(self.transformer["ln_f"](x))


class LlamaBlock(nn.Module):
    def __init__(self, channels, heads, key_value_heads, hidden):
        super().__init__()
        self.heads, self.key_value_heads = heads, key_value_heads
        narrow = channels // heads * key_value_heads
        self.input_layernorm = nn.RMSNorm(channels)
        self.self_attn = nn.ModuleDict({
            "q_proj": nn.Linear(channels, channels, bias=False), "k_proj": nn.Linear(channels, narrow, bias=False),
            "v_proj": nn.Linear(channels, narrow, bias=False), "core": AttentionCore(),
            "o_proj": nn.Linear(channels, channels, bias=False)})
        self.post_attention_layernorm = nn.RMSNorm(channels)
        self.mlp = nn.ModuleDict({
            "gate_proj": nn.Linear(channels, hidden, bias=False), "up_proj": nn.Linear(channels, hidden, bias=False),
            "down_proj": nn.Linear(hidden, channels, bias=False)})

    def forward(self, x):
        # Rotary embeddings have no parameters and negligible cost: left out.
        attention, mlp = self.self_attn, self.mlp
        y = self.input_layernorm(x)
        q = split_heads(attention["q_proj"](y), self.heads)
        k, v = (split_heads(attention[name](y), self.key_value_heads) for name in ("k_proj", "v_proj"))
        group = self.heads // self.key_value_heads
        y = attention["core"](q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1))
        x = x + attention["o_proj"](join_heads(y))
        y = self.post_attention_layernorm(x)
        return x + mlp["down_proj"](nn.functional.silu(mlp["gate_proj"](y)) * mlp["up_proj"](y))


class Llama(nn.Module):
    """Touvron et al.: grouped-query attention, gated MLP, untied head, no biases."""

    def __init__(self, vocabulary, channels, layers, heads, key_value_heads, hidden):
        super().__init__()
        self.model = nn.ModuleDict({
            "embed_tokens": nn.Embedding(vocabulary, channels),
            "layers": nn.ModuleList(LlamaBlock(channels, heads, key_value_heads, hidden) for _ in range(layers)),
            "norm": nn.RMSNorm(channels)})
        self.lm_head = nn.Linear(channels, vocabulary, bias=False)

    def forward(self, tokens):
        x = self.model["embed_tokens"](tokens)
        for layer in self.model["layers"]:
            x = layer(x)
        return self.lm_head(self.model["norm"](x))
