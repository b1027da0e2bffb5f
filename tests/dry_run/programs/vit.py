"""A ViT-B/16 with checkpointed blocks."""

import torch
from figures import print_figures
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


class ViT(nn.Module):
    def __init__(self, width=768, heads=12, depth=12):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.zeros(1, 197, width))
        options = {"activation": "gelu", "batch_first": True, "norm_first": True}
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 4 * width, 0.1, **options)
            for _ in range(depth)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.positions
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(self.norm(x[:, 0]))


with torch.device("cuda"):
    model = ViT()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    images = torch.rand(16, 3, 224, 224).cuda()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = functional.cross_entropy(model(images), torch.randint(1000, (16,)).cuda())
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
del images, loss
print_figures([model], [optimizer])
