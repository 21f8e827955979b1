#!/usr/bin/python3
"""One training step of the model that training_step.py compares with, in plain PyTorch.

    torch_training_step.py --tokens 8192 --threads 2 [--steps 2]

Dense causal attention by matrix products and softmax: what one gets from PyTorch 1.13 on a CPU
without a fused kernel. Prints seconds of each step, one a line. `--sgemm` prints the GFLOP/s of a
square product instead: how one finds the best OPENBLAS_CORETYPE of a machine.
"""
import argparse
import math
import time

import torch
import torch.nn.functional as F

HIDDEN, LAYERS, HEADS, FFN, VOCABULARY = 256, 4, 4, 704, 256
HEAD_DIM = HIDDEN // HEADS


def normal(*shape):
    return torch.nn.Parameter(torch.randn(*shape) * 0.02)


def make_layer():
    return {
        "norm1": torch.nn.Parameter(torch.ones(HIDDEN)),
        "norm2": torch.nn.Parameter(torch.ones(HIDDEN)),
        "qkv": normal(3 * HIDDEN, HIDDEN),
        "bias": torch.nn.Parameter(torch.zeros(3 * HIDDEN)),
        "out": normal(HIDDEN, HIDDEN),
        "gate_up": normal(2 * FFN, HIDDEN),
        "down": normal(HIDDEN, FFN),
    }


def rms_norm(x, weight):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


def rotate(x, cos, sin):
    a, b = x[..., : HEAD_DIM // 2], x[..., HEAD_DIM // 2 :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def attention(q, k, v, mask):
    scores = q @ k.transpose(1, 2) / math.sqrt(HEAD_DIM)
    return torch.softmax(scores.masked_fill_(mask, -math.inf), -1) @ v


def forward(x, layer, cos, sin, mask):
    tokens = x.shape[0]
    qkv = F.linear(rms_norm(x, layer["norm1"]), layer["qkv"], layer["bias"])
    q, k, v = (t.view(tokens, HEADS, HEAD_DIM).transpose(0, 1) for t in qkv.chunk(3, -1))
    attended = attention(rotate(q, cos, sin), rotate(k, cos, sin), v, mask)
    x = x + F.linear(attended.transpose(0, 1).reshape(tokens, HIDDEN), layer["out"])
    gate, up = F.linear(rms_norm(x, layer["norm2"]), layer["gate_up"]).chunk(2, -1)
    return x + F.linear(F.silu(gate) * up, layer["down"])


def run_steps(tokens, steps):
    torch.manual_seed(1)
    embedding, final_norm = normal(VOCABULARY, HIDDEN), torch.nn.Parameter(torch.ones(HIDDEN))
    layers = [make_layer() for _ in range(LAYERS)]
    parameters = [embedding, final_norm] + [p for layer in layers for p in layer.values()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)
    ids = torch.arange(tokens) * 7919 % VOCABULARY
    targets = (torch.arange(tokens) + 1) * 7919 % VOCABULARY
    frequency = 10000.0 ** (-torch.arange(HEAD_DIM // 2) * 2.0 / HEAD_DIM)
    angle = torch.arange(tokens, dtype=torch.float32)[:, None] * frequency[None]
    cos, sin = angle.cos(), angle.sin()
    mask = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
    for _ in range(steps):
        begin = time.perf_counter()
        optimizer.zero_grad()
        x = embedding[ids]
        for layer in layers:
            x = forward(x, layer, cos, sin, mask)
        loss = F.cross_entropy(rms_norm(x, final_norm) @ embedding.t(), targets)
        loss.backward()
        optimizer.step()
        print(f"{time.perf_counter() - begin:.3f}", flush=True)


def sgemm_gflops():
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    best = math.inf
    for _ in range(4):
        begin = time.perf_counter()
        a @ b
        best = min(best, time.perf_counter() - begin)
    print(f"{2 * 1024 ** 3 / best / 1e9:.1f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sgemm", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.sgemm:
        sgemm_gflops()
    else:
        run_steps(arguments.tokens, arguments.steps)


if __name__ == "__main__":
    main()
