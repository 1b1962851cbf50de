"""Small models, their data, and workloads for planners."""

import torch
from torch import nn


class Net(nn.Module):
    """Convolution (channels last), batch norm, a module used twice, linear layers."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 6, 3)
        self.norm = nn.BatchNorm2d(6)
        self.wide = nn.Linear(6 * 36, 40)
        self.again = nn.Linear(40, 40)
        self.out = nn.Linear(40, 5)

    def forward(self, x):
        x = torch.relu(self.norm(self.conv(x))).flatten(1)
        x = torch.relu(self.wide(x))
        x = torch.relu(self.again(x))
        x = torch.relu(self.again(x))
        return self.out(x)


def links_cost(startup_us=100, us_per_byte=0.6, halves=False):
    """From now on jobs of this process don't measure their links, which takes seconds: all cost so much, or each half too."""
    from gradweave import _native, commands, core, probe

    line = {"startup_us": startup_us, "us_per_byte": us_per_byte}

    def measure(job, workload):
        session, settings = job._session, job._session.settings
        links = [{"name": link.name, "concurrency": 1, **line,
                  **({"reduce_scatter": line, "all_gather": line} if halves else {})} for link in session.links]
        rates = probe.compressor_rates(settings.scheme, settings.options, workload, session.job.size, session.device)
        cluster = core.Cluster({"version": 1, "workers": session.job.size, "startup_growth": "linear", "links": links,
                                **({"compressor_rates": rates} if rates else {})})
        return _native.Costs(cluster)

    commands.Commands.measure = measure


def make_net(seed=0):
    torch.manual_seed(seed)
    net = Net()
    net.conv.to(memory_format=torch.channels_last)
    return net


def batch(rank, step, size=8):
    generator = torch.Generator().manual_seed(1000 * rank + step)
    return torch.randn(size, 1, 8, 8, generator=generator), torch.randint(0, 5, (size,), generator=generator)


def make_optimizer(kind, model):
    if kind == "sgd":
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    return torch.optim.AdamW(model.parameters(), lr=0.003)


def train(model, optimizer, rank, steps, first=0, clip=None):
    """`clip`: the norm to which gradweave.clip_grad_norm_ clips."""
    for step in range(first, first + steps):
        x, y = batch(rank, step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        if clip:
            import gradweave

            gradweave.clip_grad_norm_(model, clip)
        optimizer.step()


def parameters(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def differing(model, expected):
    """The names of parameters of `expected` that `model` has with other values."""
    found = parameters(model)
    return [name for name, value in parameters(expected).items() if not torch.equal(found[name], value)]


def workload(model=None, forward_us=1000.0, backward_us=2000.0):
    """A workload of Net (or of any model whose modules run in their order), layers of equal time."""
    model = model or make_net()
    layers = []
    for name, module in model.named_modules():
        tensors = [{"name": f"{name}.{n}", "numel": p.numel(), "dtype": "float32"}
                   for n, p in module.named_parameters(recurse=False)]
        if tensors:
            layers.append({"name": name, "forward_us": forward_us, "backward_us": backward_us, "tensors": tensors})
    return {"version": 1, "name": "net", "layers": layers}


def cluster(workers, us_per_byte=0.05, links=1, startup_us=100.0):
    return {"version": 1, "workers": workers, "workers_per_node": 1, "startup_growth": "linear",
            "links": [{"name": f"link{k}", "startup_us": startup_us, "us_per_byte": us_per_byte, "concurrency": 1}
                      for k in range(links)]}


def two_levels(workers, of_node, between=1, inside=1):
    """Of links so slow that everything is on its way at an iteration's end."""
    def links(name, us_per_byte, count):
        return [{"name": f"{name}{k}", "startup_us": 100, "us_per_byte": us_per_byte} for k in range(count)]

    return {"version": 1, "workers": workers, "workers_per_node": of_node, "links": links("link", 0.6, between),
            "inside": {"links": links("inside", 0.2, inside)}}


def of_gains(plan, compressor, outer):
    """The plan, whose averages are now of what was gained: through `compressor`, if any, and with the outer optimizer."""
    for iteration in plan["period"] + plan.get("prologue", []):
        for op in iteration["ops"]:
            if compressor:
                op |= {"collective": "compressed", "compression": {"name": compressor}}
        for apply in iteration["applies"]:
            if apply["source"] == "averaged_parameter":
                apply["mode"] = "correct"
    if outer:
        plan["outer"] = outer
    return plan
