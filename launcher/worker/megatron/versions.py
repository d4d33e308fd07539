"""Differences between megatron-core 0.17, 0.18 and 0.19, asked of Megatron itself, so that no other module asks.

In 0.19 the model is a configuration (``GPTModelConfig``) and ``pretrain`` takes all of them in one; in 0.18 these and a
function that builds a chunk of the model; in 0.17 that function alone.
"""

import functools
import inspect
import signal
from collections.abc import Callable
from typing import Any

from torch import nn

from launcher.worker import STOP_SIGNALS, TrainingError

type Fill = Callable[[list[nn.Module]], list[nn.Module]]

_NOT_BUILT = {
    "mtp_num_layers": "--mtp-num-layers",
    "heterogeneous_layers_config_path": "--heterogeneous-layers-config-path",
    "experimental_attention_variant": "--experimental-attention-variant",
}
"""Arguments whose layers :func:`_gpt` does not build, by their names in Megatron's namespace."""


def parse() -> Any:
    """The arguments in ``sys.argv``, validated where ``pretrain`` does not do that itself."""
    from megatron.training import arguments

    if not _parses_before():
        return _with_vocabulary(arguments.parse_args())
    args = arguments.parse_and_validate_args()
    _listen(args)
    return args


def _with_vocabulary(args: Any) -> Any:
    """Megatron 0.17 counts one token more than ``--vocab-size`` names where no tokenizer is read, and pads that."""
    from megatron.core.tokenizers.utils.build_tokenizer import vocab_size_with_padding

    if args.tokenizer_type == "NullTokenizer" and args.padded_vocab_size is None:
        args.padded_vocab_size = vocab_size_with_padding(args.vocab_size, args)
    return args


def pretrain(args: Any, fill: Fill, provider: Any, forward_step: Callable[..., Any]) -> None:
    """Train by Megatron's own loop; ``fill`` gives the values to this rank's chunks, before they are wrapped."""
    from megatron.core.enums import ModelType
    from megatron.training import argument_utils, training

    kind = ModelType.encoder_or_decoder
    if hasattr(argument_utils, "gpt_config_from_args"):
        configuration = argument_utils.pretrain_cfg_container_from_args(args, _model(args))
        configuration.model.pre_wrap_hooks.append(fill)
        training.pretrain(configuration, provider, kind, forward_step)
        return

    def build(pre_process: bool = True, post_process: bool = True, **options: Any) -> nn.Module:
        return fill([_gpt(args, pre_process=pre_process, post_process=post_process, **options)])[0]

    if _parses_before():
        configuration = argument_utils.pretrain_cfg_container_from_args(args)
        training.pretrain(configuration, provider, build, kind, forward_step)
        return
    training.initialize_megatron = functools.partial(_initialized, training.initialize_megatron, args)
    training.pretrain(provider, build, kind, forward_step)


def _model(args: Any) -> Any:
    """The configuration of the model; 0.19.2 makes it without the random states that its own CUDA graphs ask for."""
    from megatron.training import argument_utils

    hybrid = getattr(args, "hybrid_layer_pattern", None) is not None
    make = argument_utils.hybrid_config_from_args if hybrid else argument_utils.gpt_config_from_args
    made = make(args)
    made.transformer.use_te_rng_tracker = args.te_rng_tracker
    return made


def _initialized(initialize: Callable[..., Any], args: Any, **options: Any) -> None:
    initialize(parsed_args=args, **options)
    _listen(args)


def _listen(args: Any) -> None:
    if args.exit_signal_handler:
        for number in STOP_SIGNALS:
            signal.signal(number, signal.getsignal(args.exit_signal))


def judge(args: Any) -> None:
    """Let Megatron judge the model of validated arguments, by its own errors or one about layers of later versions."""
    from megatron.training import argument_utils

    if hasattr(argument_utils, "gpt_config_from_args"):
        _model(args).finalize()
    else:
        _transformer(args)


def _transformer(args: Any) -> Any:
    from megatron.training import arguments

    for name, flag in _NOT_BUILT.items():
        if getattr(args, name, None) is not None:
            raise ValueError(f"{flag} is built with megatron-core 0.19, or by backend.path")
    return arguments.core_transformer_config_from_args(args)


def _parses_before() -> bool:
    from megatron.training import arguments

    return hasattr(arguments, "parse_and_validate_args")


def _gpt(
    args: Any, *, pre_process: bool, post_process: bool, vp_stage: int | None = None, config: Any = None, **groups: Any
) -> nn.Module:
    from megatron.core.models.gpt import GPTModel

    if getattr(args, "hybrid_layer_pattern", None) is not None:
        raise TrainingError("layers by letters (--hybrid-layer-pattern) are built with megatron-core 0.19")
    try:
        settings = config if config is not None else _transformer(args)
    except ValueError as error:
        raise TrainingError(str(error)) from error
    known = inspect.signature(GPTModel.__init__).parameters
    made: nn.Module = GPTModel(
        config=settings,
        transformer_layer_spec=_layers(args, settings, vp_stage),
        vocab_size=args.padded_vocab_size,
        max_sequence_length=args.max_position_embeddings,
        pre_process=pre_process,
        post_process=post_process,
        fp16_lm_cross_entropy=args.fp16_lm_cross_entropy,
        parallel_output=True,
        share_embeddings_and_output_weights=not args.untie_embeddings_and_output_weights,
        position_embedding_type=args.position_embedding_type,
        rotary_percent=args.rotary_percent,
        rotary_base=args.rotary_base,
        rope_scaling=args.use_rope_scaling,
        seq_len_interpolation_factor=args.rotary_seq_len_interpolation_factor,
        vp_stage=vp_stage,
        **{key: value for key, value in groups.items() if key in known},
    )
    return made


def _layers(args: Any, config: Any, vp_stage: int | None) -> Any:
    from megatron.core.models.gpt import gpt_layer_specs as specs
    from megatron.core.transformer.spec_utils import import_module

    fused = config.transformer_impl == "transformer_engine"
    if args.spec is not None:
        return import_module(args.spec)
    if config.num_moe_experts is not None:
        return specs.get_gpt_decoder_block_spec(
            config,
            use_transformer_engine=fused,
            normalization=config.normalization,
            qk_l2_norm=config.qk_l2_norm,
            vp_stage=vp_stage,
        )
    make = specs.get_gpt_layer_with_transformer_engine_spec if fused else specs.get_gpt_layer_local_spec
    options: dict[str, Any] = {} if fused else {"normalization": config.normalization}
    return make(
        qk_layernorm=config.qk_layernorm,
        multi_latent_attention=config.multi_latent_attention,
        qk_l2_norm=config.qk_l2_norm,
        **options,
    )
