"""Loading a causal language model and its tokenizer from a hub id, a directory or a GGUF file."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.utils import logging

from outrider.config.model_location import ModelLocation
from outrider.engine.draft_vocabulary import DraftVocabulary
from outrider.engine.memory import GIB, free_bytes
from outrider.engine.options import ModelOptions
from outrider.engine.quantize import NONE, check_quantization, quantize, quantized_layers, weight_bytes
from outrider.engine.support import check_config, check_model_class
from outrider.engine.tokenizer_files import export_tokenizer
from outrider.errors import ModelLoadError
from outrider.protocol.items import ModelInfo
from outrider.text.vocabulary import fingerprint, tokens_by_id

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

Progress = Callable[[str], None]
"""Told what is being done now, in a few words."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to be run by an `Engine`, with what the rest of the system needs to know of it."""

    module: PreTrainedModel  # on `device`, in evaluation mode
    info: ModelInfo
    tokenizer_files: dict[str, bytes]  # tokenizer.json, chat.json
    device: torch.device
    dtype: torch.dtype
    draft_vocabulary: DraftVocabulary | None = None
    quantization: str = NONE  # of the linear layers' weights


def load_model(options: ModelOptions, progress: Progress | None = None) -> LoadedModel:
    """Load weights and tokenizer. Raises ModelLoadError, which says what is wrong and what to do about it."""
    report = progress or (lambda stage: None)
    device = _device(options.device)
    source = _Source.of(options)
    report(f"reading the configuration of {options.model}")
    config = source.load(AutoConfig)
    check_config(config)
    text_config = config.get_text_config()
    if options.layers is not None:
        _keep_layers(text_config, options.layers)
    dtype = _dtype(options.dtype, text_config, device)
    check_quantization(options.quantization, dtype, device)
    source.check_unquantized(config, options.quantization)
    outline = _outline(config, options)
    parameters = sum(parameter.numel() for parameter in outline.parameters())
    _check_memory(outline, options.quantization, dtype, device)
    report(f"loading {parameters / 1e6:,.0f} M parameters as {dtype} on {device}")
    module = _load_module(source, config, dtype)
    _place(module, source.name, options.quantization, device, report)
    tokenizer = source.load(AutoTokenizer)
    files = export_tokenizer(tokenizer)
    tokens = tokens_by_id(tokenizer.get_vocab())
    width = module.get_output_embeddings().weight.shape[0]
    trimmed = source.draft_vocabulary(width)
    info = ModelInfo(
        name=source.name,
        architecture=type(module).__name__,
        parameters=parameters,
        dtype=_describe_dtype(dtype, options.quantization),
        device=str(device),
        context_length=_context_length(text_config),
        vocabulary_fingerprint=fingerprint(tokens),
        vocabulary_size=min(len(tokens), trimmed.target_size if trimmed else width),
        eos_token_ids=_eos_token_ids(module, tokenizer),
        hardware=hardware_name(device),
    )
    return LoadedModel(module, info, files, device, dtype, trimmed, options.quantization)


@dataclass(frozen=True, slots=True)
class _Source:
    """Where a model's files are, as arguments to transformers' from_pretrained."""

    name: str
    location: str
    arguments: dict[str, Any]

    @classmethod
    def of(cls, options: ModelOptions) -> _Source:
        found = ModelLocation.of(options.model)
        if found.file is not None:
            return cls(found.name, found.place, {"gguf_file": found.file})
        arguments: dict[str, Any] = {"trust_remote_code": options.trust_remote_code}
        return cls(found.name, found.place, arguments | ({"revision": options.revision} if found.on_hub else {}))

    def draft_vocabulary(self, width: int) -> DraftVocabulary | None:
        """The trimmed vocabulary beside a draft's weights; `width` rows have to be its own."""
        directory = Path(self.location)
        found = DraftVocabulary.load(directory) if directory.is_dir() else None
        if found is not None and found.rows != width:
            raise ModelLoadError(f"{self.name}: the model has {width} rows, its draft vocabulary {found.rows}")
        return found

    def check_unquantized(self, config: Any, quantization: str) -> None:
        """Raise ModelLoadError if the weights are quantized in a way of their own. (GGUF's are unpacked.)"""
        own = "gguf_file" not in self.arguments and getattr(config, "quantization_config", None)
        if quantization != NONE and own:
            raise ModelLoadError(
                f"quantization is {quantization}, but the weights of {self.name} are quantized already; set it to none"
            )

    def load(self, kind: Any, **more: Any) -> Any:
        """`kind.from_pretrained`, with its failures in words of ours."""
        try:
            with _quiet():
                return kind.from_pretrained(self.location, **self.arguments, **more)
        except (torch.OutOfMemoryError, MemoryError) as error:
            raise ModelLoadError(f"{self.name} does not fit into the memory that is left: {error}") from error
        except Exception as error:  # whatever transformers, safetensors, gguf or the hub raise for a bad file
            if "trust_remote_code" in str(error):
                raise ModelLoadError(
                    f"{self.name} brings its own Python code; read it, then allow it with trust_remote_code"
                ) from error
            raise ModelLoadError(f"cannot load {self.name}: {error}") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers' progress bars and reports of left-out layers off the log; failures are raised anyway."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def hardware_name(device: torch.device) -> str:
    """The same for all processes that compute on the same GPU, or on the CPU of the same machine."""
    if device.type == "cuda":
        return f"GPU {torch.cuda.get_device_properties(device).uuid}"
    try:
        machine = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:  # not Linux
        machine = socket.gethostname()
    return f"CPU {machine}"


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ModelLoadError(f"there is no kind of device called {name!r}; use cpu, cuda or cuda:N") from error
    if device.type not in ("cpu", "cuda"):
        raise ModelLoadError(f"device {name!r} is not supported; use cpu, cuda or cuda:N")
    if device.type == "cuda":
        device = torch.device("cuda", device.index or 0)
        if device.index >= torch.cuda.device_count():
            raise ModelLoadError(f"device {name!r} does not exist: {torch.cuda.device_count()} CUDA devices are there")
    return device


