"""A small GPT-2 trained by the Trainer of transformers: by its DistributedDataParallel, or with --scheme by Gradweave.

    torchrun --nproc-per-node 2 examples/python/huggingface.py --scheme auto
"""

import argparse

import torch
from torch import distributed
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import gradweave.integrations.transformers


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scheme", help="(default: DistributedDataParallel)")
    parser.add_argument("--folder", default="out/huggingface", help="where checkpoints are kept (default: out/huggingface)")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint in the folder")
    given = parser.parse_args()
    torch.manual_seed(0)
    rows = [{"input_ids": row, "labels": row} for row in torch.randint(0, 100, (256, 16))]
    model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=64, n_head=2, vocab_size=100, n_positions=16, bos_token_id=0,
                                       eos_token_id=0))
    arguments = TrainingArguments(given.folder, use_cpu=True, ddp_backend="gloo", max_steps=20, save_steps=10,
                                  eval_strategy="steps", eval_steps=10, per_device_train_batch_size=4,
                                  gradient_accumulation_steps=2, report_to=[], disable_tqdm=True)
    trainer = Trainer(model, arguments, train_dataset=rows, eval_dataset=rows[:32])
    if given.scheme:
        trainer = gradweave.integrations.transformers.wrap(trainer, scheme=given.scheme)
    trainer.train(resume_from_checkpoint=given.resume)
    total = sum(parameter.double().sum().item() for parameter in model.parameters())
    print(f"sum of parameters {total!r}\n", end="", flush=True)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
