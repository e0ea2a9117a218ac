"""The sections of `_internal_config`, its `init_args` and its `peft_args`."""

from __future__ import annotations

from art.remote.config.keys import acts, noted, refused

TRAINER_MEMORY = (
    "the trainer plans its memory itself; LocalBackend(server_options={'trainer': ...}) tells it more"
)
PRECISION = (
    "weights are computed in their own precision, or in the `dtype` of the server's trainer and "
    "engine options"
)
DEVICES = "engine and trainer choose devices by the server's own options, LocalBackend(server_options=...)"

SECTIONS = {
    **acts(
        init_args="How the base model is loaded, below.",
        engine_args="How it is served, below.",
        peft_args="The adapter's shape, below.",
        trainer_args="The optimizer, below.",
        tinker_args="What Tinker's service is told of a model, below.",
        tinker_native_args="The same keys as tinker_args.",
        chat_template="A Jinja template that writes the model's conversations instead of its own.",
        chat_template_path="A file on the client's machine that holds such a template.",
        chat_template_kwargs=(
            "What the chat template is told, such as `enable_thinking`; names that the model's format does "
            "not know are refused. A request's own `chat_template_kwargs` win."
        ),
        special_tokens_in_text=(
            "Whether a special token that a message spells is `'text'`, the default, or one: `'parse'`."
        ),
    ),
    **noted(DEVICES, "trainer_gpu_ids inference_gpu_ids"),
    **noted(
        "an adapter is served beside its base, which computes what merged weights do",
        "rollout_weights_mode",
        neutral=["lora"],
    ),
    **noted(
        "every architecture is checked: engine and trainer must agree at the start", "allow_unvalidated_arch"
    ),
    **noted(
        "engine and trainer are processes of their own always",
        "_decouple_vllm_and_unsloth use_decoupled_unsloth",
    ),
    **noted(
        "training takes the ids that were sampled and renders nothing again",
        "chat_template_tool_schema_format",
        neutral=["default"],
    ),
    **refused(
        "a message's content is given to the template as text. Leave it out.",
        "chat_template_content_format",
        neutral=["auto", "string"],
    ),
    **refused(
        "torchtune is not used. To train all weights use init_args={'full_finetuning': True}.",
        "torchtune_args",
        neutral=[{}],
    ),
}

INIT_ARGS = {
    **acts(
        max_seq_length=(
            "Prompt and completion have at most so many tokens, where the model itself allows more."
        ),
        full_finetuning="True: all weights are trained, and there is no adapter.",
        random_state="Seeds the adapter and the trainer, unless peft_args do.",
    ),
    **noted(
        "the base model is TrainableModel(base_model=...), and training goes on from its newest step",
        "model_name",
    ),
    **noted(PRECISION, "dtype load_in_4bit load_in_8bit load_in_16bit float8_kv_cache", neutral=[False]),
    **noted("log in to the hub with the variable HF_TOKEN, where the server runs", "token"),
    **noted(DEVICES, "device_map"),
    **noted("the tokenizer is taken as it is", "fix_tokenizer"),
    **noted(TRAINER_MEMORY, "use_gradient_checkpointing", neutral=[False]),
    **noted("names are exact always", "use_exact_model_name"),
    **noted(
        "sampling has an engine process of its own",
        "fast_inference gpu_memory_utilization disable_log_stats enable_prefix_caching use_async",
        neutral=[False],
    ),
    **noted("the engine takes adapters of any rank", "max_lora_rank"),
    **refused("positions are those of the model's configuration. Change its config.json.", "rope_scaling"),
    **refused(
        "code of a model's folder is never run. Use a model that transformers knows.",
        "trust_remote_code",
        neutral=[False],
    ),
    **refused(
        "the vocabulary is that of the base model. Resize it and save a model of your own.",
        "resize_model_vocab",
    ),
    **refused("download that revision and give its folder as base_model.", "revision", neutral=["main"]),
}

TINKER_ARGS = {
    **noted("the server finds the renderer of a base model by itself", "renderer_name"),
    **refused(
        "Tinker's service is no backend of this package. Use peft_args for the adapter's shape and seed.",
        "training_client_args",
        neutral=[{}],
    ),
}
"""`tinker_args` and `tinker_native_args`."""

_NEW_ADAPTER = (
    "it is not built: an adapter is low-rank matrices on linear layers of the decoder. Leave it out."
)

PEFT_ARGS = {
    **acts(
        r="The adapter's rank; 16 unless given.",
        lora_alpha="Its scale is alpha / r; alpha is 32 unless given.",
        lora_dropout="Dropout before the adapter while it is trained.",
        target_modules="Names of linear layers, or 'all-linear', the default.",
        use_rslora="The scale is alpha / sqrt(r).",
        random_state="Seeds the adapter's first weights and the trainer.",
        max_seq_length="As in init_args; the smallest one counts.",
    ),
    **refused("biases are not trained.", "bias", neutral=["none"]),
    **refused(_NEW_ADAPTER, "layers_to_transform layers_pattern modules_to_save", neutral=[[], ""]),
    **refused(
        "A is drawn as PEFT does by default, B is zero. Leave it out.", "init_lora_weights", neutral=[True]
    ),
    **refused(_NEW_ADAPTER, "loftq_config", neutral=[{}]),
    **noted(TRAINER_MEMORY, "use_gradient_checkpointing", neutral=[False]),
    **noted("checkpoints are written into the model's folder at once", "temporary_location"),
}
