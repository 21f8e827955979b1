#!/usr/bin/env python3
"""A second implementation of the model, in plain PyTorch and double precision.

Written from the formulas, so that it shares no code and no mistake with the C++ one: RMSNorm, rotary
embeddings, grouped-query attention with biases on q, k and v, SwiGLU, dense or block-sparse (MoBA):
a query scores each block that lies wholly before its own by q . mean(keys of the block), takes the
best budget - 1 of them (ties to the lower block), and attends to these and, causally, to its own.
The choice of blocks carries no gradient.

    qwen2_reference.py run CASE             CASE/model, CASE/batch.json -> CASE/result.safetensors;
                                            where there is CASE/adapter (low-rank adapters in PEFT's
                                            layout), these alone are trained
    qwen2_reference.py make CASE            writes CASE/model as others would (bfloat16, two files) and
                                            CASE/batch.json, then runs it
    qwen2_reference.py golden CASES GOLDEN  runs every case of a folder, keeps the results by name

Needs torch and numpy; reads and writes safetensors files by itself.
"""
import json
import math
import os
import shutil
import struct
import sys

import numpy as np
import torch

# A query is a near tie where the worst chosen and the best other block differ by less than this
# share of its largest score: float32 and float64 could then choose differently.
NEAR_TIE = 1e-5


# --- safetensors ---------------------------------------------------------------------------------

TYPES = {"F32": (4, np.float32), "F16": (2, np.float16), "BF16": (2, np.uint16)}


def read_safetensors(path):
    with open(path, "rb") as file:
        data = file.read()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        raw = np.frombuffer(data[8 + length + begin:8 + length + end], TYPES[entry["dtype"]][1])
        if entry["dtype"] == "BF16":
            raw = (raw.astype(np.uint32) << 16).view(np.float32)
        tensors[name] = torch.from_numpy(raw.astype(np.float64)).reshape(entry["shape"])
    return tensors


def write_safetensors(path, tensors, dtype, metadata):
    header, blobs, offset = {"__metadata__": metadata}, [], 0
    for name, tensor in tensors.items():
        if dtype == "BF16":
            blob = tensor.to(torch.bfloat16).contiguous().view(torch.int16).numpy().tobytes()
        else:
            blob = tensor.numpy().astype(TYPES[dtype][1]).tobytes()
        header[name] = {"dtype": dtype, "shape": list(tensor.shape),
                        "data_offsets": [offset, offset + len(blob)]}
        offset += len(blob)
        blobs.append(blob)
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def read_model(folder):
    with open(os.path.join(folder, "config.json")) as file:
        config = json.load(file)
    index = os.path.join(folder, "model.safetensors.index.json")
    names = ["model.safetensors"]
    if os.path.exists(index):
        with open(index) as file:
            names = sorted(set(json.load(file)["weight_map"].values()))
    parameters = {}
    for name in names:
        parameters.update(read_safetensors(os.path.join(folder, name)))
    return config, {k: v.requires_grad_(True) for k, v in parameters.items()}


PEFT_PREFIX = "base_model.model."


def read_adapter(folder):
    """What each module's adapter is scaled by, and its matrices by the model's names."""
    with open(os.path.join(folder, "adapter_config.json")) as file:
        config = json.load(file)
    assert config["peft_type"] == "LORA" and config["bias"] == "none" and not config["use_rslora"]
    tensors = read_safetensors(os.path.join(folder, "adapter_model.safetensors"))
    assert all(name.startswith(PEFT_PREFIX) for name in tensors)
    adapters = {name[len(PEFT_PREFIX):]: t.requires_grad_(True) for name, t in tensors.items()}
    targets = {name.split(".lora_")[0].split(".")[-1] for name in adapters}
    assert targets == set(config["target_modules"]), targets
    assert all(t.shape[0 if ".lora_A." in name else 1] == config["r"]
               for name, t in adapters.items())
    return config["lora_alpha"] / config["r"], adapters


# --- the model -----------------------------------------------------------------------------------

class Routing:
    """Which choices of blocks were made, and how close they were."""

    def __init__(self):
        self.queries = 0
        self.near_ties = 0
        self.margin = math.inf

    def note(self, scores, chosen):
        """scores: of one query for all its candidates; chosen: as many of them as it takes."""
        if not chosen or len(chosen) == len(scores):
            return
        best_other = max(s for b, s in enumerate(scores) if b not in chosen)
        margin = (min(scores[b] for b in chosen) - best_other) / max(abs(s) for s in scores)
        self.queries += 1
        self.margin = min(self.margin, margin)
        self.near_ties += margin < NEAR_TIE


def rms_norm(x, weight, epsilon):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + epsilon) * weight