def _dtype(name: str, config: Any, device: torch.device) -> torch.dtype:
    if name == "auto":
        name = "float32" if device.type == "cpu" else str(config.dtype or "bfloat16").removeprefix("torch.")
    dtype = DTYPES.get(name)
    if dtype is None:
        raise ModelLoadError(f"dtype {name!r} is not supported; use auto, float32, bfloat16 or float16")
    return dtype


def _keep_layers(config: Any, layers: int) -> None:
    """Cut the configuration down to the first `layers` decoder layers; the weights of the others are not loaded."""
    if not 0 < layers <= config.num_hidden_layers:
        raise ModelLoadError(f"layers is {layers}, but the model has {config.num_hidden_layers}")
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:layers]
    config.num_hidden_layers = layers


def _describe_dtype(dtype: torch.dtype, quantization: str) -> str:
    name = str(dtype).removeprefix("torch.")
    return name if quantization == NONE else f"{name} with {quantization} weights"


def _outline(config: Any, options: ModelOptions) -> PreTrainedModel:
    """A model of this configuration on the meta device; checks its class on the way. Allocates nothing."""
    try:
        with torch.device("meta"):
            module: PreTrainedModel = AutoModelForCausalLM.from_config(
                config, trust_remote_code=options.trust_remote_code
            )
    except Exception as error:  # a configuration can be wrong in as many ways as there are architectures
        raise ModelLoadError(f"no causal language model can be made of this configuration: {error}") from error
    check_model_class(module)
    return module


def _check_memory(outline: PreTrainedModel, quantization: str, dtype: torch.dtype, device: torch.device) -> None:
    """Raise ModelLoadError if the device has no room for the weights.

    A GPU gets them quantized, and one layer after another; a CPU's memory holds them in full before that.
    """
    small, full = weight_bytes(outline, quantization, dtype), weight_bytes(outline, NONE, dtype)
    needed, free = full if device.type == "cpu" else small, free_bytes(device)
    if needed > free:
        held = f"{dtype} with {quantization} weights" if needed < full else str(dtype)
        raise ModelLoadError(
            f"the weights need {needed / GIB:.1f} GiB as {held}, but {device} has {free / GIB:.1f} GiB left;"
            " use a smaller dtype or model"
        )


def _load_module(source: _Source, config: Any, dtype: torch.dtype) -> PreTrainedModel:
    more: dict[str, Any] = {"config": config, "dtype": dtype, "attn_implementation": "eager"}
    if "gguf_file" in source.arguments:
        more |= _dequantize()
    module, found = source.load(AutoModelForCausalLM, output_loading_info=True, **more)
    lacking = sorted({*found["missing_keys"], *(key for key, *_ in found["mismatched_keys"])})
    if lacking:  # transformers would go on with random ones
        raise ModelLoadError(f"{source.name} has no fitting weights for {lacking[0]} ({len(lacking)} such)")
    module.eval()
    module.requires_grad_(False)
    return module


def _place(module: PreTrainedModel, name: str, quantization: str, device: torch.device, report: Progress) -> None:
    """Bring the module to its device, quantized on the way there: the device never holds all of it in full."""
    try:
        if quantization != NONE:
            report(f"quantizing {len(quantized_layers(module, quantization))} linear layers as {quantization}")
            quantize(module, quantization, device)
        module.to(device)
    except torch.OutOfMemoryError as error:
        raise ModelLoadError(f"{name} does not fit into the memory of {device}: {error}") from error


def _dequantize() -> dict[str, Any]:
    """Newer releases of transformers keep GGUF weights packed unless told otherwise."""
    import transformers

    gguf_config = getattr(transformers, "GgufConfig", None)
    return {"quantization_config": gguf_config(dequantize=True)} if gguf_config else {}


def _context_length(config: Any) -> int:
    """The positions the model knows.

    Rotary embeddings that change their frequencies with the longest position in the batch would let one session
    change another's result, so with those a context ends where the change begins.
    """
    length = int(getattr(config, "max_position_embeddings", None) or 0)
    if length < 1:
        raise ModelLoadError(f"{config.model_type} does not say how many positions it knows (max_position_embeddings)")
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    if rope.get("rope_type", rope.get("type")) == "longrope":
        original = rope.get("original_max_position_embeddings") or getattr(
            config, "original_max_position_embeddings", None
        )
        length = min(length, int(original or length))
    return length


def _eos_token_ids(module: Any, tokenizer: Any) -> tuple[int, ...]:
    ids: set[int] = set()
    for found in (module.generation_config.eos_token_id, module.config.eos_token_id, tokenizer.eos_token_id):
        ids.update([found] if isinstance(found, int) else found or [])
    return tuple(sorted(ids))
