"""Parameters that are read between step() and the next forward, while a plan has their update on its way: whoever reads them,
by whichever module, gets them updated."""


class Parameters(dict):
    """What a module keeps its parameters in, where a plan steps some of them in the forward: they are handed out through
    `read(layer)`. Copies of the module, and saved ones, get a dictionary."""

    def __init__(self, plain, layers, read):
        super().__init__(plain)
        self._layers, self._read = layers, read  # {name: layer in whose forward it is stepped}

    def _updated(self, name):
        layer = self._layers.get(name)
        if layer is not None:
            self._read(layer)

    def __getitem__(self, name):
        self._updated(name)
        return super().__getitem__(name)

    def get(self, name, default=None):
        self._updated(name)
        return super().get(name, default)

    def items(self):
        for name in self:
            yield name, self[name]

    def values(self):
        for name in self:
            yield self[name]

    def __reduce_ex__(self, protocol):
        return dict, (dict(self.items()),)


def watch(model, owners, layer_of, read):
    """From now on `read(layer)` comes before a parameter of `layer_of`, {parameter: layer}, is read by a module of `model`.
    `owners`: as of Scope, since parameters that are gathered have others in their places for a while."""
    unwatch(model)
    layers = {}
    for module, name, parameter in owners:
        if parameter in layer_of:
            layers.setdefault(module, {})[name] = layer_of[parameter]
    for module, names in layers.items():
        vars(module)["_parameters"] = Parameters(module._parameters, names, read)


def unwatch(model):
    for module in model.modules():
        if isinstance(module._parameters, Parameters):
            vars(module)["_parameters"] = dict.copy(module._parameters)
