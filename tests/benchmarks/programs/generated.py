"""A small transformer that generates 500 tokens before it is trained."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(
    nn.Embedding(65, 64),
    nn.TransformerEncoder(
        nn.TransformerEncoderLayer(64, 4, 128, 0.0, batch_first=True), 2, enable_nested_tensor=False
    ),
    nn.Linear(64, 65),
)
text = torch.zeros(1, 1, dtype=torch.long)
with torch.no_grad():
    for _ in range(500):
        text = torch.cat([text, model(text[:, -64:])[:, -1:].argmax(-1)], 1)
print(text.sum().item())
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(60):
    batch = torch.randint(0, 65, (8, 65))
    loss = nn.functional.cross_entropy(model(batch[:, :-1]).mT, batch[:, 1:])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(loss.item().hex())
