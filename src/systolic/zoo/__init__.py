"""The measured model zoo: the architectures of the installed transformers, shrunken, on `tpu` against the CPU.

* :mod:`.catalog` - the architectures, from transformers' own auto mappings
* :mod:`.rules`, :mod:`.families` - tables of how configs are shrunken; :mod:`.shrink` applies them
* :mod:`.input_rules` - tables of inputs; :mod:`.inputs` applies them
* :mod:`.weights` - random weights of a realistic scale
* :mod:`.criterion` - when results are equal
* :mod:`.checks` - one architecture: eager, compiled, generation, a backward step
* :mod:`.sweep` - all of them in worker processes, with a journal
* :mod:`.report` - docs/support/architectures.md and .json
"""
