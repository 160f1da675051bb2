# SPDX-License-Identifier: Apache-2.0
"""The networks that bench/pytorch/train.py trains: written out here, so that PyTorch alone is needed."""
import torch
from torch import nn
from torch.nn import functional


class Bottleneck(nn.Module):
    """Of ResNet: 1x1, 3x3, 1x1, four times as wide at its end, around an identity."""

    def __init__(self, channels, width, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width))
        self.skip = nn.Identity()
        if stride != 1 or channels != 4 * width:
            self.skip = nn.Sequential(nn.Conv2d(channels, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))

    def forward(self, x):
        return functional.relu(self.body(x) + self.skip(x))


def resnet(stages=(3, 4, 6, 3), width=64, classes=1000):
    """ResNet-50."""
    layers = [nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
              nn.MaxPool2d(3, 2, 1)]
    channels = width
    for number, blocks in enumerate(stages):
        for block in range(blocks):
            layers.append(Bottleneck(channels, width << number, 2 if number > 0 and block == 0 else 1))
            channels = 4 * width << number
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.to_qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x, past=None):
        """`past`: keys and values of the tokens before, as this returns them beside its result."""
        batch, length, width = x.shape
        q, k, v = self.to_qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        if past is not None:
            k, v = torch.cat((past[0], k), 2), torch.cat((past[1], v), 2)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=past is None)
        return self.out(y.transpose(1, 2).reshape(batch, length, width)), (k, v)


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.attention, self.norm2 = nn.LayerNorm(width), Attention(width, heads), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x, past=None):
        y, past = self.attention(self.norm1(x), past)
        x = x + y
        return x + self.mlp(self.norm2(x)), past


class Gpt(nn.Module):
    """GPT-2, of its smallest size by default."""

    def __init__(self, layers=12, width=768, heads=12, vocabulary=50257, longest=1024):
        super().__init__()
        self.vocabulary = vocabulary
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(longest, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens, pasts=None, at=0):
        """Logits, and by layer what the next call takes as `pasts`, with `at` the number of tokens so far."""
        x = self.tokens(tokens) + self.places(torch.arange(at, at + tokens.shape[1], device=tokens.device))
        kept = []
        for layer, past in zip(self.layers, pasts or [None] * len(self.layers)):
            x, past = layer(x, past)
            kept.append(past)
        return self.head(self.norm(x)), kept


def alexnet(classes=1000, width=64):
    def conv(before, after, *shape):
        return [nn.Conv2d(before, after, *shape), nn.ReLU(inplace=True)]
    w = width
    return nn.Sequential(
        *conv(3, w, 11, 4, 2), nn.MaxPool2d(3, 2), *conv(w, 3 * w, 5, 1, 2), nn.MaxPool2d(3, 2),
        *conv(3 * w, 6 * w, 3, 1, 1), *conv(6 * w, 4 * w, 3, 1, 1), *conv(4 * w, 4 * w, 3, 1, 1), nn.MaxPool2d(3, 2),
        nn.Flatten(), nn.LazyLinear(64 * w), nn.ReLU(inplace=True), nn.Linear(64 * w, 64 * w), nn.ReLU(inplace=True),
        nn.Linear(64 * w, classes))
