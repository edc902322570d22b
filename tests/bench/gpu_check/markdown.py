"""Result records as the Markdown tables of docs/developer/gpu_check.md."""

PHASES = ("forward", "head", "backward", "norm", "adamw")
NOT_THERE = "-"


def newest(records):
    """The newest record of each name, in the order of first appearance; a record with figures is preferred."""
    found = {}
    for record in records:
        earlier = found.get(record["name"])
        if earlier is None or record["status"] in ("passed", "missed", "failed") or earlier["status"] not in ("passed", "missed"):
            found[record["name"]] = record
    return found


def number(value, digits=3):
    if value is None:
        return NOT_THERE
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.{digits}g}"


def percent(value):
    return NOT_THERE if value is None else f"{100 * value:.1f} %"


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(str(cell).replace("|", "/") for cell in row) + " |" for row in rows])


def verdict(record):
    missed = [name for name, aim in record.get("aims", {}).items() if aim["met"] is False]
    text = record["status"].replace("_", " ")
    if missed:
        text += ": " + ", ".join(f"{name} {number(record['aims'][name]['found'])}" for name in missed)
    if record["status"] not in ("passed", "missed") and record.get("reason"):
        text += f": {record['reason'][:90]}"
    if record.get("untested"):
        text += " (untested)"
    return text


def described(record):
    """A run's settings as text."""
    settings, figures = record["settings"], record["figures"]
    batch = figures.get("batch_size", settings.get("batch_size"))
    words = [settings.get("model", "")]
    precision = figures.get("mode", settings.get("precision", ""))
    words.append({"none": "pure bf16", "split": "split masters"}.get(settings.get("masters"), precision))
    words.append(f"batch {batch} x {settings.get('length')}" if batch else f"length {settings.get('length')}")
    if settings.get("micro_batches", 1) > 1:
        words.append(f"{settings['micro_batches']} micro-batches")
    recompute = figures.get("recompute", settings.get("recompute", "none"))
    if recompute != "none":
        words.append(f"recompute {recompute}")
    if settings.get("documents", 1) > 1:
        words.append(f"{settings['documents']} documents")
    if settings.get("lora_rank"):
        words.append(f"LoRA of rank {settings['lora_rank']}")
    if settings.get("offload"):
        words.append(f"offload {settings['offload']}")
    if settings.get("deterministic"):
        words.append("deterministic")
    if settings.get("compile", "none") != "none":
        words.append(f"torch.compile of {settings['compile']}")
    if figures.get("setting"):
        words.append("again beside Hugging Face")
    return ", ".join(word for word in words if word)


def is_training(record):
    return "compile" in record["settings"] or "batch_size" in record["settings"]


def rate(record):
    return record["figures"].get("tokens_per_second") if record else None


def training_rows(found):
    rows = []
    for name, record in found.items():
        if not is_training(record):
            continue
        figures = record["figures"]
        phases = figures.get("phase_seconds") or {}
        ratios = [ratio(record, found, kind) for kind in ("eager", "compiled")]
        side = "Hugging Face" if record["settings"].get("side") == "hf" else "xffl"
        rows.append([f"{side}: {described(record)}", number(rate(record), 4), percent(figures.get("model_flops_utilization")),
                     number(figures.get("peak_memory_gib")), *(number(phases.get(phase)) for phase in PHASES), *ratios, verdict(record)])
    return rows


def ratio(record, found, kind):
    """Ratio of a run's rate to Hugging Face's best rate for the same model."""
    if record["settings"].get("side") == "hf":
        return NOT_THERE
    others = [rate(other) for other in found.values() if other["settings"].get("side") == "hf" and is_training(other) and rate(other) and
              other["settings"].get("model") == record["settings"].get("model") and
              (other["settings"]["compile"] == "none") == (kind == "eager")]
    return number(rate(record) / max(others)) if others and rate(record) else NOT_THERE


def test_rows(found):
    return [[name, record["figures"].get("passed", NOT_THERE), record["figures"].get("failed", NOT_THERE),
             record["figures"].get("skipped", NOT_THERE), verdict(record)]
            for name, record in found.items() if record.get("tests") is not None or "errors" in record["figures"] or
            name in ("memcheck", "racecheck", "python_tests")]


def kernel_rows(found):
    return [[", ".join(filter(None, (line["name"], line.get("layer"), line.get("pass")))), line.get("shape", ""),
             number(line.get("milliseconds")), number(line.get("tflops")), number(line.get("gigabytes_per_second"))]
            for record in found.values() for line in record.get("kernels", [])]


def other_rows(found):
    rows = []
    for name, record in found.items():
        figures = record["figures"]
        shown = {"generate": [("tokens_per_second", "tokens/s")],
                 "load_and_save": [("check_gb_per_second", "GB/s hashed"), ("load_gb_per_second", "GB/s loaded"),
                                   ("save_gb_per_second", "GB/s saved")],
                 "hf_load_and_save": [("load_gb_per_second", "GB/s loaded"), ("save_gb_per_second", "GB/s saved")]}.get(name)
        if shown is not None:
            texts = [f"{number(figures[key])} {unit}" for key, unit in shown if key in figures]
            rows.append([name, ", ".join(texts) or NOT_THERE, verdict(record)])
        elif name in ("build", "gpu") or name.startswith(("rest_of_", "fault_")):
            rows.append([name, NOT_THERE, verdict(record)])
        elif name == "kernels" and not record.get("kernels"):
            rows.append([name, NOT_THERE, verdict(record)])
    return rows


def machine_line(records):
    if not records:
        return "No results."
    machine = records[-1].get("machine", {})
    device = machine.get("gpu") or machine.get("processor") or "no GPU"
    parts = [f"{device}", f"driver {machine['driver']}" if machine.get("driver") else "", f"{machine.get('cpus')} CPUs",
             f"xffl-train with torch {machine['torch']}" if machine.get("torch") else "",
             ", ".join(f"Python's {name} {version}" for name, version in (machine.get("python") or {}).items()),
             records[-1].get("at", "")[:10]]
    text = ", ".join(part for part in parts if part) + "."
    if machine.get("peak_tflops"):
        text += f" MFU refers to {number(machine['peak_tflops'])} TFLOP/s ({machine.get('peak_is')})."
    return text


def render(records):
    found = newest(records)
    header = ["settings", "tokens/s", "MFU", "peak GiB", *(f"{phase} s" for phase in PHASES), "of HF eager", "of HF compiled", "result"]
    parts = [machine_line(records)]
    for title, columns, rows in (("Training", header, training_rows(found)),
                                 ("Tests", ["program", "passed", "failed", "skipped", "result"], test_rows(found)),
                                 ("Kernels", ["kernel", "shape", "ms", "TFLOP/s", "GB/s"], kernel_rows(found)),
                                 ("Other", ["measurement", "figures", "result"], other_rows(found))):
        if rows:
            parts += [f"**{title}**", table(columns, rows)]
    return "\n\n".join(parts)
