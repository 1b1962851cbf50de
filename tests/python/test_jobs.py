"""The example jobs: what they say of themselves, that they repeat bit for bit, and that they learn."""

import pytest
import torch

from gradweave import profiling
from gradweave.usage import UsageError
from gradweave.lab import fashion_mnist, jobs, lora, text, training, methods


@pytest.fixture(scope="module")
def system(tmp_path_factory):
    """A /usr with 150 kB of text: a licence of which another file is a copy, and what a package says."""
    root = tmp_path_factory.mktemp("usr")
    licences, package = root / "share/common-licenses", root / "share/doc/package"
    for folder in (licences, package):
        folder.mkdir(parents=True)
    words = "".join(f"Everyone is permitted to copy clause {number} verbatim. " for number in range(2000)).encode()
    (licences / "GPL-3").write_bytes(words)
    (licences / "GPL").symlink_to("GPL-3")
    (package / "copyright").write_bytes(words[::-1])
    return root


def test_text_is_each_file_once_in_a_fixed_order(system):
    whole = text.corpus(system)
    words = (system / "share/common-licenses/GPL-3").read_bytes()
    assert bytes(whole.tolist()) == words + words[::-1]


def test_held_out_text_is_no_training_text(system):
    whole, train, test = text.corpus(system), text.load("train", system), text.load("test", system)
    assert len(train) + len(test) == len(whole) and len(test) >= text.BLOCK
    first = text.BLOCK * (text.HELD_OUT - 1)
    assert torch.equal(test[:text.BLOCK], whole[first:first + text.BLOCK]) and torch.equal(train[:first], whole[:first])


@pytest.fixture
def perl(system, monkeypatch, tmp_path):
    """That system with 150 kB of Perl, as the one that jobs read; a base of three iterations is kept in a folder of its
    own."""
    folder = system / "lib/x86_64-linux-gnu/perl-base"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "strict.pm").write_text("".join(f"sub clause_{number} {{ return {number}; }}\n" for number in range(4500)))
    monkeypatch.setattr(text, "ROOT", system)
    monkeypatch.setattr(lora, "BASE_ITERATIONS", 3)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    lora.base.cache_clear()
    yield system
    lora.base.cache_clear()


def test_adapters_change_nothing_at_first_and_alone_are_trained(perl):
    job = training.recipe_of("lora", "adamw", batch_size=4).make(lora.load("train"))
    base = text.GPT()
    base.load_state_dict(lora.base())
    inputs, _ = next(job.batches)
    assert torch.allclose(job.model(inputs), base(inputs), atol=1e-6)
    before = {name: parameter.clone() for name, parameter in job.model.named_parameters()}
    training.train(job, 2)
    for name, parameter in job.model.named_parameters():
        assert torch.equal(parameter, before[name]) != (".down." in name or ".up." in name), name


def test_a_base_is_trained_once_and_on_prose_alone(perl, tmp_path, capsys):
    first = lora.base()
    (perl / "lib/x86_64-linux-gnu/perl-base/more.pm").write_text("1;\n")
    lora.base.cache_clear()
    assert all(torch.equal(first[name], again) for name, again in lora.base().items())
    assert capsys.readouterr().err.count("training the GPT") == 1
    assert [path.suffix for path in (tmp_path / "gradweave").iterdir()] == [".pt"]


def test_too_little_text_is_told_with_the_remedy(tmp_path):
    with pytest.raises(text.TextMissing, match="apt-get install --reinstall base-files"):
        text.corpus(tmp_path)


def test_a_global_batch_of_text_is_the_same_for_every_number_of_ranks(system):
    data = text.load("train", system)
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
def test_networks_have_the_size_that_they_say(name, megabytes, tensors, perl):
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
def test_training_repeats_bit_for_bit_and_learns(name, optimizer, perl):
    results = []
    for _ in range(2):
        job = training.recipe_of(name, optimizer, batch_size=4, seed=4).make(data_of(name))
        _, first = training.train(job, 1)
        training.train(job, 4)
        _, last = training.train(job, 2)
        assert last < first
        results.append(list(job.model.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(*results))


def test_a_job_of_two_optimizers_is_profiled(perl):
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
