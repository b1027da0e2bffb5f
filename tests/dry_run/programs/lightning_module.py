"""A module of Lightning, trained and validated by its Trainer."""

import pytorch_lightning as lightning
import torch
from figures import print_figures
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(14400, 10))

    def training_step(self, batch, number):
        images, labels = batch
        loss = functional.cross_entropy(self.net(images), labels)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, number):
        self.log("accuracy", (self.net(batch[0]).argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


data = TensorDataset(torch.rand(64, 3, 32, 32), torch.randint(10, (64,)))
module = Module()
trainer = lightning.Trainer(
    max_epochs=1,
    accelerator="gpu",
    devices=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(module, DataLoader(data, batch_size=16), DataLoader(data, batch_size=16))
module.cuda()
print_figures([module])
