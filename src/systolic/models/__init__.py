"""Models that Systolic fetches and converts by itself: `small_model` is the one `systolic serve` starts
with when it is given none, `gguf_llama` the conversion it needs."""
