"""The nets and the loop of pytorch/examples/dcgan, on random images."""

import torch
from figures import print_figures
from torch import nn
from torch.nn import functional

WIDTH, NOISE = 64, 100


def grows(inputs, outputs, stride, padding):
    grow = nn.ConvTranspose2d(inputs, outputs, 4, stride, padding, bias=False)
    return grow, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)


def shrinks(inputs, outputs):
    shrink = nn.Conv2d(inputs, outputs, 4, 2, 1, bias=False)
    return shrink, nn.BatchNorm2d(outputs), nn.LeakyReLU(0.2, inplace=True)


generator = nn.Sequential(
    *grows(NOISE, WIDTH * 8, 1, 0),
    *grows(WIDTH * 8, WIDTH * 4, 2, 1),
    *grows(WIDTH * 4, WIDTH * 2, 2, 1),
    *grows(WIDTH * 2, WIDTH, 2, 1),
    nn.ConvTranspose2d(WIDTH, 3, 4, 2, 1, bias=False),
    nn.Tanh(),
).cuda()
critic = nn.Sequential(
    *(nn.Conv2d(3, WIDTH, 4, 2, 1, bias=False), nn.LeakyReLU(0.2, inplace=True)),
    *shrinks(WIDTH, WIDTH * 2),
    *shrinks(WIDTH * 2, WIDTH * 4),
    *shrinks(WIDTH * 4, WIDTH * 8),
    *(nn.Conv2d(WIDTH * 8, 1, 4, 1, 0, bias=False), nn.Flatten(0)),
).cuda()
of_critic = torch.optim.Adam(critic.parameters(), lr=0.0002, betas=(0.5, 0.999))
of_generator = torch.optim.Adam(generator.parameters(), lr=0.0002, betas=(0.5, 0.999))
loss = functional.binary_cross_entropy_with_logits
for _ in range(2):
    real, noise = torch.rand(64, 3, 64, 64).cuda(), torch.randn(64, NOISE, 1, 1, device="cuda")
    ones = torch.ones(64, device="cuda")
    critic.zero_grad()
    loss(critic(real), ones).backward()
    fake = generator(noise)
    loss(critic(fake.detach()), ones * 0).backward()
    of_critic.step()
    generator.zero_grad()
    loss(critic(fake), ones).backward()
    of_generator.step()
del real, noise, ones, fake
print_figures([critic, generator], [of_critic, of_generator])
