"""A method of training with Gradweave: a scheme with options, as one text, e.g. 'delayed_averaging compressor=int4'. `moments`
is an option of gradweave.wrap(), the others are the scheme's."""

from dataclasses import dataclass

from gradweave import core

WRAP_OPTIONS = ("moments",)


@dataclass(frozen=True)
class Method:
    scheme: str
    options: tuple = ()  # of (name, value), both texts

    @property
    def name(self):
        return " ".join([self.scheme, *(f"{name}={value}" for name, value in self.options)])

    @property
    def plan_options(self):
        return {name: value for name, value in self.options if name not in WRAP_OPTIONS}

    @property
    def wrap_options(self):
        return {name: value for name, value in self.options if name in WRAP_OPTIONS}

    def named_after(self, plan):
        """Its name, with the scheme that it chose where it is one that chooses: 'auto (us_byte)'."""
        chosen = core.chosen(plan).get("scheme", self.scheme)
        return self.name if chosen in (self.scheme, "search") else f"{self.name} ({chosen})"

    def effect(self, schemes):
        """What it does to training, of `schemes` (as core.schemes() gives them): "exact", "local", ...; "compressed" where an
        option compresses what an exact scheme sends; what is allowed where the scheme chooses."""
        found = dict(self.options).get("allow") or next(
            scheme["consistency"] for scheme in schemes if scheme["name"] == self.scheme)
        compresses = dict(self.options).get("compressor", "none") != "none"
        return "compressed" if compresses and found == "exact" else found


def chosen_by(plan):
    """The method that a scheme which chooses, as auto, took for `plan`; None for other plans."""
    chosen = plan.get("finding", {}).get("chosen")
    return chosen and Method(chosen["scheme"], tuple(chosen.get("options", {}).items()))


def parse(text):
    """The method that a text names. Errors: ValueError for options without '='."""
    scheme, *options = text.split()
    for option in options:
        if "=" not in option:
            raise ValueError(f"method '{text}': write options as name=value, e.g. '{scheme} {option}=4'")
    return Method(scheme, tuple(tuple(option.split("=", 1)) for option in options))