def rotate(x, theta):
    """x [tokens, heads, d]: pairs (i, i + d/2) turn by position * theta^(-2i/d)."""
    tokens, _, d = x.shape
    frequency = theta ** (-2.0 * torch.arange(d // 2, dtype=torch.float64) / d)
    angle = torch.arange(tokens, dtype=torch.float64)[:, None] * frequency[None, :]
    cos, sin = torch.cos(angle)[:, None, :], torch.sin(angle)[:, None, :]
    a, b = x[..., :d // 2], x[..., d // 2:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def allowed_keys(q, k, block, budget, routing):
    """q, k [tokens, d] of one head -> mask [tokens, tokens] of what each query attends to."""
    tokens = q.shape[0]
    means = [k[b * block:(b + 1) * block].mean(0) for b in range(tokens // block)]
    mask = torch.zeros(tokens, tokens, dtype=torch.bool)
    for t in range(tokens):
        own = t // block
        mask[t, own * block:t + 1] = True
        scores = [float(q[t] @ means[b]) for b in range(own)]
        chosen = sorted(range(own), key=lambda b: (-scores[b], b))[:budget - 1]
        routing.note(scores, chosen)
        for b in chosen:
            mask[t, b * block:(b + 1) * block] = True
    return mask


def linear(x, layer, name):
    """x W^T, and on top of it scale * (x A^T) B^T where the module has an adapter."""
    y = x @ layer(name + ".weight").T
    a, b = layer(name + ".lora_A.weight"), layer(name + ".lora_B.weight")
    return y if a is None else y + layer.scale * (x @ a.T) @ b.T


class Layer:
    """Parameters of one layer by their names within it; None for one that it does not have."""

    def __init__(self, number, parameters, scale):
        self.prefix, self.parameters, self.scale = "model.layers.%d." % number, parameters, scale

    def __call__(self, name):
        return self.parameters.get(self.prefix + name)


def attention(x, layer, config, block, budget, routing):
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    d = config.get("head_dim") or config["hidden_size"] // heads
    tokens = x.shape[0]

    def project(name, count):
        return (linear(x, layer, name) + layer(name + ".bias")).reshape(tokens, count, d)

    theta = float(config["rope_theta"])
    q = rotate(project("self_attn.q_proj", heads), theta)
    k = rotate(project("self_attn.k_proj", kv_heads), theta)
    v = project("self_attn.v_proj", kv_heads)
    out = []
    for h in range(heads):
        g = h // (heads // kv_heads)
        mask = allowed_keys(q[:, h].detach(), k[:, g].detach(), block, budget, routing)
        scores = (q[:, h] @ k[:, g].T / math.sqrt(d)).masked_fill(~mask, -math.inf)
        out.append(torch.softmax(scores, dim=-1) @ v[:, g])
    return linear(torch.cat(out, dim=-1), layer, "self_attn.o_proj")


def logits_of(config, parameters, scale, tokens, block, budget, routing):
    """One sequence: [tokens] -> [tokens, vocabulary]."""
    epsilon = config["rms_norm_eps"]
    x = parameters["model.embed_tokens.weight"][tokens]
    for l in range(config["num_hidden_layers"]):
        layer = Layer(l, parameters, scale)
        normed = rms_norm(x, layer("input_layernorm.weight"), epsilon)
        x = x + attention(normed, layer, config, block, budget, routing)
        normed = rms_norm(x, layer("post_attention_layernorm.weight"), epsilon)
        gate = linear(normed, layer, "mlp.gate_proj")
        up = linear(normed, layer, "mlp.up_proj")
        x = x + linear(gate * torch.sigmoid(gate) * up, layer, "mlp.down_proj")
    x = rms_norm(x, parameters["model.norm.weight"], epsilon)
    output = "model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"
    return x @ parameters[output].T


def forward(config, parameters, scale, batch, routing):
    """Logits of all sequences, one after the other, and the mean loss of the supervised tokens."""
    bounds = batch["cu_seqlens"]
    logits = []
    for s, budget in enumerate(batch["budgets"]):
        tokens = torch.tensor(batch["tokens"][bounds[s]:bounds[s + 1]])
        logits.append(logits_of(config, parameters, scale, tokens, batch["block_tokens"], budget,
                                routing))
    logits = torch.cat(logits)
    weights = torch.tensor(batch["loss_weights"], dtype=torch.float64)
    target = torch.tensor(batch["targets"])
    log_p = torch.log_softmax(logits, dim=-1)[torch.arange(len(target)), target]
    return logits, -(weights * log_p).sum() / weights.sum()


def run(case):
    config, parameters = read_model(os.path.join(case, "model"))
    with open(os.path.join(case, "batch.json")) as file:
        batch = json.load(file)
    routing = Routing()
    trained, scale = parameters, 0.0
    if os.path.exists(os.path.join(case, "adapter")):
        scale, trained = read_adapter(os.path.join(case, "adapter"))
        parameters = {**parameters, **trained}
    logits, loss = forward(config, parameters, scale, batch, routing)
    result = {"logits": logits.detach()}
    steps = batch["adamw"]["steps"]
    losses = [loss.item()]
    if steps > 0:
        grads = torch.autograd.grad(loss, list(trained.values()))
        result.update({"grad." + n: g.clone() for n, g in zip(trained, grads)})
        adamw = batch["adamw"]
        groups = [{"params": [p for p in trained.values() if p.dim() > 1],
                   "weight_decay": adamw["weight_decay"]},
                  {"params": [p for p in trained.values() if p.dim() == 1], "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, lr=adamw["learning_rate"], eps=adamw["epsilon"],
                                      betas=(adamw["beta1"], adamw["beta2"]))
        for step in range(steps):
            if step > 0:
                _, loss = forward(config, parameters, scale, batch, routing)
                losses.append(loss.item())
            optimizer.zero_grad()
            loss_grads = torch.autograd.grad(loss, list(trained.values())) if step else grads
            for p, g in zip(trained.values(), loss_grads):
                p.grad = g
            optimizer.step()
        result.update({"after." + n: p.detach() for n, p in trained.items()})
    metadata = {"losses": json.dumps(losses), "routed_queries": str(routing.queries),
                "near_ties": str(routing.near_ties), "least_margin": "%.3e" % routing.margin}
    write_safetensors(os.path.join(case, "result.safetensors"), result, "F32", metadata)
    print(os.path.basename(case), json.dumps(metadata))


# --- a model made by others ----------------------------------------------------------------------

def make(case):
    hidden, heads, kv_heads, d, ffn, vocabulary = 16, 4, 1, 4, 20, 21
    config = {
        "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1,
        "eos_token_id": 2, "hidden_act": "silu", "hidden_size": hidden, "initializer_range": 0.02,
        "intermediate_size": ffn, "max_position_embeddings": 128, "max_window_layers": 2,
        "model_type": "qwen2", "num_attention_heads": heads, "num_hidden_layers": 2,
        "num_key_value_heads": kv_heads, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
        "sliding_window": 128, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
        "transformers_version": "4.43.1", "use_cache": True, "use_sliding_window": False,
        "vocab_size": vocabulary}
    shapes = {"model.embed_tokens.weight": (vocabulary, hidden)}
    for l in range(config["num_hidden_layers"]):
        prefix = "model.layers.%d." % l
        for name, rows in (("q", heads * d), ("k", kv_heads * d), ("v", kv_heads * d)):
            shapes[prefix + "self_attn.%s_proj.weight" % name] = (rows, hidden)
            shapes[prefix + "self_attn.%s_proj.bias" % name] = (rows,)
        shapes[prefix + "self_attn.o_proj.weight"] = (hidden, heads * d)
        shapes[prefix + "mlp.gate_proj.weight"] = (ffn, hidden)
        shapes[prefix + "mlp.up_proj.weight"] = (ffn, hidden)
        shapes[prefix + "mlp.down_proj.weight"] = (hidden, ffn)
        shapes[prefix + "input_layernorm.weight"] = (hidden,)
        shapes[prefix + "post_attention_layernorm.weight"] = (hidden,)
    shapes["model.norm.weight"] = (hidden,)
    shapes["lm_head.weight"] = (vocabulary, hidden)
    generator = np.random.RandomState(5)
    parameters = {}
    for name, shape in sorted(shapes.items()):
        values = 0.3 * generator.standard_normal(shape) + (1.0 if "norm" in name else 0.0)
        parameters[name] = torch.from_numpy(values)

    model = os.path.join(case, "model")
    os.makedirs(model, exist_ok=True)
    names = list(parameters)
    files = {}
    for i, part in enumerate((names[:len(names) // 2], names[len(names) // 2:])):
        file = "model-%05d-of-00002.safetensors" % (i + 1)
        write_safetensors(os.path.join(model, file), {n: parameters[n] for n in part}, "BF16",
                          {"format": "pt"})
        files.update({n: file for n in part})
    total = sum(2 * p.numel() for p in parameters.values())
    with open(os.path.join(model, "model.safetensors.index.json"), "w") as file:
        json.dump({"metadata": {"total_size": total}, "weight_map": files}, file, indent=1)
    with open(os.path.join(model, "config.json"), "w") as file:
        json.dump(config, file, indent=1)

    lengths = [19, 9]
    batch = {"tokens": [], "targets": [], "loss_weights": [], "cu_seqlens": [0, 19, 28],
             "budgets": [3, 2], "block_tokens": 4, "adamw": {"steps": 0}}
    for _ in range(sum(lengths)):
        batch["tokens"].append(int(generator.randint(vocabulary)))
        batch["targets"].append(int(generator.randint(vocabulary)))
        batch["loss_weights"].append(float(generator.randint(2)))
    with open(os.path.join(case, "batch.json"), "w") as file:
        json.dump(batch, file)
    run(case)


def golden(cases, folder):
    for name in sorted(os.listdir(cases)):
        case = os.path.join(cases, name)
        if os.path.exists(os.path.join(case, "batch.json")):
            run(case)
            shutil.copy(os.path.join(case, "result.safetensors"),
                        os.path.join(folder, name + ".safetensors"))
    make(os.path.join(folder, "made_elsewhere"))


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"run": run, "make": make, "golden": golden}[sys.argv[1]](*sys.argv[2:])
