"""The engine's peer: a hand-written PyTorch decode loop, compiled and captured in a CUDA graph.

Random weights of a model's shape, a static KV cache of a few positions, all sequences at the same position, greedy.
No scheduler, no paging, no requests that come and go: what a careful user gets out of PyTorch alone. The layer is
compiled once and called for every layer; it begins with the residual addition of the one before, so nothing that
could be fused is cut apart. A whole step, from the last token to the next one, is one graph.
"""

import json
import time
from pathlib import Path

import torch
import torch.nn.functional as F

from kernels import fused_add_rms_norm, rms_norm, rotate, silu_and_mul
from measure import DEVICE, TYPE, capture, median_seconds

MODELS = Path(__file__).resolve().parents[2] / "models"
CONTEXT = 128  # positions of the cache; the first half is the prompt


def attend(q, keys, values, hidden_positions):
    """q [batch, kv_heads, group, dim] over [batch, kv_heads, CONTEXT, dim]: for each batch its fastest form."""
    scale = q.size(-1) ** -0.5
    if q.size(0) == 1:  # written out, the compiler fuses it; a library's product is too small to be worth its launch
        scores = (q.unsqueeze(3).float() * keys.unsqueeze(2).float()).sum(-1) * scale
        weights = scores.masked_fill(hidden_positions, float("-inf")).softmax(-1)
        return (weights.unsqueeze(-1) * values.unsqueeze(2).float()).sum(3).to(q.dtype)
    scores = (q @ keys.transpose(-1, -2)).float() * scale
    return scores.masked_fill(hidden_positions, float("-inf")).softmax(-1).to(q.dtype) @ values


def layer(x, residual, weights, keys, values, position, cosine, sine, shape):
    batch, heads, kv_heads, dim = shape
    x, residual = fused_add_rms_norm(x, residual, weights["input_norm"])
    q, k, v = F.linear(x, weights["qkv"]).view(batch, -1, dim).split((heads, kv_heads, kv_heads), 1)
    q = rotate(rms_norm(q, weights["q_norm"]), cosine, sine)
    k = rotate(rms_norm(k, weights["k_norm"]), cosine, sine)
    keys[:, :, position] = k.unsqueeze(2)
    values[:, :, position] = v.unsqueeze(2)
    hidden_positions = torch.arange(CONTEXT, device=x.device) > position
    out = attend(q.view(batch, kv_heads, heads // kv_heads, dim), keys, values, hidden_positions)
    x = F.linear(out.view(batch, heads * dim), weights["o"])
    x, residual = fused_add_rms_norm(x, residual, weights["post_norm"])
    return F.linear(silu_and_mul(F.linear(x, weights["gate_up"])), weights["down"]), residual


def head(x, residual, norm, weight):
    x, _ = fused_add_rms_norm(x, residual, norm)
    return F.linear(x, weight).argmax(-1)


class Model:
    def __init__(self, folder):
        config = json.loads((MODELS / folder / "config.json").read_text())
        self.heads, self.kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.dim, self.num_layers = config["head_dim"], config["num_hidden_layers"]
        hidden, inner, vocabulary = config["hidden_size"], config["intermediate_size"], config["vocab_size"]

        def normal(*shape):
            return torch.empty(shape, dtype=TYPE, device=DEVICE).normal_(std=shape[-1] ** -0.5)

        def ones(size):
            return torch.ones(size, dtype=TYPE, device=DEVICE)

        self.embedding = normal(vocabulary, hidden)
        self.lm_head = self.embedding if config["tie_word_embeddings"] else normal(vocabulary, hidden)
        self.norm = ones(hidden)
        self.layers = [{"input_norm": ones(hidden), "post_norm": ones(hidden),
                        "q_norm": ones(self.dim), "k_norm": ones(self.dim),
                        "qkv": normal((self.heads + 2 * self.kv_heads) * self.dim, hidden),
                        "o": normal(hidden, self.heads * self.dim),
                        "gate_up": normal(2 * inner, hidden), "down": normal(hidden, inner)}
                       for _ in range(self.num_layers)]
        angles = torch.arange(CONTEXT, device=DEVICE).unsqueeze(1) * config["rope_theta"] ** (
            -torch.arange(0, self.dim, 2, device=DEVICE) / self.dim)
        self.table = torch.cat((angles.cos(), angles.sin()), -1)
        read = [self.lm_head] + [w for one in self.layers for w in one.values()]
        self.bytes_of_step = sum(w.numel() * w.element_size() for w in read)


class DecodeLoop:
    """step() turns self.token, the last token of every sequence, into the next one, and moves on by a position."""

    def __init__(self, model, batch):
        self.model, self.batch = model, batch
        cache = (model.num_layers, 2, batch, model.kv_heads, CONTEXT, model.dim)
        self.cache = torch.empty(cache, dtype=TYPE, device=DEVICE).normal_()
        self.token = torch.randint(0, 1000, (batch,), device=DEVICE)
        self.position = torch.full((1,), CONTEXT // 2, device=DEVICE)
        self.layer, self.head = layer, head

    def compile(self):
        # With this option the compiler writes a product of one row itself, and tunes it: faster than cuBLAS there.
        options = {"coordinate_descent_tuning": self.batch == 1}
        torch._dynamo.reset()
        self.layer = torch.compile(layer, dynamic=False, fullgraph=True, options=options)
        self.head = torch.compile(head, dynamic=False, fullgraph=True, options=options)

    def step(self):
        model = self.model
        shape = (self.batch, model.heads, model.kv_heads, model.dim)
        cosine, sine = model.table[self.position].unsqueeze(1).chunk(2, -1)
        x = F.embedding(self.token, model.embedding)
        residual = torch.zeros_like(x)
        for weights, (keys, values) in zip(model.layers, self.cache):
            x, residual = self.layer(x, residual, weights, keys, values, self.position, cosine, sine, shape)
        self.token.copy_(self.head(x, residual, model.norm, model.lm_head))
        self.position.copy_((self.position + 1) % CONTEXT)


def decode_loops(results, folders=("qwen3-0.6b", "qwen3-8b"), batches=(1, 32, 256)):
    for folder in folders:
        model = Model(folder)
        for batch in batches:
            start = time.time()
            loop = DecodeLoop(model, batch)
            loop.compile()
            with torch.no_grad():
                graph, _ = capture(loop.step)
            setup = time.time() - start
            seconds = median_seconds(graph.replay, 60)
            results.add(f"decode/{folder}/batch:{batch}/peer:torch_compile",
                        f"PyTorch decode loop, compiled, in a CUDA graph, static KV of {CONTEXT}", seconds,
                        model.bytes_of_step, tokens_per_second=batch / seconds, setup_seconds=setup)
            del loop, graph
        del model
        torch.cuda.empty_cache()
