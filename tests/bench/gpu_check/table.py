"""The table of measurements: the same for a GPU and for a rehearsal on the CPU; shapes, limits and aims differ."""
import dataclasses
from dataclasses import dataclass, field

from llama_shapes import lab_config, llama_3_1_8b_config

from .measurements import (BestTrainerRun, Fault, Generation, HfRun, KernelBench, LoadAndSave, PythonTests, Sanitizer, TestProgram,
                           TrainerRun)

PURE_BF16 = dict(precision="bf16", masters="none", moment_dtype="bf16", gradient_dtype="bf16")
SPLIT_MASTERS = dict(precision="bf16", masters="split")
LORA = dict(rank=16, alpha=32.0, dropout=0.0,
            target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"])
# Tests of the features of a configuration: each pattern must match a test, and all matching tests must pass.
TESTED_BY = {
    "pure bf16": ("TrainerGpu.PureBf16*", "TrainerGpu.NarrowEmbeddingGradient*"),
    "recompute": ("TrainerGpu.Recompute*",),
    "split masters": ("TrainerGpu.SplitMasters*",),
    "micro-batches": ("TrainerGpu.MicroBatches*",),
    "long sequences": ("TrainerGpu.LongSequence*",),
    "document mask": ("TrainerGpu.DocumentMask*",),
    "lora": ("TrainerGpu.Lora*",),
    "offload": ("TrainerGpu.Offload*",),
    "generate": ("TrainerGpu.Generate*",),
}


@dataclass(frozen=True)
class Profile:
    name: str
    device: str
    limits: dict  # seconds of each stage
    shapes: dict
    length: int
    long_length: int
    documents: tuple  # of a sequence: few, many
    sequences: int
    lab_length: int
    warm_up: int
    steps: int
    test_programs: tuple  # (program, its tests, seconds)
    sanitized: tuple  # program, its tests
    python_tests: tuple  # files, expression
    aims: dict = field(default_factory=dict)
    covered_by: dict = field(default_factory=dict)  # feature: pattern of its tests
    # Relative. A random model's mean loss is insensitive: entirely wrong hidden states change it by only 2e-3, bf16 rounding by
    # about 2e-5 (thousands of tokens). On a GPU float32 attention multiplies in TF32.
    first_loss_tolerance: dict = field(default_factory=lambda: dict(fp32=5e-5, bf16=3e-4))
    compiler: str = "inductor"  # torch.compile's backend
    most_seconds: float = 1e9  # upper limit of the estimates
    prompt: int = 64
    new_tokens: int = 128

    @property
    def is_rehearsal(self):
        return self.name == "rehearsal"


GPU = Profile(
    name="gpu", device="cuda", limits={1: 360, 2: 360, 3: 300},
    shapes={"large": dict(title="Llama-3.1-8B", config=llama_3_1_8b_config(32), dtype="bf16"),
            "lab": dict(title="lab LLaMA", config=lab_config(32000), dtype="fp32")},
    length=2048, long_length=8192, documents=(15, 60), sequences=64, lab_length=256, warm_up=2, steps=4,
    test_programs=(("kernels_gpu_test", "*", 30), ("trainer_gpu_test", "*", 60)),
    sanitized=("kernels_gpu_test", "*"),
    python_tests=(("test_hf_parity.py", "test_lora.py", "test_documents.py", "test_storage.py", "test_job_state.py", "test_generate.py"), ""),
    # docs/benchmarks.md
    aims={"pure_bf16_batch_4": {"tokens_per_second": ("at_least", 12000)},
          "hf_eager": {"ratio_of_ours": ("at_least", 1.15), "memory_of_ours": ("at_most", 1.0)},
          "load_and_save": {"load_gb_per_second": ("at_least", 2.0), "save_gb_per_second": ("at_least", 2.0)}},
    covered_by={**TESTED_BY, "gradients": ("LlamaOnGpu.GradientsOfAWholeModel*",), "deterministic": ("LlamaOnGpu.DeterministicMode*",)})

TINY = dict(llama_3_1_8b_config(2), vocab_size=512, hidden_size=64, intermediate_size=128, num_attention_heads=4, num_key_value_heads=2,
            head_dim=16, max_position_embeddings=512)
REHEARSAL = dataclasses.replace(
    GPU, name="rehearsal", device="cpu", limits={1: 300, 2: 300, 3: 300}, most_seconds=30,
    compiler="aot_eager", first_loss_tolerance=dict(fp32=1e-5, bf16=3e-4),
    shapes={"large": dict(title="tiny LLaMA", config=TINY, dtype="bf16"),
            "lab": dict(title="tiny lab LLaMA", config=dict(TINY, vocab_size=256, torch_dtype="float32"), dtype="fp32")},
    length=64, long_length=256, documents=(3, 6), sequences=48, lab_length=32, warm_up=1, steps=2, prompt=8, new_tokens=8,
    test_programs=(("kernels_test", "OptimizerKernels.*", 5), ("llama_test", "Model.GradientsEqual*:Threads.DoNotChange*", 5),
                   ("trainer_cases_test", "TrainerGpu.*", 20)),
    sanitized=("kernels_test", "OptimizerKernels.*"), python_tests=(("test_program.py",), "version or usage_errors_are_named"),
    aims={"pure_bf16_batch_4": {"tokens_per_second": ("at_least", 1)},
          "hf_eager": {"ratio_of_ours": ("at_least", 1e-3), "memory_of_ours": ("at_most", 1e3)},
          "load_and_save": {"load_gb_per_second": ("at_least", 1e-9), "save_gb_per_second": ("at_least", 1e-9)}},
    # Tests of features that TrainerGpu does not cover on a CPU.
    covered_by={**TESTED_BY, "gradients": ("Model.GradientsEqual*",), "deterministic": ("Threads.DoNotChange*",)})
PROFILES = {profile.name: profile for profile in (GPU, REHEARSAL)}


def tests_and_kernels(profile):
    rows = [TestProgram(f"tests_{program}", 1, seconds, program=program, tests=tests, settings=dict(tests=tests))
            for program, tests, seconds in profile.test_programs]
    return rows + [KernelBench("kernels", 1, 20)]


def large(profile, name, stage, seconds, features, training, recompute="none", length=0, documents=1, batch_size=4, micro_batch_size=0,
          steps=0, kind=TrainerRun, **more):
    """A run of the large model, with settings that identify it."""
    length = length or profile.length
    micro_batches = batch_size // (micro_batch_size or batch_size)
    settings = dict(side="xffl", model=profile.shapes["large"]["title"], batch_size=batch_size, micro_batches=micro_batches, length=length,
                    documents=documents, recompute=recompute,
                    **{key: value for key, value in training.items() if key not in ("lora", "recompute")})
    if "lora" in training:
        settings["lora_rank"] = training["lora"]["rank"]
    return kind(name, stage, seconds, settings=settings, features=("gradients", *features), length=length, documents=documents,
                sequences=max(8, profile.sequences * profile.length // length), batch_size=batch_size, micro_batch_size=micro_batch_size,
                training=dict(training, recompute=recompute), warm_up=profile.warm_up, steps=steps or profile.steps, **more)


def pure_bf16(profile, batch_size, recompute, stage, optional=False):
    name = f"pure_bf16_batch_{batch_size}" + ("" if recompute == "none" else f"_{recompute}")
    features = ("pure bf16",) + (("recompute",) if recompute != "none" else ())
    return large(profile, name, stage, 20, features, PURE_BF16, recompute, batch_size=batch_size, optional=optional)


def first_run(profile):
    return pure_bf16(profile, 4, "none", 1)


def checks_of_memory_and_parity(profile):
    program, tests = profile.sanitized
    files, expression = profile.python_tests
    return [Sanitizer(tool, 1, 40, program=program, tool=tool, tests=tests, optional=True, settings=dict(program=program, tests=tests))
            for tool in ("memcheck", "racecheck")] + [
            PythonTests("python_tests", 1, 80, files=files, expression=expression, optional=True, settings=dict(files=list(files)))]


def settings_of_ours(profile):
    """Stage 2, the most important measurements first. The batch of 8 without recomputation may not fit."""
    few, many = profile.documents
    return [
        pure_bf16(profile, 4, "cheap", 2), pure_bf16(profile, 8, "cheap", 2), pure_bf16(profile, 2, "none", 2),
        pure_bf16(profile, 8, "none", 2, optional=True), pure_bf16(profile, 2, "cheap", 2),
        large(profile, "split_masters", 2, 20, ("split masters", "recompute"), dict(SPLIT_MASTERS, gradient_dtype="bf16"), "cheap",
              batch_size=2),
        large(profile, "split_masters_8_micro_batches", 2, 30, ("split masters", "recompute", "micro-batches"), SPLIT_MASTERS, "full",
              batch_size=8, micro_batch_size=1, steps=min(3, profile.steps)),
        large(profile, "long_sequences", 2, 20, ("pure bf16", "recompute", "long sequences"), PURE_BF16, "cheap", length=profile.long_length, batch_size=1),
        large(profile, "documents_few", 2, 20, ("pure bf16", "document mask"), PURE_BF16, documents=few),
        large(profile, "documents_many", 2, 20, ("pure bf16", "document mask"), PURE_BF16, documents=many),
        large(profile, "lora", 2, 20, ("lora",), dict(precision="bf16", lora=LORA)),
        Generation("generate", 2, 15, features=("generate",), prompt=profile.prompt, new_tokens=profile.new_tokens,
                   settings=dict(side="xffl", model=profile.shapes["large"]["title"], prompt=profile.prompt,
                                 new_tokens=profile.new_tokens)),
        large(profile, "offload", 2, 45, ("pure bf16", "offload"), dict(PURE_BF16, offload="optimizer"), steps=min(2, profile.steps)),
    ]


def lab(profile, name, precision, deterministic=False):
    return TrainerRun(name, 3, 8, model="lab", batch_size=8, length=profile.lab_length, sequences=256, warm_up=3,
                      steps=12 if not profile.is_rehearsal else 3, learning_rate=1e-3,
                      training=dict(precision=precision, deterministic=deterministic),
                      features=("gradients",) + (("deterministic",) if deterministic else ()),
                      settings=dict(side="xffl", model=profile.shapes["lab"]["title"], batch_size=8, micro_batches=1,
                                    length=profile.lab_length, documents=1, recompute="none", precision=precision,
                                    deterministic=deterministic))


def beside_hugging_face(profile):
    among = tuple([first_run(profile)] + [row for row in settings_of_ours(profile) if row.name.startswith("pure_bf16")])
    common = dict(length=profile.length, sequences=profile.sequences, warm_up=profile.warm_up, steps=profile.steps)
    title = profile.shapes["large"]["title"]

    def hf(name, seconds, compile, **more):
        return HfRun(name, 3, seconds, settings=dict(side="hf", model=title, precision="pure bf16", length=profile.length, compile=compile),
                     compile=compile, against="best_of_ours", **common, **more)

    lab_title = profile.shapes["lab"]["title"]
    return [
        large(profile, "best_of_ours", 3, 25, ("pure bf16",), PURE_BF16, kind=BestTrainerRun, among=among),
        hf("hf_eager", 50, "none", batches=(2, 4, 8)),
        hf("hf_compiled_layers", 60, "layers", batches=(2, 4, 8), batch_of="hf_eager"),
        lab(profile, "lab_fp32", "fp32"), lab(profile, "lab_bf16", "bf16"), lab(profile, "lab_bf16_deterministic", "bf16", True),
        HfRun("hf_lab", 3, 20, model="lab", modes=("fp32", "bf16 autocast", "pure bf16"), batches=(8,), length=profile.lab_length,
              sequences=256, warm_up=3, steps=12 if not profile.is_rehearsal else 3, learning_rate=1e-3, against="lab_bf16",
              settings=dict(side="hf", model=lab_title, length=profile.lab_length, compile="none")),
        LoadAndSave("load_and_save", 3, 20, settings=dict(side="xffl", model=title)),
        LoadAndSave("hf_load_and_save", 3, 25, side="hf", settings=dict(side="hf", model=title)),
        hf("hf_compiled_model", 75, "model", batches=(2, 4, 8), batch_of="hf_eager", optional=True),
    ]


def measurements(profile, faults=(), fault_stage=1):
    rows = (tests_and_kernels(profile) + [first_run(profile)] + checks_of_memory_and_parity(profile) + settings_of_ours(profile) +
            beside_hugging_face(profile))
    rows = [dataclasses.replace(row, aims=profile.aims.get(row.name, {}), seconds=min(row.seconds, profile.most_seconds)) for row in rows]
    return rows + [Fault(f"fault_{kind}", fault_stage, 1, kind=kind,
                         aims={"tokens_per_second": ("at_least", 2)} if kind == "miss" else {}) for kind in faults]
