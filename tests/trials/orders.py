"""What users do in the wrong order, or leave out, with frameworks; each is a function of the rank."""

import torch
from torch import nn

import gradweave
from gradweave.subclasses import sessions
from integrations import environment, forget_accelerator


def model_and_optimizer():
    model = nn.Linear(3, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def accelerator_of(wrapped=True, **arguments):
    import gradweave.integrations.accelerate
    from accelerate import Accelerator

    forget_accelerator()
    accelerator = Accelerator(**{"cpu": True} | arguments)
    return gradweave.integrations.accelerate.wrap(accelerator) if wrapped else accelerator


def wrap_then_prepare(rank):
    accelerator_of().prepare(*gradweave.wrap(*model_and_optimizer()))


def prepare_then_wrap(rank):
    gradweave.wrap(*accelerator_of().prepare(*model_and_optimizer()))


def plain_prepare_then_wrap(rank):
    gradweave.wrap(*accelerator_of(wrapped=False).prepare(*model_and_optimizer()))


def wrap_then_plain_prepare(rank):
    model, _ = accelerator_of(wrapped=False).prepare(*gradweave.wrap(*model_and_optimizer()))
    model(torch.ones(1, 3))


def prepare_then_wrap_the_accelerator(rank):
    import gradweave.integrations.accelerate

    accelerator = accelerator_of(wrapped=False)
    accelerator.prepare(*model_and_optimizer())
    gradweave.integrations.accelerate.wrap(accelerator)


def accelerator_wrapped_twice(rank):
    import gradweave.integrations.accelerate

    gradweave.integrations.accelerate.wrap(accelerator_of())


def accelerator_of_one_process(rank):
    accelerator_of(cpu=False)


def accelerated_optimizer_with_a_loss_scale(rank):
    from accelerate.optimizer import AcceleratedOptimizer

    accelerator_of(wrapped=False)
    model, optimizer = model_and_optimizer()
    gradweave.wrap(model, AcceleratedOptimizer(optimizer, scaler=torch.amp.GradScaler("cpu")))


def model_without_its_optimizer(rank):
    model, _ = model_and_optimizer()
    accelerator_of().prepare(model)(torch.ones(1, 3))


def one_optimizer_for_two_models(rank):
    first, second = nn.Linear(3, 2), nn.Linear(2, 3)
    accelerator_of().prepare(first, second, torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1))


def fabric_of(strategy):
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=2, strategy=strategy, plugins=environment())
    fabric.launch()
    return fabric


def plain_setup_then_wrap(rank):
    gradweave.wrap(*fabric_of("ddp").setup(*model_and_optimizer()))


def wrap_then_setup(rank):
    from gradweave.integrations.lightning import FabricStrategy

    fabric_of(FabricStrategy()).setup(*gradweave.wrap(*model_and_optimizer()))


def setup_without_an_optimizer(rank):
    from gradweave.integrations.lightning import FabricStrategy

    fabric_of(FabricStrategy()).setup(model_and_optimizer()[0])(torch.ones(1, 3))


def wrap_in_configure_optimizers(rank):
    fit(lambda module: gradweave.wrap(module.net, torch.optim.SGD(module.parameters(), lr=0.1))[1])


def parts_in_manual_optimization(rank):
    fit(lambda module: torch.optim.SGD(module.parameters(), lr=0.1), manual=True)


def fit(configure, manual=False):
    import lightning
    from gradweave.integrations.lightning import Strategy

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = not manual
            self.net = nn.Linear(3, 2)

        def training_step(self, batch, number):
            loss = self.net(batch).sum()
            if manual:
                self.manual_backward(loss)
                self.optimizers().step()
            return loss

        def configure_optimizers(self):
            return configure(self)

    trainer = lightning.Trainer(accelerator="cpu", devices=2, strategy=Strategy(), plugins=environment(), max_steps=1,
                                logger=False, enable_checkpointing=False, enable_progress_bar=False,
                                enable_model_summary=False)
    trainer.fit(Module(), torch.utils.data.DataLoader(torch.ones(8, 3)))


ALREADY = "is wrapped already: leave out gradweave.wrap()"
INTEGRATION = "gradweave.integrations does it all"
REFUSED = {
    wrap_then_prepare: (ALREADY, "accelerator.prepare() does it"), prepare_then_wrap: ("is wrapped already", "leave out"),
    plain_prepare_then_wrap: ("communicates this model already", INTEGRATION),
    wrap_then_plain_prepare: ("was put around the model", INTEGRATION),
    prepare_then_wrap_the_accelerator: ("wrap it before prepare()",),
    accelerator_wrapped_twice: ("this Accelerator is wrapped already",),
    accelerator_of_one_process: ("use Accelerator(cpu=True)",),
    accelerated_optimizer_with_a_loss_scale: ("has stored step()", INTEGRATION),
    model_without_its_optimizer: ("give accelerator.prepare() its optimizer",),
    one_optimizer_for_two_models: ("give each model an optimizer of its own",),
    plain_setup_then_wrap: ("communicates this model already", INTEGRATION),
    wrap_then_setup: (ALREADY, "fabric.setup() does it"), setup_without_an_optimizer: ("give fabric.setup() its optimizer",),
    wrap_in_configure_optimizers: (ALREADY, "the strategy of the Trainer does it"),
    parts_in_manual_optimization: ("call the model itself",),
}


def all_refusals(rank):
    """{name of a case: the message}."""
    from torch import distributed

    messages = {}
    for case in REFUSED:
        distributed.barrier()  # the one before may have left only here
        try:
            case(rank)
        except (ValueError, RuntimeError) as error:
            messages[case.__name__] = str(error)
        for session in set(sessions.values()):
            session.close()
    return messages
