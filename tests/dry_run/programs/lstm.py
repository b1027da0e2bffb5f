"""A language model with an LSTM, as in pytorch/examples/word_language_model."""

import torch
from figures import print_figures
from torch import nn
from torch.nn import functional


class Model(nn.Module):
    def __init__(self, words=5000, width=200, layers=2):
        super().__init__()
        self.drop, self.encoder = nn.Dropout(0.2), nn.Embedding(words, width)
        self.rnn = nn.LSTM(width, width, layers, dropout=0.2)
        self.decoder = nn.Linear(width, words)

    def forward(self, text, hidden):
        output, hidden = self.rnn(self.drop(self.encoder(text)), hidden)
        return self.decoder(self.drop(output)), hidden


model = Model().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
hidden = tuple(torch.zeros(2, 20, 200, device="cuda") for _ in range(2))
for _ in range(3):
    text = torch.randint(5000, (36, 20)).cuda()
    hidden = tuple(state.detach() for state in hidden)
    output, hidden = model(text[:-1], hidden)
    functional.cross_entropy(output.flatten(0, 1), text[1:].flatten()).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    optimizer.step()
    optimizer.zero_grad()
model.eval()
with torch.no_grad():
    model(text, tuple(state.detach() for state in hidden))
del text, output, hidden
print_figures([model], [optimizer])
