"""A small config of a model type, by the tables of :mod:`.rules` and :mod:`.families`."""

from __future__ import annotations

import re
from typing import Any

from . import families, rules

# At most so many layers, one of each kind, where a config lists the kinds of its layers.
MOST_LAYERS = 4
DEPTH_NAMES = (
    "num_hidden_layers",
    "n_layer",
    "n_layers",
    "num_layers",
    "depth",
    "encoder_layers",
    "decoder_layers",
)


class Shrinker:
    """Shrinks one config with its parts; special tokens get the same number in all of them."""

    def __init__(self) -> None:
        self.special: dict[str, int] = {}

    def config(self, cls, given: dict[str, Any] | None = None, like=None):
        """A small instance of a config class; ``given`` values win, then those in which ``like`` differs from the default.

        Raises what the class raises.
        """
        family = dict(families.FAMILIES.get(cls.model_type, {})) | (given or {})
        parts = {
            k: self._part(None, k, v) for k, v in family.items() if isinstance(v, dict) and "model_type" in v
        }
        plain = cls(**parts)
        default = plain if like is None else like
        fields = getattr(cls, "__dataclass_fields__", {})
        own = vars(plain)
        values = {
            n: v for n, v in vars(default).items()
            if n in fields and not _is_config(v) and n in own and type(v) is not dict and v != own[n]
        } | self._layers(default)  # fmt: skip
        for name, value in vars(default).items():
            if (
                name in family
                or name.startswith("_")
                or (isinstance(value, (list, tuple)) and name in values)
            ):
                continue
            if _is_config(value):
                values[name] = self.config(type(value), like=value)
            elif name in fields and fields[name].default is None and name not in values:
                continue  # derived from other attributes
            elif re.fullmatch(rules.CAPS[0][0], name) and value == vars(default).get("num_attention_heads"):
                values[name] = _cap("num_attention_heads", value)  # as many heads of keys as of queries
            else:
                small = self._small(name, value)
                if small is not value and small != value:
                    values[name] = small
        values = {k: v for k, v in values.items() if k in fields or k in cls.sub_configs}
        if (
            like is not None
            and like is not plain
            and vars(like).get("_out_indices") != own.get("_out_indices")
        ):
            deepest = values.get("num_hidden_layers", len(like.stage_names) - 1)
            values["out_indices"] = [min(i, deepest) for i in like.out_indices]
        return cls(**values | {k: self._part(default, k, v) for k, v in family.items()})

    def _part(self, default, name: str, value):
        """A value of the family's table; a dict for a sub-config holds that part's own exceptions."""
        if isinstance(value, dict) and "model_type" in value:
            from transformers import CONFIG_MAPPING

            small = self.config(
                CONFIG_MAPPING[value["model_type"]], {k: v for k, v in value.items() if k != "model_type"}
            )
            return small.to_dict()  # some composite configs take their parts in this form only
        part = vars(default).get(name)
        return self.config(type(part), value, part) if isinstance(value, dict) and _is_config(part) else value

    def _layers(self, default) -> dict[str, Any]:
        """Depth and the lists with an entry a layer, cut down to one layer of each kind and at least two."""
        depth = next((n for n in DEPTH_NAMES if isinstance(vars(default).get(n), int)), None)
        count = vars(default)[depth] if depth else 0
        lists = {
            n: list(v) for n, v in vars(default).items()
            if isinstance(v, (list, tuple)) and len(v) == count and count > 2 and all(isinstance(i, str) for i in v)
        }  # fmt: skip
        if not lists:
            return {}
        kinds = list(zip(*lists.values()))
        first = [i for i, kind in enumerate(kinds) if kind not in kinds[:i]][:MOST_LAYERS]
        chosen = sorted((first + [i for i in range(count) if i not in first])[: max(2, len(first))])
        return {depth: len(chosen)} | {n: [v[i] for i in chosen] for n, v in lists.items()}

    def _small(self, name: str, value):
        if name in rules.ALWAYS and value is not None:
            return rules.ALWAYS[name]
        if isinstance(value, bool):
            return value
        if re.fullmatch(rules.SPECIAL, name):
            return self._token(name, value)
        if isinstance(value, (list, tuple)) and value and all(type(v) is int for v in value):
            if re.fullmatch(rules.WIDTHS, name):
                return [v * rules.SMALLEST_WIDTH // min(value) for v in value]
            return value if "heads" in name else [_cap(name, v) for v in value]
        return _cap(name, value) if isinstance(value, int) else value

    def _token(self, name: str, value):
        if not isinstance(value, int) or value < rules.FIRST_SPECIAL:
            return value
        name = name.replace("_index", "_id")
        return self.special.setdefault(name, rules.FIRST_SPECIAL + len(self.special))


def _cap(name: str, value: int) -> int:
    for pattern, largest in rules.CAPS:
        if re.fullmatch(pattern, name):
            return min(value, largest)
    return value


def _is_config(value) -> bool:
    from transformers import PreTrainedConfig

    return isinstance(value, PreTrainedConfig)


def small_config(cls):
    """A small config of class ``cls``; raises what the class raises."""
    return Shrinker().config(cls)
