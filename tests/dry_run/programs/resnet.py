"""ResNet-50 with SGD and mixed precision in channels_last."""

import torch
from figures import print_figures
from torch import nn
from torch.nn import functional


class Bottleneck(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        outputs = width * 4
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(outputs))

    def forward(self, x):
        identity = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.relu(self.bn2(self.conv2(x)))
        return self.relu(self.bn3(self.conv3(x)) + identity)


def stage(inputs, width, blocks, stride):
    rest = [Bottleneck(width * 4, width, 1) for _ in range(blocks - 1)]
    return nn.Sequential(Bottleneck(inputs, width, stride), *rest)


model = nn.Sequential(
    nn.Conv2d(3, 64, 7, 2, 3, bias=False),
    nn.BatchNorm2d(64),
    nn.ReLU(inplace=True),
    nn.MaxPool2d(3, 2, 1),
    stage(64, 64, 3, 1),
    stage(256, 128, 4, 2),
    stage(512, 256, 6, 2),
    stage(1024, 512, 3, 2),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(2048, 1000),
)
model = model.cuda().to(memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
scaler = torch.amp.GradScaler("cuda")
for _ in range(2):
    images = torch.rand(32, 3, 224, 224).cuda().to(memory_format=torch.channels_last)
    labels = torch.randint(1000, (32,)).cuda()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = functional.cross_entropy(model(images), labels)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
del images, labels, loss, scaler
print_figures([model], [optimizer])
