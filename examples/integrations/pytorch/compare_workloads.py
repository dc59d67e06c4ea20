#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains and runs small networks under PyTorch's allocator, its expandable segments and tarn, and compares them.

    python3 compare_workloads.py RESULTS.jsonl [--workloads a,b] [--allocators native+expandable+tarn] [--repeats 3] [--steps 8]
                                 [--seconds S]
    python3 compare_workloads.py --diagnose transformer_train

Each run is a process of its own: torch is imported once, and each run is forked before CUDA is used. Sizes vary from step to step, from
one seed, so that all allocators get the same requests; a pass is the same steps each time. In each repeat the runs of all allocators
exist at the same time. Each warms the clocks of the GPU and makes a pass that loads the libraries, then calls empty_cache(). Then they
take turns: each makes its first measured pass, then each its second, beginning with another one each time. So what changes while they
run, as clocks and other programs, changes for all.

An allocator is native, expandable, tarn, or tarn with options of its pool, as in tarn:slack_per_mille=50,largest_handle=8388608.

As soon as a workload is measured, its lines in RESULTS.jsonl are replaced, one for each allocator; lines of other workloads stay. A
workload begins only if it will probably end within --seconds. Times of a line:

  first_pass_ms    the pass after empty_cache()
  step_ms          of a run: the mean of its steps, of each step the median of the passes after the first. Median of the runs
  step_ms_min      the smallest of the runs
  step_ms_of_runs  of each run, in the order of the repeats
  to_expandable    the time of a pass divided by that of expandable segments in the same turn: of each pass after the first, of all
                   repeats, and their median and quartiles; and the reserved memory divided by theirs

