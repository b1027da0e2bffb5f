"""A small Llama of `transformers`: a training step, then generation with a cache."""

import torch
from figures import print_figures
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(
    vocab_size=8000,
    hidden_size=512,
    intermediate_size=1376,
    num_hidden_layers=4,
    num_attention_heads=8,
    num_key_value_heads=4,
    max_position_embeddings=512,
)
model = LlamaForCausalLM(config).cuda().to(torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    text = torch.randint(8000, (4, 256)).cuda()
    model(input_ids=text, labels=text).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
model.eval()
made = model.generate(text[:, :16], max_new_tokens=8, min_new_tokens=8, do_sample=False)
assert made.shape == (4, 24), made.shape
del text, made
print_figures([model], [optimizer])
