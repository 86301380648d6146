"""The measured model zoo: every architecture of the installed transformers, shrunken, on `tpu` against CPU PyTorch.

* :mod:`.catalog` - the architectures, from transformers' own auto mappings
* :mod:`.rules` - tables: how a family's config is shrunken and what its inputs are; :mod:`.shrink` applies them
* :mod:`.weights`, :mod:`.inputs` - random weights and inputs with fixed seeds
* :mod:`.criterion` - when results are equal
* :mod:`.checks` - one architecture: eager, compiled, generation, a backward step
* :mod:`.sweep` - all of them in worker processes, with a journal; :mod:`.report` writes docs/support/architectures
"""
