"""GPT-2 of the transformers library, built from a configuration; knows nothing of memprof."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)
m = GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=64, vocab_size=500, n_positions=64))
o = torch.optim.AdamW(m.parameters(), lr=1e-3)
for _ in range(12):
    x = torch.randint(0, 500, (4, 32))
    loss = m(input_ids=x, labels=x).loss
    loss.backward()
    o.step()
    o.zero_grad()
    print(repr(loss.item()))
