#!/usr/bin/env python3
"""Runs PyTorch's own PowerSGD hook in DistributedDataParallel on gloo.

  peer.py IN.json OUT.json

IN has rank; parts, a list of name, shape and q (the first Q, row-major, or null); grads[step][rank][part], flat. OUT gets
mean[step][part], flat, and dense_error, the largest |error feedback| that the hook kept for tensors which it did not compress.
Needs torch and numpy; no GPU.
"""
import json
import logging
import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd
from torch.nn.parallel import DistributedDataParallel

PLAIN = 2  # steps that DDP insists on before PowerSGD: it rebuilds its buckets


class Tensors(torch.nn.Module):
    """Its loss is sum(w * g), so that the gradient of w is g."""

    def __init__(self, parts):
        super().__init__()
        self.w = torch.nn.ParameterList(torch.nn.Parameter(torch.zeros(p["shape"])) for p in parts)

    def forward(self, grads):
        return sum((w * g).sum() for w, g in zip(self.w, grads))


def worker(rank, world, case, rendezvous, out):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + rendezvous, rank=rank, world_size=world)
    parts = case["parts"]
    model = Tensors(parts)
    ddp = DistributedDataParallel(model)
    state = powersgd.PowerSGDState(process_group=None, matrix_approximation_rank=case["rank"], start_powerSGD_iter=PLAIN,
                                   min_compression_rate=2, orthogonalization_epsilon=0)
    order = []  # of the parameters in the bucket

    def hook(state, bucket):
        # The hook draws its first Q from a generator of its own, unless it finds one from an earlier step.
        i = bucket.index()
        if state.iter >= PLAIN and i not in state.q_memory_dict:
            order[:] = [next(j for j, w in enumerate(model.w) if w is p) for p in bucket.parameters()]
            matrices = [parts[j] for j in order if parts[j]["q"]]
            state.q_memory_dict[i] = torch.tensor([x for m in matrices for x in m["q"]])
            rows = sum(m["shape"][0] for m in matrices)
            state.p_memory_dict[i] = torch.empty(rows * case["rank"])
        return powersgd.powerSGD_hook(state, bucket)

    ddp.register_comm_hook(state, hook)
    means = []
    for step in range(-PLAIN, len(case["grads"])):
        if step < 0:
            grads = [torch.zeros(p["shape"]) for p in parts]
        else:
            grads = [torch.tensor(g).view(p["shape"]) for g, p in zip(case["grads"][step][rank], parts)]
        ddp.zero_grad()
        ddp(grads).backward()
        if step >= 0:
            means.append([w.grad.flatten().tolist() for w in model.w])
    (errors,) = state.error_dict.values()  # one bucket
    dense_error = 0.0
    for j, error in zip(order, errors.split([model.w[j].numel() for j in order])):
        if not parts[j]["q"]:
            dense_error = max(dense_error, error.abs().max().item())
    if rank == 0:
        with open(out, "w") as f:
            json.dump(dict(torch=torch.__version__, mean=means, dense_error=dense_error), f)
    dist.barrier()
    os._exit(0)  # without the tear-down of gloo's threads, in which torch 1.13 aborts now and then


def main(source, out):
    logging.disable(logging.WARNING)
    with open(source) as f:
        case = json.load(f)
    world = len(case["grads"][0])
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(worker, (world, case, os.path.join(folder, "rendezvous"), out), nprocs=world)


if __name__ == "__main__":
    main(*sys.argv[1:])
