"""The example job's data: the right images, divided among ranks in a way that the rank count does not change."""

import gzip

import pytest
import torch

from gradweave.lab import fashion_mnist, training

needs_data = pytest.mark.skipif(not fashion_mnist.DATA_DIRECTORY.exists(), reason="apt-get install dataset-fashion-mnist")


def _write(directory, prefix, images, labels):
    count, height, width = images.shape
    header = bytes([0, 0, 8, 3]) + b"".join(n.to_bytes(4, "big") for n in (count, height, width))
    (directory / f"{prefix}-images-idx3-ubyte.gz").write_bytes(gzip.compress(header + bytes(images.flatten().tolist())))
    header = bytes([0, 0, 8, 1]) + len(labels).to_bytes(4, "big")
    (directory / f"{prefix}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(header + bytes(labels.tolist())))


@pytest.fixture
def made(tmp_path):
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (20, 28, 28), dtype=torch.uint8, generator=generator)
    labels = torch.arange(20, dtype=torch.uint8) % 10
    _write(tmp_path, "train", images, labels)
    return tmp_path, images, labels


def test_reads_what_was_written(made):
    directory, images, labels = made
    read_images, read_labels = fashion_mnist.load("train", directory)
    assert torch.equal(read_images, images) and torch.equal(read_labels, labels)


def test_a_missing_file_says_how_to_get_it(tmp_path):
    with pytest.raises(fashion_mnist.DatasetMissing, match="apt-get install dataset-fashion-mnist"):
        fashion_mnist.load("test", tmp_path)


@pytest.mark.parametrize("harm",
                         [lambda data: data[:-1], lambda data: data + b"x", lambda data: b"\1" + data[1:], lambda data: b""])
def test_a_damaged_file_is_named(made, harm):
    path = made[0] / "train-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(harm(gzip.decompress(path.read_bytes()))))
    with pytest.raises(fashion_mnist.DatasetMissing, match="train-images-idx3-ubyte.gz"):
        fashion_mnist.load("train", made[0])


def test_a_truncated_archive_is_an_error_with_a_remedy(made):
    path = made[0] / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(fashion_mnist.DatasetMissing, match="install"):
        fashion_mnist.load("train", made[0])


def test_the_global_batch_does_not_depend_on_the_number_of_ranks(made):
    _, images, labels = made
    whole = list(fashion_mnist.Shards(images, labels, 8, seed=3).epoch(5))
    halves = [list(fashion_mnist.Shards(images, labels, 4, rank, 2, seed=3).epoch(5)) for rank in range(2)]
    assert len(whole) == len(halves[0]) == 2
    for batch, first, second in zip(whole, *halves):
        assert torch.equal(batch[0], torch.cat([first[0], second[0]]))
        assert torch.equal(batch[1], torch.cat([first[1], second[1]]))


def test_seed_and_epoch_change_the_order(made):
    _, images, labels = made
    orders = {tuple(y.tolist()) for seed in (0, 1) for epoch in (0, 1)
              for _, y in [next(fashion_mnist.Shards(images, labels, 20, seed=seed).epoch(epoch))]}
    assert len(orders) == 4


@needs_data
def test_the_package_holds_the_real_images():
    images, labels = fashion_mnist.load("train")
    assert images.shape == (60000, 28, 28) and torch.bincount(labels).tolist() == [6000] * 10
    assert abs(fashion_mnist.normalised(images[:6000]).mean()) < 0.02
    assert len(fashion_mnist.load("test")[1]) == 10000


@pytest.mark.parametrize("network,megabytes", [(fashion_mnist.wide_network, 13.2), (fashion_mnist.small_network, 0.42)])
def test_networks_have_the_size_that_they_say(network, megabytes):
    size = sum(parameter.numel() * 4 for parameter in network().parameters()) / 1e6
    assert size == pytest.approx(megabytes, rel=0.01)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "muon"])
def test_training_repeats_bit_for_bit_and_learns(made, optimizer):
    _, images, labels = made
    recipe = training.recipe_of("small", optimizer, 1e-3, 10, seed=4)
    results = []
    for _ in range(2):
        job = recipe.make((images, labels))
        _, first = training.train(job, 2)
        _, last = training.train(job, 30)
        assert last < first
        results.append(list(job.model.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(*results))


def test_accuracy_counts_every_image_once():
    class Echo(torch.nn.Module):
        def forward(self, inputs):
            brightest = (inputs.flatten(1).amax(1) > 0).long()
            return torch.nn.functional.one_hot(brightest, 10).float()

    images = torch.zeros(7, 28, 28, dtype=torch.uint8)
    images[:3] = 255
    labels = torch.tensor([1, 1, 0, 0, 0, 0, 5], dtype=torch.uint8)
    assert fashion_mnist.evaluate(Echo(), (images, labels), batch_size=2)[0] == pytest.approx(100 * 5 / 7)
