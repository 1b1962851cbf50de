"""The time of an optimizer's partial steps, one for each layer, over that of its whole step.

Plans that step layer by layer should not pay for it. Whole and parts take turns on the same parameters, and ratios are taken
within a turn. Results are one JSON file, docs/results/partial_steps.json.

    .venv/bin/python bench/partial_steps.py            # about half a minute
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import torch
from torch import nn

from gradweave.lab import fashion_mnist
from gradweave.stepping import Stepper

RESULTS = Path(__file__).parent.parent / "docs/results/partial_steps.json"
OPTIMIZERS = {
    "SGD, momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters),
}


def bottlenecks():
    """The 161 tensors of a ResNet-50."""
    def block(inputs, width):
        outputs = 4 * width
        shortcut = [nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs)] if inputs != outputs else []
        return [nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.Conv2d(width, width, 3, bias=False),
                nn.BatchNorm2d(width), nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs), *shortcut]
    layers, inputs = [nn.Conv2d(3, 64, 7, bias=False), nn.BatchNorm2d(64)], 64
    for width, count in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for _ in range(count):
            layers += block(inputs, width)
            inputs = 4 * width
    return nn.Sequential(*layers, nn.Linear(inputs, 1000))


def compare(network, make_optimizer, turns):
    """One row of the table."""
    parameters = list(network.parameters())
    place = {parameter: number for number, parameter in enumerate(parameters)}
    layers = [[place[parameter] for parameter in module.parameters(recurse=False)] for module in network.modules()]
    layers = [members for members in layers if members]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    optimizer = make_optimizer(parameters)
    stepper = Stepper(optimizer, type(optimizer), parameters)

    def in_parts():
        stepper.freeze_hyperparameters()
        for number, members in reversed(list(enumerate(layers))):
            stepper.step_subset(number, lambda: members)

    times = {stepper.step_all: [], in_parts: []}
    for turn in range(turns + 1):
        for method in list(times)[::1 if turn % 2 else -1]:
            begin = time.perf_counter()
            method()
            times[method].append(1e3 * (time.perf_counter() - begin))
    whole, parts = (milliseconds[1:] for milliseconds in times.values())  # the first makes state and twins
    ratios = statistics.quantiles([part / all_at_once for part, all_at_once in zip(parts, whole)], n=4)
    return {"tensors": len(parameters), "parts": len(layers), "whole_ms": statistics.median(whole),
            "parts_ms": statistics.median(parts), "ratio": [ratios[1], ratios[0], ratios[2]]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for network, make_network in (("the demo's", fashion_mnist.wide_network), ("ResNet-50", bottlenecks)):
        for optimizer, make_optimizer in OPTIMIZERS.items():
            row = {"network": network, "optimizer": optimizer, **compare(make_network(), make_optimizer, options.turns)}
            rows.append(row)
            middle, low, high = row["ratio"]
            print(f"{network:12} {optimizer:15} whole {row['whole_ms']:7.2f} ms, {row['parts']} parts "
                  f"{row['parts_ms']:7.2f} ms: x {middle:.3f} [{low:.3f}-{high:.3f}]")
    options.results.parent.mkdir(parents=True, exist_ok=True)
    options.results.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
