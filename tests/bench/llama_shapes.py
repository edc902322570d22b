"""config.json of the benchmarks' models."""


def lab_config(vocab_size):
    """The lab LLaMA: 5.97M parameters in blocks, 24.4M with a vocabulary of 32000."""
    return dict(architectures=["LlamaForCausalLM"], model_type="llama", vocab_size=vocab_size, hidden_size=288, intermediate_size=768,
                num_hidden_layers=6, num_attention_heads=6, num_key_value_heads=6, head_dim=48, max_position_embeddings=1024,
                rms_norm_eps=1e-5, rope_theta=10000.0, tie_word_embeddings=False, hidden_act="silu", attention_bias=False,
                mlp_bias=False, torch_dtype="float32", bos_token_id=1, eos_token_id=2, initializer_range=0.02)


def llama_3_1_8b_config(num_layers):
    return dict(architectures=["LlamaForCausalLM"], model_type="llama", vocab_size=128256, hidden_size=4096, intermediate_size=14336,
                num_hidden_layers=num_layers, num_attention_heads=32, num_key_value_heads=8, head_dim=128,
                max_position_embeddings=131072, rms_norm_eps=1e-5, rope_theta=500000.0, tie_word_embeddings=False, hidden_act="silu",
                attention_bias=False, mlp_bias=False, torch_dtype="bfloat16", bos_token_id=128000, eos_token_id=128001,
                initializer_range=0.02, rope_scaling=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                                          original_max_position_embeddings=8192))


def model_flops_per_token(config, length, lora=False):
    """Forward and backward of one token in sequences of `length`: matrix products, and causal attention over half of the length.

    Recomputation and the embedding's look-up count nothing. With `lora` the weights' gradients are left out; the adapters are small.
    """
    head, hidden = config["head_dim"], config["hidden_size"]
    attention = hidden * head * (2 * config["num_attention_heads"] + 2 * config["num_key_value_heads"])
    block = attention + 3 * hidden * config["intermediate_size"]
    products = config["num_hidden_layers"] * block + config["vocab_size"] * hidden
    scores = config["num_hidden_layers"] * length * config["num_attention_heads"] * head
    return (4 if lora else 6) * products + 6 * scores
