"""Parts of a parameter that an optimizer steps as parameters of their own."""

import torch

KEY = "slices"  # in the state of a parameter that is stepped in slices


class Slice:
    """Elements [begin, end) of a parameter in memory order: `view` is what the optimizer steps, `state` its state.

    What an optimizer keeps for each element stays in the parameter's own state, of which the slice has a view. What it keeps
    once, as Adam its count of steps, differs between slices that are stepped at different times: the parameter's state has
    {(begin, end): these} under KEY, and beside it those of the slice that was stepped last.
    """

    def __init__(self, parameter, begin, end):
        self.parameter, self.begin, self.end = parameter, begin, end
        self.view, self.state = self.of(parameter.detach()), {}

    def of(self, tensor):
        """The slice of a tensor that lies in memory as the parameter does."""
        flat = tensor.as_strided((tensor.numel(),), (1,), tensor.storage_offset())
        return flat[self.begin:self.end]

    @property
    def moved(self):
        """Whether the parameter has got other memory."""
        return self.view.data_ptr() != self.parameter.data_ptr() + self.begin * self.parameter.element_size()

    def take_state(self, states):
        """From the optimizer's `states`; none if the slice was never stepped."""
        whole = states.get(self.parameter, {})
        once = {name: value for name, value in whole.items() if name != KEY and not by_element(value, self.parameter)}
        if KEY in whole:
            once = whole[KEY].get((self.begin, self.end))
        if not whole or once is None:
            self.state = {}
            return
        self.state = _copy(once)
        for name, value in whole.items():
            if name != KEY and by_element(value, self.parameter):
                if value.stride() != self.parameter.stride():
                    whole[name] = value = torch.empty_like(self.parameter, dtype=value.dtype).copy_(value)
                self.state[name] = self.of(value)

    def give_state(self, states):
        """After a step."""
        if not self.state:
            return
        whole, once = states[self.parameter], {}
        whole.setdefault(KEY, {})[self.begin, self.end] = once
        for name, value in self.state.items():
            if not by_element(value, self.view):
                once[name] = value
                continue
            if name not in whole:  # what isn't stepped yet begins at zero: see prove_slices()
                whole[name] = torch.zeros_like(self.parameter, dtype=value.dtype)
            place = self.of(whole[name])
            if value.data_ptr() != place.data_ptr():
                self.state[name] = place.copy_(value)
        whole.update(_copy(once))  # torch's own optimizer steps that one in place


def by_element(value, tensor):
    """Whether a value of the state of `tensor` is one for each of its elements."""
    return isinstance(value, torch.Tensor) and value.shape == tensor.shape


def match(states, slices):
    """Makes `states` those of `slices`, {parameter: [(begin, end), ...]}: each takes what is kept once from the slice that it
    shares most elements with, or from the parameter, where that was whole. Other parameters are whole again."""
    for parameter, state in states.items():
        before = state.pop(KEY, None)
        if not state or parameter not in slices:
            continue
        once = {name: value for name, value in state.items() if not by_element(value, parameter)}
        # If no slice has the parameter's, torch's own optimizer has stepped it since.
        if before is None or not _holds(before, once):
            before = {(0, parameter.numel()): once}
        after = {}
        for begin, end in slices[parameter]:
            shared = {place: min(end, place[1]) - max(begin, place[0]) for place in before}
            place = max(shared, key=shared.get)
            if shared[place] > 0:
                after[begin, end] = _copy(before[place])
        if not _holds(after, once):
            state.update(_copy(next(iter(after.values()), {})))
        state[KEY] = after


def _copy(once):
    return {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in once.items()}


def _holds(parts, once):
    return any(each.keys() == once.keys() and all(
        torch.equal(value, once[name]) if isinstance(value, torch.Tensor) else value == once[name]
        for name, value in each.items()) for each in parts.values())
