"""Example training jobs: each is a model, its data and a loss; the training loop is the same for all of them."""
