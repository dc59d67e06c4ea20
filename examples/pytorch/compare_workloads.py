#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains and runs small networks under PyTorch's allocator, its expandable segments and tarn, and compares them.

    python3 compare_workloads.py results.jsonl [--workloads a,b] [--repeats 3] [--steps 12]

Each run is a process of its own: torch is imported once, and each run is forked before CUDA is used. The runs of the three
allocators alternate. Sizes vary from step to step, from one seed, so that all allocators get the same requests; a run
makes three passes over its sizes. Appends one JSON line for each workload and allocator: medians of the repeats, and whether the
losses are bit-identical to those under PyTorch's allocator.

step_ms is the mean of a pass's steps, of each step the median of the passes after the first, with a synchronisation after it.
"""

import argparse
import datetime
import hashlib
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
import torch.nn.functional as F
from torch import nn

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import tarn_torch  # noqa: E402

ALLOCATORS = ("native", "expandable", "tarn")
PASSES = 3
SEED = 7


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, cache=None):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.first(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if cache is not None:
            if cache.get(self) is not None:
                old_k, old_v = cache[self]
                k, v = torch.cat([old_k, k], 2), torch.cat([old_v, v], 2)
            cache[self] = (k, v)
        scores = q @ k.transpose(-1, -2) / (width // self.heads) ** 0.5
        if length > 1:
            mask = torch.ones(length, k.shape[2], dtype=torch.bool, device=x.device).tril(k.shape[2] - length)
            scores = scores.masked_fill(~mask, float("-inf"))
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, width)
        x = x + self.out(mixed)
        return x + self.down(F.gelu(self.up(self.second(x))))


class Language(nn.Module):
    def __init__(self, vocabulary=16384, width=768, heads=12, layers=6):
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens, cache=None):
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x, cache)
        return self.head(x)


def seeded_steps(steps, rng):
    """The numbers of the steps of all passes. The sizes of a pass are those of the first."""
    for _ in range(PASSES):
        rng.seed(SEED)
        yield from range(steps)


def train(model, steps, rng, loss_of):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step in seeded_steps(steps, rng):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = loss_of(step)
        loss.backward()
        optimizer.step()
        yield loss.detach()


def transformer_train(steps, rng):
    """A small GPT-2; sequences of varying length, and an evaluation every eighth step."""
    model = Language().cuda()

    def loss_of(step):
        length, batch = rng.randrange(128, 1024), rng.choice([4, 6, 8])
        tokens = torch.randint(16384, (batch, length + 1), device="cuda")
        if step % 8 == 7:
            with torch.no_grad():
                model(tokens[:, :512])
        return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1).float(), tokens[:, 1:].flatten())

    yield from train(model, steps, rng, loss_of)


class Residual(nn.Module):
    def __init__(self, channels, out, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU(),
            nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out),
        )  # fmt: skip
        self.short = nn.Conv2d(channels, out, 1, stride, bias=False)

    def forward(self, x):
        return F.relu(self.body(x) + self.short(x))


def cnn_train(steps, rng):
    """A residual network on images of varying size."""
    widths = [64, 128, 256, 512]
    layers = [nn.Conv2d(3, 64, 7, 2, 3)]
    for i, width in enumerate(widths):
        layers += [Residual(widths[max(i - 1, 0)], width, 1 + (i > 0)), Residual(width, width, 1)]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000)).cuda()

    def loss_of(_):
        side, batch = rng.randrange(160, 384, 8), rng.choice([16, 24, 32, 48])
        images = torch.randn(batch, 3, side, rng.randrange(160, 384, 8), device="cuda")
        return F.cross_entropy(model(images).float(), torch.randint(1000, (batch,), device="cuda"))

    yield from train(model, steps, rng, loss_of)


class UNet(nn.Module):
    def __init__(self, width=48, depth=5):
        super().__init__()
        sizes = [width * 2**i for i in range(depth)]
        self.down = nn.ModuleList(nn.Conv1d(a, b, 8, 4, 2) for a, b in zip([2] + sizes, sizes))
        self.up = nn.ModuleList(
            nn.ConvTranspose1d(a, b, 8, 4, 2) for a, b in zip(sizes[::-1], sizes[-2::-1] + [2])
        )

    def forward(self, x):
        skips = []
        for layer in self.down:
            x = F.gelu(layer(x))
            skips.append(x)
        for layer in self.up:
            skip = skips.pop()
            x = F.gelu(layer(x[..., : skip.shape[-1]] + skip))
        return x


def unet_train(steps, rng):
    """A U-Net on audio of varying length."""
    model = UNet().cuda()

    def loss_of(_):
        audio = torch.randn(rng.choice([4, 8, 12]), 2, rng.randrange(60_000, 400_000) // 1024 * 1024, device="cuda")
        return (model(audio)[..., : audio.shape[-1]].float() - audio).abs().mean()

    yield from train(model, steps, rng, loss_of)


def llm_decode(steps, rng):
    """Generation with a growing cache of keys and values, for varying batches and prompts."""
    model = Language(width=1024, heads=16, layers=12).cuda().to(torch.bfloat16).eval()
    with torch.no_grad():
        for _ in seeded_steps(steps, rng):
            batch, prompt = rng.choice([8, 16, 24, 48]), rng.randrange(64, 700)
            cache = {}
            tokens = torch.randint(16384, (batch, prompt), device="cuda")
            for _ in range(rng.randrange(8, 30)):
                logits = model(tokens, cache)[:, -1]
                tokens = logits.argmax(-1, keepdim=True)
            yield logits.float().mean()


class Experts(nn.Module):
    def __init__(self, width=768, count=8):
        super().__init__()
        self.gate = nn.Linear(width, count)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(count)
        )

    def forward(self, x):
        weight, chosen = self.gate(x).softmax(-1).max(-1)
        order = chosen.argsort(stable=True)
        counts = torch.bincount(chosen.cpu(), minlength=len(self.experts)).tolist()
        parts = x[order].split(counts)
        done = torch.cat([expert(part) for expert, part in zip(self.experts, parts)])
        back = order.argsort()
        return x + done[back] * weight[:, None]


def moe_train(steps, rng):
    """A mixture of experts: how many tokens each expert gets changes with every step."""
    model = nn.Sequential(nn.Linear(256, 768), *(Experts() for _ in range(4)), nn.Linear(768, 256)).cuda()

    def loss_of(_):
        x = torch.randn(rng.randrange(4_000, 24_000), 256, device="cuda")
        return (model(x).float() - x).square().mean()

    yield from train(model, steps, rng, loss_of)


def prefetch(steps, rng):
    """A second stream uploads the next batch while the network trains on this one."""
    model = nn.Sequential(
        *(Residual(a, b, 2) for a, b in [(3, 64), (64, 128), (128, 256)]), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(256, 100),
    ).cuda()  # fmt: skip
    side = torch.cuda.Stream()
    host = torch.randn(64, 3, 384, 384, generator=torch.Generator().manual_seed(1)).pin_memory()

    def upload():
        batch, size = rng.choice([16, 32, 64]), rng.randrange(160, 384, 16)
        with torch.cuda.stream(side):
            return host[:batch, :, :size, :size].to("cuda", non_blocking=True) * 2 - 1

    state = {"next": upload()}

    def loss_of(_):
        torch.cuda.current_stream().wait_stream(side)
        images = state["next"]
        images.record_stream(torch.cuda.current_stream())
        state["next"] = upload()
        return F.cross_entropy(model(images).float(), torch.randint(100, (len(images),), device="cuda"))

    yield from train(model, steps, rng, loss_of)


WORKLOADS = {f.__name__: f for f in (transformer_train, cnn_train, unet_train, llm_decode, moe_train, prefetch)}


def run(workload, allocator, steps):
    """One run, in the process that was forked for it."""
    if allocator == "tarn":
        tarn_torch.install()
    elif allocator == "expandable":
        torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    torch.manual_seed(SEED)
    torch.cuda.manual_seed(SEED)
    passes, losses = [[] for _ in range(PASSES)], []
    torch.cuda.synchronize()
    start = time.perf_counter()
    for step, loss in enumerate(WORKLOADS[workload](steps, random.Random(SEED))):
        torch.cuda.synchronize()
        now = time.perf_counter()
        passes[step // steps].append((now - start) * 1e3)
        losses.append(float(loss).hex())
        start = time.perf_counter()
    # Of each step the median of the later passes: the sizes differ from step to step, and are the same in each pass.
    later = [statistics.median(times) for times in zip(*passes[1:])]
    return {
        "step_ms": sum(later) / len(later),
        "first_pass_ms": sum(passes[0]),
        "peak_reserved": torch.cuda.max_memory_reserved(),
        "peak_allocated": torch.cuda.max_memory_allocated(),
        "losses": hashlib.sha256("".join(losses).encode()).hexdigest()[:16],
        "last_loss": float.fromhex(losses[-1]),
        "gpu": torch.cuda.get_device_name(),
    }


def run_forked(workload, allocator, steps, limit_s=90):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(read)
            with os.fdopen(write, "w") as pipe:
                json.dump(run(workload, allocator, steps), pipe)
            status = 0
        except BaseException as e:
            print(f"{workload} {allocator}: {type(e).__name__}: {e}", file=sys.stderr, flush=True)
        os._exit(status)
    os.close(write)
    until = time.monotonic() + limit_s
    with os.fdopen(read) as pipe:
        import select

        ready = select.select([pipe], [], [], limit_s)[0]
        text = pipe.read() if ready else ""
    if time.monotonic() > until:
        os.kill(child, 9)
    os.waitpid(child, 0)
    return json.loads(text) if text else None


def first_line(*command):
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=HERE, timeout=20)
        return done.stdout.splitlines()[0].strip() if done.stdout else "unknown"
    except OSError:
        return "unknown"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", help="file that the JSON lines are appended to")
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12, help="of each pass")
    parser.add_argument("--seconds", type=float, default=1e9, help="no further repeat begins after this time")
    arguments = parser.parse_args()
    if not tarn_torch.library().exists():
        tarn_torch.build()
    began = time.monotonic()
    names = arguments.workloads.split(",")
    found = {(w, a): [] for w in names for a in ALLOCATORS}
    for repeat in range(arguments.repeats):
        for i, workload in enumerate(names):
            if time.monotonic() - began > arguments.seconds:
                break
            turn = (repeat + i) % len(ALLOCATORS)
            for allocator in ALLOCATORS[turn:] + ALLOCATORS[:turn]:
                one = run_forked(workload, allocator, arguments.steps)
                if one is not None:
                    found[workload, allocator].append(one)
    context = {
        "driver": first_line("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        "torch": torch.__version__,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
        "commit": os.environ.get("TARN_COMMIT") or first_line("git", "rev-parse", "--short", "HEAD"),
    }
    failed = False
    keys = ("step_ms", "first_pass_ms", "peak_reserved", "peak_allocated")
    print(f"{'workload':18} {'allocator':11} {'runs':>4} {'step ms':>8} {'pass 1':>8} {'reserved':>9} {'allocated':>9}  losses")
    with open(arguments.results, "a") as out:
        for (workload, allocator), runs in found.items():
            reference = found[workload, "native"]
            if not runs or not reference:
                print(f"{workload:18} {allocator:11} {'not run' if not runs else 'nothing to compare with'}")
                failed = True
                continue
            median = {key: statistics.median(r[key] for r in runs) for key in keys}
            native = {r["losses"] for r in reference}
            own = {r["losses"] for r in runs}
            same = "not deterministic" if len(native) != 1 else "identical" if own == native else "different"
            line = {
                "workload": workload, "allocator": allocator, "runs": len(runs), "steps": arguments.steps, "passes": PASSES,
                **{key: round(value, 3) for key, value in median.items()},
                "step_ms_of_runs": [round(r["step_ms"], 3) for r in runs],
                "losses": same, "last_loss": runs[0]["last_loss"], "gpu": runs[0]["gpu"], **context,
            }  # fmt: skip
            out.write(json.dumps(line) + "\n")
            print(
                f"{workload:18} {allocator:11} {len(runs):4} {median['step_ms']:8.2f} {median['first_pass_ms']:8.0f} "
                f"{median['peak_reserved'] / 2**20:9.0f} {median['peak_allocated'] / 2**20:9.0f}  {same}",
                flush=True,
            )
    return failed


if __name__ == "__main__":
    sys.exit(main())
