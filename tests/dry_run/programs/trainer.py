"""The Trainer of `transformers` on a small BERT."""

import tempfile

import torch
from figures import print_figures
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

config = BertConfig(
    vocab_size=1000,
    hidden_size=128,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=512,
)
model = BertForSequenceClassification(config)
rows = [
    {"input_ids": torch.randint(1000, (32,)), "labels": torch.tensor(number % 2)}
    for number in range(32)
]
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder,
        max_steps=3,
        per_device_train_batch_size=8,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        bf16=True,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=rows, eval_dataset=rows)
    trainer.train()
    trainer.evaluate()
print_figures([model], [trainer.optimizer.optimizer])
