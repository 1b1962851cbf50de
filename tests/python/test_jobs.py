"""The example jobs: what they say of themselves, that they repeat bit for bit, and that they learn."""

import pytest
import torch

from gradweave import profiling
from gradweave.usage import UsageError
from gradweave.lab import fashion_mnist, jobs, lora, text, training, methods


@pytest.fixture
def sources(monkeypatch, tmp_path):
    """150 kB of Python, of which one file is a copy of another, and 150 kB of C++, as the sources that jobs read; a base of
    three iterations is kept in a folder of its own."""
    root = tmp_path / "torch"
    nn, optim, c10 = root / "nn/modules", root / "optim", root / "include/c10/core"
    for folder in (nn, optim, c10):
        folder.mkdir(parents=True)
    words = "".join(f"def clause_{number}(x):\n    return x + {number}\n" for number in range(2000)).encode()
    (nn / "linear.py").write_bytes(words)
    (nn / "again.py").write_bytes(words)
    (optim / "sgd.py").write_bytes(words[::-1])
    (c10 / "Scalar.h").write_text("".join(f"int clause_{number}() {{ return {number}; }}\n" for number in range(4500)))
    monkeypatch.setattr(text, "ROOT", root)
    monkeypatch.setattr(lora, "BASE_ITERATIONS", 3)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    lora.base.cache_clear()
    yield root
    lora.base.cache_clear()


def test_text_is_each_file_once_in_a_fixed_order(sources):
    words = (sources / "nn/modules/linear.py").read_bytes()
    assert bytes(text.corpus().tolist()) == words + words[::-1]


def test_torch_has_enough_text():
    for patterns in (text.PYTHON, text.CPP):
        assert len(text.load("train", patterns=patterns)) > 1e6 and len(text.load("test", patterns=patterns)) > 1e5


def test_held_out_text_is_no_training_text(sources):
    whole, train, test = text.corpus(), text.load("train"), text.load("test")
    assert len(train) + len(test) == len(whole) and len(test) >= text.BLOCK
    first = text.BLOCK * (text.HELD_OUT - 1)
    assert torch.equal(test[:text.BLOCK], whole[first:first + text.BLOCK]) and torch.equal(train[:first], whole[:first])


def test_adapters_change_nothing_at_first_and_alone_are_trained(sources):
    job = training.recipe_of("lora", "adamw", batch_size=4).make(lora.load("train"))
    base = text.GPT()
    base.load_state_dict(lora.base())
    inputs, _ = next(job.batches)
    assert torch.allclose(job.model(inputs), base(inputs), atol=1e-6)
    before = {name: parameter.clone() for name, parameter in job.model.named_parameters()}
    training.train(job, 2)
    for name, parameter in job.model.named_parameters():
        assert torch.equal(parameter, before[name]) != (".down." in name or ".up." in name), name


def test_a_base_is_trained_once_and_on_python_alone(sources, tmp_path, capsys):
    first = lora.base()
    (sources / "include/c10/core/more.h").write_text("int more();\n")
    lora.base.cache_clear()
    assert all(torch.equal(first[name], again) for name, again in lora.base().items())
    assert capsys.readouterr().err.count("training the GPT") == 1
    assert [path.suffix for path in (tmp_path / "gradweave").iterdir()] == [".pt"]


def test_too_little_text_is_told_with_the_remedy(monkeypatch, tmp_path):
    monkeypatch.setattr(text, "ROOT", tmp_path)
    with pytest.raises(text.TextMissing, match="install a torch that has its sources"):
        text.corpus()


def test_a_global_batch_of_text_is_the_same_for_every_number_of_ranks(sources):
    data = text.load("train")
    inputs, targets = next(text.batches(data, 8, 0, 1, seed=3))
    halves = [next(text.batches(data, 4, rank, 2, seed=3)) for rank in range(2)]
    assert torch.equal(inputs, torch.cat([half[0] for half in halves]))
    assert torch.equal(inputs[:, 1:], targets[:, :-1])


def test_evaluation_of_text_counts_every_byte_once():
    class Echo(torch.nn.Module):
        """Predicts the byte that it sees."""

        def forward(self, inputs):
            return torch.nn.functional.one_hot(inputs, 256).float()

    data = torch.zeros(text.CONTEXT * 3 + 1, dtype=torch.uint8)
    data[text.CONTEXT:text.CONTEXT + 2] = 1  # two changes, each predicted wrong
    accuracy, _ = text.evaluate(Echo(), data, batch_size=2)
    assert accuracy == pytest.approx(100 * (1 - 2 / (3 * text.CONTEXT)))


