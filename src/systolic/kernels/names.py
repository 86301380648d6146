"""Names that the command line needs before anything heavy is imported."""

# Kernels with a Pallas form, in the order of reports.
NAMES = ("paged_attention", "quantized_matmul", "grouped_matmul", "flash_attention", "sampling", "delta_step",
         "delta_prefill", "ssd_step", "ssd_prefill", "causal_conv1d", "decode_stack", "mla_attention")  # fmt: skip
GENERATION_NAMES = ("v5e", "v5p", "v6e", "tpu7x")
