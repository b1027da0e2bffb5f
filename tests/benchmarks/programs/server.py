"""A server that answers 200 requests with a model, each in a thread of its own."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.request import urlopen

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 256)).eval()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        chance = torch.Generator().manual_seed(int(self.path.strip("/")))
        with torch.no_grad():
            answer = model(torch.randn(16, 256, generator=chance)).sum().item().hex()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(answer.encode())

    def log_message(self, *_):
        """Quietly."""


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
thread = threading.Thread(target=server.serve_forever)
thread.start()
for number in range(200):
    with urlopen(f"http://127.0.0.1:{server.server_port}/{number}") as response:
        print(response.read().decode())
server.shutdown()
thread.join()