calls_of_passes counts, for each pass, what the allocator did as torch.cuda.memory_stats() reports it: on tarn, num_device_alloc and
num_device_free are handles created and destroyed, num_sync_all_streams are waits of the host for a stream. With tarn, its pool's own
counters follow, among them mappings. losses: whether they are bit-identical to those under PyTorch's allocator.
"""

import argparse
import datetime
import hashlib
import json
import os
import pathlib
import random
import select
import signal
import statistics
import subprocess
import sys
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import tarn_torch  # noqa: E402

PASSES = 5  # that are measured
SEED = 7
WARM_UP_S = 0.5
CALLS = ("num_device_alloc", "num_device_free", "num_sync_all_streams", "num_alloc_retries")
DIAGNOSED = ("native", "expandable", "tarn", "tarn:remap=0", "tarn:slack_per_mille=30", "tarn:slack_per_mille=60")


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
    for _ in range(1 + PASSES):
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


class RecomputedBlock(Block):
    """Keeps only its input for the backward pass."""

    def forward(self, x, cache=None):
        return checkpoint(super().forward, x, use_reentrant=False)


def bert_recompute(steps, rng):
    """Masked words with an encoder that recomputes its activations; sequences of varying length, padded to the longest."""
    width, vocabulary = 512, 16384
    words = nn.Embedding(vocabulary, width)
    model = nn.Sequential(*(RecomputedBlock(width, 8) for _ in range(8)), nn.LayerNorm(width), nn.Linear(width, vocabulary))
    both = nn.ModuleList([words, model]).cuda()

    def loss_of(_):
        length, batch = rng.randrange(64, 512), rng.choice([16, 24, 32, 48])
        tokens = torch.randint(vocabulary, (batch, length), device="cuda")
        hidden = torch.rand(batch, length, device="cuda") < 0.15
        guessed = model(words(tokens.masked_fill(hidden, 0)))
        return F.cross_entropy(guessed[hidden].float(), tokens[hidden])

    yield from train(both, steps, rng, loss_of)


class GraphLayer(nn.Module):
    def __init__(self, width, out):
        super().__init__()
        self.own, self.others = nn.Linear(width, out), nn.Linear(width, out)

    def forward(self, x, source, target, count):
        sums = torch.zeros(count, x.shape[1], device=x.device, dtype=x.dtype).index_add(0, target, x[source])
        degree = torch.bincount(target, minlength=count).clamp(min=1)[:, None]
        return F.relu(self.own(x[:count]) + self.others((sums / degree).to(x.dtype)))


def gcn_sampled(steps, rng):
    """A graph network on sampled neighbourhoods: how many nodes and edges each layer has changes with every step."""
    nodes, width = 200_000, 256
    features = torch.randn(nodes, 128, device="cuda")
    layers = nn.ModuleList([GraphLayer(128, width), GraphLayer(width, width), GraphLayer(width, 40)]).cuda()

    def loss_of(_):
        wanted = torch.randint(nodes, (rng.randrange(512, 2048),), device="cuda").unique()
        hops, needed = [], wanted
        for most in (15, 10, 5):  # from the last layer to the first
            degree = torch.randint(1, most + 1, (len(needed),), device="cuda")
            target = torch.arange(len(needed), device="cuda").repeat_interleave(degree)
            neighbours = torch.randint(nodes, (len(target),), device="cuda")
            new = neighbours.unique()
            new = new[~torch.isin(new, needed)]
            every = torch.cat([needed, new])
            order = every.argsort()
            hops.append((order[torch.searchsorted(every[order], neighbours)], target, len(needed)))
            needed = every
        x = features[needed]
        for layer, hop in zip(layers, reversed(hops)):
            x = layer(x, *hop)
        return F.cross_entropy(x.float(), wanted % 40)

    yield from train(layers, steps, rng, loss_of)


class Detector(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.body = nn.ModuleList(Residual(a, b, 2) for a, b in [(3, 64), (64, 128), (128, 256), (256, 512)])
        self.side = nn.ModuleList(nn.Conv2d(c, width, 1) for c in (128, 256, 512))
        self.score, self.boxes = nn.Conv2d(width, 3, 3, 1, 1), nn.Conv2d(width, 12, 3, 1, 1)
        self.kind = nn.Sequential(nn.Linear(2 * width, 256), nn.ReLU(), nn.Linear(256, 21))

    def forward(self, images):
        x, levels = images, []
        for layer, side in zip(self.body, (None, *self.side)):
            x = layer(x)
            if side is not None:
                levels.append(side(x))
        return levels


def overlaps(a, b):
    """The intersection over union of every box of a with every box of b."""
    low, high = torch.maximum(a[:, None, :2], b[None, :, :2]), torch.minimum(a[:, None, 2:], b[None, :, 2:])
    common = (high - low).clamp(min=0).prod(-1)
    area = [(box[:, 2:] - box[:, :2]).prod(-1) for box in (a, b)]
    return common / (area[0][:, None] + area[1][None] - common).clamp(min=1e-6)


def detection(steps, rng):
    """A detector on images of varying size: anchors on three levels are matched to a varying number of objects."""
    model = Detector().cuda()

    def anchors_of(level, stride):
        height, width = level.shape[-2:]
        y, x = torch.meshgrid(torch.arange(height, device="cuda"), torch.arange(width, device="cuda"), indexing="ij")
        middle = torch.stack([x, y], -1).reshape(-1, 1, 2) * float(stride)
        half = torch.tensor([1.0, 2.0, 3.0], device="cuda").reshape(1, 3, 1) * stride
        return torch.cat([middle - half, middle + half], -1).reshape(-1, 4)

    def loss_of(_):
        height, width, batch = rng.randrange(320, 800, 32), rng.randrange(320, 800, 32), rng.choice([2, 4, 6])
        levels = model(torch.randn(batch, 3, height, width, device="cuda"))
        anchors = torch.cat([anchors_of(level, 2 ** (i + 2)) for i, level in enumerate(levels)])
        score = torch.cat([model.score(x).permute(0, 2, 3, 1).reshape(batch, -1) for x in levels], 1)
        moved = torch.cat([model.boxes(x).permute(0, 2, 3, 1).reshape(batch, -1, 4) for x in levels], 1)
        total = 0
        for i in range(batch):
            count = rng.randrange(4, 60)
            corner = torch.rand(count, 2, device="cuda") * torch.tensor([width * 0.8, height * 0.8], device="cuda")
            objects = torch.cat([corner, corner + torch.rand(count, 2, device="cuda") * 80 + 8], 1)
            best, which = overlaps(anchors, objects).max(1)
            good = best > 0.3
            total = total + F.binary_cross_entropy_with_logits(score[i].float(), good.float())
            total = total + (moved[i][good].float() - objects[which[good]] / 100).abs().sum() / (good.sum() + 1)
            crops = []
            for _ in range(rng.randrange(4, 16)):
                level = levels[rng.randrange(3)][i]
                top, left = rng.randrange(level.shape[1] - 8), rng.randrange(level.shape[2] - 8)
                crop = level[:, top : top + rng.randrange(2, 8), left : left + rng.randrange(2, 8)]
                crops.append(torch.cat([crop.mean((1, 2)), crop.amax((1, 2))]))
            kinds = torch.randint(21, (len(crops),), device="cuda")
            total = total + F.cross_entropy(model.kind(torch.stack(crops)).float(), kinds)
        return total / batch

    yield from train(model, steps, rng, loss_of)


def radiance_train(steps, rng):
    """A radiance field: rays march through a grid, and only their samples in occupied cells reach the network. How many there are
    changes with every step, as do the rays; every fourth step asks the network for the density of all cells, in parts."""
    field = nn.Sequential(nn.Linear(63, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4)).cuda()
    scales = 2.0 ** torch.arange(10, device="cuda")

    def values_at(points):
        waves = (points[:, None, :] * scales[:, None]).flatten(1)
        return field(torch.cat([points, waves.sin(), waves.cos()], 1)).float()

    def loss_of(step):
        occupied = torch.rand(64, 64, 64, device="cuda") < rng.uniform(0.05, 0.3)
        rays, depth = rng.randrange(2048, 8192), torch.linspace(0, 1.5, 128, device="cuda")
        ways = F.normalize(torch.randn(rays, 3, device="cuda"), dim=1)
        points = 0.1 * torch.rand(rays, 1, 3, device="cuda") + ways[:, None, :] * depth[:, None]
        cells = ((points + 1) * 32).long().clamp(0, 63)
        inside = occupied[cells[..., 0], cells[..., 1], cells[..., 2]]
        values = points.new_zeros(rays, 128, 4).masked_scatter(inside[..., None], values_at(points[inside]))
        opacity = 1 - torch.exp(-F.relu(values[..., 3]) / 85)
        passed = torch.cumprod(1 - opacity + 1e-6, 1)
        colour = ((opacity * passed)[..., None] * values[..., :3].sigmoid()).sum(1)
        if step % 4 == 3:
            with torch.no_grad():
                for part in torch.rand(64**3, 3, device="cuda").split(32768 + 1024 * rng.randrange(32)):
                    values_at(part)
        return F.mse_loss(colour, torch.rand(rays, 3, device="cuda"))

    yield from train(field, steps, rng, loss_of)


WORKLOADS = {
    f.__name__: f
    for f in (
        transformer_train, cnn_train, moe_train, unet_train, detection, bert_recompute, gcn_sampled, llm_decode, prefetch,
        radiance_train,
    )
}  # fmt: skip


def options_of(allocator):
    """The options of tarn's pool in an allocator's name."""
    given = allocator.partition(":")[2]
    return {name: int(value) for name, value in (option.split("=") for option in given.split(",") if option)}


def warm_clocks():
    """Keeps the GPU busy, so that its clocks are up, and leaves no memory behind but what cuBLAS keeps."""
    a = torch.randn(4096, 4096, device="cuda")
    until = time.perf_counter() + WARM_UP_S
    while time.perf_counter() < until:
        for _ in range(8):
            a = torch.nn.functional.normalize(a @ a)
        torch.cuda.synchronize()
    del a
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def calls_now(allocator):
    stats = torch.cuda.memory_stats()
    calls = {name: stats[name] for name in CALLS}
    if allocator.startswith("tarn"):
        calls.update(tarn_torch.pool_counters())
    return calls


def run(workload, allocator, steps, wait_for_turn):
    """One run, in the process that was forked for it."""
    if allocator.startswith("tarn"):
        tarn_torch.install(**options_of(allocator))
    elif allocator == "expandable":
        torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
    warm_clocks()
    torch.manual_seed(SEED)
    torch.cuda.manual_seed(SEED)
    losses_of_steps = WORKLOADS[workload](steps, random.Random(SEED))
    losses = [float(next(losses_of_steps)).hex() for _ in range(steps)]
    torch.cuda.empty_cache()
    passes, calls = [[] for _ in range(PASSES)], [calls_now(allocator)]
    for times in passes:
        wait_for_turn()
        for _ in range(steps):
            start = time.perf_counter()
            loss = next(losses_of_steps)
            torch.cuda.synchronize()
            times.append((time.perf_counter() - start) * 1e3)
            losses.append(float(loss).hex())
        calls.append(calls_now(allocator))
    # Of each step the median of the later passes: the sizes differ from step to step, and are the same in each pass.
    later = [statistics.median(times) for times in zip(*passes[1:])]
    return {
        "step_ms": sum(later) / len(later),
        "first_pass_ms": sum(passes[0]),
        "pass_ms": [sum(times) for times in passes],
        "peak_reserved": torch.cuda.max_memory_reserved(),
        "peak_allocated": torch.cuda.max_memory_allocated(),
        "calls_of_passes": [{key: b[key] - a[key] for key in b} for a, b in zip(calls, calls[1:])],
        "losses": hashlib.sha256("".join(losses).encode()).hexdigest()[:16],
        "last_loss": float.fromhex(losses[-1]),
        "gpu": torch.cuda.get_device_name(),
    }


class Run:
    """A run in a process of its own. It prepares itself at once, makes a pass in each turn, and has a result after the last."""

    open_files = []  # of all runs: a later one must not keep them open

    def __init__(self, workload, allocator, steps):
        self.name = f"{workload} {allocator}"
        turns, give_turn = os.pipe()
        answers, answer = os.pipe()
        self.child = os.fork()
        if self.child == 0:
            status = 1
            try:
                for file in (*Run.open_files, give_turn, answers):
                    file.close() if hasattr(file, "close") else os.close(file)
                with os.fdopen(turns) as turns, os.fdopen(answer, "w") as answer:

                    def wait_for_turn():
                        print("waits", file=answer, flush=True)
                        if not turns.readline():
                            raise EOFError("the comparison has ended")

                    print(json.dumps(run(workload, allocator, steps, wait_for_turn)), file=answer, flush=True)
                status = 0
            except BaseException as e:
                print(f"{self.name}: {type(e).__name__}: {e}", file=sys.stderr, flush=True)
            os._exit(status)
        os.close(turns)
        os.close(answer)
        self.turn, self.answers = os.fdopen(give_turn, "w"), os.fdopen(answers)
        Run.open_files += [self.turn, self.answers]
        self.last = None

    def wait(self, limit_s=60):
        """Waits until the run is ready for its next turn, or has a result. Returns false if it has died or takes too long."""
        ready = self.answers in select.select([self.answers], [], [], limit_s)[0]
        if not ready:
            print(f"{self.name}: ended after {limit_s} s", file=sys.stderr, flush=True)
            os.kill(self.child, signal.SIGKILL)
        self.last = self.answers.readline().strip() if ready else ""
        return bool(self.last)

    def make_pass(self):
        if not self.last:
            return
        print(file=self.turn, flush=True)
        self.wait()

    def result(self):
        """Ends the run. Returns its result, or None if it failed."""
        for file in (self.turn, self.answers):
            Run.open_files.remove(file)
            file.close()
        os.waitpid(self.child, 0)
        return json.loads(self.last) if (self.last or "").startswith("{") else None


def run_in_turn(workload, allocators, steps, first=0):
    """One run of each allocator, pass by pass. Returns their results, None for each that failed."""
    runs = [Run(workload, allocator, steps) for allocator in allocators]
    for one in runs:
        one.wait()
    for number in range(PASSES):
        begin = (first + number) % len(runs)
        for one in runs[begin:] + runs[:begin]:
            one.make_pass()
    return [one.result() for one in runs]


def first_line(*command):
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=HERE, timeout=20)
        return done.stdout.splitlines()[0].strip() if done.stdout else "unknown"
    except OSError:
        return "unknown"


def replace_lines(path, workload, lines):
    """Replaces the lines of one workload in the file; the others stay. The file is whole at any time."""
    kept = []
    if path.exists():
        kept = [text for text in path.read_text().splitlines() if text and json.loads(text).get("workload") != workload]
    part = path.with_name(path.name + ".part")
    part.write_text("".join(text + "\n" for text in kept + [json.dumps(line) for line in lines]))
    part.replace(path)


def lines_of(workload, found, steps, context):
    """The lines of a workload. `found` has, for each allocator, the run of each repeat, or None where it failed."""
    keys = ("step_ms", "first_pass_ms", "peak_reserved", "peak_allocated")
    native = {r["losses"] for r in found.get("native", []) if r}
    lines = []
    for allocator, repeats in found.items():
        runs = [r for r in repeats if r]
        if not runs:
            continue
        own = {r["losses"] for r in runs}
        pairs = [(r, e) for r, e in zip(repeats, found.get("expandable", [])) if r and e]
        ratios = [mine / theirs for r, e in pairs for mine, theirs in zip(r["pass_ms"][1:], e["pass_ms"][1:])]
        line = {
            "workload": workload, "allocator": allocator, "runs": len(runs), "steps": steps, "passes": PASSES,
            **{key: round(statistics.median(r[key] for r in runs), 3) for key in keys},
            "step_ms_min": round(min(r["step_ms"] for r in runs), 3),
            "step_ms_of_runs": [r and round(r["step_ms"], 3) for r in repeats],
        }  # fmt: skip
        if pairs:
            low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
            line["to_expandable"] = {
                "pass_ms": round(middle, 4),
                "pass_ms_quartiles": [round(low, 4), round(high, 4)],
                "pass_ms_of_passes": [round(ratio, 4) for ratio in ratios],
                "peak_reserved": round(statistics.median(r["peak_reserved"] / e["peak_reserved"] for r, e in pairs), 4),
            }
        line["calls_of_passes"] = runs[-1]["calls_of_passes"]
        if not native:
            line["losses"] = "nothing to compare with"
        else:
            line["losses"] = "not deterministic" if len(native) != 1 else "identical" if own == native else "different"
        lines.append({**line, "last_loss": runs[0]["last_loss"], "gpu": runs[0]["gpu"], **context})
    return lines


def print_lines(lines):
    for line in lines:
        to = line.get("to_expandable", {})
        low, high = to.get("pass_ms_quartiles", (float("nan"),) * 2)
        print(
            f"{line['workload']:18} {line['allocator']:30} {line['runs']:4} {line['step_ms']:8.2f} {line['step_ms_min']:8.2f} "
            f"{to.get('pass_ms', float('nan')):7.3f} {low:6.3f} {high:6.3f} {line['first_pass_ms']:8.0f} "
            f"{line['peak_reserved'] / 2**20:9.0f} {to.get('peak_reserved', float('nan')):7.3f} "
            f"{line['peak_allocated'] / 2**20:9.0f}  {line['losses']}",
            flush=True,
        )


def diagnose(workload, allocators, steps):
    """Prints what the allocators did in each pass of one run each."""
    failed = False
    for allocator in allocators:
        (one,) = run_in_turn(workload, [allocator], steps)
        if one is None:
            failed = True
            continue
        print(f"-- {workload}, {allocator}: step {one['step_ms']:.2f} ms, reserved {one['peak_reserved'] / 2**20:.0f} MiB, "
              f"allocated {one['peak_allocated'] / 2**20:.0f} MiB")  # fmt: skip
        for number, (ms, calls) in enumerate(zip(one["pass_ms"], one["calls_of_passes"]), 1):
            print(f"   pass {number}: {ms:8.1f} ms  " + "  ".join(f"{key} {value}" for key, value in calls.items()), flush=True)
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="?", help="file in which the JSON lines are replaced")
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--allocators", default="native+expandable+tarn", help="names with + between them")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8, help="of each pass")
    parser.add_argument("--seconds", type=float, default=1e9, help="what all of it may take")
    parser.add_argument("--diagnose", metavar="WORKLOAD", help="print the calls of each pass instead of measuring")
    arguments = parser.parse_args()
    if not tarn_torch.library().exists():
        tarn_torch.build()
    # Before the first fork: it imports torch._inductor, which takes seconds.
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    allocators = arguments.allocators.split("+")
    if arguments.diagnose:
        given = allocators if arguments.allocators != parser.get_default("allocators") else DIAGNOSED
        return diagnose(arguments.diagnose, given, arguments.steps)
    if not arguments.results:
        parser.error("name the file of the results")
    began = time.monotonic()
    context = {
        "driver": first_line("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        "torch": torch.__version__,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
        "commit": os.environ.get("TARN_COMMIT") or first_line("git", "rev-parse", "--short", "HEAD"),
    }
    failed, longest = False, 0
    print(
        f"{'workload':18} {'allocator':30} {'runs':>4} {'step ms':>8} {'min':>8} {'of exp.':>7} {'25 %':>6} {'75 %':>6} {'pass 1':>8} {'reserved':>9} "
        f"{'of exp.':>7} {'allocated':>9}  losses"
    )
    for i, workload in enumerate(arguments.workloads.split(",")):
        start = time.monotonic()
        if start - began + longest > arguments.seconds:
            print(f"{workload:18} not begun: {arguments.seconds:.0f} s would be over", flush=True)
            failed = True
            continue
        found = {allocator: [] for allocator in allocators}
        for repeat in range(arguments.repeats):
            for allocator, one in zip(allocators, run_in_turn(workload, allocators, arguments.steps, repeat + i)):
                found[allocator].append(one)
        lines = lines_of(workload, found, arguments.steps, context)
        if lines:
            replace_lines(pathlib.Path(arguments.results), workload, lines)
        print_lines(lines)
        failed = failed or any(None in repeats for repeats in found.values())
        longest = max(longest, time.monotonic() - start)
    return failed


if __name__ == "__main__":
    sys.exit(main())