@pytest.mark.parametrize("name,megabytes,tensors",
                         [("gpt", 3.3, 52), ("resnet18", 2.8, 62), ("wide", 13.2, 24), ("small", 0.42, 8), ("vit", 0.82, 55),
                          ("lora", 0.262, 32)])
def test_networks_have_the_size_that_they_say(name, megabytes, tensors, sources):
    parameters = training.trained(jobs.KINDS[name].network())
    assert sum(4 * parameter.numel() for parameter in parameters) / 1e6 == pytest.approx(megabytes, rel=0.02)
    assert len(parameters) == tensors


def data_of(name):
    if name in ("gpt", "lora"):
        return jobs.KINDS[name].load("train")
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(10, (64,), generator=generator)
    return (labels.view(64, 1, 1) * 25 + torch.randint(5, (64, 28, 28), generator=generator)).to(torch.uint8), labels


@pytest.mark.parametrize("name, optimizer", [("gpt", "adamw"), ("gpt", "muon"), ("resnet18", "adamw"), ("vit", "adamw"),
                                             ("vit", "muon"), ("lora", "adamw"), ("lora", "muon")])
def test_training_repeats_bit_for_bit_and_learns(name, optimizer, sources):
    results = []
    for _ in range(2):
        job = training.recipe_of(name, optimizer, batch_size=4, seed=4).make(data_of(name))
        _, first = training.train(job, 1)
        training.train(job, 4)
        _, last = training.train(job, 2)
        assert last < first
        results.append(list(job.model.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(*results))


def test_a_job_of_two_optimizers_is_profiled(sources):
    job = training.recipe_of("gpt", "muon", batch_size=4).make(data_of("gpt"))
    workload, _ = profiling.profile(job, "gpt", iterations=2, warm_up=1)
    assert workload["layers"][0]["name"] == "bytes" and sum(layer["backward_us"] for layer in workload["layers"]) > 0


def test_muon_is_refused_where_it_has_no_matrix_to_step():
    with pytest.raises(UsageError, match="network 'resnet18' has one linear layer at most.*choose sgd or adamw"):
        training.recipe_of("resnet18", "muon").make(data_of("resnet18"))


def test_a_gpt_does_not_see_the_future():
    torch.manual_seed(0)
    model, inputs = text.GPT(width=32, depth=2), torch.randint(256, (2, text.CONTEXT))
    later = inputs.clone()
    later[:, 10:] = 7
    assert torch.allclose(model(inputs)[:, :10], model(later)[:, :10], atol=1e-6)


def test_images_are_judged_by_accuracy_and_loss():
    class Nothing(torch.nn.Module):
        def forward(self, inputs):
            return torch.zeros(len(inputs), 10)

    data = torch.zeros(4, 28, 28, dtype=torch.uint8), torch.tensor([0, 0, 1, 2], dtype=torch.uint8)
    accuracy, loss = fashion_mnist.evaluate(Nothing(), data)
    assert accuracy == 50 and loss == pytest.approx(torch.tensor(10.0).log().item())


def test_a_method_is_a_scheme_with_options():
    method = methods.parse("delayed_averaging compressor=int4 period=3")
    assert method.scheme == "delayed_averaging" and dict(method.options) == {"compressor": "int4", "period": "3"}
    assert methods.parse(method.name) == method
    with pytest.raises(ValueError, match="name=value"):
        methods.parse("ddp int4")
    schemes = [{"name": "ddp", "consistency": "exact"}]
    assert methods.parse("ddp").effect(schemes) == "exact"
    assert methods.parse("ddp compressor=fp16").effect(schemes) == "compressed"
    assert methods.parse("auto allow=exact+local").effect(schemes) == "exact+local"


def test_a_plan_says_which_method_was_chosen():
    chosen = {"scheme": "dear", "options": {"buffer_bytes": "8"}}
    assert methods.chosen_by({"scheme": "auto", "finding": {"chosen": chosen}}).name == "dear buffer_bytes=8"
    assert methods.chosen_by({"scheme": "dear"}) is None
