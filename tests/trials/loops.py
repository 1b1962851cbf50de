"""Models and loops that others wrote, as they wrote them, each small enough to train in a second.

A trial is a function that returns (model, optimizer, step): `step(model, rank, number)` is one iteration of its loop up to the
backward and returns the norm to clip at, or None.
"""

import torch
from torch import nn


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=101, n_positions=16))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3), _language_model(101)


def bert_with_an_unused_pooler():
    from transformers import BertConfig, BertModel

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.bert = BertModel(BertConfig(num_hidden_layers=2, hidden_size=32, num_attention_heads=2, intermediate_size=64,
                                             vocab_size=101, max_position_embeddings=16))
            self.tags = nn.Linear(32, 5)

        def forward(self, tokens):
            return self.tags(self.bert(tokens).last_hidden_state)

    def step(model, rank, number):
        generator = _generator(rank, number)
        tokens = torch.randint(0, 101, (2, 12), generator=generator)
        tags = torch.randint(0, 5, (24,), generator=generator)
        nn.functional.cross_entropy(model(tokens).flatten(0, 1), tags).backward()

    model = Tagger()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3), step


def t5():
    from transformers import T5Config, T5ForConditionalGeneration

    model = T5ForConditionalGeneration(T5Config(num_layers=2, d_model=32, d_kv=16, d_ff=64, num_heads=2, vocab_size=101,
                                                decoder_start_token_id=0))

    def step(model, rank, number):
        tokens = torch.randint(0, 101, (2, 10), generator=_generator(rank, number))
        model(input_ids=tokens, labels=tokens).loss.backward()
        return 1.0

    return model, torch.optim.AdamW(model.parameters(), lr=1e-3), step


def vit():
    from transformers import ViTConfig, ViTForImageClassification

    model = ViTForImageClassification(ViTConfig(num_hidden_layers=2, hidden_size=32, num_attention_heads=2,
                                                intermediate_size=64, image_size=16, patch_size=8, num_labels=5))

    def step(model, rank, number):
        generator = _generator(rank, number)
        images = torch.randn(2, 3, 16, 16, generator=generator)
        model(pixel_values=images, labels=torch.randint(0, 5, (2,), generator=generator)).loss.backward()

    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), step


def mnist_with_a_schedule():
    """torch's examples/mnist: dropout, Adadelta, a scheduler made before the wrapping."""
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1 = nn.Conv2d(1, 8, 3, 1)
            self.conv2 = nn.Conv2d(8, 8, 3, 1)
            self.dropout1 = nn.Dropout(0.25)
            self.fc1 = nn.Linear(8 * 36, 32)
            self.fc2 = nn.Linear(32, 10)

        def forward(self, x):
            x = torch.relu(self.conv2(torch.relu(self.conv1(x))))
            x = torch.flatten(self.dropout1(nn.functional.max_pool2d(x, 2)), 1)
            return nn.functional.log_softmax(self.fc2(torch.relu(self.fc1(x))), dim=1)

    model = Net()
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.7)

    def step(model, rank, number):
        if number:
            scheduler.step()
        generator = _generator(rank, number)
        x, y = torch.randn(4, 1, 16, 16, generator=generator), torch.randint(0, 10, (4,), generator=generator)
        nn.functional.nll_loss(model(x), y).backward()

    return model, optimizer, step


def word_language_model():
    """torch's examples/word_language_model: an LSTM whose state goes on, clipped gradients."""
    class RNNModel(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Embedding(101, 24)
            self.rnn = nn.LSTM(24, 24, 2)
            self.decoder = nn.Linear(24, 101)
            self.decoder.weight = self.encoder.weight

        def forward(self, tokens, hidden):
            output, hidden = self.rnn(self.encoder(tokens), hidden)
            return nn.functional.log_softmax(self.decoder(output).view(-1, 101), dim=1), hidden

    state = {}

    def step(model, rank, number):
        hidden = tuple(h.detach() for h in state.get("hidden", (torch.zeros(2, 4, 24), torch.zeros(2, 4, 24))))
        tokens = torch.randint(0, 101, (9, 4), generator=_generator(rank, number))
        output, state["hidden"] = model(tokens[:-1], hidden)
        nn.functional.nll_loss(output, tokens[1:].reshape(-1)).backward()
        return 0.25

    model = RNNModel()
    return model, torch.optim.SGD(model.parameters(), lr=1.0), step


def resnet():
    """Residual blocks with batch norm, as in torch's examples/imagenet."""
    class Block(nn.Module):
        def __init__(self, inputs, outputs, stride):
            super().__init__()
            self.conv1, self.bn1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
            self.conv2, self.bn2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

        def forward(self, x):
            out = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
            return torch.relu(out + self.downsample(x))

    def step(model, rank, number):
        generator = _generator(rank, number)
        x, y = torch.randn(4, 3, 16, 16, generator=generator), torch.randint(0, 10, (4,), generator=generator)
        nn.functional.cross_entropy(model(x), y).backward()

    model = nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), Block(8, 8, 1), Block(8, 16, 2),
                          nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4), step


def _language_model(words):
    def step(model, rank, number):
        tokens = torch.randint(0, words, (2, 12), generator=_generator(rank, number))
        model(input_ids=tokens, labels=tokens).loss.backward()

    return step


def _generator(rank, number):
    return torch.Generator().manual_seed(1000 * rank + number)
