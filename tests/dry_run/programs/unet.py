"""A UNet with transposed convolutions, group norm and attention in the middle."""

from itertools import pairwise

import torch
from figures import print_figures
from torch import nn
from torch.nn import functional


class Block(nn.Sequential):
    def __init__(self, inputs, outputs):
        super().__init__(
            *(nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(8, outputs), nn.SiLU()),
            *(nn.Conv2d(outputs, outputs, 3, padding=1), nn.GroupNorm(8, outputs), nn.SiLU()),
        )


class UNet(nn.Module):
    def __init__(self, widths=(32, 64, 128, 256)):
        super().__init__()
        self.down = nn.ModuleList(map(Block, (3, *widths), widths))
        backwards = widths[::-1]
        self.attention = nn.MultiheadAttention(widths[-1], 8, batch_first=True)
        self.grow = nn.ModuleList(
            nn.ConvTranspose2d(wide, narrow, 2, 2) for wide, narrow in pairwise(backwards)
        )
        self.up = nn.ModuleList(Block(2 * narrow, narrow) for narrow in backwards[1:])
        self.last = nn.Conv2d(widths[0], 3, 1)

    def forward(self, x):
        passed = []
        for block in self.down[:-1]:
            passed.append(block(x))
            x = functional.max_pool2d(passed[-1], 2)
        x = self.down[-1](x)
        tokens = x.flatten(2).transpose(1, 2)
        tokens = tokens + self.attention(tokens, tokens, tokens, need_weights=False)[0]
        x = tokens.transpose(1, 2).reshape_as(x)
        for grow, block in zip(self.grow, self.up, strict=True):
            x = block(torch.cat([passed.pop(), grow(x)], 1))
        return self.last(functional.interpolate(x, scale_factor=1.0, mode="bilinear"))


model = UNet().cuda()
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
for _ in range(2):
    images = torch.rand(4, 3, 64, 64).cuda()
    functional.mse_loss(model(images), images).backward()
    optimizer.step()
    optimizer.zero_grad()
del images
print_figures([model], [optimizer])
